//! Changes of the keys in a table's sets when the rules of an owner are replaced.

use std::collections::HashSet;

use cnikit_netlink::nfnetlink::NetfilterMessage;

use super::nftables::Nftables;
use crate::Result;
use crate::ruleset::desired_rules::DesiredRules;
use crate::ruleset::element::Element;
use crate::ruleset::installed_rule::InstalledRule;
use crate::ruleset::layout::TableLayout;
use crate::ruleset::owner_filter::OwnerFilter;
use crate::ruleset::table_state::TableState;

/// Changes of the keys in a table's sets when the rules of an owner are replaced.
#[derive(Default)]
pub(super) struct KeyChanges {
    /// The keys of the owner's new rules.
    desired: Vec<Element>,
    /// Those of `desired` that another rule may have already.
    pub(super) taken: Vec<Element>,
    /// The keys of other owners' rules, if the sets are filled again.
    refilled: Vec<Element>,
    /// The keys that no rule has any more.
    pub(super) dropped: Vec<Element>,
}

impl KeyChanges {
    /// Adds all keys, on the assumption that none of them exists.
    pub(super) fn assume_free(desired: &DesiredRules) -> Self {
        Self { desired: desired.keys.clone(), ..Self::default() }
    }

    /// The messages that add the missing keys. The kernel refuses the transaction if a key that was free exists by now
    /// (`EEXIST`). A key that was taken still exists, because the transaction is bound to the ruleset that was read.
    ///
    /// # Errors
    /// A key that the set cannot have.
    pub(super) fn additions(&self, layout: &TableLayout) -> Result<Vec<NetfilterMessage>> {
        let taken: HashSet<&Element> = self.taken.iter().collect();
        let mut messages = Vec::new();
        for element in &self.refilled {
            messages.push(element.addition(layout, false)?);
        }
        for element in &self.desired {
            if !taken.contains(element) {
                messages.push(element.addition(layout, true)?);
            }
        }
        Ok(messages)
    }
}

impl Nftables {
    /// The changes of the keys when an owner's rules are replaced by the desired ones. The sets are read, and for refilling or
    /// dropping keys also the rules of all owners.
    ///
    /// A key is dropped if only the owner's old rules have it. With `refill`, the sets may lack keys of installed rules, so those
    /// of other owners' rules are added too.
    ///
    /// # Errors
    /// A key that the set cannot have; the kernel's refusals.
    pub(super) fn key_changes(
        &self,
        state: &TableState<'_>,
        filter: &OwnerFilter,
        desired: &DesiredRules,
        refill: bool,
    ) -> Result<KeyChanges> {
        let layout = state.layout;
        let mut changes = KeyChanges::assume_free(desired);
        if layout.indexes.is_empty() {
            return Ok(changes);
        }
        let desired_keys: HashSet<&Element> = desired.keys.iter().collect();
        let owner_rules = state.owner_rules.concat();
        let mut old_keys = Element::possible_keys(layout, filter, &owner_rules);
        old_keys.retain(|key| !desired_keys.contains(key));
        if refill || !old_keys.is_empty() {
            let other_keys = self.keys_of_other_rules(layout, &owner_rules)?;
            let used_keys: HashSet<&Element> = other_keys.iter().collect();
            old_keys.retain(|key| !used_keys.contains(key));
            if refill {
                changes.refilled = other_keys;
            }
        }
        changes.taken = self.existing_elements(layout, &desired.keys)?;
        changes.dropped = self.existing_elements(layout, &old_keys)?;
        // A key that is added again for another rule exists when those of the owner are added.
        for key in &changes.refilled {
            if desired_keys.contains(key) {
                changes.taken.push(key.clone());
            }
        }
        Ok(changes)
    }

    /// The keys of all installed rules except the owner's.
    fn keys_of_other_rules(&self, layout: &TableLayout, owner_rules: &[InstalledRule]) -> Result<Vec<Element>> {
        let owner_handles: HashSet<u64> = owner_rules.iter().map(InstalledRule::handle).collect();
        let rules = self.rules_by_chain(layout, |_| true)?;
        let other_rules = rules.iter().flatten().filter(|rule| !owner_handles.contains(&rule.handle));
        Ok(Element::all_of(layout, other_rules))
    }
}

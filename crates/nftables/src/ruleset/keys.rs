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
    /// The changes of the keys when an owner's rules are replaced. `refill`: the sets may lack keys of installed rules, so the
    /// keys of all rules are added again.
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
        let owner_rules = state.owner_rules.concat();
        let desired_keys: HashSet<&Element> = desired.keys.iter().collect();
        let mut dropped = Element::possible_keys(layout, filter, &owner_rules);
        dropped.retain(|element| !desired_keys.contains(element));
        if refill || !dropped.is_empty() {
            let rules = self.rules_by_chain(layout, |_| true)?;
            let owner_handles: HashSet<u64> = owner_rules.iter().map(InstalledRule::handle).collect();
            let is_others = |rule: &&InstalledRule| !owner_handles.contains(&rule.handle);
            let other_keys = Element::all_of(layout, rules.iter().flatten().filter(is_others));
            let used: HashSet<&Element> = other_keys.iter().collect();
            dropped.retain(|element| !used.contains(element));
            if refill {
                changes.refilled = other_keys;
            }
        }
        changes.taken = self.existing_elements(layout, &desired.keys)?;
        changes.dropped = self.existing_elements(layout, &dropped)?;
        for element in &changes.refilled {
            if desired_keys.contains(element) {
                changes.taken.push(element.clone());
            }
        }
        Ok(changes)
    }
}

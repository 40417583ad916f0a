//! The state of a table before a change.

use std::collections::HashSet;

use cnikit_netlink::nfnetlink::NetfilterMessage;

use super::nftables::Nftables;
use crate::Result;
use crate::rule::set::Key;
use crate::ruleset::installed_rule::InstalledRule;
use crate::ruleset::keys::KeyChanges;
use crate::ruleset::owner_filter::OwnerFilter;
use crate::ruleset::table_state::TableState;

/// The state of a table before the rules of an owner are replaced. The caller may inspect it and refuse the change.
pub struct Snapshot<'a> {
    pub(super) nftables: &'a Nftables,
    pub(super) filter: OwnerFilter,
    pub(super) state: TableState<'a>,
    /// The messages that make what is missing of the layout.
    pub(super) repair: Vec<NetfilterMessage>,
    pub(super) keys: KeyChanges,
    pub(super) before: Vec<InstalledRule>,
    pub(super) begun: bool,
}

impl Snapshot<'_> {
    /// The rules that this owner has, for [`Nftables::put_back`].
    pub fn before(&self) -> &[InstalledRule] {
        &self.before
    }

    /// Whether an earlier attempt was refused after it had made a part of the changes. A caller that undoes the change puts back
    /// the rules of the snapshot before the first attempt.
    pub fn begun(&self) -> bool {
        self.begun
    }

    /// The rules of other owners that have the same key in this index as one of the desired rules. Rules are read only if the set
    /// has such a key. Many keys are assumed to be free at first: if one is not, the attempt fails and the next one finds the
    /// rules.
    ///
    /// # Errors
    /// The layout has no index of this name; the kernel's refusals.
    pub fn conflicting_rules(&self, set: &str) -> Result<Vec<InstalledRule>> {
        let index = self.state.layout.index_of(set)?;
        let mut taken: HashSet<&Key> = HashSet::new();
        for element in &self.keys.taken {
            if element.index == index {
                taken.insert(&element.key);
            }
        }
        if taken.is_empty() {
            return Ok(Vec::new());
        }
        let mut rules = self.nftables.rules_with(self.state.layout, index, |key| taken.contains(key))?;
        rules.retain(|rule| !self.filter.selects(rule));
        Ok(rules)
    }
}

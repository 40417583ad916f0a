//! What there is before a change.

use std::collections::HashSet;

use cnikit_netlink::nfnetlink::NetfilterMessage;

use super::nftables::Nftables;
use crate::Result;
use crate::rule::set::Key;
use crate::ruleset::installed_rule::InstalledRule;
use crate::ruleset::keys::Keys;
use crate::ruleset::owner_filter::OwnerFilter;
use crate::ruleset::table_state::TableState;

/// What there is before the rules of an owner are replaced. The caller may inspect it and refuse the change.
pub struct Snapshot<'a> {
    pub(super) nftables: &'a Nftables,
    pub(super) filter: OwnerFilter,
    pub(super) state: TableState<'a>,
    /// The messages that make the table as its layout wants it.
    pub(super) repair: Vec<NetfilterMessage>,
    pub(super) keys: Keys,
    pub(super) before: Vec<InstalledRule>,
    pub(super) begun: bool,
}

impl Snapshot<'_> {
    /// The rules of this owner, for [`Nftables::put_back`].
    pub fn before(&self) -> &[InstalledRule] {
        &self.before
    }

    /// Whether an earlier attempt has made a part of the changes, so that what there is now is neither what was before nor what is
    /// wanted. A caller that undoes the change puts back what there was before the first attempt.
    pub fn begun(&self) -> bool {
        self.begun
    }

    /// The rules of other owners that have the same key in this index as one of the rules that are wanted. Rules are read only if
    /// the set has such a key. Many keys are assumed to be free at first: if one is not, the attempt fails and the next one finds
    /// the rules.
    ///
    /// # Errors
    /// The layout has no index of this name; the kernel's refusals.
    pub fn conflicting_rules(&self, set: &str) -> Result<Vec<InstalledRule>> {
        let place = self.state.layout.index_of(set)?;
        let taken = self.keys.taken.iter().filter(|element| element.index == place).map(|element| &element.key);
        let taken: HashSet<&Key> = taken.collect();
        if taken.is_empty() {
            return Ok(Vec::new());
        }
        let mut found = self.nftables.rules_with(self.state.layout, place, |key| taken.contains(key))?;
        found.retain(|found| !self.filter.is_of(found));
        Ok(found)
    }
}

//! What stands before a change.

use std::collections::HashSet;

use crate::Result;
use crate::installed_rule::InstalledRule;
use crate::layout::TableLayout;
use crate::nftables::Nftables;
use crate::owner_filter::OwnerFilter;
use crate::set::{Element, Key};

/// What stands before an owner's rules are replaced: whoever looks at it may still refuse the change.
pub struct Snapshot<'a> {
    pub(crate) nftables: &'a Nftables,
    pub(crate) frame: &'a TableLayout,
    pub(crate) whose: &'a OwnerFilter,
    pub(crate) before: &'a [InstalledRule],
    /// The keys of the rules that are to be, as far as some rule may have them already; none as long as many are taken for free.
    pub(crate) taken: &'a [Element],
    pub(crate) begun: bool,
}

impl Snapshot<'_> {
    /// The rules of this owner, for [`Nftables::put_back`].
    pub fn before(&self) -> &[InstalledRule] {
        self.before
    }

    /// Whether an earlier attempt has made a part of the changes, so that what stands is neither what was before nor what is to
    /// be. Whoever undoes the change goes back to what stood before the first attempt.
    pub fn begun(&self) -> bool {
        self.begun
    }

    /// The rules of others that have a key in this index that a rule has too that is to be. Only where the set has one are
    /// the rules looked at. Many keys are taken for free at first: whoever judges is asked again if one is not.
    ///
    /// # Errors
    /// The frame has no index of this name; the kernel's.
    pub fn conflicting_rules(&self, set: &str) -> Result<Vec<InstalledRule>> {
        let place = self.frame.index_of(set)?;
        let taken = self.taken.iter().filter(|element| element.index == place).map(|element| &element.key);
        let taken: HashSet<&Key> = taken.collect();
        if taken.is_empty() {
            return Ok(Vec::new());
        }
        let mut found = self.nftables.rules_with(self.frame, place, |key| taken.contains(key))?;
        found.retain(|found| !self.whose.is_of(found));
        Ok(found)
    }
}

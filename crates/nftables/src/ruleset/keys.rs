//! The keys of an owner's rules in the sets of a table.

use std::collections::HashSet;

use cnikit_netlink::nfnetlink::NetfilterMessage;

use super::nftables::Nftables;
use crate::Result;
use crate::ruleset::element::Element;
use crate::ruleset::installed_rule::InstalledRule;
use crate::ruleset::layout::TableLayout;
use crate::ruleset::owned_chain::Wanted;
use crate::ruleset::owner_filter::OwnerFilter;
use crate::ruleset::table_state::TableState;

/// What becomes of the keys of rules when those of an owner are replaced.
#[derive(Default)]
pub(super) struct Keys {
    /// Those of his rules.
    wanted: Vec<Element>,
    /// Those of them that some rule may have already.
    pub(super) taken: Vec<Element>,
    /// Those of the rules of others, where the indexes are filled anew.
    filled: Vec<Element>,
    /// Those that no rule has any more.
    pub(super) dropped: Vec<Element>,
}

impl Keys {
    /// All of them free.
    pub(super) fn free(wanted: &Wanted) -> Self {
        Self { wanted: wanted.keys.clone(), ..Self::default() }
    }

    /// The messages that add what is missing. What was free must still be (`EEXIST`); what was taken is there, as long as the
    /// ruleset is the one that was looked at.
    pub(super) fn additions(&self, layout: &TableLayout) -> Result<Vec<NetfilterMessage>> {
        let taken: HashSet<&Element> = self.taken.iter().collect();
        let filled = self.filled.iter().map(|element| element.addition(layout, false));
        let missing = self.wanted.iter().filter(|element| !taken.contains(element));
        filled.chain(missing.map(|element| element.addition(layout, true))).collect()
    }
}

impl Nftables {
    /// What becomes of the keys of rules. `anew`: what stands of the indexes cannot be relied on.
    pub(super) fn keys_of(
        &self,
        state: &TableState<'_>,
        filter: &OwnerFilter,
        wanted: &Wanted,
        anew: bool,
    ) -> Result<Keys> {
        let layout = state.layout;
        let mut keys = Keys::free(wanted);
        if layout.indexes.is_empty() {
            return Ok(keys);
        }
        let held = state.held.concat();
        let mut gone = Element::known_by(layout, filter, &held);
        let wished: HashSet<&Element> = wanted.keys.iter().collect();
        gone.retain(|element| !wished.contains(element));
        if anew || !gone.is_empty() {
            let all = self.held(layout, |_| true)?;
            let ours: HashSet<u64> = held.iter().map(InstalledRule::handle).collect();
            let others = Element::all_of(layout, all.iter().flatten().filter(|found| !ours.contains(&found.handle)));
            let of_others: HashSet<&Element> = others.iter().collect();
            keys.dropped = gone.into_iter().filter(|element| !of_others.contains(element)).collect();
            keys.filled = if anew { others } else { Vec::new() };
        }
        keys.taken = self.existing_elements(layout, &wanted.keys)?;
        keys.dropped = self.existing_elements(layout, &keys.dropped)?;
        keys.taken.extend(keys.filled.iter().filter(|element| wished.contains(element)).cloned());
        Ok(keys)
    }
}

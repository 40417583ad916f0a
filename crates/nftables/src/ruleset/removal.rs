//! Removes the rules of owners, with their keys and chains.

use std::cell::Cell;
use std::collections::{HashSet, VecDeque};

use cnikit_netlink::nfnetlink::NetfilterMessage;

use super::attempts::Attempts;
use super::nftables::{Nftables, is_lacking};
use crate::Result;
use crate::ruleset::element::Element;
use crate::ruleset::installed_rule::InstalledRule;
use crate::ruleset::layout::TableLayout;
use crate::ruleset::message;
use crate::ruleset::owner_filter::OwnerFilter;
use crate::ruleset::refill::Refill;
use crate::wire::batch::Batch;

/// A chain or a rule to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// A chain with its rules.
    Chain(String),
    /// A rule, by the handle that the kernel gave it.
    Rule {
        /// Its chain.
        chain: String,
        /// [`InstalledRule::handle`].
        handle: u64,
        /// The rule as an error names it.
        shown: String,
    },
}

impl Nftables {
    /// Deletes chains and rules of a table in one transaction, whichever program made them, if the ruleset still has this
    /// generation.
    ///
    /// # Errors
    /// Another program has changed the ruleset (`ERESTART`); the kernel's refusals.
    pub fn delete(&self, layout: &TableLayout, generation: u32, deletions: &[Deletion]) -> Result<()> {
        let mut messages = Vec::new();
        for deletion in deletions {
            messages.push(match deletion {
                Deletion::Chain(name) => message::delete_chain(layout, name),
                Deletion::Rule { chain, handle, shown } => message::delete_rule(layout, chain, *handle, shown),
            });
        }
        let batch = Batch { guard: Some(generation), messages, ..Batch::default() };
        batch.send(&mut self.socket.borrow_mut()).map_err(|(_, error)| error)
    }

    /// Removes the rules of this owner and the owner's chains, and returns how many rules there were in the shared chains. The
    /// table and its shared chains stay, and are not made; a chain that has or is the target of another owner's rule stays too.
    ///
    /// If the layout has chains of the owner and none of them exists, the rules of other owners are not read.
    ///
    /// # Errors
    /// The kernel's refusals.
    pub fn release(&self, layout: &TableLayout, filter: impl Into<OwnerFilter>) -> Result<usize> {
        if !layout.owned_chains.is_empty() && !self.has_owned_chains(layout)? {
            return Ok(0);
        }
        self.remove(layout, &filter.into(), |_| true)
    }

    /// Removes the rules that the filter selects, and the chains of their owners, except those for which `keep` is true. `keep`
    /// gets the text by which a rule was selected: its owner, or its comment if it names no owner. Returns how many were removed.
    ///
    /// # Errors
    /// The kernel's refusals.
    pub fn sweep(
        &self,
        layout: &TableLayout,
        filter: impl Into<OwnerFilter>,
        keep: impl Fn(&str) -> bool,
    ) -> Result<usize> {
        self.remove(layout, &filter.into(), |text| !keep(text))
    }

    fn remove(&self, layout: &TableLayout, filter: &OwnerFilter, is_removed: impl Fn(&str) -> bool) -> Result<usize> {
        let has_refilled = Cell::new(false);
        match self.remove_with(layout, filter, &is_removed, Some(&has_refilled)) {
            // The kernel refused to flush and fill chains again, for whatever reason: delete the rules one by one.
            Err(_) if has_refilled.get() => self.remove_with(layout, filter, &is_removed, None),
            removed => removed,
        }
    }

    /// Removes rules, keys and chains in attempts. With `has_refilled` chains may be flushed and filled again, and it records
    /// whether one was.
    fn remove_with(
        &self,
        layout: &TableLayout,
        filter: &OwnerFilter,
        is_removed: impl Fn(&str) -> bool,
        has_refilled: Option<&Cell<bool>>,
    ) -> Result<usize> {
        let selects = |rule: &InstalledRule| {
            filter.matching_text(&rule.label()).is_some_and(&is_removed) && filter.selects_addresses(rule)
        };
        let mut removed = 0;
        let mut attempts = Attempts::new();
        loop {
            let removals = self.removals(layout, filter, selects, has_refilled.is_some())?;
            if let Some(has_refilled) = has_refilled
                && !removals.refills.is_empty()
            {
                has_refilled.set(true);
            }
            // Rules that other programs removed meanwhile are not counted; those that an earlier attempt removed are.
            removed = if attempts.begun { removed.max(removals.rules.len()) } else { removals.rules.len() };
            let batch = self.removal_batch(layout, filter, removals)?;
            if attempts.send(self, &batch)? {
                return Ok(removed);
            }
        }
    }

    fn removal_batch(&self, layout: &TableLayout, filter: &OwnerFilter, removals: Removals) -> Result<Batch> {
        let mut messages = Vec::new();
        for rule in &removals.rules {
            if !removals.refills.iter().any(|refill| refill.chain == rule.chain) {
                messages.push(rule.deletion(layout));
            }
        }
        for element in &removals.elements {
            messages.push(element.deletion(layout)?);
        }
        messages.extend(self.chain_deletions(layout, filter, removals.rules)?);
        let first = removals.refills.into_iter().map(|refill| refill.messages).collect();
        Ok(Batch { guard: removals.guard, first, messages })
    }

    /// The rules to remove, and the keys that no other rule has. `may_refill`: chains may be flushed and filled again.
    fn removals(
        &self,
        layout: &TableLayout,
        filter: &OwnerFilter,
        selects: impl Fn(&InstalledRule) -> bool,
        may_refill: bool,
    ) -> Result<Removals> {
        if layout.indexes.is_empty() {
            let rules = self.owner_rules(layout, filter)?.into_iter().flatten().filter(selects).collect();
            return Ok(Removals { rules, ..Removals::default() });
        }
        let generation = match self.generation(layout) {
            Err(error) if is_lacking(&error) => return Ok(Removals::default()),
            generation => generation?,
        };
        let by_chain = self.rules_by_chain(layout, |_| true)?;
        let refills = if may_refill { self.refills(layout, &by_chain, &selects) } else { Vec::new() };
        let mut rules = Vec::new();
        let mut remaining = Vec::new();
        for rule in by_chain.into_iter().flatten() {
            if selects(&rule) {
                rules.push(rule);
            } else {
                remaining.push(rule);
            }
        }
        let used: HashSet<Element> = Element::possible_keys(layout, filter, &remaining).into_iter().collect();
        let mut unused = Element::possible_keys(layout, filter, &rules);
        unused.retain(|element| !used.contains(element));
        let elements = self.existing_elements(layout, &unused)?;
        let is_guarded = !elements.is_empty() || !refills.is_empty();
        Ok(Removals { rules, elements, guard: is_guarded.then_some(generation), refills })
    }

    /// The messages that delete the owner's chains: those of the layout, and those that the removed rules jump to.
    fn chain_deletions(
        &self,
        layout: &TableLayout,
        filter: &OwnerFilter,
        mut removed: Vec<InstalledRule>,
    ) -> Result<Vec<NetfilterMessage>> {
        let mut queue: VecDeque<String> = layout.owned_chains.iter().map(|chain| chain.name.clone()).collect();
        queue.extend(removed.iter().filter_map(InstalledRule::target).map(str::to_owned));
        let mut seen = HashSet::new();
        let mut messages = Vec::new();
        while let Some(name) = queue.pop_front() {
            if !seen.insert(name.clone()) || layout.chains.iter().any(|chain| chain.name == name) {
                continue;
            }
            let owned = self.owned_chain(layout, &name)?;
            if owned.is_removed_with(&removed, layout, filter) {
                messages.push(message::delete_chain(layout, &name));
                queue.extend(owned.rules.iter().filter_map(InstalledRule::target).map(str::to_owned));
                removed.extend(owned.rules);
            }
        }
        Ok(messages)
    }
}

/// The rules to remove, with their keys.
#[derive(Default)]
struct Removals {
    rules: Vec<InstalledRule>,
    /// The keys that no other rule has.
    elements: Vec<Element>,
    /// The generation of the ruleset that was read, if another program must not have changed it.
    guard: Option<u32>,
    /// The chains that are flushed and filled again.
    refills: Vec<Refill>,
}

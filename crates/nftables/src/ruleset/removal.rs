//! Rules of owners removed, with their keys and chains.

use std::cell::Cell;
use std::collections::HashSet;

use cnikit_netlink::nfnetlink::NetfilterMessage;

use super::attempts::Attempts;
use super::nftables::{Nftables, is_lacking};
use crate::Result;
use crate::ruleset::element::Element;
use crate::ruleset::installed_rule::InstalledRule;
use crate::ruleset::layout::TableLayout;
use crate::ruleset::message;
use crate::ruleset::owner_filter::OwnerFilter;
use crate::wire::batch::Batch;

/// A chain or a rule to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// A chain, with its rules.
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
    /// Deletes chains and rules of a table in one transaction, whoever made them, if the ruleset still has the number
    /// `generation`.
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

    /// Removes the rules of this owner and his chains, and says how many rules led to them or stood alone. The frame
    /// stays, and is not made either; so does a chain that a rule of somebody else's is in or leads to.
    ///
    /// Where the frame has chains of the owner's and none of them stands, the rules of others are not looked at.
    pub fn release(&self, layout: &TableLayout, filter: impl Into<OwnerFilter>) -> Result<usize> {
        if !layout.own.is_empty() && !self.has_own_chains(layout)? {
            return Ok(0);
        }
        self.remove(layout, &filter.into(), |_| true)
    }

    /// Removes the rules that are meant, and the chains of their owners, unless `keep` holds of the text by which a rule
    /// was found: its comment, or the owner it names. Says how many.
    pub fn sweep(
        &self,
        layout: &TableLayout,
        filter: impl Into<OwnerFilter>,
        keep: impl Fn(&str) -> bool,
    ) -> Result<usize> {
        self.remove(layout, &filter.into(), |found| !keep(found))
    }

    fn remove(&self, layout: &TableLayout, filter: &OwnerFilter, goes: impl Fn(&str) -> bool) -> Result<usize> {
        let refilled = Cell::new(false);
        match self.remove_by(layout, filter, &goes, Some(&refilled)) {
            // Whatever the kernel has against such a transaction: one by one, rules can be removed.
            Err(_) if refilled.get() => self.remove_by(layout, filter, &goes, None),
            removed => removed,
        }
    }

    /// `refilled`: chains may be emptied and filled again, and whether one was to be is noted there.
    fn remove_by(
        &self,
        layout: &TableLayout,
        filter: &OwnerFilter,
        goes: impl Fn(&str) -> bool,
        refilled: Option<&Cell<bool>>,
    ) -> Result<usize> {
        let mut removed = 0;
        let mut attempts = Attempts::new();
        let meant = |found: &InstalledRule| filter.finds(&found.label()).is_some_and(&goes) && filter.means(found);
        loop {
            let Going { rules: going, elements, guard, refills } =
                self.going(layout, filter, meant, refilled.is_some())?;
            if let Some(refilled) = refilled {
                refilled.set(refilled.get() || !refills.is_empty());
            }
            // Rules that other programs removed meanwhile are not counted; those that an earlier attempt removed are.
            removed = if attempts.begun { removed.max(going.len()) } else { going.len() };
            let mut messages = Vec::new();
            for found in &going {
                if !refills.iter().any(|(chain, _)| *chain == found.chain) {
                    messages.push(found.deletion(layout));
                }
            }
            for element in &elements {
                messages.push(element.deletion(layout)?);
            }
            messages.extend(self.chains_of(layout, filter, going)?);
            let first = refills.into_iter().map(|(_, messages)| messages).collect();
            if attempts.send(self, &Batch { guard, first, messages })? {
                return Ok(removed);
            }
        }
    }

    /// The rules that go, and the keys that no rule has then. `refill`: chains may be emptied and filled again.
    fn going(
        &self,
        layout: &TableLayout,
        filter: &OwnerFilter,
        meant: impl Fn(&InstalledRule) -> bool,
        refill: bool,
    ) -> Result<Going> {
        if layout.indexes.is_empty() {
            let going: Vec<InstalledRule> = self.held_by(layout, filter)?.into_iter().flatten().filter(meant).collect();
            return Ok(Going { rules: going, ..Going::default() });
        }
        let generation = match self.generation(layout) {
            Ok(generation) => generation,
            Err(error) if is_lacking(&error) => return Ok(Going::default()),
            Err(error) => return Err(error),
        };
        let held = self.held(layout, |_| true)?;
        let refills = if refill { self.refills(layout, &held, &meant) } else { Vec::new() };
        let (going, rest): (Vec<InstalledRule>, Vec<InstalledRule>) = held.into_iter().flatten().partition(&meant);
        let kept: HashSet<Element> = Element::known_by(layout, filter, &rest).into_iter().collect();
        let mut elements = Element::known_by(layout, filter, &going);
        elements.retain(|element| !kept.contains(element));
        let elements = self.existing_elements(layout, &elements)?;
        let guard = (!elements.is_empty() || !refills.is_empty()).then_some(generation);
        Ok(Going { rules: going, elements, guard, refills })
    }

    /// The messages that remove the owner's chains: those of the frame, and those to which the rules that go lead.
    fn chains_of(
        &self,
        layout: &TableLayout,
        filter: &OwnerFilter,
        mut leaving: Vec<InstalledRule>,
    ) -> Result<Vec<NetfilterMessage>> {
        let mut names: Vec<String> = layout.own.iter().map(|own| own.name.clone()).collect();
        names.extend(leaving.iter().filter_map(InstalledRule::target).map(str::to_owned));
        let (mut messages, mut next) = (Vec::new(), 0);
        while let Some(name) = names.get(next).cloned() {
            next += 1;
            if names[..next - 1].contains(&name) || layout.chains.iter().any(|chain| chain.name == name) {
                continue;
            }
            let own = self.own(layout, &name)?;
            if own.goes_with(&leaving, layout, filter) {
                messages.push(message::delete_chain(layout, &name));
                names.extend(own.rules.iter().filter_map(InstalledRule::target).map(str::to_owned));
                leaving.extend(own.rules);
            }
        }
        Ok(messages)
    }
}

/// What goes when an owner's rules are removed.
#[derive(Default)]
struct Going {
    rules: Vec<InstalledRule>,
    /// The keys that no rule has then.
    elements: Vec<Element>,
    /// Where others must not have changed anything: the number of the ruleset that was looked at.
    guard: Option<u32>,
    /// Chains that are emptied and filled again instead, each with its transaction.
    refills: Vec<(&'static str, Vec<NetfilterMessage>)>,
}

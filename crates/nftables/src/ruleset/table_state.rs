//! What stands of a frame, and what is missing.

use cnikit_netlink::attribute::number;
use cnikit_netlink::nfnetlink::{HEADERS, NetfilterMessage};

use crate::Result;
use crate::rule::compile::{compile, look};
use crate::rule::types::Rule;
use crate::ruleset::hook::{InstalledChain, refuse_other_hook};
use crate::ruleset::installed_rule::InstalledRule;
use crate::ruleset::layout::{Chain, TableLayout};
use crate::ruleset::message::{self, body, place};
use crate::ruleset::owned_chain::{OwnedChain, Wanted, listed, replacement_messages, same};
use crate::ruleset::owner_filter::OwnerFilter;
use crate::wire::attribute::object;
use crate::wire::expression::Expression;

/// The table does nothing, by its owner's will.
#[doc(alias = "NFT_TABLE_F_DORMANT")]
const DORMANT: u32 = 1;

/// A frame as the kernel has it.
#[derive(Debug)]
pub(crate) struct TableState<'a> {
    pub(crate) layout: &'a TableLayout,
    /// The number of the ruleset before anything below was read.
    pub(crate) generation: u32,
    pub(crate) table: TableStatus,
    /// In the layout's order; `None`: it is missing.
    pub(crate) chains: Vec<Option<InstalledChain>>,
    /// The rules of the chains that begin with fixed ones, in the layout's order.
    pub(crate) fixed: Vec<Vec<InstalledRule>>,
    /// By chain that holds rules, in the layout's order: our rules.
    pub(crate) held: Vec<Vec<InstalledRule>>,
    /// In the layout's order: whether the set of the index is there.
    pub(crate) sets: Vec<bool>,
    /// The owner's chains, in the layout's order.
    pub(crate) own: Vec<OwnedChain>,
}

/// How it is with the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableStatus {
    Missing,
    Dormant,
    Working,
}

impl TableStatus {
    /// Reads the answer to a question for a table.
    pub(crate) fn read(answer: Option<&[u8]>) -> Self {
        let flags = |message: &[u8]| message.get(HEADERS..).and_then(|list| number(list, object::TABLE_FLAGS));
        match answer {
            None => TableStatus::Missing,
            Some(message) if flags(message).unwrap_or(0) & DORMANT != 0 => TableStatus::Dormant,
            Some(_) => TableStatus::Working,
        }
    }
}

impl TableState<'_> {
    /// The messages that make the frame whole; none if it is.
    ///
    /// # Errors
    /// A chain of the right name hangs elsewhere: its hook cannot be changed, and it is not ours to remove.
    pub(crate) fn repair(&self) -> Result<Vec<NetfilterMessage>> {
        let mut messages = Vec::new();
        if self.table != TableStatus::Working {
            messages.push(message::new_table(self.layout)?);
        }
        for (chain, found) in self.layout.chains.iter().zip(&self.chains) {
            match found {
                None => messages.push(message::new_chain(self.layout, chain)?),
                Some(found) => refuse_other_hook(self.layout, chain.name, chain.hook, found)?,
            }
        }
        for (number, (index, _)) in (1..).zip(self.layout.indexes.iter().zip(&self.sets).filter(|(_, there)| !**there))
        {
            messages.push(message::new_set(self.layout, &index.set, number)?);
        }
        for ((chain, rules), found) in self.layout.prologue.iter().zip(&self.fixed) {
            messages.extend(self.lead(chain, rules, found)?);
        }
        Ok(messages)
    }

    /// Has a chain begin with these rules. Where they stand in a wrong place they go, and what is not ours stays.
    fn lead(&self, chain: &str, rules: &[Rule], found: &[InstalledRule]) -> Result<Vec<NetfilterMessage>> {
        let (wanted, instead) = (all(rules, self.layout)?, all(self.layout.instead_in(chain), self.layout)?);
        let stands_in = |found: &InstalledRule| {
            instead.iter().any(|instead| !wanted.contains(instead) && found.same_expressions(instead))
        };
        let past = self.past(chain, found)?;
        if leads(&wanted, found) && !found.iter().any(stands_in) {
            return Ok(past.iter().map(|found| found.deletion(self.layout)).collect());
        }
        let goes = |found: &&InstalledRule| stands_in(found) || past.contains(found);
        let misplaced =
            found.iter().filter(|found| wanted.iter().any(|wanted| found.same_expressions(wanted)) || goes(found));
        let removed = misplaced.map(|found| found.deletion(self.layout));
        // Each goes before all others, so that the last one added is the first.
        let added = rules.iter().rev().map(|rule| {
            Ok(message::prepend_rule(self.layout, chain, &body(rule, self.layout, None)?, &rule.to_string()))
        });
        removed.map(Ok).chain(added).collect()
    }

    /// The rules of a chain that violate one of its jump conditions.
    fn past<'f>(&self, chain: &str, found: &'f [InstalledRule]) -> Result<Vec<&'f InstalledRule>> {
        let mut past = Vec::new();
        for gate in self.layout.jump_conditions.iter().filter(|gate| gate.from.contains(&chain)) {
            let by = look(&gate.required)?;
            let leads = |found: &&InstalledRule| {
                found.target().is_some_and(|to| gate.to.contains(&to)) && !found.contains_expressions(&by)
            };
            past.extend(found.iter().filter(leads));
        }
        Ok(past)
    }

    /// The messages that make the owner's chains and fill them, in the layout's order.
    pub(crate) fn own_changes(&self, filter: &OwnerFilter, wanted: &Wanted) -> Result<Vec<NetfilterMessage>> {
        let pairs = || self.own.iter().zip(&wanted.own);
        let made = pairs().map(|(own, wanted)| own.creation(!wanted.is_empty(), self.layout, filter));
        let mut messages: Vec<_> = made.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
        // All are there before the first rule leads to one.
        for (own, wanted) in pairs().filter(|(_, wanted)| !wanted.is_empty()) {
            messages.extend(replacement_messages(&own.rules, wanted, self.layout, &own.name));
        }
        Ok(messages)
    }

    /// The messages that remove the owner's chains that are not wanted any more, once his rules do not lead there.
    pub(crate) fn own_removals(&self, filter: &OwnerFilter, wanted: &Wanted) -> Vec<NetfilterMessage> {
        let changed = self.held.iter().zip(&wanted.held).filter(|(held, wanted)| !same(held, wanted));
        let mut leaving: Vec<InstalledRule> = changed.flat_map(|(held, _)| held).cloned().collect();
        let mut messages = Vec::new();
        for (own, _) in self.own.iter().zip(&wanted.own).filter(|(_, wanted)| wanted.is_empty()) {
            if own.goes_with(&leaving, self.layout, filter) {
                messages.push(message::delete_chain(self.layout, &own.name));
                leaving.extend(own.rules.clone());
            }
        }
        messages
    }

    /// What is missing or different, each a sentence.
    pub(crate) fn drifts(&self) -> Result<Vec<String>> {
        match self.table {
            TableStatus::Missing => return Ok(vec![format!("{} is missing", self.layout)]),
            TableStatus::Dormant => return Ok(vec![format!("{} is dormant, its rules do nothing", self.layout)]),
            TableStatus::Working => {}
        }
        let chains = self.layout.chains.iter().zip(&self.chains);
        let mut drifts: Vec<_> = chains.filter_map(|(chain, found)| self.chain_drift(chain, found.as_ref())).collect();
        for ((chain, rules), found) in self.layout.prologue.iter().zip(&self.fixed) {
            if !leads(&all(rules, self.layout)?, found) && !self.serves(chain, found)? {
                drifts.push(self.lead_drift(chain, rules, found));
            }
            let astray = |found: &&InstalledRule| {
                let (target, place) = (found.target().unwrap_or_default(), place(self.layout, chain));
                format!("rule `{found}` in {place} leads to {target} what is not for it")
            };
            drifts.extend(self.past(chain, found)?.iter().map(astray));
        }
        if self.looks_up()? {
            let missing = self.layout.indexes.iter().zip(&self.sets).filter(|(_, there)| !**there);
            drifts.extend(missing.map(|(index, _)| format!("{} is missing", index.set.shown(self.layout))));
        }
        for (wanted, own) in self.layout.own.iter().zip(&self.own) {
            drifts.extend(own.drift(wanted, self.layout)?);
        }
        Ok(drifts)
    }

    /// Whether a chain begins with what serves as well as ours.
    fn serves(&self, chain: &str, found: &[InstalledRule]) -> Result<bool> {
        let instead = all(self.layout.instead_in(chain), self.layout)?;
        Ok(!instead.is_empty() && leads(&instead, found))
    }

    /// Whether packets meet the indexes: nowhere does another program's way around them stand.
    pub(crate) fn looks_up(&self) -> Result<bool> {
        for ((chain, _), found) in self.layout.prologue.iter().zip(&self.fixed) {
            if self.serves(chain, found)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn chain_drift(&self, chain: &Chain, found: Option<&InstalledChain>) -> Option<String> {
        let Some(found) = found else {
            return Some(format!("{} is missing", place(self.layout, chain.name)));
        };
        refuse_other_hook(self.layout, chain.name, chain.hook, found).err().map(|error| {
            let why = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            format!("{}: {why}", error.object)
        })
    }

    fn lead_drift(&self, chain: &str, rules: &[Rule], found: &[InstalledRule]) -> String {
        let wanted = listed(rules.iter().map(ToString::to_string));
        let found = listed(found.iter().take(rules.len()).map(ToString::to_string));
        format!("{} begins with {found}, wanted {wanted}", place(self.layout, chain))
    }
}

/// Whether a chain begins with what is wanted.
fn leads(wanted: &[Vec<Expression>], found: &[InstalledRule]) -> bool {
    wanted.len() <= found.len() && wanted.iter().zip(found).all(|(wanted, found)| found.same_expressions(wanted))
}

fn all(rules: &[Rule], layout: &TableLayout) -> Result<Vec<Vec<Expression>>> {
    rules.iter().map(|rule| compile(rule, layout.family)).collect()
}

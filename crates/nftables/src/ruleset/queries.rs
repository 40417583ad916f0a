//! What the kernel has of a table: chains, rules and keys, and how they differ from what is wanted.

use std::collections::{HashMap, HashSet, VecDeque};

use cnikit_netlink::attribute::text;
use cnikit_netlink::nfnetlink::HEADERS;

use super::nftables::{Nftables, generation, is_lacking, lacking};
use crate::Result;
use crate::rule::compile::compile;
use crate::rule::set::Key;
use crate::ruleset::element::Element;
use crate::ruleset::hook::InstalledChain;
use crate::ruleset::installed_rule::InstalledRule;
use crate::ruleset::layout::TableLayout;
use crate::ruleset::message::{self, place};
use crate::ruleset::owned_chain::{OwnedChain, Rules};
use crate::ruleset::owner_filter::OwnerFilter;
use crate::ruleset::table_state::{TableState, TableStatus};
use crate::wire::attribute::object;
use crate::wire::userdata::Label;

/// The most questions at once: their answers have to fit into what a socket keeps until they are read.
const QUESTIONS: usize = 250;

/// Whose the chains of a name are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChainOwner {
    /// There are none.
    NoChain,
    /// The owner's that was asked for, or they are empty.
    This,
    /// Somebody else's.
    Other,
}

impl Nftables {
    /// What of the frame and the rules is missing or different, each a sentence: wanted, found, where.
    ///
    /// A rule of this owner that is not among `rules` is named too. Rules of others are not looked at.
    pub fn verify(
        &self,
        layout: &TableLayout,
        filter: impl Into<OwnerFilter>,
        rules: impl Into<Rules>,
    ) -> Result<Vec<String>> {
        let (filter, rules) = (filter.into(), rules.into());
        // Whoever is not registered is looked for all the same: that he is not may be what is wrong.
        let state = self.state(layout, &filter, |_| Ok(false))?;
        let mut drifts = state.drifts()?;
        for ((chain, rules), held) in rules.by_chain(layout)?.into_iter().zip(&state.held) {
            // By what a rule does and says, the places of those that do and say so.
            let mut found: HashMap<_, VecDeque<usize>> = HashMap::new();
            for (place, held) in held.iter().enumerate() {
                found.entry((held.expressions().to_vec(), held.comment())).or_default().push_back(place);
            }
            let mut extra: Vec<Option<&InstalledRule>> = held.iter().map(Some).collect();
            for rule in rules {
                let wanted = (compile(rule, layout.family)?, rule.comment.as_deref());
                match found.get_mut(&wanted).and_then(VecDeque::pop_front) {
                    Some(place) => extra[place] = None,
                    None => drifts.push(format!("rule `{rule}` is missing from {}", place(layout, chain))),
                }
            }
            let unwanted = |found| format!("rule `{found}` in {} is not wanted", place(layout, chain));
            drifts.extend(extra.into_iter().flatten().map(unwanted));
        }
        if state.looks_up()? && state.sets.iter().all(|there| *there) {
            // What is missing of the rules is named already, and its keys say nothing more.
            let missing = self.unregistered(layout, &filter, state.held.iter().flatten())?;
            drifts.extend(missing.iter().map(|element| format!("{} is missing", element.shown(layout))));
        }
        Ok(drifts)
    }

    /// The rules that are meant in the chains that hold them, in their order. Without the table or a chain there are
    /// none.
    pub fn rules(&self, layout: &TableLayout, filter: impl Into<OwnerFilter>) -> Result<Vec<InstalledRule>> {
        let filter = filter.into();
        Ok(self.held_by(layout, &filter)?.into_iter().flatten().collect())
    }

    /// Whether this owner may have rules: a chain that holds any is there, and no register that can be relied on denies it.
    pub fn may_have_rules(&self, layout: &TableLayout, filter: &OwnerFilter) -> Result<bool> {
        Ok(self.has_any(layout, &layout.rule_chains)? && !self.is_unregistered(&self.table_state(layout)?, filter)?)
    }

    /// The rules that have one of these keys in an index, whoever wrote them. They are looked at only where the set has one,
    /// or cannot be relied on; without the table, or without `nf_tables`, there are none.
    ///
    /// # Errors
    /// The frame has no index of this name; the kernel's.
    pub fn rules_with_keys(&self, layout: &TableLayout, set: &str, keys: &[Key]) -> Result<Vec<InstalledRule>> {
        let index = layout.index_of(set)?;
        if !self.has_any(layout, &layout.indexes[index].chains)? {
            return Ok(Vec::new());
        }
        let elements: Vec<Element> = keys.iter().map(|key| Element { index, key: key.clone() }).collect();
        // A frame that somebody has made otherwise is wrong for whoever writes; here it only makes the look longer.
        let relied_on = self.table_state(layout).and_then(|state| state.repair());
        if relied_on.is_ok_and(|repair| repair.is_empty()) && self.existing_elements(layout, &elements)?.is_empty() {
            return Ok(Vec::new());
        }
        let keys: HashSet<&Key> = keys.iter().collect();
        self.rules_with(layout, index, |key| keys.contains(key))
    }

    /// The rules that have such a key in this index.
    pub(crate) fn rules_with(
        &self,
        layout: &TableLayout,
        index: usize,
        wanted: impl Fn(&Key) -> bool,
    ) -> Result<Vec<InstalledRule>> {
        let index = &layout.indexes[index];
        let mut with = Vec::new();
        for chain in &index.chains {
            let found = self.rules_of(layout, chain, |_| true)?.into_iter();
            with.extend(found.filter(|found| index.key_of(found).is_some_and(|key| wanted(&key))));
        }
        Ok(with)
    }

    fn has_any(&self, layout: &TableLayout, chains: &[&str]) -> Result<bool> {
        for chain in chains {
            if self.has(layout, chain)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether any of the owner's chains of the frame is there, whoever made it.
    pub fn has_own_chains(&self, layout: &TableLayout) -> Result<bool> {
        let own: Vec<&str> = layout.own.iter().map(|own| own.name.as_str()).collect();
        self.has_any(layout, &own)
    }

    /// How it is with the chains that the frame wants for this owner: names are made of identities, and two may read alike.
    pub fn chain_owner(&self, layout: &TableLayout, filter: impl Into<OwnerFilter>) -> Result<ChainOwner> {
        let (filter, mut claim) = (filter.into(), ChainOwner::NoChain);
        for own in layout.own.iter().filter(|own| !own.rules.is_empty()) {
            match self.own(layout, &own.name)? {
                own if own.is_anothers(&filter) => return Ok(ChainOwner::Other),
                own if own.found.is_some() => claim = ChainOwner::This,
                _ => {}
            }
        }
        Ok(claim)
    }

    /// Whether a table has this chain, whoever made it; in a kernel without `nf_tables` none has.
    pub fn has(&self, table: &TableLayout, chain: &str) -> Result<bool> {
        match self.ask(&[message::chain(table, chain)]) {
            Ok(answers) => Ok(answers.iter().any(Option::is_some)),
            Err(error) if is_lacking(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether there is any rule in a chain.
    pub fn has_rules(&self, table: &TableLayout, chain: &str) -> Result<bool> {
        Ok(!self.rules_of(table, chain, |_| true)?.is_empty())
    }

    /// A table's chains by their names, whoever made them; in a kernel without `nf_tables` there is none.
    pub fn chains(&self, table: &TableLayout) -> Result<Vec<(String, InstalledChain)>> {
        let chain = |message: &Vec<u8>| {
            let list = message.get(HEADERS..)?;
            let here = text(list, object::CHAIN_TABLE) == Some(table.table);
            let name = text(list, object::CHAIN_NAME).filter(|_| here)?;
            Some((name.to_owned(), InstalledChain::read(list)))
        };
        match self.list(&message::chains(table)) {
            Ok(messages) => Ok(messages.iter().filter_map(chain).collect()),
            Err(error) if is_lacking(&error) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// The number of the ruleset, which each change raises.
    pub fn generation(&self, table: &TableLayout) -> Result<u32> {
        let answers = self.ask(&[message::generation(table)])?;
        generation(answers.first().and_then(Option::as_deref))
    }

    /// What the kernel says of a chain; none if there is no such chain or table, or no `nf_tables` at all.
    pub(super) fn chain(&self, layout: &TableLayout, name: &str) -> Result<Option<InstalledChain>> {
        match self.ask(&[message::chain(layout, name)]) {
            Ok(answers) => {
                let list = answers.into_iter().flatten().next();
                Ok(list.as_ref().and_then(|message| message.get(HEADERS..)).map(InstalledChain::read))
            }
            Err(error) if error.errno == libc::EINVAL => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All rules of a chain, whoever made them; none if there is no such chain or table, or no `nf_tables` at all.
    ///
    /// # Errors
    /// The kernel's refusals.
    pub fn chain_rules(&self, layout: &TableLayout, chain: &str) -> Result<Vec<InstalledRule>> {
        self.rules_of(layout, chain, |_| true)
    }

    /// The rules of a chain whose label is `wanted`; none if there is no such chain or table, or no `nf_tables` at all.
    pub(crate) fn rules_of(
        &self,
        layout: &TableLayout,
        chain: &str,
        wanted: impl Fn(&Label<'_>) -> bool,
    ) -> Result<Vec<InstalledRule>> {
        let read = |message: &Vec<u8>| InstalledRule::read(message, layout, chain, &wanted);
        match self.list(&message::rules(layout, chain)) {
            Ok(messages) => Ok(messages.iter().filter_map(read).collect()),
            // What netfilter answers for a part of it that the kernel has not got and cannot load.
            Err(error) if error.errno == libc::EINVAL => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    pub(super) fn existing_elements(&self, layout: &TableLayout, elements: &[Element]) -> Result<Vec<Element>> {
        let there = self.has_elements(layout, elements)?;
        Ok(elements.iter().zip(there).filter(|(_, there)| *there).map(|(element, _)| element.clone()).collect())
    }

    /// The keys of an owner's rules that are in no set. By whichever of his names he is registered, he is found.
    fn unregistered<'a>(
        &self,
        layout: &TableLayout,
        filter: &OwnerFilter,
        held: impl Iterator<Item = &'a InstalledRule>,
    ) -> Result<Vec<Element>> {
        let keys = Element::all_of(layout, held);
        let there = self.has_elements(layout, &keys)?;
        let mut missing: Vec<Element> =
            keys.into_iter().zip(there).filter(|(_, there)| !there).map(|(element, _)| element).collect();
        let names: Vec<Element> = Element::names(layout, filter).collect();
        if missing.iter().any(|element| names.contains(element)) && self.has_elements(layout, &names)?.contains(&true) {
            missing.retain(|element| !names.contains(element));
        }
        Ok(missing)
    }

    /// Whether each is in its set.
    pub(super) fn has_elements(&self, layout: &TableLayout, elements: &[Element]) -> Result<Vec<bool>> {
        let mut there = Vec::new();
        for some in elements.chunks(QUESTIONS) {
            let questions = some.iter().map(|element| element.question(layout)).collect::<Result<Vec<_>>>()?;
            there.extend(self.ask(&questions)?.iter().map(Option::is_some));
        }
        Ok(there)
    }

    /// What stands of the frame, the rules of this owner unless he has none, and his chains.
    pub(super) fn state<'a>(
        &self,
        layout: &'a TableLayout,
        filter: &OwnerFilter,
        has_none: impl Fn(&TableState<'a>) -> Result<bool>,
    ) -> Result<TableState<'a>> {
        let state = self.table_state(layout)?;
        let own = layout.own.iter().map(|own| self.own(layout, &own.name)).collect::<Result<Vec<_>>>()?;
        // No rule leads to a chain that is not there.
        let none = !own.is_empty() && own.iter().all(|own| own.found.is_none());
        let held = if none || has_none(&state)? {
            layout.rule_chains.iter().map(|_| Vec::new()).collect()
        } else {
            self.held_by(layout, filter)?
        };
        Ok(TableState { held, own, ..state })
    }

    /// Whether the frame has an index of owners that can be relied on, and this one is not in it.
    pub(super) fn is_unregistered(&self, state: &TableState<'_>, filter: &OwnerFilter) -> Result<bool> {
        let names: Vec<Element> = Element::names(state.layout, filter).collect();
        // Whoever changed the frame may have added rules too, of which the register knows nothing.
        if names.is_empty() || !state.repair()?.is_empty() {
            return Ok(false);
        }
        Ok(!self.has_elements(state.layout, &names)?.contains(&true))
    }

    /// What stands of the frame.
    pub(super) fn table_state<'a>(&self, layout: &'a TableLayout) -> Result<TableState<'a>> {
        let mut questions = vec![message::generation(layout), message::table(layout)];
        questions.extend(layout.chains.iter().map(|chain| message::chain(layout, chain.name)));
        questions.extend(layout.indexes.iter().map(|index| message::set(layout, &index.set)));
        let answers = self.ask(&questions).map_err(lacking)?;
        let generation = generation(answers.first().and_then(Option::as_deref))?;
        let table = TableStatus::read(answers.get(1).and_then(Option::as_deref));
        let (chains, sets) = answers[2..].split_at(layout.chains.len());
        let list = |message: &Option<Vec<u8>>| message.as_ref()?.get(HEADERS..).map(InstalledChain::read);
        let chains = chains.iter().map(list).collect();
        for (index, found) in layout.indexes.iter().zip(sets) {
            found.iter().try_for_each(|found| index.set.refuse_other(layout, found))?;
        }
        let sets = sets.iter().map(Option::is_some).collect();
        let fixed =
            layout.prologue.iter().map(|(chain, _)| self.rules_of(layout, chain, |_| true)).collect::<Result<_>>()?;
        Ok(TableState { layout, generation, table, chains, fixed, sets, held: Vec::new(), own: Vec::new() })
    }

    /// By chain that holds rules: those that are meant.
    pub(super) fn held_by(&self, layout: &TableLayout, filter: &OwnerFilter) -> Result<Vec<Vec<InstalledRule>>> {
        let mut held = self.held(layout, |label| filter.finds(label).is_some())?;
        held.iter_mut().for_each(|rules| rules.retain(|found| filter.means(found)));
        Ok(held)
    }

    /// By chain that holds rules: those whose label is `wanted`.
    pub(super) fn held(
        &self,
        layout: &TableLayout,
        wanted: impl Fn(&Label<'_>) -> bool,
    ) -> Result<Vec<Vec<InstalledRule>>> {
        layout.rule_chains.iter().map(|chain| self.rules_of(layout, chain, &wanted)).collect()
    }

    /// A chain of an owner's, if it is there, with its rules.
    pub(super) fn own(&self, layout: &TableLayout, name: &str) -> Result<OwnedChain> {
        let found = self.chain(layout, name)?;
        let rules = if found.is_some() { self.rules_of(layout, name, |_| true)? } else { Vec::new() };
        Ok(OwnedChain { name: name.to_owned(), found, rules })
    }
}

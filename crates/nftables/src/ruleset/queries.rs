//! Reads chains, rules and keys of a table from the kernel, and compares them with the desired ones.

use std::collections::{HashMap, HashSet, VecDeque};

use cnikit_netlink::attribute::text;
use cnikit_netlink::nfnetlink::HEADERS;

use super::nftables::{Nftables, generation, is_lacking, lacking};
use crate::Result;
use crate::rule::compile::compile;
use crate::rule::set::Key;
use crate::rule::types::Rule;
use crate::ruleset::desired_rules::Rules;
use crate::ruleset::element::Element;
use crate::ruleset::hook::InstalledChain;
use crate::ruleset::installed_rule::InstalledRule;
use crate::ruleset::layout::TableLayout;
use crate::ruleset::message::{self, describe_chain};
use crate::ruleset::owned_chain::InstalledOwnedChain;
use crate::ruleset::owner_filter::OwnerFilter;
use crate::ruleset::table_state::{TableState, TableStatus};
use crate::wire::attribute::object;
use crate::wire::expression::Expression;
use crate::wire::userdata::Label;

/// The most questions in one datagram: the answers have to fit into the receive buffer of the socket.
const QUESTIONS_AT_ONCE: usize = 250;

/// Who owns the chains that a layout has for one owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChainOwner {
    /// No chain of these names exists.
    NoChain,
    /// The given owner, or the chains are empty.
    This,
    /// Another owner: a rule in one of the chains names it.
    Other,
}

impl Nftables {
    /// What is missing of the layout and of the rules or differs from them, each as a sentence.
    ///
    /// A rule of this owner that is not among `rules` is named too. Rules of other owners are ignored.
    ///
    /// # Errors
    /// A rule that cannot be encoded; rules for more chains than the layout has; the kernel's refusals.
    pub fn verify(
        &self,
        layout: &TableLayout,
        filter: impl Into<OwnerFilter>,
        rules: impl Into<Rules>,
    ) -> Result<Vec<String>> {
        let filter = filter.into();
        let rules = rules.into();
        // The rules are read even if the index of owners lacks the owner: a missing key may be the difference.
        let state = self.state(layout, &filter, |_| Ok(false))?;
        let mut drifts = state.drifts()?;
        for ((chain, rules), installed) in rules.by_chain(layout)?.into_iter().zip(&state.owner_rules) {
            drifts.extend(rule_drifts(layout, chain, rules, installed)?);
        }
        if state.uses_indexes()? && state.sets.iter().all(|exists| *exists) {
            // The keys of missing rules are not reported: the rules are reported already.
            for element in self.unregistered(layout, &filter, state.owner_rules.iter().flatten())? {
                drifts.push(format!("{} is missing", element.shown(layout)));
            }
        }
        Ok(drifts)
    }

    /// The rules of this owner in the chains of [`TableLayout::rule_chains`], in their order. There are none if the table or
    /// the chains do not exist.
    ///
    /// # Errors
    /// The kernel's refusals.
    pub fn rules(&self, layout: &TableLayout, filter: impl Into<OwnerFilter>) -> Result<Vec<InstalledRule>> {
        Ok(self.owner_rules(layout, &filter.into())?.into_iter().flatten().collect())
    }

    /// Whether this owner may have rules: a chain of [`TableLayout::rule_chains`] exists, and there is no complete index of
    /// owners that lacks the owner. It costs less than [`Nftables::rules`].
    ///
    /// # Errors
    /// The kernel's refusals.
    pub fn may_have_rules(&self, layout: &TableLayout, filter: &OwnerFilter) -> Result<bool> {
        Ok(self.has_any(layout, &layout.rule_chains)? && !self.is_unregistered(&self.table_state(layout)?, filter)?)
    }

    /// The rules of any owner that have one of these keys in an index. The rules are read only if the set has one of the keys,
    /// or may be incomplete. There are none if the table does not exist, or the kernel has no `nf_tables`.
    ///
    /// # Errors
    /// The layout has no index of this name; the kernel's refusals.
    pub fn rules_with_keys(&self, layout: &TableLayout, set: &str, keys: &[Key]) -> Result<Vec<InstalledRule>> {
        let index = layout.index_of(set)?;
        if !self.has_any(layout, &layout.indexes[index].chains)? {
            return Ok(Vec::new());
        }
        let elements: Vec<Element> = keys.iter().map(|key| Element { index, key: key.clone() }).collect();
        // A table that differs from the layout prevents changes. Here it only means that the rules have to be read.
        let repair = self.table_state(layout).and_then(|state| state.repair());
        let is_complete = repair.is_ok_and(|messages| messages.is_empty());
        if is_complete && self.existing_elements(layout, &elements)?.is_empty() {
            return Ok(Vec::new());
        }
        let keys: HashSet<&Key> = keys.iter().collect();
        self.rules_with(layout, index, |key| keys.contains(key))
    }

    /// The rules of any owner whose key in an index is selected.
    pub(crate) fn rules_with(
        &self,
        layout: &TableLayout,
        index: usize,
        selects: impl Fn(&Key) -> bool,
    ) -> Result<Vec<InstalledRule>> {
        let index = &layout.indexes[index];
        let mut selected = Vec::new();
        for chain in &index.chains {
            for rule in self.chain_rules(layout, chain)? {
                if index.key_of(&rule).is_some_and(|key| selects(&key)) {
                    selected.push(rule);
                }
            }
        }
        Ok(selected)
    }

    fn has_any(&self, layout: &TableLayout, chains: &[&str]) -> Result<bool> {
        for chain in chains {
            if self.has(layout, chain)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether any of the chains of [`TableLayout::owned_chains`] exists, whichever program made it.
    ///
    /// # Errors
    /// The kernel's refusals.
    pub fn has_owned_chains(&self, layout: &TableLayout) -> Result<bool> {
        let names: Vec<&str> = layout.owned_chains.iter().map(|chain| chain.name.as_str()).collect();
        self.has_any(layout, &names)
    }

    /// The owner of those [`TableLayout::owned_chains`] that have rules in the layout. Names of chains are hashes of identities, so
    /// two owners may get the same name.
    ///
    /// # Errors
    /// The kernel's refusals.
    pub fn chain_owner(&self, layout: &TableLayout, filter: impl Into<OwnerFilter>) -> Result<ChainOwner> {
        let filter = filter.into();
        let mut owner = ChainOwner::NoChain;
        for desired in &layout.owned_chains {
            if desired.rules.is_empty() {
                continue;
            }
            let installed = self.owned_chain(layout, &desired.name)?;
            if installed.is_others(&filter) {
                return Ok(ChainOwner::Other);
            }
            if installed.chain.is_some() {
                owner = ChainOwner::This;
            }
        }
        Ok(owner)
    }

    /// Whether a table has this chain, whichever program made it. False if the kernel has no `nf_tables`.
    ///
    /// # Errors
    /// The kernel's refusals.
    pub fn has(&self, table: &TableLayout, chain: &str) -> Result<bool> {
        match self.ask(&[message::chain(table, chain)]) {
            Ok(answers) => Ok(answers.iter().any(Option::is_some)),
            Err(error) if is_lacking(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether a chain has any rule.
    ///
    /// # Errors
    /// The kernel's refusals.
    pub fn has_rules(&self, table: &TableLayout, chain: &str) -> Result<bool> {
        Ok(!self.chain_rules(table, chain)?.is_empty())
    }

    /// All chains of a table by name, whichever program made them. There are none if the kernel has no `nf_tables`.
    ///
    /// # Errors
    /// The kernel's refusals.
    pub fn chains(&self, table: &TableLayout) -> Result<Vec<(String, InstalledChain)>> {
        match self.list(&message::chains(table)) {
            Ok(messages) => Ok(messages.iter().filter_map(|message| read_chain(message, table)).collect()),
            Err(error) if is_lacking(&error) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// The generation of the ruleset, a number that each change increments.
    ///
    /// # Errors
    /// The kernel's refusals.
    pub fn generation(&self, table: &TableLayout) -> Result<u32> {
        let answers = self.ask(&[message::generation(table)])?;
        generation(answers.first().and_then(Option::as_deref))
    }

    /// A chain as the kernel has it; `None` if the chain, the table or `nf_tables` does not exist.
    pub(super) fn chain(&self, layout: &TableLayout, name: &str) -> Result<Option<InstalledChain>> {
        let answers = match self.ask(&[message::chain(layout, name)]) {
            Err(error) if error.errno == libc::EINVAL => return Ok(None),
            answers => answers?,
        };
        let answer = answers.first().and_then(Option::as_deref);
        Ok(answer.and_then(|message| message.get(HEADERS..)).map(InstalledChain::read))
    }

    /// All rules of a chain, of any owner. There are none if the chain, the table or `nf_tables` does not exist.
    ///
    /// # Errors
    /// The kernel's refusals.
    pub fn chain_rules(&self, layout: &TableLayout, chain: &str) -> Result<Vec<InstalledRule>> {
        self.selected_rules(layout, chain, |_| true)
    }

    /// The rules of a chain whose label is selected. There are none if the chain, the table or `nf_tables` does not exist.
    pub(crate) fn selected_rules(
        &self,
        layout: &TableLayout,
        chain: &str,
        selects: impl Fn(&Label<'_>) -> bool,
    ) -> Result<Vec<InstalledRule>> {
        let read = |message: &Vec<u8>| InstalledRule::read(message, layout, chain, &selects);
        match self.list(&message::rules(layout, chain)) {
            Ok(messages) => Ok(messages.iter().filter_map(read).collect()),
            // The kernel has no nf_tables and cannot load the module.
            Err(error) if error.errno == libc::EINVAL => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Those of the elements that exist.
    pub(super) fn existing_elements(&self, layout: &TableLayout, elements: &[Element]) -> Result<Vec<Element>> {
        let exists = self.has_elements(layout, elements)?;
        let mut existing = Vec::new();
        for (element, exists) in elements.iter().zip(exists) {
            if exists {
                existing.push(element.clone());
            }
        }
        Ok(existing)
    }

    /// Those of the elements that do not exist.
    pub(super) fn missing_elements(&self, layout: &TableLayout, elements: Vec<Element>) -> Result<Vec<Element>> {
        let exists = self.has_elements(layout, &elements)?;
        let mut missing = Vec::new();
        for (element, exists) in elements.into_iter().zip(exists) {
            if !exists {
                missing.push(element);
            }
        }
        Ok(missing)
    }

    /// The keys of an owner's rules that their sets lack. In the index of owners one of the owner's names is enough.
    fn unregistered<'a>(
        &self,
        layout: &TableLayout,
        filter: &OwnerFilter,
        rules: impl Iterator<Item = &'a InstalledRule>,
    ) -> Result<Vec<Element>> {
        let mut missing = self.missing_elements(layout, Element::all_of(layout, rules))?;
        let names = Element::owner_keys(layout, filter);
        if missing.iter().any(|element| names.contains(element)) && self.has_elements(layout, &names)?.contains(&true) {
            missing.retain(|element| !names.contains(element));
        }
        Ok(missing)
    }

    /// Whether each of the elements exists.
    pub(super) fn has_elements(&self, layout: &TableLayout, elements: &[Element]) -> Result<Vec<bool>> {
        let mut exists = Vec::new();
        for some in elements.chunks(QUESTIONS_AT_ONCE) {
            let mut questions = Vec::new();
            for element in some {
                questions.push(element.question(layout)?);
            }
            exists.extend(self.ask(&questions)?.iter().map(Option::is_some));
        }
        Ok(exists)
    }

    /// The table, the owner's chains, and the owner's rules. The rules are not read if none of the owner's chains exists, or if
    /// `has_no_rules` is true of the table.
    pub(super) fn state<'a>(
        &self,
        layout: &'a TableLayout,
        filter: &OwnerFilter,
        has_no_rules: impl Fn(&TableState<'a>) -> Result<bool>,
    ) -> Result<TableState<'a>> {
        let mut state = self.table_state(layout)?;
        for chain in &layout.owned_chains {
            state.owned_chains.push(self.owned_chain(layout, &chain.name)?);
        }
        // No rule can jump to a chain that does not exist.
        let has_no_chain =
            !layout.owned_chains.is_empty() && state.owned_chains.iter().all(|owned| owned.chain.is_none());
        state.owner_rules = if has_no_chain || has_no_rules(&state)? {
            vec![Vec::new(); layout.rule_chains.len()]
        } else {
            self.owner_rules(layout, filter)?
        };
        Ok(state)
    }

    /// Whether the layout has an index of owners, the table is complete, and the index lacks this owner.
    pub(super) fn is_unregistered(&self, state: &TableState<'_>, filter: &OwnerFilter) -> Result<bool> {
        let names = Element::owner_keys(state.layout, filter);
        // A program that changed the table may have added rules without their keys.
        if names.is_empty() || !state.repair()?.is_empty() {
            return Ok(false);
        }
        Ok(!self.has_elements(state.layout, &names)?.contains(&true))
    }

    /// The table with its shared chains and sets, without anything of an owner.
    pub(super) fn table_state<'a>(&self, layout: &'a TableLayout) -> Result<TableState<'a>> {
        let mut questions = vec![message::generation(layout), message::table(layout)];
        for chain in &layout.chains {
            questions.push(message::chain(layout, chain.name));
        }
        for index in &layout.indexes {
            questions.push(message::set(layout, &index.set));
        }
        let answers = self.ask(&questions).map_err(lacking)?;
        let generation = generation(answers.first().and_then(Option::as_deref))?;
        let table = TableStatus::read(answers.get(1).and_then(Option::as_deref));
        let (chain_answers, set_answers) = answers[2..].split_at(layout.chains.len());
        let mut chains = Vec::new();
        for answer in chain_answers {
            let list = answer.as_deref().and_then(|message| message.get(HEADERS..));
            chains.push(list.map(InstalledChain::read));
        }
        let mut sets = Vec::new();
        for (index, answer) in layout.indexes.iter().zip(set_answers) {
            if let Some(message) = answer {
                index.set.refuse_other(layout, message)?;
            }
            sets.push(answer.is_some());
        }
        let mut prologue_chains = Vec::new();
        for (chain, _) in &layout.prologue {
            prologue_chains.push(self.chain_rules(layout, chain)?);
        }
        Ok(TableState {
            layout,
            generation,
            table,
            chains,
            prologue_chains,
            owner_rules: Vec::new(),
            sets,
            owned_chains: Vec::new(),
        })
    }

    /// The owner's rules, one list per chain of [`TableLayout::rule_chains`].
    pub(super) fn owner_rules(&self, layout: &TableLayout, filter: &OwnerFilter) -> Result<Vec<Vec<InstalledRule>>> {
        let mut by_chain = self.rules_by_chain(layout, |label| filter.selects_label(label))?;
        for rules in &mut by_chain {
            rules.retain(|rule| filter.selects_addresses(rule));
        }
        Ok(by_chain)
    }

    /// The rules whose label is selected, one list per chain of [`TableLayout::rule_chains`].
    pub(super) fn rules_by_chain(
        &self,
        layout: &TableLayout,
        selects: impl Fn(&Label<'_>) -> bool,
    ) -> Result<Vec<Vec<InstalledRule>>> {
        layout.rule_chains.iter().map(|chain| self.selected_rules(layout, chain, &selects)).collect()
    }

    /// An owner's chain with its rules, if it exists.
    pub(super) fn owned_chain(&self, layout: &TableLayout, name: &str) -> Result<InstalledOwnedChain> {
        let chain = self.chain(layout, name)?;
        let rules = if chain.is_some() { self.chain_rules(layout, name)? } else { Vec::new() };
        Ok(InstalledOwnedChain { name: name.to_owned(), chain, rules })
    }
}

/// The desired rules that a chain lacks and the installed ones that are not desired, each as a sentence. Their order does not
/// matter.
fn rule_drifts(
    layout: &TableLayout,
    chain: &str,
    desired: &[Rule],
    installed: &[InstalledRule],
) -> Result<Vec<String>> {
    let shown = describe_chain(layout, chain);
    let mut compiled = Vec::new();
    for rule in desired {
        compiled.push(compile(rule, layout.family)?);
    }
    // By expressions and comment: the positions of the installed rules that have both.
    let mut positions: HashMap<(&[Expression], Option<&str>), VecDeque<usize>> = HashMap::new();
    for (position, rule) in installed.iter().enumerate() {
        positions.entry((rule.expressions(), rule.comment())).or_default().push_back(position);
    }
    let mut is_desired = vec![false; installed.len()];
    let mut drifts = Vec::new();
    for (rule, expressions) in desired.iter().zip(&compiled) {
        let same = positions.get_mut(&(expressions.as_slice(), rule.comment.as_deref()));
        match same.and_then(VecDeque::pop_front) {
            Some(position) => is_desired[position] = true,
            None => drifts.push(format!("rule `{rule}` is missing from {shown}")),
        }
    }
    for (rule, is_desired) in installed.iter().zip(is_desired) {
        if !is_desired {
            drifts.push(format!("rule `{rule}` in {shown} is not wanted"));
        }
    }
    Ok(drifts)
}

/// A chain in a message of a dump; `None` if it is in another table.
fn read_chain(message: &[u8], table: &TableLayout) -> Option<(String, InstalledChain)> {
    let list = message.get(HEADERS..)?;
    if text(list, object::CHAIN_TABLE) != Some(table.table) {
        return None;
    }
    Some((text(list, object::CHAIN_NAME)?.to_owned(), InstalledChain::read(list)))
}

//! A table as the kernel has it, compared with its layout.

use cnikit_netlink::attribute::number;
use cnikit_netlink::nfnetlink::{HEADERS, NetfilterMessage};

use crate::Result;
use crate::rule::compile::{compile, compile_match};
use crate::rule::types::Rule;
use crate::ruleset::desired_rules::{DesiredRules, are_same, replacement_messages};
use crate::ruleset::hook::{InstalledChain, refuse_other_hook};
use crate::ruleset::installed_rule::InstalledRule;
use crate::ruleset::layout::{Chain, TableLayout};
use crate::ruleset::message::{self, body, describe_chain};
use crate::ruleset::owned_chain::{InstalledOwnedChain, listed};
use crate::ruleset::owner_filter::OwnerFilter;
use crate::wire::attribute::object;
use crate::wire::expression::Expression;

/// The flag of a table whose chains are detached from their hooks.
#[doc(alias = "NFT_TABLE_F_DORMANT")]
const DORMANT: u32 = 1;

/// A table as the kernel has it, compared with its layout.
#[derive(Debug)]
pub(crate) struct TableState<'a> {
    pub(crate) layout: &'a TableLayout,
    /// The generation of the ruleset before anything below was read.
    pub(crate) generation: u32,
    pub(crate) table: TableStatus,
    /// In the order of [`TableLayout::chains`]; `None` if the chain is missing.
    pub(crate) chains: Vec<Option<InstalledChain>>,
    /// In the order of [`TableLayout::prologue`]: all rules of each of these chains.
    pub(crate) prologue_chains: Vec<Vec<InstalledRule>>,
    /// In the order of [`TableLayout::rule_chains`]: the owner's rules in each chain.
    pub(crate) owner_rules: Vec<Vec<InstalledRule>>,
    /// In the order of [`TableLayout::indexes`]: whether the set exists.
    pub(crate) sets: Vec<bool>,
    /// In the order of [`TableLayout::owned_chains`]: the owner's chains.
    pub(crate) owned_chains: Vec<InstalledOwnedChain>,
}

/// Whether a table exists and its rules take effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableStatus {
    Missing,
    Dormant,
    Working,
}

impl TableStatus {
    /// Reads the kernel's answer to a question for a table; `None` if there is no such table.
    pub(crate) fn read(answer: Option<&[u8]>) -> Self {
        let Some(message) = answer else { return TableStatus::Missing };
        let flags = message.get(HEADERS..).and_then(|list| number(list, object::TABLE_FLAGS)).unwrap_or(0);
        if flags & DORMANT != 0 { TableStatus::Dormant } else { TableStatus::Working }
    }
}

impl TableState<'_> {
    /// The messages that make what is missing of the layout; none if it is complete.
    ///
    /// # Errors
    /// A chain of the layout has another hook: a hook cannot be changed, and the chain is not ours to remove.
    pub(crate) fn repair(&self) -> Result<Vec<NetfilterMessage>> {
        let layout = self.layout;
        let mut messages = Vec::new();
        if self.table != TableStatus::Working {
            messages.push(message::new_table(layout)?);
        }
        for (chain, installed) in layout.chains.iter().zip(&self.chains) {
            match installed {
                None => messages.push(message::new_chain(layout, chain)?),
                Some(installed) => refuse_other_hook(layout, chain.name, chain.hook, installed)?,
            }
        }
        let mut set_id = 0;
        for (index, exists) in layout.indexes.iter().zip(&self.sets) {
            if !exists {
                set_id += 1;
                messages.push(message::new_set(layout, &index.set, set_id)?);
            }
        }
        for ((chain, rules), installed) in layout.prologue.iter().zip(&self.prologue_chains) {
            messages.extend(self.prologue_repair(chain, rules, installed)?);
        }
        Ok(messages)
    }

    /// The messages that make a chain begin with its prologue. Rules of the prologue in another position are moved, and rules of
    /// an accepted prologue and those that violate a jump condition are removed. All other rules stay.
    fn prologue_repair(
        &self,
        chain: &str,
        prologue: &[Rule],
        installed: &[InstalledRule],
    ) -> Result<Vec<NetfilterMessage>> {
        let own = compile_all(prologue, self.layout)?;
        let mut replaced = compile_all(self.layout.accepted_prologue(chain), self.layout)?;
        replaced.retain(|expressions| !own.contains(expressions));
        let violations = self.violations(chain, installed)?;
        let mut messages = Vec::new();
        if begins_with(installed, &own) && !installed.iter().any(|rule| is_any_of(rule, &replaced)) {
            for rule in violations {
                messages.push(rule.deletion(self.layout));
            }
            return Ok(messages);
        }
        for rule in installed {
            if is_any_of(rule, &own) || is_any_of(rule, &replaced) || violations.contains(&rule) {
                messages.push(rule.deletion(self.layout));
            }
        }
        // Each rule is added before all others, so the last one to be added is the first of the chain.
        for rule in prologue.iter().rev() {
            let body = body(rule, self.layout, None)?;
            messages.push(message::prepend_rule(self.layout, chain, &body, &rule.to_string()));
        }
        Ok(messages)
    }

    /// The rules of a chain that violate one of its jump conditions.
    fn violations<'r>(&self, chain: &str, installed: &'r [InstalledRule]) -> Result<Vec<&'r InstalledRule>> {
        let mut violations = Vec::new();
        for condition in &self.layout.jump_conditions {
            if !condition.from.contains(&chain) {
                continue;
            }
            let required = compile_match(&condition.required)?;
            for rule in installed {
                let jumps = rule.target().is_some_and(|target| condition.to.contains(&target));
                if jumps && !rule.contains_expressions(&required) {
                    violations.push(rule);
                }
            }
        }
        Ok(violations)
    }

    /// The messages that make the owner's chains and fill them.
    ///
    /// # Errors
    /// One of the chains has rules of another owner, or is a base chain.
    pub(crate) fn owned_chain_changes(
        &self,
        filter: &OwnerFilter,
        desired: &DesiredRules,
    ) -> Result<Vec<NetfilterMessage>> {
        let mut creations = Vec::new();
        let mut additions = Vec::new();
        for (owned, desired) in self.owned_chains.iter().zip(&desired.owned_chains) {
            if desired.is_empty() {
                continue;
            }
            if let Some(creation) = owned.creation(self.layout, filter)? {
                creations.push(creation);
            }
            additions.extend(replacement_messages(&owned.rules, desired, self.layout, &owned.name));
        }
        // All chains exist before the first rule jumps to one of them.
        creations.append(&mut additions);
        Ok(creations)
    }

    /// The messages that remove those of the owner's chains that are to have no rules, once no rule of the owner jumps to them.
    pub(crate) fn own_removals(&self, filter: &OwnerFilter, desired: &DesiredRules) -> Vec<NetfilterMessage> {
        let mut removed: Vec<InstalledRule> = Vec::new();
        for (installed, desired) in self.owner_rules.iter().zip(&desired.by_chain) {
            if !are_same(installed, desired) {
                removed.extend_from_slice(installed);
            }
        }
        let mut messages = Vec::new();
        for (owned, desired) in self.owned_chains.iter().zip(&desired.owned_chains) {
            if desired.is_empty() && owned.is_removed_with(&removed, self.layout, filter) {
                messages.push(message::delete_chain(self.layout, &owned.name));
                removed.extend_from_slice(&owned.rules);
            }
        }
        messages
    }

    /// What is missing of the layout or differs from it, each as a sentence.
    ///
    /// # Errors
    /// A rule of the layout that cannot be encoded.
    pub(crate) fn drifts(&self) -> Result<Vec<String>> {
        let layout = self.layout;
        match self.table {
            TableStatus::Missing => return Ok(vec![format!("{layout} is missing")]),
            TableStatus::Dormant => return Ok(vec![format!("{layout} is dormant, its rules do nothing")]),
            TableStatus::Working => {}
        }
        let mut drifts = Vec::new();
        for (chain, installed) in layout.chains.iter().zip(&self.chains) {
            if let Some(drift) = self.chain_drift(chain, installed.as_ref()) {
                drifts.push(drift);
            }
        }
        for ((chain, prologue), installed) in layout.prologue.iter().zip(&self.prologue_chains) {
            drifts.extend(self.prologue_drifts(chain, prologue, installed)?);
        }
        if self.uses_indexes()? {
            for (index, exists) in layout.indexes.iter().zip(&self.sets) {
                if !exists {
                    drifts.push(format!("{} is missing", index.set.shown(layout)));
                }
            }
        }
        for (desired, installed) in layout.owned_chains.iter().zip(&self.owned_chains) {
            if let Some(drift) = installed.drift(desired, layout)? {
                drifts.push(drift);
            }
        }
        Ok(drifts)
    }

    fn chain_drift(&self, chain: &Chain, installed: Option<&InstalledChain>) -> Option<String> {
        let Some(installed) = installed else {
            return Some(format!("{} is missing", describe_chain(self.layout, chain.name)));
        };
        let error = refuse_other_hook(self.layout, chain.name, chain.hook, installed).err()?;
        let why = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        Some(format!("{}: {why}", error.object))
    }

    fn prologue_drifts(&self, chain: &str, prologue: &[Rule], installed: &[InstalledRule]) -> Result<Vec<String>> {
        let shown = describe_chain(self.layout, chain);
        let mut drifts = Vec::new();
        let begins_right = begins_with(installed, &compile_all(prologue, self.layout)?);
        if !begins_right && !self.has_accepted_prologue(chain, installed)? {
            let first = &installed[..prologue.len().min(installed.len())];
            drifts.push(format!("{shown} begins with {}, wanted {}", listed(first), listed(prologue)));
        }
        for rule in self.violations(chain, installed)? {
            let target = rule.target().unwrap_or_default();
            drifts.push(format!("rule `{rule}` in {shown} leads other packets to {target}"));
        }
        Ok(drifts)
    }

    /// Whether a chain begins with an accepted prologue, which another program made.
    fn has_accepted_prologue(&self, chain: &str, installed: &[InstalledRule]) -> Result<bool> {
        let accepted = compile_all(self.layout.accepted_prologue(chain), self.layout)?;
        Ok(!accepted.is_empty() && begins_with(installed, &accepted))
    }

    /// Whether packets are looked up in the sets of the indexes: no chain begins with an accepted prologue, which bypasses them.
    ///
    /// # Errors
    /// A rule of the layout that cannot be encoded.
    pub(crate) fn uses_indexes(&self) -> Result<bool> {
        for ((chain, _), installed) in self.layout.prologue.iter().zip(&self.prologue_chains) {
            if self.has_accepted_prologue(chain, installed)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Whether a chain begins with these rules.
fn begins_with(installed: &[InstalledRule], rules: &[Vec<Expression>]) -> bool {
    rules.len() <= installed.len()
        && installed.iter().zip(rules).all(|(installed, expressions)| installed.same_expressions(expressions))
}

fn is_any_of(installed: &InstalledRule, rules: &[Vec<Expression>]) -> bool {
    rules.iter().any(|expressions| installed.same_expressions(expressions))
}

fn compile_all(rules: &[Rule], layout: &TableLayout) -> Result<Vec<Vec<Expression>>> {
    rules.iter().map(|rule| compile(rule, layout.family)).collect()
}

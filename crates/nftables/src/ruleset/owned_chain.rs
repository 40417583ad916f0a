//! A chain that belongs to one owner alone, as the kernel has it.

use cnikit_netlink::nfnetlink::NetfilterMessage;

use crate::rule::compile::compile;
use crate::rule::types::Rule;
use crate::ruleset::hook::{InstalledChain, refuse_other_hook};
use crate::ruleset::installed_rule::InstalledRule;
use crate::ruleset::layout::{OwnedChain, TableLayout};
use crate::ruleset::message::{self, describe_chain};
use crate::ruleset::owner_filter::OwnerFilter;
use crate::{Error, Result};

/// A chain of this name with all its rules, if there is one.
#[derive(Clone, Debug)]
pub(crate) struct InstalledOwnedChain {
    pub(crate) name: String,
    /// `None` if there is no chain of this name.
    pub(crate) chain: Option<InstalledChain>,
    pub(crate) rules: Vec<InstalledRule>,
}

impl InstalledOwnedChain {
    /// Whether a rule in the chain names another owner.
    pub(crate) fn is_others(&self, filter: &OwnerFilter) -> bool {
        self.rules.iter().any(|rule| filter.is_others(&rule.label()))
    }

    /// Whether the chain can be removed together with the rules `removed`: it is a regular chain of this owner, and no other
    /// rule jumps to it.
    pub(crate) fn is_removed_with(
        &self,
        removed: &[InstalledRule],
        layout: &TableLayout,
        filter: &OwnerFilter,
    ) -> bool {
        let Some(chain) = &self.chain else { return false };
        if chain.hook.is_some() || self.is_others(filter) {
            return false;
        }
        let jumps = removed.iter().filter(|rule| rule.target() == Some(&self.name)).count();
        if chain.uses != self.rules.len() + jumps {
            return false;
        }
        layout.owned_chains.iter().any(|chain| chain.name == self.name)
            || self.rules.iter().any(|rule| filter.selects_label(&rule.label()))
    }

    /// The message that makes the chain, if it does not exist.
    ///
    /// # Errors
    /// The chain has rules of another owner, or is a base chain.
    pub(crate) fn creation(&self, layout: &TableLayout, filter: &OwnerFilter) -> Result<Option<NetfilterMessage>> {
        let Some(chain) = &self.chain else {
            return Ok(Some(message::new_regular_chain(layout, &self.name)));
        };
        if self.is_others(filter) {
            let shown = describe_chain(layout, &self.name);
            return Err(Error::ours("use", shown, "the rules in it are those of another program"));
        }
        refuse_other_hook(layout, &self.name, None, chain)?;
        Ok(None)
    }

    /// How the chain differs from the desired one, as a sentence; `None` if it does not.
    ///
    /// # Errors
    /// A desired rule that cannot be encoded.
    pub(crate) fn drift(&self, desired: &OwnedChain, layout: &TableLayout) -> Result<Option<String>> {
        if desired.rules.is_empty() {
            return Ok(None);
        }
        let shown = describe_chain(layout, &desired.name);
        if self.chain.is_none() {
            return Ok(Some(format!("{shown} is missing")));
        }
        if self.has_exactly(&desired.rules, layout)? {
            return Ok(None);
        }
        let installed = listed(&self.rules);
        let wanted = listed(&desired.rules);
        Ok(Some(format!("{shown} has {installed}, wanted {wanted}")))
    }

    /// Whether its rules are these, in this order, with these comments.
    fn has_exactly(&self, desired: &[Rule], layout: &TableLayout) -> Result<bool> {
        if self.rules.len() != desired.len() {
            return Ok(false);
        }
        for (installed, rule) in self.rules.iter().zip(desired) {
            let same = installed.same_expressions(&compile(rule, layout.family)?);
            if !same || installed.comment() != rule.comment.as_deref() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Rules as a list in a sentence.
pub(crate) fn listed(rules: &[impl ToString]) -> String {
    if rules.is_empty() {
        return "nothing".to_owned();
    }
    let quoted: Vec<String> = rules.iter().map(|rule| format!("`{}`", rule.to_string())).collect();
    quoted.join(", ")
}

//! The rules that an owner is to have, encoded.

use std::collections::HashSet;

use cnikit_netlink::nfnetlink::NetfilterMessage;

use crate::rule::types::Rule;
use crate::ruleset::element::Element;
use crate::ruleset::installed_rule::InstalledRule;
use crate::ruleset::layout::TableLayout;
use crate::ruleset::message::{self, Body, body, describe_chain};
use crate::ruleset::owner_filter::OwnerFilter;
use crate::wire::userdata::Label;
use crate::{Error, Result};

/// The rules of one owner, one list per chain of [`TableLayout::rule_chains`], in that order. A single list of rules is for the
/// first of these chains.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rules(pub Vec<Vec<Rule>>);

impl From<&[Rule]> for Rules {
    fn from(rules: &[Rule]) -> Rules {
        Rules(vec![rules.to_vec()])
    }
}

impl From<&Vec<Rule>> for Rules {
    fn from(rules: &Vec<Rule>) -> Rules {
        Rules::from(rules.as_slice())
    }
}

impl<const N: usize> From<&[Rule; N]> for Rules {
    fn from(rules: &[Rule; N]) -> Rules {
        Rules::from(rules.as_slice())
    }
}

impl Rules {
    /// Each chain of [`TableLayout::rule_chains`] with its rules.
    ///
    /// # Errors
    /// There are rules for more chains than the layout has.
    pub(crate) fn by_chain<'a>(&'a self, layout: &'a TableLayout) -> Result<Vec<(&'static str, &'a [Rule])>> {
        if self.0.len() > layout.rule_chains.len() {
            return Err(Error::ours("add rules to", layout.to_string(), "it has no chain for some of them"));
        }
        let mut by_chain = Vec::new();
        for (position, chain) in layout.rule_chains.iter().enumerate() {
            by_chain.push((*chain, self.0.get(position).map(Vec::as_slice).unwrap_or_default()));
        }
        Ok(by_chain)
    }
}

/// A rule to add: encoded, and as an error shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct EncodedRule {
    pub(crate) body: Body,
    pub(crate) shown: String,
}

/// An estimate of the headers, the table and the chain in the message that adds a rule, in bytes.
const MESSAGE_OVERHEAD: usize = 96;

/// All rules that an owner is to have.
pub(crate) struct DesiredRules {
    /// The rules in the shared chains, in the order of [`TableLayout::rule_chains`].
    pub(crate) by_chain: Vec<Vec<EncodedRule>>,
    /// The rules in the owner's own chains, in the order of [`TableLayout::owned_chains`]. A chain without rules is removed.
    pub(crate) owned_chains: Vec<Vec<EncodedRule>>,
    /// The keys of the rules in the shared chains.
    pub(crate) keys: Vec<Element>,
}

impl DesiredRules {
    /// Encodes these rules, and those of the layout's own chains.
    ///
    /// # Errors
    /// A rule that the filter does not select, so that it would never be found again; a rule that cannot be encoded.
    pub(crate) fn of(layout: &TableLayout, filter: &OwnerFilter, rules: &Rules) -> Result<Self> {
        let rules_by_chain = rules.by_chain(layout)?;
        let mut by_chain = Vec::new();
        for (chain, rules) in &rules_by_chain {
            by_chain.push(encode_all(rules, layout, chain, filter)?);
        }
        let mut owned_chains = Vec::new();
        for chain in &layout.owned_chains {
            owned_chains.push(encode_all(&chain.rules, layout, &chain.name, filter)?);
        }
        let keys = keys_of(&rules_by_chain, layout, filter);
        Ok(Self { by_chain, owned_chains, keys })
    }

    /// Whether there is no rule.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_chain.iter().chain(&self.owned_chains).all(Vec::is_empty)
    }

    /// An estimate of the length of the messages that add the rules, in bytes.
    pub(crate) fn size(&self) -> usize {
        let mut size = 0;
        for rule in self.by_chain.iter().chain(&self.owned_chains).flatten() {
            size += rule.body.expressions.as_bytes().len() + rule.body.userdata.len() + MESSAGE_OVERHEAD;
        }
        size
    }

    /// Rules that were installed before, each in its former chain.
    pub(crate) fn from_installed(layout: &TableLayout, before: &[InstalledRule]) -> Self {
        let by_chain = layout.rule_chains.iter().map(|chain| rules_of_chain(before, chain)).collect();
        let owned_chains = layout.owned_chains.iter().map(|chain| rules_of_chain(before, &chain.name)).collect();
        Self { by_chain, owned_chains, keys: Element::all_of(layout, before) }
    }
}

fn rules_of_chain(before: &[InstalledRule], chain: &str) -> Vec<EncodedRule> {
    let mut rules = Vec::new();
    for rule in before {
        if rule.chain == chain {
            rules.push(EncodedRule { body: rule.body.clone(), shown: rule.to_string() });
        }
    }
    rules
}

/// The keys of rules that are to be added, each once.
fn keys_of(by_chain: &[(&str, &[Rule])], layout: &TableLayout, filter: &OwnerFilter) -> Vec<Element> {
    let mut keys = Vec::new();
    let mut seen = HashSet::new();
    for (chain, rules) in by_chain {
        for rule in *rules {
            let label = Label { comment: rule.comment.as_deref(), owner: filter.owner() };
            for (position, index) in layout.indexes.iter().enumerate() {
                if !index.chains.contains(chain) {
                    continue;
                }
                let Some(key) = index.key(Some(rule), &label) else { continue };
                let element = Element { index: position, key };
                if seen.insert(element.clone()) {
                    keys.push(element);
                }
            }
        }
    }
    keys
}

fn encode_all(rules: &[Rule], layout: &TableLayout, chain: &str, filter: &OwnerFilter) -> Result<Vec<EncodedRule>> {
    rules.iter().map(|rule| encode(rule, layout, chain, filter)).collect()
}

fn encode(rule: &Rule, layout: &TableLayout, chain: &str, filter: &OwnerFilter) -> Result<EncodedRule> {
    let label = Label { comment: rule.comment.as_deref(), owner: filter.owner() };
    if let OwnerFilter::Commented(prefix) = filter
        && !filter.selects_label(&label)
    {
        let why = format!("its comment has to begin with \"{prefix}\", by which it is found again");
        return Err(Error::ours("add rule", format!("`{rule}` to {}", describe_chain(layout, chain)), why));
    }
    Ok(EncodedRule { body: body(rule, layout, filter.owner())?, shown: rule.to_string() })
}

/// The messages that replace installed rules of a chain by others; none if they are the same.
pub(crate) fn replacement_messages(
    installed: &[InstalledRule],
    desired: &[EncodedRule],
    layout: &TableLayout,
    chain: &str,
) -> Vec<NetfilterMessage> {
    if are_same(installed, desired) {
        return Vec::new();
    }
    let mut messages = Vec::new();
    for rule in installed {
        messages.push(rule.deletion(layout));
    }
    for rule in desired {
        messages.push(message::append_rule(layout, chain, &rule.body, &rule.shown));
    }
    messages
}

/// Whether the installed rules are the desired ones, in this order.
pub(crate) fn are_same(installed: &[InstalledRule], desired: &[EncodedRule]) -> bool {
    installed.len() == desired.len()
        && installed.iter().zip(desired).all(|(installed, desired)| installed.is_same(&desired.body))
}

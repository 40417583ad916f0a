//! A chain of one owner alone, as the kernel has it.

use std::collections::HashSet;

use cnikit_netlink::nfnetlink::NetfilterMessage;

use crate::rule::compile::compile;
use crate::rule::types::Rule;
use crate::ruleset::element::Element;
use crate::ruleset::hook::{InstalledChain, refuse_other_hook};
use crate::ruleset::installed_rule::InstalledRule;
use crate::ruleset::layout::{OwnChain, TableLayout};
use crate::ruleset::message::{self, Body, body, place};
use crate::ruleset::owner_filter::OwnerFilter;
use crate::wire::userdata::Label;
use crate::{Error, Result};

/// The chain of that name, if there is one, with all its rules.
#[derive(Clone, Debug)]
pub(crate) struct OwnedChain {
    pub(crate) name: String,
    pub(crate) found: Option<InstalledChain>,
    pub(crate) rules: Vec<InstalledRule>,
}

impl OwnedChain {
    /// Whether it is somebody else's: a rule in it says so.
    pub(crate) fn is_anothers(&self, filter: &OwnerFilter) -> bool {
        self.rules.iter().any(|rule| filter.is_anothers(&rule.label()))
    }

    /// Whether it goes when these rules do: it is a regular chain and ours, and no other rule leads to it.
    pub(crate) fn goes_with(&self, leaving: &[InstalledRule], layout: &TableLayout, filter: &OwnerFilter) -> bool {
        let ours = |rule: &InstalledRule| filter.finds(&rule.label()).is_some();
        let named = layout.own.iter().any(|own| own.name == self.name);
        let leading = leaving.iter().filter(|rule| rule.target() == Some(&self.name)).count();
        self.found.as_ref().is_some_and(|found| found.hook.is_none() && found.uses == self.rules.len() + leading)
            && (named || self.rules.iter().any(ours))
            && !self.is_anothers(filter)
    }

    /// The message that makes it, if it is wanted and not there.
    ///
    /// # Errors
    /// It is somebody else's, or hangs at a hook.
    pub(crate) fn creation(
        &self,
        wanted: bool,
        layout: &TableLayout,
        filter: &OwnerFilter,
    ) -> Result<Option<NetfilterMessage>> {
        match &self.found {
            _ if !wanted => Ok(None),
            None => Ok(Some(message::new_own_chain(layout, &self.name))),
            Some(_) if self.is_anothers(filter) => {
                Err(Error::ours("use", place(layout, &self.name), "the rules in it are somebody else's"))
            }
            Some(found) => refuse_other_hook(layout, &self.name, None, found).map(|()| None),
        }
    }

    /// What is missing or different.
    pub(crate) fn drift(&self, wanted: &OwnChain, layout: &TableLayout) -> Result<Option<String>> {
        let place = place(layout, &wanted.name);
        if wanted.rules.is_empty() {
            return Ok(None);
        }
        if self.found.is_none() {
            return Ok(Some(format!("{place} is missing")));
        }
        if self.has_exactly(&wanted.rules, layout)? {
            return Ok(None);
        }
        let found = listed(self.rules.iter().map(InstalledRule::to_string));
        let wanted = listed(wanted.rules.iter().map(Rule::to_string));
        Ok(Some(format!("{place} holds {found}, wanted {wanted}")))
    }

    /// Whether its rules are these, in this order, with these comments.
    fn has_exactly(&self, wanted: &[Rule], layout: &TableLayout) -> Result<bool> {
        if self.rules.len() != wanted.len() {
            return Ok(false);
        }
        for (found, rule) in self.rules.iter().zip(wanted) {
            if !found.serves(&compile(rule, layout.family)?, rule.comment.as_deref()) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The rules of one owner, in the order of the chains that hold them ([`TableLayout::rule_chains`]); a list of rules alone is
/// for the first of them.
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
    /// Those of each chain that holds rules.
    ///
    /// # Errors
    /// There are rules for more chains than the frame has.
    pub(crate) fn by_chain<'a>(&'a self, layout: &'a TableLayout) -> Result<Vec<(&'static str, &'a [Rule])>> {
        if self.0.len() > layout.rule_chains.len() {
            return Err(Error::ours("add rules to", layout.to_string(), "it has no chain for some of them"));
        }
        let rules = self.0.iter().map(Vec::as_slice).chain(std::iter::repeat(&[] as &[Rule]));
        Ok(layout.rule_chains.iter().copied().zip(rules).collect())
    }
}

/// All rules that are to stand in a chain, as they go over the wire and as a person reads them.
pub(crate) type Content = Vec<(Body, String)>;

/// What a message has beside a rule's expressions and user data: headers, table and chain.
const A_MESSAGE: usize = 96;

/// All that an owner is to have.
pub(crate) struct Wanted {
    /// In the layout's chains that hold his rules, in the layout's order.
    pub(crate) held: Vec<Content>,
    /// In his own, in the layout's order; a chain without rules is not wanted.
    pub(crate) own: Vec<Content>,
    /// The keys of the rules that are held.
    pub(crate) keys: Vec<Element>,
}

impl Wanted {
    /// These rules, and those of the layout's.
    ///
    /// # Errors
    /// A rule that would not be found again; one that cannot be written.
    pub(crate) fn of(layout: &TableLayout, filter: &OwnerFilter, rules: &Rules) -> Result<Self> {
        let content =
            |chain: &str, rules: &[Rule]| rules.iter().map(|rule| addition(rule, layout, chain, filter)).collect();
        let by_chain = rules.by_chain(layout)?;
        let held = by_chain.iter().map(|(chain, rules)| content(chain, rules)).collect::<Result<_>>()?;
        let own = layout.own.iter().map(|own| content(&own.name, &own.rules)).collect::<Result<_>>()?;
        let (mut keys, mut seen) = (Vec::new(), HashSet::new());
        for (chain, rule) in by_chain.iter().flat_map(|(chain, rules)| rules.iter().map(move |rule| (*chain, rule))) {
            for (index, one) in layout.indexes.iter().enumerate().filter(|(_, one)| one.chains.contains(&chain)) {
                let label = Label { comment: rule.comment.as_deref(), owner: filter.owner() };
                let element = one.key(Some(rule), &label).map(|key| Element { index, key });
                keys.extend(element.filter(|element| seen.insert(element.clone())));
            }
        }
        Ok(Self { held, own, keys })
    }

    /// No rule at all.
    pub(crate) fn is_nothing(&self) -> bool {
        self.held.iter().chain(&self.own).all(Vec::is_empty)
    }

    /// In bytes, about what the messages that add the rules are.
    pub(crate) fn size(&self) -> usize {
        let body = |body: &Body| body.expressions.as_bytes().len() + body.userdata.len() + A_MESSAGE;
        self.held.iter().chain(&self.own).flatten().map(|(rule, _)| body(rule)).sum()
    }

    /// What was found before, each rule in the chain it stood in.
    pub(crate) fn again(layout: &TableLayout, before: &[InstalledRule]) -> Self {
        let content = |chain: &str| {
            let of_chain = before.iter().filter(|found| found.chain == chain);
            of_chain.map(|found| (found.body.clone(), found.to_string())).collect()
        };
        let held = layout.rule_chains.iter().map(|chain| content(chain)).collect();
        let own = layout.own.iter().map(|own| content(&own.name)).collect();
        Self { held, own, keys: Element::all_of(layout, before) }
    }
}

fn addition(rule: &Rule, layout: &TableLayout, chain: &str, filter: &OwnerFilter) -> Result<(Body, String)> {
    let label = Label { comment: rule.comment.as_deref(), owner: filter.owner() };
    if let (OwnerFilter::Commented(prefix), None) = (filter, filter.finds(&label)) {
        let why = format!("its comment has to begin with \"{prefix}\", by which it is found again");
        return Err(Error::ours("add rule", format!("`{rule}` to {}", place(layout, chain)), why));
    }
    Ok((body(rule, layout, filter.owner())?, rule.to_string()))
}

/// The messages that make these all the rules that there are of those found in a chain; none if they are the same.
pub(crate) fn replacement_messages(
    found: &[InstalledRule],
    wanted: &Content,
    layout: &TableLayout,
    chain: &str,
) -> Vec<NetfilterMessage> {
    if same(found, wanted) {
        return Vec::new();
    }
    let removed = found.iter().map(|found| found.deletion(layout));
    removed.chain(wanted.iter().map(|(body, shown)| message::append_rule(layout, chain, body, shown))).collect()
}

pub(crate) fn same(found: &[InstalledRule], wanted: &Content) -> bool {
    found.len() == wanted.len() && found.iter().zip(wanted).all(|(found, (wanted, _))| found.is(wanted))
}

/// Rules in a sentence.
pub(crate) fn listed(rules: impl Iterator<Item = String>) -> String {
    let rules: Vec<_> = rules.map(|rule| format!("`{rule}`")).collect();
    if rules.is_empty() { "nothing".to_owned() } else { rules.join(", ") }
}

//! Differences of one table from what is wanted: CHECK reports them, and ADD and RESTORE repair them.

use std::collections::{BTreeSet, HashMap};

use cnikit_iptables::{Changes, IptablesRule, Table};

/// Differences of one table from what is wanted.
#[derive(Debug, Default)]
pub(super) struct Edits {
    list: Vec<Edit>,
    /// How many rules were counted in the table.
    lookups: usize,
    /// How many times each rule is in a chain, once many rules were counted.
    counts: HashMap<&'static str, HashMap<IptablesRule, usize>>,
}

/// For this many rules the chain is searched each time. After that its rules are counted once.
const FEW: usize = 16;

#[derive(Debug)]
enum Edit {
    /// There is no such chain.
    NewChain(&'static str),
    /// The operator's chain does not exist.
    AdminChain(String),
    /// These rules are not the first of a chain in this order. `found` are those of them that exist, each as often as it does.
    First { chain: &'static str, rules: Vec<IptablesRule>, found: Vec<IptablesRule> },
    /// A rule is nowhere in a chain.
    Last { chain: &'static str, rule: IptablesRule },
    /// A rule is in a chain where it should not be.
    Gone { chain: &'static str, rule: IptablesRule },
    /// A chain without rules.
    ChainGone(&'static str),
}

impl Edits {
    /// Wants the chain.
    pub(super) fn chain(&mut self, table: &Table, name: &'static str) {
        let noted = self.list.iter().any(|edit| matches!(edit, Edit::NewChain(noted) if *noted == name));
        if !noted && !table.has_chain(name) {
            self.list.push(Edit::NewChain(name));
        }
    }

    /// Wants the operator's chain.
    pub(super) fn admin_chain(&mut self, table: &Table, name: &str) {
        if !table.has_chain(name) {
            self.list.push(Edit::AdminChain(name.to_owned()));
        }
    }

    /// Wants these rules in this order, each once, before the first rule for which `keeps` returns true: it keeps packets from
    /// them.
    pub(super) fn first(
        &mut self,
        table: &Table,
        chain: &'static str,
        rules: Vec<IptablesRule>,
        keeps: impl Fn(&IptablesRule) -> bool,
    ) {
        let found: Vec<IptablesRule> = table.rules(chain).filter(|rule| rules.contains(rule)).cloned().collect();
        let reached = table.rules(chain).take_while(|rule| rules.contains(rule) || !keeps(rule));
        let right = reached.filter(|rule| rules.contains(rule)).eq(&rules) && found.len() == rules.len();
        if !right {
            self.list.push(Edit::First { chain, rules, found });
        }
    }

    /// Wants the rule anywhere in its chain.
    pub(super) fn last(&mut self, table: &Table, chain: &'static str, rule: IptablesRule) {
        if self.count(table, chain, &rule) == 0 {
            self.list.push(Edit::Last { chain, rule });
        }
    }

    /// Wants the rule nowhere in its chain.
    pub(super) fn gone(&mut self, table: &Table, chain: &'static str, rule: &IptablesRule) {
        for _ in 0..self.count(table, chain, rule) {
            self.list.push(Edit::Gone { chain, rule: rule.clone() });
        }
    }

    /// How many times a rule is in a chain.
    fn count(&mut self, table: &Table, chain: &'static str, rule: &IptablesRule) -> usize {
        self.lookups += 1;
        if self.lookups <= FEW {
            return table.rules(chain).filter(|found| *found == rule).count();
        }
        let counts = self.counts.entry(chain).or_insert_with(|| count_rules(table, chain));
        counts.get(rule).copied().unwrap_or(0)
    }

    /// Deletes the chain if all its rules are deleted.
    pub(super) fn chain_gone_if_empty(&mut self, table: &Table, name: &'static str) {
        let removed =
            self.list.iter().filter(|edit| matches!(edit, Edit::Gone { chain, .. } if *chain == name)).count();
        let is_added = self.list.iter().any(|edit| matches!(edit, Edit::Last { chain, .. } if *chain == name));
        if table.has_chain(name) && !is_added && removed == table.rules(name).count() {
            self.list.push(Edit::ChainGone(name));
        }
    }

    /// The changes. New chains come first, since rules jump to them.
    pub(super) fn changes(&self) -> Changes {
        let mut chains = Changes::default();
        let mut changes = Changes::default();
        for edit in &self.list {
            match edit {
                Edit::NewChain(name) => chains.new_chain(name),
                Edit::AdminChain(name) => chains.new_chain(name),
                Edit::First { chain, rules, found } => {
                    found.iter().for_each(|rule| changes.delete(chain, rule));
                    changes.prepend(chain, rules);
                }
                Edit::Last { chain, rule } => changes.append(chain, rule),
                Edit::Gone { chain, rule } => changes.delete(chain, rule),
                Edit::ChainGone(name) => changes.delete_chain(name),
            }
        }
        chains.extend(changes);
        chains
    }

    /// The differences, each a sentence. A missing chain is not reported, but the rules that it should have.
    pub(super) fn drifts(&self, place: &str) -> Vec<String> {
        let mut drifts = BTreeSet::new();
        let missing = |chain, rule: &IptablesRule| format!("rule `{rule}` is missing from chain {chain} of {place}");
        for edit in &self.list {
            match edit {
                Edit::First { chain, rules, found } => {
                    let absent: Vec<&IptablesRule> = rules.iter().filter(|rule| !found.contains(rule)).collect();
                    drifts.extend(absent.iter().map(|rule| missing(chain, rule)));
                    if absent.is_empty() {
                        let rules: Vec<String> = rules.iter().map(|rule| format!("`{rule}`")).collect();
                        let rules = rules.join(" and then ");
                        drifts.insert(format!("chain {chain} of {place} does not begin with {rules}, each once"));
                    }
                }
                Edit::Last { chain, rule } => drifts.extend([missing(chain, rule)]),
                Edit::Gone { chain, rule } => {
                    drifts.insert(format!("rule `{rule}` in chain {chain} of {place} is not wanted"));
                }
                Edit::AdminChain(name) => drifts.extend([format!("chain {name} is missing from {place}")]),
                Edit::NewChain(_) | Edit::ChainGone(_) => {}
            }
        }
        drifts.into_iter().collect()
    }
}

fn count_rules(table: &Table, chain: &str) -> HashMap<IptablesRule, usize> {
    let mut counts = HashMap::new();
    for found in table.rules(chain) {
        *counts.entry(found.clone()).or_insert(0) += 1;
    }
    counts
}

//! Lists of rules of iptables compared: a rule may occur more than once.

use std::collections::HashMap;

use cnikit_iptables::IptablesRule;

/// The rules that `one` has more often than `other`, each as many times as it has more.
pub(crate) fn only_in_first(one: &[IptablesRule], other: &[IptablesRule]) -> Vec<IptablesRule> {
    let mut rest = Counted::of(other);
    one.iter().filter(|rule| !rest.take(rule)).cloned().collect()
}

/// The differences between the rules of a chain that are installed and those that are wanted, each a sentence.
pub(crate) fn chain_differences(
    installed: &[IptablesRule],
    wanted: &[IptablesRule],
    chain: &str,
    place: &str,
) -> Vec<String> {
    let mut differences = Vec::new();
    for rule in only_in_first(wanted, installed) {
        differences.push(missing(&rule, chain, place));
    }
    for rule in only_in_first(installed, wanted) {
        differences.push(format!("rule `{rule}` in chain {chain} of {place} is not wanted"));
    }
    differences
}

/// The sentence about a rule that a chain lacks.
pub(crate) fn missing(rule: &IptablesRule, chain: &str, place: &str) -> String {
    format!("rule `{rule}` is missing from chain {chain} of {place}")
}

/// How many times each rule occurs.
pub(crate) struct Counted<'a>(HashMap<&'a IptablesRule, usize>);

impl<'a> Counted<'a> {
    pub(crate) fn of(rules: &'a [IptablesRule]) -> Counted<'a> {
        let mut counted = HashMap::new();
        for rule in rules {
            *counted.entry(rule).or_default() += 1;
        }
        Counted(counted)
    }

    /// Removes a rule once. Returns whether it was there.
    pub(crate) fn take(&mut self, rule: &IptablesRule) -> bool {
        match self.0.get_mut(rule) {
            Some(count) if *count > 0 => {
                *count -= 1;
                true
            }
            _ => false,
        }
    }
}

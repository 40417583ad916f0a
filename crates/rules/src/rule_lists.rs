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

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(targets: &[&str]) -> Vec<IptablesRule> {
        targets.iter().map(|target| IptablesRule::any().jump(target)).collect()
    }

    #[test]
    fn a_rule_counts_as_many_times_as_it_occurs() {
        for (one, other, more) in [
            (&["A", "B", "A"][..], &["A"][..], &["B", "A"][..]),
            (&["A"], &["A", "A"], &[]),
            (&["A"], &[], &["A"]),
            (&[], &["A"], &[]),
        ] {
            assert_eq!(only_in_first(&rules(one), &rules(other)), rules(more), "{one:?} {other:?}");
        }
    }

    #[test]
    fn differences_say_which_rules_of_a_chain_are_missing_and_which_are_not_wanted() {
        let differences = chain_differences(&rules(&["A", "B"]), &rules(&["B", "C"]), "CNI-X", "nat of IPv4");
        assert_eq!(
            differences,
            [
                "rule `-j C` is missing from chain CNI-X of nat of IPv4",
                "rule `-j A` in chain CNI-X of nat of IPv4 is not wanted"
            ]
        );
        assert_eq!(chain_differences(&rules(&["A"]), &rules(&["A"]), "CNI-X", "nat of IPv4"), Vec::<String>::new());
    }
}

//! What is to be different, as `iptables-restore --noflush` takes it.

use std::collections::HashSet;
use std::fmt;

use crate::rule::IptablesRule;

/// A comment: `--verbose` has it repeated.
pub(crate) const LAST: &str = "# all was read";

/// Changes of one table, which are made together or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes(Vec<Change>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Change {
    Removal(Removal),
    NewChain(String),
    /// A rule before others of this chain.
    Insertion {
        chain: String,
        line: String,
    },
    /// A rule behind all others of its chain.
    Addition(String),
    Look(String),
}

/// What makes a table smaller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Removal {
    Rule {
        chain: String,
        rule: IptablesRule,
    },
    /// With its rules.
    Chain(String),
}

impl Changes {
    /// Makes a chain; all fails if there is one of that name.
    pub fn new_chain(&mut self, name: &str) {
        self.0.push(Change::NewChain(name.to_owned()));
    }

    /// Adds a rule behind all others of its chain.
    pub fn append(&mut self, chain: &str, rule: &IptablesRule) {
        self.0.push(Change::Addition(format!("-A {chain} {rule}")));
    }

    /// Adds rules before all others of their chain, in this order.
    pub fn prepend<'a>(&mut self, chain: &str, rules: impl IntoIterator<Item = &'a IptablesRule>) {
        self.0.extend((1..).zip(rules).map(|(place, rule)| {
            let line = format!("-I {chain} {place} {rule}");
            Change::Insertion { chain: chain.to_owned(), line }
        }));
    }

    /// Removes a rule; all fails if it is not there.
    pub fn delete(&mut self, chain: &str, rule: &IptablesRule) {
        self.0.push(Change::Removal(Removal::Rule { chain: chain.to_owned(), rule: rule.clone() }));
    }

    /// Makes these all the rules of a chain that has those; all fails if it has not, and what it has beyond them stays.
    pub fn refill(&mut self, chain: &str, had: &[IptablesRule], has: &[IptablesRule]) {
        if let Some(more) = has.strip_prefix(had) {
            more.iter().for_each(|rule| self.append(chain, rule));
        } else {
            had.iter().for_each(|rule| self.delete(chain, rule));
            has.iter().for_each(|rule| self.append(chain, rule));
        }
    }

    /// Looks for a rule and changes nothing; all fails if it is not there.
    pub(crate) fn look_for(&mut self, chain: &str, rule: &IptablesRule) {
        self.0.push(Change::Look(format!("-C {chain} {rule}")));
    }

    /// Removes a chain with its rules; all fails if it is not there, or if a rule jumps to it.
    pub fn delete_chain(&mut self, name: &str) {
        self.0.push(Change::Removal(Removal::Chain(name.to_owned())));
    }

    /// And these, after them.
    pub fn extend(&mut self, more: Changes) {
        self.0.extend(more.0);
    }

    /// Nothing is to be different.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// These, if all that they do is to remove.
    pub(crate) fn removals(&self) -> Option<Vec<&Removal>> {
        fn removal(change: &Change) -> Option<&Removal> {
            match change {
                Change::Removal(removal) => Some(removal),
                _ => None,
            }
        }
        self.0.iter().map(removal).collect()
    }

    /// Whether these make chains, fill those, and add rules behind all others, and do nothing else.
    pub fn only_add(&self) -> bool {
        let mut new = HashSet::new();
        for change in &self.0 {
            if let Change::NewChain(name) = change {
                new.insert(name);
            }
        }
        self.0.iter().all(|change| match change {
            Change::NewChain(_) | Change::Addition(_) => true,
            Change::Insertion { chain, .. } => new.contains(chain),
            Change::Removal(_) | Change::Look(_) => false,
        })
    }

    /// With a comment as its last line, which shows whether it was read to its end.
    pub(crate) fn input(&self, table: &str) -> Vec<u8> {
        format!("*{table}\n{self}COMMIT\n{LAST}\n").into_bytes()
    }
}

/// A line a change; a chain that goes is emptied first.
impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|change| match change {
            Change::Insertion { line, .. } | Change::Addition(line) | Change::Look(line) => writeln!(f, "{line}"),
            Change::NewChain(name) => writeln!(f, "-N {name}"),
            Change::Removal(Removal::Rule { chain, rule }) => writeln!(f, "-D {chain} {rule}"),
            Change::Removal(Removal::Chain(name)) => writeln!(f, "-F {name}\n-X {name}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_one_input_in_their_order() {
        let (mut changes, [one, two]) =
            (Changes::default(), ["ONE", "TWO"].map(|target| IptablesRule::any().jump(target)));
        changes.new_chain("c");
        changes.prepend("c", [&one, &two]);
        changes.delete("POSTROUTING", &one);
        changes.refill("e", std::slice::from_ref(&one), &[one.clone(), two.clone()]);
        changes.refill("f", &[one.clone(), two.clone()], std::slice::from_ref(&two));
        changes.delete_chain("d");
        let refilled = "-A e -j TWO\n-D f -j ONE\n-D f -j TWO\n-A f -j TWO\n";
        let expected = format!(
            "*nat\n-N c\n-I c 1 -j ONE\n-I c 2 -j TWO\n-D POSTROUTING -j ONE\n{refilled}-F d\n-X d\nCOMMIT\n# all was read\n"
        );
        assert_eq!(String::from_utf8(changes.input("nat")).unwrap(), expected);
    }

    #[test]
    fn what_goes_or_comes_before_others_is_no_mere_addition() {
        let (rule, changed) = (IptablesRule::any().jump("OWN"), |make: &dyn Fn(&mut Changes)| {
            let mut changes = Changes::default();
            make(&mut changes);
            changes.only_add()
        });
        assert!(changed(&|changes| {
            changes.new_chain("OWN");
            changes.prepend("OWN", [&rule]);
            changes.append("POSTROUTING", &rule);
        }));
        assert!(changed(&|changes| changes.append("FORWARD", &rule)));
        assert!(!changed(&|changes| changes.prepend("FORWARD", [&rule])));
        assert!(!changed(&|changes| {
            changes.new_chain("OWN");
            changes.delete("FORWARD", &rule);
        }));
        assert!(!changed(&|changes| changes.delete_chain("OWN")));
    }
}

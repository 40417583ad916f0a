//! Changes of one table, as `iptables-restore --noflush` reads them.

use std::collections::HashSet;
use std::fmt;

use crate::rule::IptablesRule;

/// The last line of the input, a comment. With `--verbose` the program prints it, which shows that it read its input to the end.
pub(crate) const END_MARKER: &str = "# all was read";

/// Changes of one table, which are made together or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes(Vec<Change>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Change {
    Removal(Removal),
    NewChain(String),
    /// `-I`: a rule before the others of its chain.
    Insert {
        chain: String,
        line: String,
    },
    /// `-A`: a rule behind all others of its chain.
    Append(String),
    /// `-C`: fails if there is no such rule.
    Check(String),
}

/// A change that makes a table smaller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Removal {
    Rule {
        chain: String,
        rule: IptablesRule,
    },
    /// A chain with its rules.
    Chain(String),
}

impl Changes {
    /// Creates a chain. All changes fail if there is one of that name.
    pub fn new_chain(&mut self, name: &str) {
        self.0.push(Change::NewChain(name.to_owned()));
    }

    /// Appends a rule to a chain.
    pub fn append(&mut self, chain: &str, rule: &IptablesRule) {
        self.0.push(Change::Append(format!("-A {chain} {rule}")));
    }

    /// Inserts rules, in this order, before all others of a chain.
    pub fn prepend<'a>(&mut self, chain: &str, rules: impl IntoIterator<Item = &'a IptablesRule>) {
        for (number, rule) in (1..).zip(rules) {
            let line = format!("-I {chain} {number} {rule}");
            self.0.push(Change::Insert { chain: chain.to_owned(), line });
        }
    }

    /// Deletes a rule. All changes fail if the chain does not have it.
    pub fn delete(&mut self, chain: &str, rule: &IptablesRule) {
        self.0.push(Change::Removal(Removal::Rule { chain: chain.to_owned(), rule: rule.clone() }));
    }

    /// Replaces the rules `before` of a chain by `after`. All changes fail if the chain does not have `before`; its other rules
    /// stay.
    pub fn replace_rules(&mut self, chain: &str, before: &[IptablesRule], after: &[IptablesRule]) {
        if let Some(more) = after.strip_prefix(before) {
            more.iter().for_each(|rule| self.append(chain, rule));
            return;
        }
        before.iter().for_each(|rule| self.delete(chain, rule));
        after.iter().for_each(|rule| self.append(chain, rule));
    }

    /// Checks that a chain has a rule, and changes nothing. All changes fail if it does not.
    pub(crate) fn check(&mut self, chain: &str, rule: &IptablesRule) {
        self.0.push(Change::Check(format!("-C {chain} {rule}")));
    }

    /// Deletes a chain with its rules. All changes fail if there is no such chain, or if a rule jumps to it.
    pub fn delete_chain(&mut self, name: &str) {
        self.0.push(Change::Removal(Removal::Chain(name.to_owned())));
    }

    /// Adds further changes, which are made after these.
    pub fn extend(&mut self, more: Changes) {
        self.0.extend(more.0);
    }

    /// Whether there are no changes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The changes, if all of them are removals.
    pub(crate) fn removals(&self) -> Option<Vec<&Removal>> {
        let mut removals = Vec::new();
        for change in &self.0 {
            let Change::Removal(removal) = change else { return None };
            removals.push(removal);
        }
        Some(removals)
    }

    /// Whether the changes only create chains, fill the new chains, and append rules.
    pub fn only_add(&self) -> bool {
        let mut new = HashSet::new();
        for change in &self.0 {
            if let Change::NewChain(name) = change {
                new.insert(name);
            }
        }
        self.0.iter().all(|change| match change {
            Change::NewChain(_) | Change::Append(_) => true,
            Change::Insert { chain, .. } => new.contains(chain),
            Change::Removal(_) | Change::Check(_) => false,
        })
    }

    /// The whole input of `iptables-restore`.
    pub(crate) fn input(&self, table: &str) -> Vec<u8> {
        format!("*{table}\n{self}COMMIT\n{END_MARKER}\n").into_bytes()
    }
}

/// One line per change; a chain is flushed before it is deleted.
impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for change in &self.0 {
            match change {
                Change::Insert { line, .. } | Change::Append(line) | Change::Check(line) => writeln!(f, "{line}")?,
                Change::NewChain(name) => writeln!(f, "-N {name}")?,
                Change::Removal(Removal::Rule { chain, rule }) => writeln!(f, "-D {chain} {rule}")?,
                Change::Removal(Removal::Chain(name)) => writeln!(f, "-F {name}\n-X {name}")?,
            }
        }
        Ok(())
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
        changes.replace_rules("e", std::slice::from_ref(&one), &[one.clone(), two.clone()]);
        changes.replace_rules("f", &[one.clone(), two.clone()], std::slice::from_ref(&two));
        changes.delete_chain("d");
        let refilled = "-A e -j TWO\n-D f -j ONE\n-D f -j TWO\n-A f -j TWO\n";
        let expected = format!(
            "*nat\n-N c\n-I c 1 -j ONE\n-I c 2 -j TWO\n-D POSTROUTING -j ONE\n{refilled}-F d\n-X d\nCOMMIT\n# all was read\n"
        );
        assert_eq!(String::from_utf8(changes.input("nat")).unwrap(), expected);
    }

    #[test]
    fn deletions_and_insertions_are_not_only_additions() {
        let rule = IptablesRule::any().jump("OWN");
        let changed = |make: &dyn Fn(&mut Changes)| {
            let mut changes = Changes::default();
            make(&mut changes);
            changes.only_add()
        };
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

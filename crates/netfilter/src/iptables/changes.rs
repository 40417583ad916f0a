//! What is to be different, as `iptables-restore --noflush` takes it.

use std::fmt;

use super::Rule;

/// A comment: `--verbose` has it repeated.
pub(crate) const LAST: &str = "# all was read";

/// Changes of one table, which are made together or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes(Vec<String>);

impl Changes {
    /// Makes a chain; all fails if there is one of that name.
    pub fn new_chain(&mut self, name: &str) {
        self.0.push(format!("-N {name}"));
    }

    /// Adds a rule behind all others of its chain.
    pub fn append(&mut self, chain: &str, rule: &Rule) {
        self.0.push(format!("-A {chain} {rule}"));
    }

    /// Adds rules before all others of their chain, in this order.
    pub fn prepend<'a>(&mut self, chain: &str, rules: impl IntoIterator<Item = &'a Rule>) {
        self.0.extend((1..).zip(rules).map(|(place, rule)| format!("-I {chain} {place} {rule}")));
    }

    /// Removes a rule; all fails if it is not there.
    pub fn delete(&mut self, chain: &str, rule: &Rule) {
        self.0.push(format!("-D {chain} {rule}"));
    }

    /// Removes a chain with its rules; all fails if it is not there, or if a rule jumps to it.
    pub fn delete_chain(&mut self, name: &str) {
        self.0.extend([format!("-F {name}"), format!("-X {name}")]);
    }

    /// And these, after them.
    pub fn extend(&mut self, more: Changes) {
        self.0.extend(more.0);
    }

    /// Nothing is to be different.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// With a comment as its last line, which shows whether it was read to its end.
    pub(crate) fn input(&self, table: &str) -> Vec<u8> {
        format!("*{table}\n{self}COMMIT\n{LAST}\n").into_bytes()
    }
}

/// A line a change.
impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_one_input_in_their_order() {
        let (mut changes, [one, two]) = (Changes::default(), ["ONE", "TWO"].map(|target| Rule::any().jump(target)));
        changes.new_chain("c");
        changes.prepend("c", [&one, &two]);
        changes.delete("POSTROUTING", &one);
        changes.delete_chain("d");
        let expected =
            "*nat\n-N c\n-I c 1 -j ONE\n-I c 2 -j TWO\n-D POSTROUTING -j ONE\n-F d\n-X d\nCOMMIT\n# all was read\n";
        assert_eq!(String::from_utf8(changes.input("nat")).unwrap(), expected);
    }
}

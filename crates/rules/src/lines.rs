//! The rules of a table of iptables as lines, for tests of what is computed from them and for them.

use cnikit_iptables::{Changes, Table};

/// What `iptables-save` prints of a table after the changes that it got, by chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lines {
    table: &'static str,
    chains: Vec<(String, Vec<String>)>,
}

impl Lines {
    /// A table with a base chain that has a rule of another program.
    pub(crate) fn of(table: &'static str, base_chain: &str) -> Lines {
        Lines { table, chains: vec![(base_chain.to_owned(), vec!["-j OTHER".to_owned()])] }
    }

    /// A table with a chain, and with what these lines make, each `-N CHAIN` or `-A CHAIN RULE`.
    pub(crate) fn made_by(table: &'static str, chain: &str, lines: &[String]) -> Lines {
        let mut made = Lines { table, chains: vec![(chain.to_owned(), Vec::new())] };
        lines.iter().for_each(|line| made.apply(line));
        made
    }

    /// The table, read from these lines.
    pub(crate) fn read(&self) -> Table {
        let chains = self.chains.iter().map(|(chain, _)| format!(":{chain} - [0:0]\n"));
        let said: String = chains.chain(self.rules().into_iter().map(|line| format!("{line}\n"))).collect();
        Table::read(&format!("*{}\n{said}COMMIT\n", self.table), self.table, "").unwrap()
    }

    /// All rules.
    pub(crate) fn rules(&self) -> Vec<String> {
        let of = |(chain, rules): &(String, Vec<String>)| -> Vec<String> {
            rules.iter().map(|rule| format!("-A {chain} {rule}")).collect()
        };
        self.chains.iter().flat_map(of).collect()
    }

    /// All rules, in an order that does not depend on which was added first.
    pub(crate) fn sorted(&self) -> Vec<String> {
        let mut rules = self.rules();
        rules.sort();
        rules
    }

    /// The names of the chains.
    pub(crate) fn chains(&self) -> Vec<String> {
        self.chains.iter().map(|(chain, _)| chain.clone()).collect()
    }

    /// The rules of a chain, without its name.
    pub(crate) fn chain(&mut self, name: &str) -> &mut Vec<String> {
        &mut self.chains.iter_mut().find(|(chain, _)| chain == name).unwrap_or_else(|| panic!("no chain {name}")).1
    }

    /// Deletes a chain, whatever jumps to it.
    pub(crate) fn forget(&mut self, name: &str) {
        self.chains.retain(|(chain, _)| chain != name);
    }

    /// Adds each rule once more, as a script does that loads them again.
    pub(crate) fn double(&mut self) {
        self.chains.iter_mut().for_each(|(_, rules)| rules.extend(rules.clone()));
    }

    /// How many rules have this text in their line.
    pub(crate) fn count(&self, text: &str) -> usize {
        self.rules().iter().filter(|line| line.contains(text)).count()
    }

    /// Makes the changes. It panics at what iptables-restore(8) refuses.
    pub(crate) fn change(&mut self, changes: &Changes) {
        changes.to_string().lines().for_each(|line| self.apply(line));
    }

    fn apply(&mut self, line: &str) {
        let (what, rest) = line.split_once(' ').unwrap();
        let (name, rule) = rest.split_once(' ').unwrap_or((rest, ""));
        match what {
            "-N" => {
                assert!(!self.chains().iter().any(|chain| chain == name), "{name} exists");
                self.chains.push((name.to_owned(), Vec::new()));
            }
            "-A" => self.chain(name).push(rule.to_owned()),
            "-I" => {
                let (number, rule) = rule.split_once(' ').unwrap();
                self.chain(name).insert(number.parse::<usize>().unwrap() - 1, rule.to_owned());
            }
            "-D" => {
                let place = self.chain(name).iter().position(|one| one == rule);
                self.chain(name).remove(place.unwrap_or_else(|| panic!("{line}: there is no such rule")));
            }
            "-F" => self.chain(name).clear(),
            "-X" => {
                assert!(self.chain(name).is_empty(), "{name} has rules");
                assert!(!self.rules().iter().any(|line| line.ends_with(&format!("-j {name}"))), "{name} is in use");
                self.forget(name);
            }
            _ => panic!("{line}"),
        }
    }
}

//! A table, parsed from the output of the programs.

use std::collections::HashSet;

use crate::read_scope::ListedChains;
use crate::rule::IptablesRule;

/// One table as it was read: its chains, and the rules on lines with the text that the caller asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    chains: Vec<String>,
    /// The number of rules of each chain that has any, those without the text included.
    lengths: Vec<(String, usize)>,
    rules: Vec<TableRule>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct TableRule {
    chain: String,
    /// The number among all rules of the chain, from 1.
    number: usize,
    rule: IptablesRule,
}

impl Table {
    /// Parses the output of `iptables-save -t NAME`. Only rules on lines that contain `line_text` are parsed.
    ///
    /// Returns `None` if the output does not contain the table: `iptables-save` omits a table with rules that it cannot express.
    pub fn read(output: &str, name: &str, line_text: &str) -> Option<Self> {
        let is_header = |line| matches!(line, Line::Table(printed) if printed == name);
        if !lines(output).map(Line::of).any(is_header) {
            return None;
        }
        Some(Self::parse(output, line_text))
    }

    /// Parses the output of several `-S CHAIN`; `None` if one of the chains is missing from it.
    pub(crate) fn read_listed(output: &str, listed: ListedChains, line_text: &str) -> Option<Self> {
        let table = Self::parse(output, line_text);
        let printed: HashSet<&str> = table.chains().collect();
        if !listed.names.iter().all(|chain| printed.contains(chain.as_str())) {
            return None;
        }
        Some(Self { chains: listed.all, ..table })
    }

    fn parse(output: &str, line_text: &str) -> Self {
        let mut table = Self::default();
        for line in lines(output) {
            match Line::of(line) {
                Line::Rule(rule) => {
                    let number = table.count_rule(rule.split(' ').next().unwrap_or_default());
                    if line.contains(line_text) {
                        table.push_rule(number, rule);
                    }
                }
                Line::Chain(chain) => table.chains.push(chain.to_owned()),
                Line::Table(_) | Line::Other => {}
            }
        }
        table
    }

    /// Counts one more rule of a chain, and returns its number.
    fn count_rule(&mut self, chain: &str) -> usize {
        if let Some((last, length)) = self.lengths.last_mut()
            && last == chain
        {
            *length += 1;
            return *length;
        }
        self.lengths.push((chain.to_owned(), 1));
        1
    }

    fn push_rule(&mut self, number: usize, line: &str) {
        let mut words = words(line).into_iter();
        if let Some(chain) = words.next() {
            self.rules.push(TableRule { chain, number, rule: IptablesRule::read(words.collect()) });
        }
    }

    /// The names of the chains.
    pub fn chains(&self) -> impl Iterator<Item = &str> {
        self.chains.iter().map(String::as_str)
    }

    /// Whether there is such a chain.
    pub fn has_chain(&self, name: &str) -> bool {
        self.chains().any(|chain| chain == name)
    }

    /// Whether a chain has rules, those without the text included.
    pub(crate) fn has_rules(&self, chain: &str) -> bool {
        self.length(chain) > 0
    }

    /// The number of rules of a chain, those without the text included.
    pub(crate) fn length(&self, chain: &str) -> usize {
        self.lengths.iter().find(|(name, _)| name == chain).map_or(0, |(_, length)| *length)
    }

    /// The rules of a chain, in their order.
    pub fn rules(&self, chain: &str) -> impl Iterator<Item = &IptablesRule> {
        self.numbered_rules(chain).map(|(_, rule)| rule)
    }

    /// The rules of a chain, each with its number among all rules of the chain, from 1, as `iptables -L --line-numbers` prints it.
    pub fn numbered_rules(&self, chain: &str) -> impl Iterator<Item = (usize, &IptablesRule)> {
        self.rules.iter().filter(move |found| found.chain == chain).map(|found| (found.number, &found.rule))
    }

    /// The rules that jump to a chain, each with the chain that it is in.
    pub fn jumps(&self, to: &str) -> impl Iterator<Item = (&str, &IptablesRule)> {
        let jumps = self.rules.iter().filter(move |found| found.rule.target() == Some(to));
        jumps.map(|found| (found.chain.as_str(), &found.rule))
    }
}

/// A line of the output.
enum Line<'a> {
    /// The name of the table that follows.
    Table(&'a str),
    /// The name of a chain.
    Chain(&'a str),
    /// The chain of a rule, and the rule.
    Rule(&'a str),
    Other,
}

impl<'a> Line<'a> {
    fn of(line: &'a str) -> Self {
        if let Some(rule) = line.strip_prefix("-A ") {
            return Line::Rule(rule);
        }
        if let Some(table) = line.strip_prefix('*') {
            return Line::Table(table);
        }
        // `:` in the output of iptables-save; of `-S`, `-P` for a base chain and `-N` for any other.
        for start in [":", "-P ", "-N "] {
            if let Some(rest) = line.strip_prefix(start) {
                return Line::Chain(rest.split(' ').next().unwrap_or_default());
            }
        }
        Line::Other
    }
}

/// The lines of an output. A rule ends at the first line break outside of quotation marks: comments may contain line breaks.
fn lines(output: &str) -> impl Iterator<Item = &str> {
    let mut rest = output;
    std::iter::from_fn(move || next_line(&mut rest))
}

fn next_line<'a>(output: &mut &'a str) -> Option<&'a str> {
    if output.is_empty() {
        return None;
    }
    let end = if output.starts_with('-') { end_of_rule(output) } else { output.find('\n').unwrap_or(output.len()) };
    let (line, rest) = output.split_at(end);
    *output = rest.strip_prefix('\n').unwrap_or(rest);
    Some(line)
}

fn end_of_rule(output: &str) -> usize {
    let mut is_quoted = false;
    let mut is_escaped = false;
    for (at, byte) in output.bytes().enumerate() {
        if byte == b'\n' && !is_quoted {
            return at;
        }
        if byte == b'"' && !is_escaped {
            is_quoted = !is_quoted;
        }
        is_escaped = is_quoted && !is_escaped && byte == b'\\';
    }
    output.len()
}

/// The words of a line, without the quotation marks and backslashes of iptables-save.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut is_quoted = false;
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '"' => {
                is_quoted = !is_quoted;
                word.get_or_insert_default();
            }
            '\\' if is_quoted => {
                let escaped = word.get_or_insert_default();
                if let Some(next) = letters.next() {
                    escaped.push(next);
                }
            }
            ' ' if !is_quoted => {
                if let Some(ended) = word.take() {
                    words.push(ended);
                }
            }
            other => word.get_or_insert_default().push(other),
        }
    }
    if let Some(last) = word {
        words.push(last);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As both variants wrote it, 1.8.9.
    const SAID: &str = r#"# Generated by iptables-nft-save v1.8.9 (nf_tables) on Sat Nov 21 14:48:08 2026
*nat
:PREROUTING ACCEPT [0:0]
:POSTROUTING ACCEPT [12:720]
:OWN-abc - [0:0]
:KUBE-SVC - [0:0]
-A POSTROUTING -s 10.0.0.2/32 -m comment --comment "name: \"n\" id: \"c1\"" -j OWN-abc
-A POSTROUTING -s 10.0.0.2/32 -m comment --comment "" -j OWN-abc
-A POSTROUTING -m comment --comment "two
-A POSTROUTING -s 10.9.9.9/32 -j OWN-abc
lines" -j KUBE-SVC
-A KUBE-SVC -m comment --comment "it\'s \\\"odd\\\" \"" -m statistic --mode random --probability 0.50000000000 -j RETURN
-A OWN-abc ! -d 224.0.0.0/4 -m comment --comment simple -j MASQUERADE
COMMIT
# Completed on Sat Nov 21 14:48:08 2026
"#;

    #[test]
    fn chains_and_rules_that_mention_it_are_read_with_their_quotation_undone() {
        let table = Table::read(SAID, "nat", "OWN-abc").unwrap();
        assert_eq!(table.chains().collect::<Vec<_>>(), ["PREROUTING", "POSTROUTING", "OWN-abc", "KUBE-SVC"]);
        let comments =
            |rules: Vec<&IptablesRule>| rules.iter().filter_map(|rule| rule.comment()).collect::<Vec<_>>().join("|");
        let jumps: Vec<_> = table.jumps("OWN-abc").map(|(_, rule)| rule).collect();
        assert_eq!(comments(jumps), r#"name: "n" id: "c1"|"#);
        assert_eq!(comments(table.rules("OWN-abc").collect()), "simple");
    }

    #[test]
    fn a_line_break_in_a_comment_makes_no_rule_of_what_follows() {
        let table = Table::read(SAID, "nat", "").unwrap();
        let sources: Vec<_> = table.rules("POSTROUTING").filter_map(IptablesRule::source_address).collect();
        assert_eq!(sources.len(), 2);
        let comments: Vec<_> = table.rules("KUBE-SVC").filter_map(IptablesRule::comment).collect();
        assert_eq!(comments, [r#"it's \"odd\" ""#]);
    }

    #[test]
    fn rule_numbers_count_filtered_rules_too() {
        let numbers = |mention| {
            let table = Table::read(SAID, "nat", mention).unwrap();
            table.numbered_rules("POSTROUTING").map(|(number, _)| number).collect::<Vec<_>>()
        };
        assert_eq!((numbers(""), numbers("lines")), (vec![1, 2, 3], vec![3]));
    }

    #[test]
    fn every_rule_is_written_as_it_was_read() {
        let plain = SAID.replace("\\'", "'");
        let table = Table::read(SAID, "nat", "").unwrap();
        for TableRule { chain, rule, .. } in &table.rules {
            assert!(plain.contains(&format!("-A {chain} {rule}\n")), "{rule}");
        }
        assert_eq!(table.rules.len(), 5);
    }

    #[test]
    fn a_table_missing_from_the_output_is_none() {
        assert_eq!(Table::read("# Table `nat' is incompatible, use 'nft' tool.\n", "nat", "OWN-"), None);
        assert_eq!(Table::read(SAID, "filter", "OWN-"), None);
        assert_eq!(Table::read("*nat\nCOMMIT", "nat", "OWN-"), Some(Table::default()));
    }
}

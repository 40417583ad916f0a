//! What the programs of iptables say of one table.

use std::collections::HashSet;

use crate::read_scope::Listed;
use crate::rule::IptablesRule;

/// What was found of a table: its chains, and the rules that mention what was looked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    chains: Vec<String>,
    /// How many rules each chain has that has any, whatever they mention.
    lengths: Vec<(String, usize)>,
    rules: Vec<FoundLine>,
}

/// A rule, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FoundLine {
    chain: String,
    /// Counted among all rules of the chain, from 1.
    place: usize,
    rule: IptablesRule,
}

impl Table {
    /// Reads the output of `iptables-save -t NAME`, of which only rules that hold `mention` are looked at more closely.
    ///
    /// `None` if it does not show the table: that is how it says that there is something in it that it does not
    /// understand.
    pub fn read(said: &str, name: &str, mention: &str) -> Option<Self> {
        let header = |line| matches!(line, Line::Table(shown) if shown == name);
        lines(said).map(Line::of).any(header).then(|| Self::of(said, mention))
    }

    /// Reads what `-S CHAIN` says of each of some chains; `None` if one of them is not shown.
    pub(crate) fn read_some(said: &str, listed: Listed, mention: &str) -> Option<Self> {
        let shown = Self::of(said, mention);
        let names: HashSet<&str> = shown.chains().collect();
        let whole = listed.chains.iter().all(|chain| names.contains(chain.as_str()));
        whole.then_some(Self { chains: listed.all, ..shown })
    }

    fn of(said: &str, mention: &str) -> Self {
        let mut table = Self::default();
        for line in lines(said) {
            match Line::of(line) {
                Line::Rule(rule) => {
                    let chain = rule.split(' ').next().unwrap_or_default();
                    match table.lengths.last_mut() {
                        Some((last, length)) if last == chain => *length += 1,
                        _ => table.lengths.push((chain.to_owned(), 1)),
                    }
                    if line.contains(mention) {
                        table.take(rule);
                    }
                }
                Line::Chain(chain) => table.chains.push(chain.to_owned()),
                Line::Table(_) | Line::Other => {}
            }
        }
        table
    }

    /// Takes the rule that was counted last.
    fn take(&mut self, rule: &str) {
        let place = self.lengths.last().map_or(0, |(_, length)| *length);
        let mut words = words(rule).into_iter();
        self.rules.extend(words.next().map(|chain| FoundLine {
            chain,
            place,
            rule: IptablesRule::read(words.collect()),
        }));
    }

    /// The names of the chains.
    pub fn chains(&self) -> impl Iterator<Item = &str> {
        self.chains.iter().map(String::as_str)
    }

    /// Whether there is such a chain.
    pub fn has_chain(&self, name: &str) -> bool {
        self.chains().any(|chain| chain == name)
    }

    /// Whether any rule of a chain was shown, also one that does not mention what was looked for.
    pub(crate) fn shows_rules_of(&self, chain: &str) -> bool {
        self.length(chain) > 0
    }

    /// How many rules a chain has, also such that do not mention what was looked for.
    pub(crate) fn length(&self, chain: &str) -> usize {
        self.lengths.iter().find(|(name, _)| name == chain).map_or(0, |(_, length)| *length)
    }

    /// The rules of a chain, in their order.
    pub fn rules(&self, chain: &str) -> impl Iterator<Item = &IptablesRule> {
        self.places(chain).map(|(_, rule)| rule)
    }

    /// The same, each with its place among all rules of the chain, from 1.
    pub fn places(&self, chain: &str) -> impl Iterator<Item = (usize, &IptablesRule)> {
        self.rules.iter().filter(move |found| found.chain == chain).map(|found| (found.place, &found.rule))
    }

    /// The rules that jump to a chain, each with the chain that it stands in.
    pub fn jumps(&self, to: &str) -> impl Iterator<Item = (&str, &IptablesRule)> {
        let jumps = self.rules.iter().filter(move |found| found.rule.target() == Some(to));
        jumps.map(|found| (found.chain.as_str(), &found.rule))
    }
}

/// A line of what they say.
enum Line<'a> {
    /// The name of the table that follows.
    Table(&'a str),
    /// The name of a chain.
    Chain(&'a str),
    /// A rule, behind the chain it stands in.
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
        // In a whole table, among chains that were asked for: one that packets come to first, any other.
        let chain = [":", "-P ", "-N "].into_iter().find_map(|begin| line.strip_prefix(begin));
        chain.map_or(Line::Other, |words| Line::Chain(words.split(' ').next().unwrap_or_default()))
    }
}

/// The lines, of which one that holds a rule goes on while a quotation mark is open: comments may hold line breaks.
fn lines(mut said: &str) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        if said.is_empty() {
            return None;
        }
        let end = if said.starts_with('-') { end_of_rule(said) } else { said.find('\n').unwrap_or(said.len()) };
        let (line, rest) = said.split_at(end);
        said = rest.strip_prefix('\n').unwrap_or(rest);
        Some(line)
    })
}

fn end_of_rule(said: &str) -> usize {
    let (mut open, mut escaped) = (false, false);
    let ends = |(_, byte): &(usize, u8)| {
        open ^= *byte == b'"' && !escaped;
        escaped = open && !escaped && *byte == b'\\';
        *byte == b'\n' && !open
    };
    said.bytes().enumerate().find(ends).map_or(said.len(), |(place, _)| place)
}

/// The words of a line, with the quotation marks and backslashes of iptables-save undone.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut open) = (Vec::new(), None::<String>, false);
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '"' => {
                open = !open;
                word.get_or_insert_default();
            }
            '\\' if open => word.get_or_insert_default().extend(letters.next()),
            ' ' if !open => words.extend(word.take()),
            letter => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
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
    fn a_rules_place_counts_those_that_are_not_looked_at() {
        let places = |mention| {
            let table = Table::read(SAID, "nat", mention).unwrap();
            table.places("POSTROUTING").map(|(place, _)| place).collect::<Vec<_>>()
        };
        assert_eq!((places(""), places("lines")), (vec![1, 2, 3], vec![3]));
    }

    #[test]
    fn every_rule_is_written_as_it_was_read() {
        let plain = SAID.replace("\\'", "'");
        let table = Table::read(SAID, "nat", "").unwrap();
        for FoundLine { chain, rule, .. } in &table.rules {
            assert!(plain.contains(&format!("-A {chain} {rule}\n")), "{rule}");
        }
        assert_eq!(table.rules.len(), 5);
    }

    #[test]
    fn a_table_that_is_not_shown_is_none() {
        assert_eq!(Table::read("# Table `nat' is incompatible, use 'nft' tool.\n", "nat", "OWN-"), None);
        assert_eq!(Table::read(SAID, "filter", "OWN-"), None);
        assert_eq!(Table::read("*nat\nCOMMIT", "nat", "OWN-"), Some(Table::default()));
    }
}

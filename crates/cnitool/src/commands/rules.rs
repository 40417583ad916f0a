//! The host's packet filter, as far as it names a container: by its id or by one of its addresses.
//!
//! Read by the programs whose rules they are, so that rules of every plugin are seen, whoever wrote it; `show` is for people
//! who look at one container.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::time::Duration;

use cnikit_libcni::CachedAttachment;
use cnikit_process::{Deadline, Env, Program, find_program, run};

const TIMEOUT: Duration = Duration::from_secs(10);
/// More than a node's whole ruleset.
const LIMIT: usize = 64 << 20;

/// The programs of iptables, and the family of nftables that theirs are where they are written with that.
const IPTABLES: [(&str, &str); 2] = [("iptables-save", "ip"), ("ip6tables-save", "ip6")];

/// All rules, read when the first are asked for.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    lines: Option<Vec<String>>,
    missing: Vec<String>,
}

impl Rules {
    /// Those that name this attachment's container or one of its addresses.
    pub(crate) fn of(&mut self, kept: &CachedAttachment) -> Vec<String> {
        let ips = kept.cni_result().map(|answer| answer.ips).unwrap_or_default();
        let mut words: Vec<String> = ips.iter().map(|ip| ip.address.ip().to_string()).collect();
        words.push(kept.at.container_id.clone());
        if self.lines.is_none() {
            self.lines = Some(self.read());
        }
        let lines = self.lines.iter().flatten();
        lines.filter(|line| words.iter().any(|word| names(line, word))).cloned().collect()
    }

    /// What could not be read, each in a sentence.
    pub(crate) fn missing(&self) -> impl Iterator<Item = &str> {
        self.missing.iter().map(String::as_str)
    }

    fn read(&mut self) -> Vec<String> {
        let (mut all, mut known) = (Vec::new(), BTreeSet::new());
        for (name, family) in IPTABLES {
            if let Some(text) = self.said(name, &[]) {
                let (tables, lines) = of_iptables(name, &text);
                known.extend(tables.into_iter().map(|table| format!("{family} {table}")));
                all.extend(lines);
            }
        }
        if let Some(text) = self.said("nft", &["list", "ruleset"]) {
            all.extend(of_nft(&text, &known));
        }
        all
    }

    fn said(&mut self, name: &str, args: &[&str]) -> Option<String> {
        let said = said(name, args);
        said.map_err(|why| self.missing.push(format!("no rules of {name} are shown: {why}"))).ok()
    }
}

fn said(name: &str, args: &[&str]) -> Result<String, String> {
    let path = find_program(name).ok_or("it is not installed")?;
    let args = args.iter().map(OsString::from).collect();
    let program = Program { path, args, env: Env::Clean(&[]), stdin: Vec::new(), limit: LIMIT, grace: TIMEOUT };
    let ended = run(&program, Deadline::after(TIMEOUT)).map_err(|error| error.to_string())?;
    if ended.how.is_success() {
        Ok(String::from_utf8_lossy(&ended.stdout).into_owned())
    } else {
        Err(String::from_utf8_lossy(&ended.stderr).trim().to_owned())
    }
}

/// Each rule with its table and chain, but for those of tables that are known already.
fn of_nft(text: &str, known: &BTreeSet<String>) -> Vec<String> {
    let (mut found, mut table, mut chain) = (Vec::new(), "", "");
    for line in text.lines() {
        let word = line.trim();
        if let Some(name) = line.strip_prefix("table ") {
            table = name.trim_end_matches(" {");
        } else if let Some(name) = word.strip_prefix("chain ") {
            chain = name.trim_end_matches(" {");
        } else if !known.contains(table) && !word.is_empty() && word != "}" {
            found.push(format!("nft {table} {chain}: {word}"));
        }
    }
    found
}

/// The tables that have rules, and the rules.
fn of_iptables(name: &str, text: &str) -> (BTreeSet<String>, Vec<String>) {
    let program = name.trim_end_matches("-save");
    let (mut tables, mut found, mut table) = (BTreeSet::new(), Vec::new(), "");
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        } else if line.starts_with("-A ") {
            tables.insert(table.to_owned());
            found.push(format!("{program} -t {table} {line}"));
        }
    }
    (tables, found)
}

/// Whether a line has the word, not as a part of a longer one: `10.1.2.3` is not in `10.1.2.30`.
fn names(line: &str, word: &str) -> bool {
    let continues =
        |letter: Option<char>| letter.is_some_and(|letter| letter.is_alphanumeric() || ".:_".contains(letter));
    !word.is_empty()
        && line.match_indices(word).any(|(at, _)| {
            // A colon after an address begins a port; one before it may be the other half of an IPv6 address.
            let after = line[at + word.len()..].chars().next().filter(|letter| *letter != ':' || word.contains(':'));
            !continues(line[..at].chars().next_back()) && !continues(after)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_found_whole_or_not_at_all() {
        for line in ["ip saddr 10.1.2.3 x", "-s 10.1.2.3/32", "dnat to 10.1.2.3:80", "10.1.2.3"] {
            assert!(names(line, "10.1.2.3"), "{line}");
        }
        for line in ["10.1.2.30", "110.1.2.3", "10.1.2.3.4", ""] {
            assert!(!names(line, "10.1.2.3"), "{line}");
        }
        assert!(names("comment \"net: n, id: c1\"", "c1") && !names("id: c10", "c1") && !names("x", ""));
        assert!(!names("fd00::2:1", "fd00::2") && names("saddr fd00::2 ip6", "fd00::2"));
    }

    #[test]
    fn rules_bear_their_table_and_chain_and_those_of_iptables_are_left_to_it() {
        let save = "# c\n*nat\n:A - [0:0]\n-A POSTROUTING -s 10.1.2.3/32 -j A\nCOMMIT\n";
        let (tables, lines) = of_iptables("iptables-save", save);
        assert_eq!(lines, ["iptables -t nat -A POSTROUTING -s 10.1.2.3/32 -j A"]);
        let known = tables.into_iter().map(|table| format!("ip {table}")).collect();
        let nft = "table ip nat {\n\tchain A {\n\t\tx\n\t}\n}\n\
                   table inet t {\n\tchain B {\n\t\tip saddr 10.1.2.3 masquerade\n\t}\n}\n";
        assert_eq!(of_nft(nft, &known), ["nft inet t B: ip saddr 10.1.2.3 masquerade"]);
    }
}

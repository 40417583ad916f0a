//! The rules of the host's packet filter that name a container, by its id or by one of its addresses.
//!
//! They are read by `nft` and `iptables-save`, so that the rules of every plugin are found.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::time::Duration;

use cnikit_libcni::CachedAttachment;
use cnikit_process::{Deadline, Env, Program, find_program, run};

const TIMEOUT: Duration = Duration::from_secs(10);
/// The size limit of a program's output in bytes, above the whole ruleset of any node.
const LIMIT: usize = 64 << 20;

/// The programs of iptables, and the family of the nftables tables that `iptables-nft` writes.
const IPTABLES: [(&str, &str); 2] = [("iptables-save", "ip"), ("ip6tables-save", "ip6")];

/// All rules, which are read once.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    lines: Option<Vec<String>>,
    /// The reasons for which rules could not be read, one sentence each.
    missing: Vec<String>,
}

impl Rules {
    /// The rules that name this attachment's container or one of its addresses.
    pub(crate) fn of(&mut self, cached: &CachedAttachment) -> Vec<String> {
        let mut words = vec![cached.at.container_id.clone()];
        if let Some(result) = cached.cni_result() {
            words.extend(result.ips.iter().map(|ip| ip.address.ip().to_string()));
        }
        if self.lines.is_none() {
            self.lines = Some(self.read());
        }
        let lines = self.lines.iter().flatten();
        lines.filter(|line| words.iter().any(|word| has_word(line, word))).cloned().collect()
    }

    /// The containers that comments of rules name: `name: "NETWORK" id: "CONTAINER"`, as upstream's plugins and ours write them.
    pub(crate) fn containers(&mut self) -> BTreeSet<String> {
        if self.lines.is_none() {
            self.lines = Some(self.read());
        }
        self.lines.iter().flatten().filter_map(|line| container_of(line)).map(str::to_owned).collect()
    }

    /// The reasons for which rules could not be read, one sentence each.
    pub(crate) fn missing(&self) -> &[String] {
        &self.missing
    }

    fn read(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        let mut known_tables = BTreeSet::new();
        for (program, family) in IPTABLES {
            if let Some(text) = self.output(program, &[]) {
                let (tables, rules) = iptables_rules(program, &text);
                known_tables.extend(tables.into_iter().map(|table| format!("{family} {table}")));
                all.extend(rules);
            }
        }
        if let Some(text) = self.output("nft", &["list", "ruleset"]) {
            all.extend(nft_rules(&text, &known_tables));
        }
        all
    }

    fn output(&mut self, program: &str, args: &[&str]) -> Option<String> {
        match program_output(program, args) {
            Ok(text) => Some(text),
            Err(why) => {
                self.missing.push(format!("no rules of {program} are shown: {why}"));
                None
            }
        }
    }
}

/// The stdout of a program of the host.
///
/// # Errors
/// One sentence: it is not installed, could not be run in time, or failed.
pub(crate) fn program_output(name: &str, args: &[&str]) -> Result<String, String> {
    let path = find_program(name).ok_or("it is not installed")?;
    let args = args.iter().map(OsString::from).collect();
    let program = Program::new(path, Env::Clean(&[])).args(args).limit(LIMIT).grace(TIMEOUT);
    let ended = run(&program, Deadline::after(TIMEOUT)).map_err(|error| error.to_string())?;
    if ended.how.is_success() {
        Ok(String::from_utf8_lossy(&ended.stdout).into_owned())
    } else {
        Err(String::from_utf8_lossy(&ended.stderr).trim().to_owned())
    }
}

/// Each rule with its table and chain, except those in `known_tables`.
fn nft_rules(text: &str, known_tables: &BTreeSet<String>) -> Vec<String> {
    let mut rules = Vec::new();
    let mut table = "";
    let mut chain = "";
    for line in text.lines() {
        let rule = line.trim();
        if let Some(name) = line.strip_prefix("table ") {
            table = name.trim_end_matches(" {");
        } else if let Some(name) = rule.strip_prefix("chain ") {
            chain = name.trim_end_matches(" {");
        } else if !known_tables.contains(table) && !rule.is_empty() && rule != "}" {
            rules.push(format!("nft {table} {chain}: {rule}"));
        }
    }
    rules
}

/// The tables that have rules, and the rules.
fn iptables_rules(program: &str, text: &str) -> (BTreeSet<String>, Vec<String>) {
    let program = program.trim_end_matches("-save");
    let mut tables = BTreeSet::new();
    let mut rules = Vec::new();
    let mut table = "";
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        } else if line.starts_with("-A ") {
            tables.insert(table.to_owned());
            rules.push(format!("{program} -t {table} {line}"));
        }
    }
    (tables, rules)
}

/// Whether a line has the word, and not only as a part of a longer one: `10.1.2.3` is not in `10.1.2.30`.
fn has_word(line: &str, word: &str) -> bool {
    if word.is_empty() {
        return false;
    }
    for (start, _) in line.match_indices(word) {
        let before = line[..start].chars().next_back();
        let after = line[start + word.len()..].chars().next();
        // A colon after an IPv4 address begins a port; a colon before a word may belong to an IPv6 address.
        let is_port = after == Some(':') && !word.contains(':');
        if !is_part_of_word(before) && (is_port || !is_part_of_word(after)) {
            return true;
        }
    }
    false
}

fn is_part_of_word(letter: Option<char>) -> bool {
    letter.is_some_and(|letter| letter.is_alphanumeric() || ".:_".contains(letter))
}

/// The container that the comment of a rule names.
fn container_of(line: &str) -> Option<&str> {
    let (_, after_name) = line.split_once("name: ")?;
    let (_, id) = after_name.split_once(" id: ")?;
    let id = id.trim_start_matches(['\\', '"']);
    let end = id.find(['\\', '"', ' ']).unwrap_or(id.len());
    if end == 0 { None } else { Some(&id[..end]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_words_are_found() {
        for line in ["ip saddr 10.1.2.3 x", "-s 10.1.2.3/32", "dnat to 10.1.2.3:80", "10.1.2.3"] {
            assert!(has_word(line, "10.1.2.3"), "{line}");
        }
        for line in ["10.1.2.30", "110.1.2.3", "10.1.2.3.4", ""] {
            assert!(!has_word(line, "10.1.2.3"), "{line}");
        }
        assert!(has_word("comment \"net: n, id: c1\"", "c1") && !has_word("id: c10", "c1") && !has_word("x", ""));
        assert!(!has_word("fd00::2:1", "fd00::2") && has_word("saddr fd00::2 ip6", "fd00::2"));
    }

    #[test]
    fn rules_have_their_table_and_chain_and_those_of_iptables_are_not_repeated() {
        let save = "# c\n*nat\n:A - [0:0]\n-A POSTROUTING -s 10.1.2.3/32 -j A\nCOMMIT\n";
        let (tables, rules) = iptables_rules("iptables-save", save);
        assert_eq!(rules, ["iptables -t nat -A POSTROUTING -s 10.1.2.3/32 -j A"]);
        let known_tables = tables.into_iter().map(|table| format!("ip {table}")).collect();
        let nft = "table ip nat {\n\tchain A {\n\t\tx\n\t}\n}\n\
                   table inet t {\n\tchain B {\n\t\tip saddr 10.1.2.3 masquerade\n\t}\n}\n";
        assert_eq!(nft_rules(nft, &known_tables), ["nft inet t B: ip saddr 10.1.2.3 masquerade"]);
    }

    #[test]
    fn the_container_of_a_rule_is_found_in_its_comment() {
        for (line, container) in [
            (r#"-A POSTROUTING -m comment --comment "name: \"pods\" id: \"c-1\"" -j CNI-1"#, Some("c-1")),
            (r#"ip saddr 10.1.0.2 comment "name: "pods" id: "c_2"" masquerade"#, Some("c_2")),
            ("-A FORWARD -j ACCEPT", None),
            (r#"comment "name: "pods" id: """#, None),
        ] {
            assert_eq!(container_of(line), container, "{line}");
        }
    }
}

//! Fuzz target: additional matches of a rule (`conditionsV4`, `conditionsV6`), in the syntax of nft(8) or iptables(8).

use cnikit_iptables::{Changes, IptablesRule, Table};
use cnikit_nftables::Match;

const CHAIN: &str = "OWN";
/// Only the nftables parser gets longer lists. The check of iptables is slower, because each text becomes a word of the rule.
const LONG: usize = 4 << 10;

/// Parses the input as a list of texts with a NUL between them.
pub(crate) fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let texts: Vec<String> = text.split('\0').map(str::to_owned).collect();
    if let Ok(matches) = Match::read(&texts) {
        check_matches(&matches);
    }
    if data.len() <= LONG && texts.iter().all(|text| !text.is_empty() && !text.contains(char::is_control)) {
        check_rule(&texts);
    }
}

/// Checks that the parsed matches are the same after they have been printed and parsed again.
fn check_matches(matches: &[Match]) {
    let texts = |matches: &[Match]| matches.iter().map(ToString::to_string).collect::<Vec<_>>();
    let again = Match::read(&texts(matches)).expect("printed matches can be parsed");
    assert_eq!(texts(&again), texts(matches));
    assert_eq!(again.len(), matches.len());
}

/// Checks that any words make exactly one rule with that number of words in the output of `iptables-save`, and nothing else.
fn check_rule(words: &[String]) {
    let rule = IptablesRule::any().words(words);
    let first = write_and_parse(&rule);
    // Parsing normalizes addresses. A second round changes nothing.
    assert_eq!(write_and_parse(&first), first);
    let count = first.words_beyond(&IptablesRule::any()).map_or(0, |words| words.len());
    assert_eq!(count, words.len(), "{rule}");
}

/// Writes a rule as input of `iptables-restore`, and parses that; the result has to be one rule.
fn write_and_parse(rule: &IptablesRule) -> IptablesRule {
    let mut changes = Changes::default();
    changes.append(CHAIN, rule);
    let table = Table::read(&format!("*nat\n{changes}COMMIT\n"), "nat", "").expect("the table is shown");
    assert!(table.chains().all(|chain| chain == CHAIN), "{rule} names no other chain");
    let mut rules: Vec<IptablesRule> = table.rules(CHAIN).cloned().collect();
    assert_eq!(rules.len(), 1, "{rule}");
    rules.remove(0)
}

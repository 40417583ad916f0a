//! Further matches of a rule, in words of nft(8) and of iptables(8), as people write them into a configuration.

use cnikit_iptables::{Changes, IptablesRule, Table};
use cnikit_nftables::Match;

const CHAIN: &str = "OWN";
/// Longer lists are read and no more: each text costs a word of the rule.
const LONG: usize = 4 << 10;

/// The elements of a list, a NUL between them.
pub(crate) fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let texts: Vec<String> = text.split('\0').map(str::to_owned).collect();
    if let Ok(matches) = Match::read(&texts) {
        shown(&matches);
    }
    if data.len() <= LONG && texts.iter().all(|text| !text.is_empty() && !text.contains(char::is_control)) {
        written(&texts);
    }
}

/// What was read is shown in words that say the same.
fn shown(matches: &[Match]) {
    let shown = |matches: &[Match]| matches.iter().map(ToString::to_string).collect::<Vec<_>>();
    let again = Match::read(&shown(matches)).expect("what is shown can be said");
    assert_eq!(shown(&again), shown(matches));
    assert_eq!(again.len(), matches.len());
}

/// Whatever stands in a word, `iptables-save` would show one rule with so many words, and nothing beside it.
fn written(words: &[String]) {
    let rule = IptablesRule::any().words(words);
    let read = |rule: &IptablesRule| {
        let mut changes = Changes::default();
        changes.append(CHAIN, rule);
        let table = Table::read(&format!("*nat\n{changes}COMMIT\n"), "nat", "").expect("the table is shown");
        assert!(table.chains().all(|chain| chain == CHAIN), "{rule} names no other chain");
        let rules: Vec<IptablesRule> = table.rules(CHAIN).cloned().collect();
        assert_eq!(rules.len(), 1, "{rule}");
        rules
    };
    let first = read(&rule);
    // Addresses are read as they are written here; a second time nothing changes.
    assert_eq!(read(&first[0]), first);
    let count = |rule: &IptablesRule| rule.words_beyond(&IptablesRule::any()).map_or(0, |words| words.len());
    assert_eq!(count(&first[0]), words.len(), "{rule}");
}

//! Fuzz target: the output of `iptables-save`.

use cnikit_iptables::{Changes, IptablesRule, Table};

/// Longer output is parsed only, because the checks below take time proportional to its square.
const LONG: usize = 64 << 10;

/// The first line is the text that a rule must mention to be parsed; the rest is the output.
pub(crate) fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (mention, output) = text.split_once('\n').unwrap_or(("", &text));
    let Some(all) = Table::read(output, "nat", "") else { return };
    let some = Table::read(output, "nat", mention).expect("a mention does not hide the table");
    if output.len() > LONG {
        return;
    }
    let chains: Vec<&str> = all.chains().collect();
    assert!(some.chains().all(|chain| chains.contains(&chain)));
    for chain in ["POSTROUTING", "OWN"].into_iter().chain(chains.iter().copied().take(20)) {
        let rules: Vec<&IptablesRule> = all.rules(chain).collect();
        assert!(some.rules(chain).all(|rule| rules.contains(&rule)), "a mention only chooses");
        check_round_trip(chain, &rules);
    }
}

/// Checks that the rules are the same after they have been written and parsed again.
fn check_round_trip(chain: &str, rules: &[&IptablesRule]) {
    if !is_word(chain) || rules.is_empty() {
        return;
    }
    let mut changes = Changes::default();
    rules.iter().for_each(|rule| changes.append(chain, rule));
    let table = Table::read(&format!("*nat\n{changes}COMMIT\n"), "nat", "").expect("the table is shown");
    assert_eq!(table.rules(chain).collect::<Vec<_>>(), rules);
    for rule in rules {
        let jumps = rule.target().map(|target| table.jumps(target).count());
        assert!(jumps.is_none_or(|jumps| jumps > 0), "{rule} leads to where it leads");
    }
}

/// Whether iptables accepts this as the name of a chain: without white space and quotation marks.
fn is_word(chain: &str) -> bool {
    !chain.is_empty() && !chain.contains(|letter: char| letter.is_whitespace() || letter == '"')
}

//! Changes by other programs are reported, and the layout is completed again.

use cnikit_nftables::*;

use crate::host::Host;
use crate::scene::{FRAME, frame, masquerade};

fn rules() -> Vec<Rule> {
    vec![masquerade("10.0.0.2", "10.0.0.0/24", "aa-1"), masquerade("fd00::2", "fd00::/64", "aa-1")]
}

/// The drifts in a namespace with a complete layout after this nft script has changed it.
#[track_caller]
fn drifts_after(script: &str) -> Vec<String> {
    let host = Host::new();
    let nftables = host.nftables();
    nftables.replace(&frame(), "aa-1", &rules()).unwrap();
    assert_eq!(nftables.verify(&frame(), "aa-1", &rules()).unwrap(), [""; 0]);
    host.nft(script);
    let drifts = nftables.verify(&frame(), "aa-1", &rules()).unwrap();
    nftables.replace(&frame(), "aa-1", &rules()).unwrap();
    assert_eq!(nftables.verify(&frame(), "aa-1", &rules()).unwrap(), [""; 0], "{}", host.listing());
    drifts
}

#[test]
fn a_missing_table_is_named_and_made_again() {
    assert_eq!(drifts_after("delete table inet plugins_masquerade").len(), 3);
    let drifts = drifts_after("delete table inet plugins_masquerade");
    assert_eq!(drifts[0], "table inet plugins_masquerade is missing");
    assert_eq!(
        drifts[1],
        format!("rule `{}` is missing from chain masq_checks of table inet plugins_masquerade", rules()[0])
    );
}

#[test]
fn a_dormant_table_is_named_and_woken() {
    let drifts = drifts_after("add table inet plugins_masquerade { flags dormant; }");
    assert_eq!(drifts, ["table inet plugins_masquerade is dormant, its rules do nothing"]);
}

#[test]
fn a_missing_rule_is_named_and_made_again() {
    let drifts = drifts_after("flush chain inet plugins_masquerade masq_checks");
    assert_eq!(drifts.len(), 2, "{drifts:?}");
}

#[test]
fn a_rule_too_many_is_named_and_removed() {
    let drifts = drifts_after(
        "add rule inet plugins_masquerade masq_checks ip saddr 10.0.0.9 masquerade comment \"aa-1 old\"\n
         add rule inet plugins_masquerade masq_checks ip saddr 10.0.0.9 counter accept comment \"aa-1 older\"\n
         add rule inet plugins_masquerade masq_checks ip saddr 10.0.0.9 masquerade comment \"bb-1 not ours\"",
    );
    let place = "in chain masq_checks of table inet plugins_masquerade is not wanted";
    assert_eq!(drifts[0], format!("rule `ip saddr 10.0.0.9 masquerade comment \"aa-1 old\"` {place}"));
    assert_eq!(drifts[1], format!("rule `[ meta cmp payload cmp counter immediate ] comment \"aa-1 older\"` {place}"));
    assert_eq!(drifts.len(), 2);
}

#[test]
fn a_flushed_base_chain_is_named_and_filled_again() {
    let drifts = drifts_after("flush chain inet plugins_masquerade postrouting");
    assert_eq!(
        drifts,
        [
            "chain postrouting of table inet plugins_masquerade begins with nothing, wanted `ip daddr 224.0.0.0/4 return`, \
          `ip6 daddr ff00::/8 return`, `goto masq_checks`"
        ]
    );
}

#[test]
fn a_missing_base_chain_is_named_and_made_again() {
    let drifts = drifts_after(
        "flush chain inet plugins_masquerade postrouting\n delete chain inet plugins_masquerade postrouting",
    );
    assert_eq!(drifts[0], "chain postrouting of table inet plugins_masquerade is missing");
    assert_eq!(drifts.len(), 2);
}

#[test]
fn a_foreign_rule_before_ours_is_named_and_moves_behind_them() {
    let host = Host::new();
    host.nft(FRAME);
    host.nft("insert rule inet plugins_masquerade postrouting oifname \"x\" accept");
    let nftables = host.nftables();
    let drifts = nftables.verify(&frame(), "aa-1", &[]).unwrap();
    assert!(drifts[0].contains("begins with `oifname \"x\" accept`, `ip daddr 224.0.0.0/4 return`"), "{drifts:?}");
    nftables.replace(&frame(), "aa-1", &rules()).unwrap();
    let listing = host.stdout_of("nft", &["list", "chain", "inet", "plugins_masquerade", "postrouting"]);
    let lines: Vec<_> = listing.lines().map(str::trim).skip(3).collect();
    let ours = ["ip daddr 224.0.0.0/4 return", "ip6 daddr ff00::/8 return", "goto masq_checks"];
    assert_eq!(lines, [&ours[..], &["oifname \"x\" accept", "}", "}"]].concat(), "{listing}");
}

#[test]
fn a_base_chain_that_hangs_elsewhere_is_named_and_left_alone() {
    let host = Host::new();
    host.nft("add table inet plugins_masquerade");
    host.nft("add chain inet plugins_masquerade postrouting { type filter hook forward priority 7; }");
    let listing = host.listing();
    let nftables = host.nftables();
    let why = "it has `type filter hook forward priority 7`, wanted `type nat hook postrouting priority 100`";
    let error = nftables.replace(&frame(), "aa-1", &rules()).unwrap_err();
    assert_eq!(error.to_string(), format!("use \"chain postrouting of table inet plugins_masquerade\": {why}"));
    let drifts = nftables.verify(&frame(), "aa-1", &rules()).unwrap();
    assert!(drifts.iter().any(|drift| drift.ends_with(why)), "{drifts:?}");
    assert_eq!(host.listing(), listing);
}

#[test]
fn verifying_changes_nothing() {
    let host = Host::new();
    assert_eq!(host.nftables().verify(&frame(), "aa-1", &rules()).unwrap().len(), 3);
    assert_eq!(host.listing(), "");
}

//! What we write is what nft would have written.

use std::net::IpAddr;

use cnikit_netfilter::*;

use crate::host::Host;
use crate::scene::{FRAME, added, frame, masquerade};

/// Both ways of adding the same, each in a namespace of its own; they have to look alike down to the expressions.
#[track_caller]
fn assert_alike(ours: &Host, theirs: &Host) {
    assert_eq!(ours.listing(), theirs.listing());
    assert_eq!(ours.bytes(), theirs.bytes());
}

#[test]
fn a_frame_and_rules_of_ours_are_listed_like_nfts_own() {
    let (ours, theirs) = (Host::new(), Host::new());
    let rules = [
        masquerade("10.0.0.2", "10.0.0.0/24", "aa-1, net: n1, if: eth0, id: c1"),
        masquerade("10.0.0.2", "10.0.0.0/22", "aa-1 oddly long prefix"),
        masquerade("fd00::2", "fd00::/64", "aa-1, net: n1, if: eth0, id: c1"),
        masquerade("fd00::2", "fd00::/61", &format!("aa-1{}", "x".repeat(124))),
    ];
    ours.nftables().replace(&frame(), "aa-1", &rules).unwrap();
    theirs.nft(&format!("{FRAME}{}", rules.iter().map(added).collect::<String>()));
    assert_alike(&ours, &theirs);
    assert!(ours.listing().contains(&rules[0].to_string()), "{}", ours.listing());
}

/// A frame of one regular chain, to try expressions in.
fn plain(family: Family) -> Frame {
    let chain = |name| Chain { name, comment: None, hook: None };
    let chains = vec![chain("ours"), chain("other")];
    Frame { family, table: "plain", table_comment: None, chains, fixed: vec![], holds: "ours", own: vec![] }
}

#[track_caller]
fn assert_compiled_alike(family: Family, rules: &[Rule]) {
    let (ours, theirs) = (Host::new(), Host::new());
    let frame = plain(family);
    ours.nftables().replace(&frame, "k", rules).unwrap();
    let head = format!("add table {family} plain\nadd chain {family} plain ours\nadd chain {family} plain other\n");
    let line = |rule| format!("add rule {family} plain ours {rule}\n");
    theirs.nft(&format!("{head}{}", rules.iter().map(line).collect::<String>()));
    assert_alike(&ours, &theirs);
    let found = ours.nftables().rules(&frame, "k").unwrap();
    assert_eq!(found.len(), rules.len());
    for (found, rule) in found.iter().zip(rules) {
        assert_eq!(found.to_string(), rule.to_string());
        assert_eq!(found.rule().unwrap().verdict, rule.verdict);
    }
}

fn rule(matches: Vec<Match>, verdict: Verdict) -> Rule {
    Rule { matches, verdict, comment: Some("k".to_owned()) }
}

fn each_prefix(address: &str, longest: u8) -> Vec<Rule> {
    let address: IpAddr = address.parse().unwrap();
    let network = |prefix| ipnetwork::IpNetwork::new(address, prefix).unwrap();
    let inside = |prefix| rule(vec![Match::DestinationIn(network(prefix))], Verdict::Return);
    let outside = |prefix| rule(vec![Match::Source(address), Match::DestinationNotIn(network(prefix))], Verdict::Drop);
    (0..=longest).flat_map(|prefix| [inside(prefix), outside(prefix)]).collect()
}

#[test]
fn every_ipv4_prefix_compiles_as_nft_compiles_it() {
    assert_compiled_alike(Family::Inet, &each_prefix("198.51.173.231", 32));
    assert_compiled_alike(Family::Ip, &each_prefix("198.51.173.231", 32));
}

#[test]
fn every_ipv6_prefix_compiles_as_nft_compiles_it() {
    let address = "2001:db8:1234:5678:9abc:def1:2345:6789";
    assert_compiled_alike(Family::Inet, &each_prefix(address, 128));
    assert_compiled_alike(Family::Ip6, &each_prefix(address, 128));
}

#[test]
fn every_verdict_compiles_as_nft_compiles_it_in_every_family() {
    let verdicts =
        [Verdict::Return, Verdict::Jump("other".into()), Verdict::Goto("other".into()), Verdict::Accept, Verdict::Drop];
    let sources = [Some("10.0.0.2"), Some("fd00::2"), None];
    for family in [Family::Inet, Family::Ip, Family::Ip6, Family::Bridge] {
        let possible = sources.iter().filter(|source| match (family, source) {
            (Family::Ip, Some(source)) => source.contains('.'),
            (Family::Ip6, Some(source)) => source.contains(':'),
            _ => true,
        });
        let matches = possible.map(|source| source.iter().map(|one| Match::Source(one.parse().unwrap())).collect());
        let matches: Vec<Vec<_>> = matches.collect();
        let rules =
            verdicts.iter().flat_map(|verdict| matches.iter().map(|matches| rule(matches.clone(), verdict.clone())));
        assert_compiled_alike(family, &rules.collect::<Vec<_>>());
    }
}

#[test]
fn the_host_part_of_a_network_does_not_count() {
    let host = Host::new();
    host.nftables().replace(&frame(), "k", &[masquerade("10.0.0.2", "10.0.0.2/24", "k")]).unwrap();
    assert!(host.listing().contains("ip saddr 10.0.0.2 ip daddr != 10.0.0.0/24 masquerade comment \"k\""));
    assert_eq!(host.nftables().verify(&frame(), "k", &[masquerade("10.0.0.2", "10.0.0.2/24", "k")]).unwrap(), [""; 0]);
}

#[test]
fn a_rule_that_never_could_match_is_refused_and_nothing_made() {
    let host = Host::new();
    let mixed = masquerade("10.0.0.2", "fd00::/64", "k");
    let error = host.nftables().replace(&frame(), "k", &[mixed]).unwrap_err();
    assert!(error.to_string().contains("mixes families"), "{error}");
    assert_eq!(host.listing(), "");
}

#[test]
fn a_comment_that_nft_could_not_read_again_is_refused_and_nothing_made() {
    let host = Host::new();
    for comment in ["k\"", "k\n", "k\0", &format!("k{}", "x".repeat(128))] {
        let rule = masquerade("10.0.0.2", "10.0.0.0/24", comment);
        let error = host.nftables().replace(&frame(), "k", &[rule]).unwrap_err();
        assert!(error.to_string().starts_with("encode the comment"), "{error}");
    }
    assert_eq!(host.listing(), "");
}

//! Our rules have the same listing and expressions as those that nft writes.

use std::net::IpAddr;

use cnikit_nftables::*;

use crate::host::Host;
use crate::scene::{FRAME, added, frame, masquerade};

/// Asserts that both namespaces have the same rules, down to the expressions: one filled by us, the other by nft.
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

/// A layout with one regular chain for testing expressions.
fn plain(family: TableFamily) -> TableLayout {
    let chain = |name| Chain { name, comment: None, hook: None };
    let chains = vec![chain("ours"), chain("other")];
    TableLayout { chains, rule_chains: vec!["ours"], ..TableLayout::of(family, "plain") }
}

#[track_caller]
fn assert_compiled_alike(family: TableFamily, rules: &[Rule]) {
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
    assert_compiled_alike(TableFamily::Inet, &each_prefix("198.51.173.231", 32));
    assert_compiled_alike(TableFamily::Ip, &each_prefix("198.51.173.231", 32));
}

#[test]
fn every_ipv6_prefix_compiles_as_nft_compiles_it() {
    let address = "2001:db8:1234:5678:9abc:def1:2345:6789";
    assert_compiled_alike(TableFamily::Inet, &each_prefix(address, 128));
    assert_compiled_alike(TableFamily::Ip6, &each_prefix(address, 128));
}

#[test]
fn every_verdict_compiles_as_nft_compiles_it_in_every_family() {
    let verdicts =
        [Verdict::Return, Verdict::Jump("other".into()), Verdict::Goto("other".into()), Verdict::Accept, Verdict::Drop];
    let sources = [Some("10.0.0.2"), Some("fd00::2"), None];
    for family in [TableFamily::Inet, TableFamily::Ip, TableFamily::Ip6, TableFamily::Bridge] {
        let possible = sources.iter().filter(|source| match (family, source) {
            (TableFamily::Ip, Some(source)) => source.contains('.'),
            (TableFamily::Ip6, Some(source)) => source.contains(':'),
            _ => true,
        });
        let matches = possible.map(|source| source.iter().map(|one| Match::Source(one.parse().unwrap())).collect());
        let matches: Vec<Vec<_>> = matches.collect();
        let rules =
            verdicts.iter().flat_map(|verdict| matches.iter().map(|matches| rule(matches.clone(), verdict.clone())));
        assert_compiled_alike(family, &rules.collect::<Vec<_>>());
    }
}

/// Every match of a transport header, an interface, a mark and a connection, in each family that has it.
#[test]
fn every_other_match_compiles_as_nft_compiles_it() {
    let interface = |way, is| Match::Interface { way, is, name: "eth0".into() };
    let port = |protocol, side, is| Match::Port { protocol, side, is, port: 8080 };
    let mark = |mask, is, value| Match::Mark { mask, is, value };
    let mut all =
        vec![Match::Established, Match::CtStatusDnat, mark(u32::MAX, true, 0x2000), mark(u32::MAX, false, 0x2000)];
    all.extend([mark(0x2000, true, 0x2000), mark(0x2000, false, 0), mark(0x2000, true, 0)]);
    for way in [Direction::In, Direction::Out] {
        all.extend([interface(way, true), interface(way, false)]);
    }
    for protocol in L4Protocol::ALL {
        all.push(Match::Protocol(protocol));
        for side in [Side::Source, Side::Destination] {
            all.extend([port(protocol, side, true), port(protocol, side, false)]);
        }
    }
    for family in [TableFamily::Inet, TableFamily::Ip, TableFamily::Ip6, TableFamily::Bridge] {
        let rules = all
            .iter()
            .filter(|one| family != TableFamily::Bridge || !matches!(one, Match::Established | Match::CtStatusDnat));
        assert_compiled_alike(family, &rules.map(|one| rule(vec![one.clone()], Verdict::Drop)).collect::<Vec<_>>());
    }
    for family in [TableFamily::Inet, TableFamily::Ip, TableFamily::Ip6] {
        assert_compiled_alike(family, &[rule(vec![Match::LocalDestination], Verdict::Drop)]);
    }
}

#[test]
fn consecutive_matches_compile_as_by_nft() {
    let (tcp, udp) = (Match::to_port(L4Protocol::Tcp, 80), Match::to_port(L4Protocol::Udp, 53));
    let from = Match::Port { protocol: L4Protocol::Tcp, side: Side::Source, is: false, port: 1 };
    let (v4, v6) = ("10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap());
    let asked = Match::OriginalDport(8080);
    let rules = [
        rule(vec![Match::from("eth0"), Match::to(v4), udp.clone()], Verdict::Drop),
        rule(vec![udp.clone(), Match::Source(v6)], Verdict::Drop),
        rule(vec![from.clone(), tcp.clone()], Verdict::Drop),
        rule(vec![Match::to(v4), Match::Established], Verdict::Accept),
        rule(vec![Match::LocalDestination, Match::Source(v6), tcp.clone()], Verdict::Drop),
        rule(vec![Match::Mark { mask: 1, is: true, value: 1 }, Match::Source(v4), tcp.clone()], Verdict::Drop),
        rule(vec![Match::Protocol(L4Protocol::Sctp), asked.clone(), Match::to(v6)], Verdict::Drop),
        rule(
            vec![Match::CtStatusDnat, Match::Protocol(L4Protocol::Udp), asked.clone(), Match::Source(v4)],
            Verdict::Drop,
        ),
        rule(vec![from, asked, tcp], Verdict::Drop),
    ];
    assert_compiled_alike(TableFamily::Inet, &rules);
    for (family, address, long) in [(TableFamily::Ip, "10.3.7.1", 32), (TableFamily::Ip6, "fd00:1:2:3:4:5:6:7", 128)] {
        let address: IpAddr = address.parse().unwrap();
        let network = |prefix| ipnetwork::IpNetwork::new(address, prefix).unwrap();
        let within = |prefix| rule(vec![Match::SourceIn(network(prefix))], Verdict::Return);
        let without = |prefix| rule(vec![Match::SourceNotIn(network(prefix))], Verdict::Return);
        assert_compiled_alike(
            family,
            &(0..=long).flat_map(|prefix| [within(prefix), without(prefix)]).collect::<Vec<_>>(),
        );
    }
}

#[test]
fn a_new_destination_compiles_as_nft_compiles_it() {
    let line = |family, to: &str, how: &str| {
        let (ours, theirs) = (Host::new(), Host::new());
        let matches = vec![Match::to_port(L4Protocol::Tcp, 80)];
        let written = rule(matches, Verdict::Dnat(to.parse().unwrap()));
        let hook = Hook { kind: HookKind::Nat, hook: HookPoint::Prerouting, priority: -100 };
        let chains = vec![Chain { name: "ours", comment: None, hook: Some(hook) }];
        let frame = TableLayout { chains, rule_chains: vec!["ours"], ..TableLayout::of(family, "plain") };
        ours.nftables().replace(&frame, "k", std::slice::from_ref(&written)).unwrap();
        theirs.nft(&format!(
            "add table {family} plain
             add chain {family} plain ours {{ type nat hook prerouting priority -100; }}
             add rule {family} plain ours tcp dport 80 {how} {to} comment \"k\""
        ));
        assert_alike(&ours, &theirs);
        assert_eq!(ours.nftables().rules(&frame, "k").unwrap()[0].rule(), Some(&written));
    };
    line(TableFamily::Ip, "10.0.0.2:8080", "dnat to");
    line(TableFamily::Ip6, "[fd00::2]:8080", "dnat to");
    line(TableFamily::Inet, "10.0.0.2:8080", "dnat ip to");
    line(TableFamily::Inet, "[fd00::2]:8080", "dnat ip6 to");
}

#[test]
fn a_look_into_a_set_compiles_as_nft_compiles_it() {
    let fields = |fields: &[Field], set: &str, is| Match::InSet { fields: fields.to_vec(), is, set: set.into() };
    let (to, from) = (Side::Destination, Side::Source);
    let (way_in, way_out) = (Field::Interface(Direction::In), Field::Interface(Direction::Out));
    let sets = [
        ("ports", vec![KeyType::Protocol, KeyType::Port], vec![Field::Protocol, Field::Port(to)]),
        ("v4", vec![KeyType::Ipv4], vec![Field::Ipv4(from)]),
        ("v6", vec![KeyType::Ipv6], vec![Field::Ipv6(to)]),
        ("links", vec![KeyType::Interface], vec![way_in]),
        ("pairs", vec![KeyType::Interface, KeyType::Interface], vec![way_in, way_out]),
        ("marks", vec![KeyType::Mark], vec![Field::Mark]),
        (
            "mixed",
            vec![KeyType::Ipv4, KeyType::Interface, KeyType::Port],
            vec![Field::Ipv4(to), way_out, Field::Port(from)],
        ),
    ];
    let (ours, theirs) = (Host::new(), Host::new());
    let by = IndexBy::Rule(|_| None);
    let set = |name, key: &Vec<KeyType>| Index {
        set: Set { name, key: key.clone(), comment: None },
        chains: vec!["ours"],
        by,
    };
    let indexes = sets.iter().map(|(name, key, _)| set(name, key)).collect();
    let frame = TableLayout { indexes, ..plain(TableFamily::Inet) };
    let rules: Vec<_> = sets
        .iter()
        .flat_map(|(name, _, of)| [true, false].map(|is| rule(vec![fields(of, name, is)], Verdict::Drop)))
        .collect();
    ours.nftables().replace(&frame, "k", &rules).unwrap();
    let mut script = "add table inet plain\nadd chain inet plain ours\nadd chain inet plain other\n".to_owned();
    let made = |Index { set, .. }: &Index| format!("add set inet plain {} {{ {set}; }}\n", set.name);
    script.extend(frame.indexes.iter().map(made));
    script.extend(rules.iter().map(|rule| format!("add rule inet plain ours {rule}\n")));
    theirs.nft(&script);
    assert_alike(&ours, &theirs);
    let found = ours.nftables().rules(&frame, "k").unwrap();
    assert_eq!(found.iter().filter_map(InstalledRule::rule).collect::<Vec<_>>(), rules.iter().collect::<Vec<_>>());
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

//! Rules that the programs of iptables wrote into `nf_tables`.

use std::net::SocketAddr;

use cnikit_iptables::{IptablesRule, rules_in_nf_tables};
use cnikit_nftables::{TableFamily, TableLayout};

use crate::host::Host;

const ENTRY: &str = r#"dnat name: "n" id: "c""#;

/// The rules of portmap with iptables: some expressions are those of `nf_tables`, and one match exists in iptables only.
fn rules(host: &str, target: &str) -> [(&'static str, IptablesRule); 7] {
    let to = |port| SocketAddr::new(target.parse().unwrap(), port);
    let entry = |protocol: &str| IptablesRule::any().protocol(protocol).commented(ENTRY);
    let more: Vec<String> =
        ["-m", "statistic", "--mode", "nth", "--every", "2", "--packet", "0"].map(str::to_owned).to_vec();
    let fifteen: Vec<u16> = (8080..8095).collect();
    [
        ("ENTRIES", entry("tcp").destination_ports(&fifteen).jump("LEADS")),
        ("ENTRIES", entry("sctp").words(&more).destination_ports(&[53]).jump("LEADS")),
        ("LEADS", IptablesRule::any().commented("cnikit:1:2 if: eth0")),
        ("LEADS", IptablesRule::any().destination_port("udp", 53).set_mark(0x2000)),
        ("LEADS", IptablesRule::any().destination_port("tcp", 8080).dnat_to(to(80))),
        ("LEADS", IptablesRule::any().destination(host.parse().unwrap()).destination_port("udp", 53).dnat_to(to(5353))),
        ("LEADS", IptablesRule::any().destination_port("sctp", 53).dnat_to(to(54))),
    ]
}

/// The part of a rule that decides where a port leads.
fn port_parts(rule: &IptablesRule) -> impl PartialEq + std::fmt::Debug {
    let texts = [rule.protocol_name(), rule.comment(), rule.target()].map(|text| text.map(str::to_owned));
    (texts, rule.ports(), rule.port(), rule.dnat_target(), rule.destination_address())
}

#[test]
fn dnat_rules_of_iptables_are_read_from_the_kernel() {
    let host = Host::new();
    let families = [
        ("iptables", TableFamily::Ip, "192.0.2.1/32", "10.0.0.2"),
        ("ip6tables", TableFamily::Ip6, "fd00::1/128", "fd00:1::2"),
    ];
    for (program, family, address, target) in families {
        let rules = rules(address, target);
        for chain in ["ENTRIES", "LEADS"] {
            host.stdout_of(&format!("{program}-nft"), &["-t", "nat", "-N", chain]);
        }
        for (chain, rule) in &rules {
            host.stdout_of("sh", &["-c", &format!("{program}-nft -t nat -A {chain} {rule}")]);
        }
        let table = TableLayout::of(family, "nat");
        for chain in ["ENTRIES", "LEADS"] {
            let found = rules_in_nf_tables(&host.nftables(), &table, chain).unwrap();
            let wanted: Vec<&IptablesRule> =
                rules.iter().filter(|(place, _)| *place == chain).map(|(_, rule)| rule).collect();
            assert_eq!(
                found.iter().map(port_parts).collect::<Vec<_>>(),
                wanted.iter().copied().map(port_parts).collect::<Vec<_>>()
            );
        }
        let entries = rules_in_nf_tables(&host.nftables(), &table, "ENTRIES").unwrap();
        assert_eq!(entries[0].words_beyond(&rules[0].1), Some(Vec::new()), "{}", entries[0]);
        let plain = IptablesRule::any().protocol("sctp").commented(ENTRY).destination_ports(&[53]).jump("LEADS");
        assert!(
            !entries[1].words_beyond(&plain).unwrap().is_empty(),
            "what has no words is not passed over: {}",
            entries[1]
        );
        assert!(rules_in_nf_tables(&host.nftables(), &table, "ABSENT").unwrap().is_empty());
    }
}

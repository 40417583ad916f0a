use super::super::mapping::Mark;
use super::*;
use crate::backend::Backend;
use crate::portmap::{L4Protocol, OnPortConflict};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn mapping(host_port: u16, protocol: L4Protocol, host: Option<&str>) -> Mapping {
    Mapping { host_port, container_port: host_port - 8000, protocol, host_address: host.map(ip) }
}

fn portmap() -> PortMap {
    PortMap {
        mappings: vec![
            mapping(8080, L4Protocol::Tcp, None),
            mapping(8081, L4Protocol::Udp, Some("127.0.0.2")),
            mapping(8082, L4Protocol::Sctp, Some("fd00:1::1")),
            mapping(8083, L4Protocol::Tcp, Some("0.0.0.0")),
        ],
        addresses: ["10.1.0.2/24", "10.2.0.2/24", "fd00:1::2/64"].map(|text| text.parse().unwrap()).to_vec(),
        masquerades: Masquerades::Hairpin,
        mark: Mark::Bit(13),
        conditions_v4: ["iifname", "!=", "eth9"].map(str::to_owned).to_vec(),
        conditions_v6: Vec::new(),
        backend: Backend::Nftables,
        on_conflict: OnPortConflict::Refuse,
    }
}

/// The rules of one chain for an address, as nft prints them.
fn shown(map: &PortMap, address: &str, chain: usize) -> Vec<String> {
    let rules = rules(map, ip(address), "c1").unwrap();
    rules.0[chain].iter().map(|rule| rule.to_string().replace(" comment \"c1\"", "")).collect()
}

#[test]
fn connections_to_the_host_lead_to_the_address_of_their_family() {
    let map = portmap();
    let to: Vec<_> = targets(&map).collect();
    assert_eq!(to, [(TableFamily::Ip, ip("10.1.0.2")), (TableFamily::Ip6, ip("fd00:1::2"))]);
    let dnat = [
        "iifname != \"eth9\" tcp dport 8080 dnat to 10.1.0.2:80",
        "iifname != \"eth9\" ip daddr 127.0.0.2 udp dport 8081 dnat to 10.1.0.2:81",
        "iifname != \"eth9\" tcp dport 8083 dnat to 10.1.0.2:83",
    ];
    assert_eq!(shown(&map, "10.1.0.2", 0), dnat);
    let dnat = ["tcp dport 8080 dnat to [fd00:1::2]:80", "ip6 daddr fd00:1::1 sctp dport 8082 dnat to [fd00:1::2]:82"];
    assert_eq!(shown(&map, "fd00:1::2", 0), dnat);
}

#[test]
fn neighbours_the_container_and_the_hosts_loopback_are_masqueraded() {
    let mut map = portmap();
    map.mappings.truncate(1);
    let first = ["ip saddr 10.1.0.2 ip daddr 10.1.0.2 masquerade", "ip saddr 127.0.0.1 ip daddr 10.1.0.2 masquerade"];
    let port = "ct status dnat meta l4proto tcp ct original proto-dst 8080";
    let near =
        ["10.1.0.0/24", "10.2.0.0/24"].map(|near| format!("{port} ip saddr {near} ip daddr 10.1.0.2 masquerade"));
    let wanted: Vec<&str> = first.into_iter().chain(near.iter().map(String::as_str)).collect();
    assert_eq!(shown(&map, "10.1.0.2", 1), wanted);
    let wanted = [
        "ip6 saddr fd00:1::2 ip6 daddr fd00:1::2 masquerade",
        &format!("{port} ip6 saddr fd00:1::/64 ip6 daddr fd00:1::2 masquerade"),
    ];
    assert_eq!(shown(&map, "fd00:1::2", 1), wanted, "the kernel sends no packets from ::1 to other hosts");
    // One port for two addresses of the host needs one rule for each network.
    map.mappings = ["127.0.0.2", "127.0.0.3"].map(|host| mapping(8080, L4Protocol::Tcp, Some(host))).to_vec();
    assert_eq!(shown(&map, "10.1.0.2", 1).len(), 4);
    map.masquerades = Masquerades::All;
    let wanted = [first[0], first[1], &format!("{port} ip daddr 10.1.0.2 masquerade")];
    assert_eq!(shown(&map, "10.1.0.2", 1), wanted);
    map.masquerades = Masquerades::Nothing;
    assert_eq!(shown(&map, "10.1.0.2", 1), [""; 0]);
    map.masquerades = Masquerades::All;
    map.mappings.clear();
    assert_eq!(shown(&map, "10.1.0.2", 1), [""; 0], "no port, no rule");
}

#[test]
fn upstream_masquerades_the_container_and_loopback_or_all() {
    let shown = |masquerades, address| -> Vec<String> {
        let rules = upstream_masquerade_rules(&PortMap { masquerades, ..portmap() }, ip(address), "c1");
        rules.iter().map(Rule::to_string).collect()
    };
    let comment = "masquerade comment \"c1\"";
    assert_eq!(
        shown(Masquerades::Hairpin, "10.1.0.2"),
        [
            format!("ip saddr 10.1.0.2 ip daddr 10.1.0.2 {comment}"),
            format!("ip saddr 127.0.0.1 ip daddr 10.1.0.2 {comment}"),
        ]
    );
    assert_eq!(shown(Masquerades::Hairpin, "fd00::2"), [format!("ip6 saddr fd00::2 ip6 daddr fd00::2 {comment}")]);
    assert_eq!(shown(Masquerades::All, "10.1.0.2"), [format!("ip saddr 0.0.0.0/0 ip daddr 10.1.0.2 {comment}")]);
    assert_eq!(shown(Masquerades::Nothing, "10.1.0.2"), [""; 0]);
}

/// What conflicts, tracked connections and upstream's addresses are found by.
#[test]
fn the_mapping_of_a_rule_is_read_from_it() {
    let map = portmap();
    let written = rules(&map, ip("10.1.0.2"), "c1").unwrap();
    let read: Vec<_> = written.0[0].iter().filter_map(mapping_of).collect();
    let to = |port| SocketAddr::new(ip("10.1.0.2"), port);
    // 0.0.0.0 is every address of the host, and a rule for it has none.
    let everywhere = Mapping { host_address: None, ..map.mappings[3].clone() };
    let wanted = [(map.mappings[0].clone(), to(80)), (map.mappings[1].clone(), to(81)), (everywhere, to(83))];
    assert_eq!(read, wanted);
    for rule in &written.0[0] {
        assert_eq!(conditions_of(rule), conditions(&map, ip("10.1.0.2")).unwrap(), "{rule}");
        assert_eq!(port(rule), Some(key(&mapping_of(rule).unwrap().0)));
    }
    assert!(written.0[1].iter().all(|rule| mapping_of(rule).is_none() && port(rule).is_none()), "of masquerade");
    let dnat = &written.0[0][0];
    let without_port = Rule { matches: Vec::new(), ..dnat.clone() };
    assert_eq!(mapping_of(&without_port), None);
    let to_network = Match::DestinationIn("127.0.0.0/8".parse().unwrap());
    let all_of_them = Rule { matches: [vec![to_network.clone()], dnat.matches.clone()].concat(), ..dnat.clone() };
    assert_eq!(host_address(&all_of_them), None, "a network is a condition");
    assert!(conditions_of(&all_of_them).contains(&to_network));
}

#[test]
fn a_family_that_lost_its_last_mapping_has_its_rules_removed() {
    let mut map = portmap();
    let tag = AttachmentId { network: "n".into(), container: "c1".into(), ifname: "eth0".into() };
    let unwanted = |map: &PortMap| -> Vec<(TableFamily, OwnerFilter)> {
        super::unwanted(map, &tag).into_iter().map(|(layout, filter)| (layout.family, filter)).collect()
    };
    assert!(unwanted(&map).is_empty());
    map.mappings.truncate(2);
    map.mappings.remove(0);
    assert_eq!(unwanted(&map), [(TableFamily::Ip6, filter(&tag, vec![ip("fd00:1::2")]))]);
    map.addresses.truncate(2);
    assert_eq!(unwanted(&map), [(TableFamily::Ip6, filter(&tag, Vec::new()))]);
    map.mappings.clear();
    let both = [(TableFamily::Ip, filter(&tag, vec![ip("10.1.0.2")])), (TableFamily::Ip6, filter(&tag, Vec::new()))];
    assert_eq!(unwanted(&map), both);
}

#[test]
fn conditions_that_cannot_be_written_are_refused_by_their_key_before_anything_is_made() {
    preflight(&portmap()).unwrap();
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let map = PortMap { conditions_v4: words(&["-s", "10.0.0.0/8"]), ..portmap() };
    let said = preflight(&map).unwrap_err().to_string();
    assert!(said.contains("conditionsV4: ") && said.contains(CONDITIONS_HINT), "{said}");
    // Words that are known, of the other family.
    let map = PortMap { conditions_v6: words(&["ip", "saddr", "10.0.0.0/8"]), ..portmap() };
    let said = preflight(&map).unwrap_err().to_string();
    assert!(said.contains("conditionsV6: ") && said.contains(CONDITIONS_HINT), "{said}");
    let unused = PortMap { addresses: vec!["10.1.0.2/24".parse().unwrap()], ..map };
    preflight(&unused).unwrap();
}

/// Rules with the chain that they are in, as nft prints them.
fn texts(chains: &[(&'static str, Vec<Rule>)]) -> Vec<(&'static str, Vec<String>)> {
    chains.iter().map(|(chain, rules)| (*chain, rules.iter().map(Rule::to_string).collect())).collect()
}

#[test]
fn packets_to_the_host_alone_pass_upstreams_chains_after_one_lookup() {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let to_host = "fib daddr type local jump hostports_all";
    let not_loopback = format!("ip6 daddr != ::1 {to_host}");
    let every_rule = ("hostports_all", words(&["jump hostip_hostports", "jump hostports"]));
    for (family, from_host, accepted) in [
        (TableFamily::Ip, to_host, vec![every_rule.clone()]),
        (TableFamily::Ip6, not_loopback.as_str(), vec![("output", words(&[to_host])), every_rule.clone()]),
    ] {
        let layout = layout(family);
        let hooks: Vec<_> =
            layout.chains.iter().map(|chain| (chain.name, chain.hook.as_ref().map(|hook| hook.priority))).collect();
        let plain = [PORTS, OLD_PORTS, ALL].map(|name| (name, None));
        let base = [("prerouting", Some(-100)), ("output", Some(-100)), (MASQUERADING, Some(100))];
        assert_eq!(hooks, [plain, base].concat());
        let looked_up = words(&["jump hostip_hostports", "meta l4proto . th dport @hostports_in_use jump hostports"]);
        let prologue = [(ALL, looked_up), ("prerouting", words(&[to_host])), ("output", words(&[from_host]))];
        assert_eq!(texts(&layout.prologue), prologue);
        assert_eq!(texts(&layout.accepted_prologues), accepted, "as upstream has them, and older versions of ours");
        let [condition] = &layout.jump_conditions[..] else { panic!("{layout}") };
        assert_eq!(
            (&condition.from[..], &condition.to[..]),
            (&["prerouting", "output"][..], &[PORTS, OLD_PORTS, ALL][..])
        );
        assert_eq!(condition.required, Match::LocalDestination);
        assert_eq!(layout.rule_chains, [PORTS, MASQUERADING, OLD_PORTS]);
        assert_eq!(layout.indexes.iter().map(|index| index.set.name).collect::<Vec<_>>(), [IN_USE, OWNERS]);
        assert!(layout.table_comment.is_some());
    }
}

#[test]
fn a_container_is_named_as_far_as_a_comment_holds() {
    let tag = |container: String| AttachmentId { network: "n".into(), container, ifname: "eth0".into() };
    assert_eq!(comment(&tag("c1".into())), "c1");
    assert_eq!(comment(&tag("c".repeat(LONGEST_COMMENT + 9))), "c".repeat(LONGEST_COMMENT));
}

use std::net::IpAddr;

use super::*;
use crate::lines::Lines;

const ADMIN: &str = "CNI-ADMIN";
const OWNERS: &str = "CNI-FORWARD-OWNERS";

/// An ADD; returns what its roll-back needs.
fn add(lines: &mut Lines, number: u32, wanted: &[Claim]) -> Before {
    let (before, changes) = step(number, wanted).decide(&lines.read());
    lines.change(&changes);
    before
}

/// A DEL, with these addresses in the result of ADD.
fn del(lines: &mut Lines, number: u32, recorded: &[IpAddr]) {
    let mark = owner(number);
    let filter = ClaimFilter { is_owner: &|found| found == mark, unmarked: recorded, is_gc: false };
    let changes = Claims::of(&lines.read()).released(&filter).changes();
    lines.change(&changes);
}

/// The differences that CHECK reports.
fn drifts(lines: &Lines, wanted: &[Claim]) -> Vec<String> {
    Claims::of(&lines.read()).missing(wanted, ADMIN).drifts("filter")
}

fn empty() -> Lines {
    Lines::of("filter", "FORWARD")
}

fn owner(number: u32) -> String {
    format!("cnikit:{:016x}:{number:032x}", 1)
}

fn step(number: u32, wanted: &[Claim]) -> Step {
    Step { owner: format!("{} eth0", owner(number)), wanted: wanted.to_vec(), admin_chain: ADMIN.into() }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn address(text: &str) -> Claim {
    Claim::Address(ip(text))
}

fn bridge(within: bool) -> Claim {
    Claim::Bridge(Isolation { bridge: "br0".into(), within })
}

#[test]
fn an_add_makes_upstreams_rules_and_a_marker_and_its_del_leaves_the_shared_chains() {
    let mut host = empty();
    add(&mut host, 1, &[address("10.1.0.2")]);
    let marker = format!("-A {OWNERS} -s 10.1.0.2/32 -m comment --comment \"{} eth0\"", owner(1));
    let shared = [
        r#"-A FORWARD -m comment --comment "CNI firewall plugin rules" -j CNI-FORWARD"#,
        "-A FORWARD -j OTHER",
        r#"-A CNI-FORWARD -m comment --comment "CNI firewall plugin admin overrides" -j CNI-ADMIN"#,
    ];
    let own = [
        "-A CNI-FORWARD -d 10.1.0.2/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        "-A CNI-FORWARD -s 10.1.0.2/32 -j ACCEPT",
        &marker,
    ];
    assert_eq!(host.rules(), [&shared[..], &own].concat());
    let whole = host.clone();
    add(&mut host, 1, &[address("10.1.0.2")]);
    assert_eq!(host, whole, "a second ADD changes nothing");
    assert!(step(1, &[address("10.1.0.2")]).is_installed(&host.read()));
    assert!(!step(1, &[address("10.1.0.3")]).is_installed(&host.read()));
    del(&mut host, 1, &[]);
    assert_eq!(host.rules(), shared);
    assert_eq!(host.chains(), ["FORWARD", "CNI-FORWARD", ADMIN]);
}

#[test]
fn rules_stay_until_the_last_that_claims_them_is_gone() {
    let mut host = empty();
    let claims = [address("10.1.0.2"), bridge(false)];
    add(&mut host, 1, &claims);
    add(&mut host, 2, &claims);
    add(&mut host, 3, &[address("10.1.0.3"), bridge(true)]);
    let all = host.clone();
    // Of two attachments with the same claims each has its marker, and the rules exist once.
    assert_eq!((host.count("-j ACCEPT"), host.count(OWNERS)), (4, 6), "{host:#?}");
    del(&mut host, 1, &[ip("10.1.0.2")]);
    assert_eq!((host.count("-j ACCEPT"), host.count(OWNERS)), (4, 4));
    assert_eq!(drifts(&host, &claims), [""; 0]);
    del(&mut host, 2, &[]);
    assert_eq!(host.count("10.1.0.2"), 0);
    assert_eq!(host.count("same-bridge)"), 0, "{host:#?}");
    assert_eq!(drifts(&host, &[address("10.1.0.3"), bridge(true)]), [""; 0], "both ways to isolate share a rule");
    del(&mut host, 3, &[]);
    assert_eq!(host.count("br0"), 0, "{host:#?}");
    add(&mut host, 3, &[address("10.1.0.3"), bridge(true)]);
    add(&mut host, 1, &claims);
    add(&mut host, 2, &claims);
    assert_eq!(host.sorted(), all.sorted(), "in another order it is the same");
}

#[test]
fn isolation_comes_before_what_accepts() {
    let mut host = empty();
    add(&mut host, 1, &[address("10.1.0.2")]);
    add(&mut host, 2, &[bridge(true)]);
    let jumps = host.chain("FORWARD").clone();
    assert!(jumps[0].ends_with("-j CNI-ISOLATION-STAGE-1") && jumps[1].ends_with("-j CNI-FORWARD"), "{jumps:?}");
    let policy = |name: &str| format!("-m comment --comment \"CNI firewall plugin rules (ingressPolicy: {name})\"");
    let isolation = r#"-m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)""#;
    let stage_1 = [
        format!("-i br0 -o br0 {} -j DROP", policy("isolated")),
        format!("-i br0 ! -o br0 {} -j CNI-ISOLATION-STAGE-2", policy("isolated")),
        format!("{isolation} -j RETURN"),
    ];
    assert_eq!(*host.chain("CNI-ISOLATION-STAGE-1"), stage_1);
    let stage_2 = [format!("-o br0 {isolation} -j DROP"), format!("{isolation} -j RETURN")];
    assert_eq!(*host.chain("CNI-ISOLATION-STAGE-2"), stage_2);
    add(&mut host, 1, &[address("10.1.0.2"), bridge(false)]);
    let first = host.chain("CNI-ISOLATION-STAGE-1")[0].clone();
    assert_eq!(first, format!("-i br0 ! -o br0 {} -j CNI-ISOLATION-STAGE-2", policy("same-bridge")));
}

/// Each rule but the markers, which CHECK does not compare.
#[test]
fn each_rule_that_is_missing_is_named_and_made_again() {
    let mut whole = empty();
    let wanted = [address("10.1.0.2"), address("10.1.0.3"), bridge(true)];
    add(&mut whole, 1, &wanted);
    assert!(step(1, &wanted).changes_if_different(&whole.read()).is_empty());
    for chain in whole.chains().into_iter().filter(|chain| chain != OWNERS) {
        for (number, rule) in whole.clone().chain(&chain).iter().enumerate().filter(|(_, rule)| *rule != "-j OTHER") {
            let mut host = whole.clone();
            host.chain(&chain).remove(number);
            let named = drifts(&host, &wanted);
            assert_eq!(named, [format!("rule `{rule}` is missing from chain {chain} of filter")]);
            let again = step(1, &wanted).changes_if_different(&host.read());
            host.change(&again);
            assert_eq!(drifts(&host, &wanted), [""; 0], "{rule}");
            assert_eq!(host.rules().len(), whole.rules().len(), "{rule}: {host:#?}");
        }
    }
    let mut host = whole.clone();
    host.chain("FORWARD").insert(0, "-j ACCEPT".into());
    let named = drifts(&host, &wanted);
    assert!(named.len() == 1 && named[0].starts_with("chain FORWARD of filter does not begin with `"), "{named:?}");
    add(&mut host, 1, &wanted);
    assert!(host.chain("FORWARD").ends_with(&["-j ACCEPT".to_owned(), "-j OTHER".to_owned()]), "{host:#?}");
    assert_eq!(drifts(&host, &wanted), [""; 0]);
    let mut host = empty();
    let named = drifts(&host, &[address("10.1.0.2")]);
    assert!(named.contains(&"chain CNI-ADMIN is missing from filter".to_owned()), "{named:?}");
    assert_eq!(named, step(1, &[address("10.1.0.2")]).differences_without_chains("filter"));
    add(&mut host, 1, &[address("10.1.0.2")]);
    host.chain(ADMIN).push("-s 10.1.0.2/32 -j DROP".into());
    assert_eq!(drifts(&host, &[address("10.1.0.2")]), [""; 0], "the operator's chain is the operator's");
}

#[test]
fn a_failed_add_gives_back_what_the_attachment_had() {
    let mut host = empty();
    add(&mut host, 1, &[address("10.1.0.2"), bridge(false)]);
    add(&mut host, 2, &[address("10.1.0.9")]);
    let had = host.clone();
    let wanted = [address("10.1.0.3"), bridge(true)];
    let before = add(&mut host, 1, &wanted);
    assert_eq!((host.count("10.1.0.2"), host.count("10.1.0.3")), (0, 3));
    let undo = step(1, &wanted).put_back(&host.read(), &before);
    host.change(&undo);
    assert_eq!(host.sorted(), had.sorted());
}

#[test]
fn rules_of_upstream_are_removed_by_their_address_and_a_bridge_of_upstream_stays_isolated() {
    let mut upstreams = empty();
    add(&mut upstreams, 1, &[address("10.1.0.2"), bridge(false)]);
    upstreams.forget(OWNERS);
    let mut host = upstreams.clone();
    del(&mut host, 7, &[ip("10.1.0.2")]);
    assert_eq!((host.count("10.1.0.2"), host.count("-i br0")), (0, 1), "the result of ADD has the address");
    let mut host = upstreams.clone();
    let before = add(&mut host, 7, &[address("10.1.0.2"), bridge(false)]);
    assert_eq!(before.unclaimed, [address("10.1.0.2"), bridge(false)]);
    assert_eq!(host.count(OWNERS), 1, "the address has a marker, the bridge has none");
    let mut rolled_back = host.clone();
    let undo = step(7, &[address("10.1.0.2"), bridge(false)]).put_back(&host.read(), &before);
    rolled_back.change(&undo);
    assert_eq!(rolled_back, upstreams);
    let before = add(&mut host, 8, &[address("10.1.0.2"), bridge(false)]);
    assert_eq!(before.unclaimed, [bridge(false)], "the address is claimed by now");
    del(&mut host, 7, &[ip("10.1.0.2")]);
    assert_eq!(host.count("10.1.0.2"), 3, "another attachment claims it");
    del(&mut host, 8, &[ip("10.1.0.2")]);
    assert_eq!((host.count("10.1.0.2"), host.count("-i br0")), (0, 1));
}

#[test]
fn an_isolation_of_upstream_stays_whole_though_ours_was_of_another_kind() {
    let mut upstreams = empty();
    add(&mut upstreams, 1, &[bridge(false)]);
    upstreams.forget(OWNERS);
    let mut host = upstreams.clone();
    add(&mut host, 7, &[bridge(true)]);
    del(&mut host, 7, &[]);
    assert_eq!(host.sorted(), upstreams.sorted(), "both drop what enters the bridge by one rule");
}

#[test]
fn rules_that_packets_do_not_reach_are_put_in_front() {
    let wanted = [address("10.1.0.2"), bridge(true)];
    let mut whole = empty();
    add(&mut whole, 1, &wanted);
    for (chain, ahead) in [
        ("CNI-ISOLATION-STAGE-1", "-j RETURN"),
        ("CNI-ISOLATION-STAGE-2", "-i br9 -j ACCEPT"),
        ("CNI-FORWARD", "-s 10.9.0.0/16 -j DROP"),
    ] {
        let mut host = whole.clone();
        host.chain(chain).insert(0, ahead.into());
        let named = drifts(&host, &wanted);
        assert!(named.len() == 1 && named[0].starts_with(&format!("chain {chain} of filter does not")), "{named:?}");
        add(&mut host, 1, &wanted);
        assert_eq!(drifts(&host, &wanted), [""; 0], "{chain}");
    }
    let mut host = whole.clone();
    host.chain("CNI-ISOLATION-STAGE-1").insert(0, "-i br9 -j DROP".into());
    assert_eq!(drifts(&host, &wanted), [""; 0], "packets of this bridge pass it");
}

#[test]
fn a_marker_whose_rules_upstream_removed_does_not_hold_the_next_ones() {
    let mut host = empty();
    add(&mut host, 1, &[address("10.1.0.2")]);
    host.chain("CNI-FORWARD").retain(|rule| !rule.contains("10.1.0.2"));
    add(&mut host, 2, &[address("10.1.0.2")]);
    assert_eq!((host.count(OWNERS), host.count(&owner(2))), (1, 1), "{host:#?}");
    del(&mut host, 2, &[]);
    assert_eq!(host.count("10.1.0.2"), 0);
}

/// From the seventeenth rule on the rules are counted and not searched.
#[test]
fn many_addresses_and_rules_that_are_there_twice_are_all_removed() {
    let mut host = empty();
    let addresses: Vec<Claim> = (2..30).map(|last| Claim::Address([10, 1, 0, last].into())).collect();
    add(&mut host, 1, &addresses);
    let first = host.clone();
    add(&mut host, 1, &addresses);
    assert_eq!(host, first);
    host.double();
    assert_eq!(host.count("10.1.0."), 28 * 3 * 2);
    let mut again = host.clone();
    add(&mut again, 1, &addresses);
    assert_eq!(drifts(&again, &addresses), [""; 0]);
    del(&mut host, 1, &[]);
    assert_eq!(host.count("10.1.0."), 0);
}

#[test]
fn the_chains_of_rules_and_markers_are_told_from_all_others() {
    assert!(
        ["CNI-FORWARD", "CNI-ISOLATION-STAGE-1", "CNI-ISOLATION-STAGE-2", OWNERS].iter().all(|chain| is_ours(chain))
    );
    assert!(!["FORWARD", ADMIN, "CNI-HOSTPORT-DNAT", ""].iter().any(|chain| is_ours(chain)));
}

#[test]
fn a_demand_has_the_addresses_of_each_version_and_a_bridge_that_iptables_can_name() {
    let addresses = [ip("10.1.0.2"), ip("fd00::2")];
    let isolation = Isolation { bridge: "br0".into(), within: false };
    let demand = Demand { addresses: &addresses, accepts: true, isolation: Some(&isolation), admin_chain: ADMIN };
    assert_eq!(versions(&demand).collect::<Vec<_>>(), IpVersion::ALL);
    assert_eq!(wanted(&demand, IpVersion::V4), [address("10.1.0.2"), bridge(false)]);
    assert_eq!(wanted(&demand, IpVersion::V6), [address("fd00::2"), bridge(false)]);
    let only = Demand { addresses: &addresses[1..], accepts: false, ..demand };
    assert_eq!(versions(&only).collect::<Vec<_>>(), [IpVersion::V6]);
    assert_eq!(wanted(&only, IpVersion::V6), [bridge(false)], "firewalld accepts the address");
    preflight(None).unwrap();
    preflight(Some(&isolation)).unwrap();
    let refused = preflight(Some(&Isolation { bridge: "br+".into(), within: false })).unwrap_err().to_string();
    assert!(refused.contains("\"br+\" as a pattern"), "{refused}");
}

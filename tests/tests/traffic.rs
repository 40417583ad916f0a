//! Real packets through the links and rules of the plugins.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use cnikit_testkit::snapshot::HINTS;
use cnikit_testkit::{Container, Host, HostSnapshot, Subject};
use cnikit_tests::world::{UNTIL_DETECTED, WORLD, detecting_with, ping, ping_once, world};
use cnikit_tests::{bin, bridge, dual_stack, ptp, subject};
use serde_json::{Value, json};

const GATEWAYS: [&str; 2] = ["10.77.0.1", "fd00:77::1"];
const FIRST: [&str; 2] = ["10.77.0.2", "fd00:77::2"];
const SECOND: [&str; 2] = ["10.77.0.3", "fd00:77::3"];

/// For an address that no host has the kernel waits a second, so these are tested last.
fn is_out_of_reach(from: &Container, address: &str) {
    let (reached, output) = from.try_sh(&ping_once(address));
    assert!(!reached, "{address} should not be reached: {output}");
}

/// The very first ping to each address arrives: no address or route is still pending after ADD.
fn everybody_talks_at_once(subject: &Subject) {
    let host = Host::new();
    let _world = world(&host);
    let subject = subject.at(host.dir());
    let one = host.container();
    let two = host.container();
    subject.add(&host, "c-one", &one);
    GATEWAYS.iter().chain(&WORLD).for_each(|address| drop(one.sh(&ping(address))));
    subject.add(&host, "c-two", &two);
    FIRST.iter().for_each(|address| drop(two.sh(&ping(address))));
    SECOND.iter().for_each(|address| drop(one.sh(&ping(address))));
    FIRST.iter().chain(&SECOND).for_each(|address| drop(host.sh(&ping(address))));
    WORLD.iter().for_each(|address| drop(two.sh(&ping(address))));
}

#[test]
fn on_a_bridge_containers_the_host_and_the_world_talk_at_once() {
    everybody_talks_at_once(&bridge());
}

#[test]
fn over_ptp_containers_the_host_and_the_world_talk_at_once() {
    everybody_talks_at_once(&ptp());
}

#[test]
fn one_family_alone_is_enough() {
    for (n, (subnet, all)) in [("10.77.0.0/24", "0.0.0.0/0"), ("fd00:77::/64", "::/0")].into_iter().enumerate() {
        let ipam = json!({"type": "host-local", "subnet": subnet, "routes": [{"dst": all}]});
        for subject in [bridge(), ptp()] {
            let host = Host::new();
            let container = Host::new().container();
            let _world = world(&host);
            subject.with("ipam", ipam.clone()).at(host.dir()).add(&host, "c-one", &container);
            [GATEWAYS[n], WORLD[n]].iter().for_each(|address| drop(container.sh(&ping(address))));
        }
    }
}

/// As some runtimes leave a namespace, and some people their nodes.
const WITHOUT_IPV6: &str = "cd /proc/sys/net/ipv6/conf; for all in all default lo; do echo 1 > $all/disable_ipv6; done";

#[test]
fn ipv6_is_switched_on_where_an_address_of_it_is_given() {
    for subject in [bridge(), ptp()] {
        let host = Host::new();
        let container = Host::new().container();
        host.sh(WITHOUT_IPV6);
        container.sh(WITHOUT_IPV6);
        let subject = subject.at(host.dir());
        let result = subject.add(&host, "c-one", &container);
        GATEWAYS.iter().for_each(|address| drop(container.sh(&ping(address))));
        FIRST.iter().for_each(|address| drop(host.sh(&ping(address))));
        subject.check(&host, "c-one", &container, &result).ok();
        subject.del(&host, "c-one", &container, &result);
    }
}

#[test]
fn a_bridge_is_the_gateway_of_several_subnets() {
    let host = Host::new();
    let container = Host::new().container();
    let ranges = json!([[{"subnet": "10.77.0.0/24"}], [{"subnet": "10.78.0.0/24"}], [{"subnet": "fd00:77::/64"}]]);
    let subject = bridge().with("ipam", json!({"type": "host-local", "ranges": ranges})).at(host.dir());
    let result = subject.add(&host, "c-one", &container);
    ["10.77.0.1", "10.78.0.1", "fd00:77::1"].iter().for_each(|address| drop(container.sh(&ping(address))));
    ["10.77.0.2", "10.78.0.2", "fd00:77::2"].iter().for_each(|address| drop(host.sh(&ping(address))));
    subject.check(&host, "c-one", &container, &result).ok();
    subject.add(&host, "c-two", &host.container());
}

#[test]
fn ptp_serves_whole_addresses_with_a_gateway_that_is_in_no_network() {
    let host = Host::new();
    let container = Host::new().container();
    let _world = world(&host);
    let plugins = tempfile::tempdir().unwrap();
    symlink(bin().join("ptp"), plugins.path().join("ptp")).unwrap();
    symlink("/usr/lib/cni/static", plugins.path().join("static")).unwrap();
    let addresses = json!([{"address": "10.77.0.2/32", "gateway": "169.254.1.1"}, {"address": "fd00:77::2/128", "gateway": "fd00::1"}]);
    let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
    let ipam = json!({"type": "static", "addresses": addresses, "routes": routes});
    let subject = ptp().with("ipam", ipam).with("cniVersion", json!("1.0.0")).in_directory(plugins.path());
    let result = subject.add(&host, "c-one", &container);
    ["169.254.1.1", "fd00::1"].iter().chain(&WORLD).for_each(|address| drop(container.sh(&ping(address))));
    subject.check(&host, "c-one", &container, &result).ok();
    subject.del(&host, "c-one", &container, &result);
}

/// A network with a route back is reached, one without is not: so nothing is masqueraded.
fn leaves_with_its_own_address(subject: &Subject) {
    let host = Host::new();
    let world = world(&host);
    let subject = subject.with("ipMasq", json!(false)).at(host.dir());
    let container = host.container();
    subject.add(&host, "c-one", &container);
    WORLD.iter().for_each(|address| is_out_of_reach(&container, address));
    world.sh("ip route add 10.77.0.0/24 via 192.0.2.1 && ip -6 route add fd00:77::/64 via 2001:db8:9::1");
    WORLD.iter().for_each(|address| drop(container.sh(&ping(address))));
}

#[test]
fn without_masquerade_containers_on_a_bridge_go_out_under_their_own_address() {
    leaves_with_its_own_address(&bridge());
}

#[test]
fn without_masquerade_containers_on_ptp_go_out_under_their_own_address() {
    leaves_with_its_own_address(&ptp());
}

/// A port mapping of another program: packets to the host's address are sent to the container.
const PUBLISHED: &str = "nft 'add table ip published
    add chain ip published in { type nat hook prerouting priority -100; }
    add rule ip published in ip daddr 192.0.2.1 icmp type echo-request dnat to 10.77.0.2
    add chain ip published back { type nat hook postrouting priority 90; }
    add rule ip published back ip saddr 10.77.0.2 ip daddr 10.77.0.2 masquerade'";

#[test]
fn a_container_reaches_itself_by_an_address_that_the_host_maps_to_it() {
    let host = Host::new();
    let _world = world(&host);
    let container = host.container();
    bridge().with("hairpinMode", json!(true)).at(host.dir()).add(&host, "c-one", &container);
    host.sh(PUBLISHED);
    container.sh("nft 'add table ip heard; add chain ip heard in { type filter hook input priority 0; }; add rule ip heard in icmp type echo-request counter'");
    container.sh(&ping("192.0.2.1"));
    assert!(
        container.sh("nft list table ip heard").contains("packets 1 "),
        "it was the container itself that answered"
    );
}

/// The number of its own ARP requests that a container receives when it resolves an absent neighbour.
fn own_requests_heard(hairpin: bool) -> u64 {
    let host = Host::new();
    let container = Host::new().container();
    bridge().with("hairpinMode", json!(hairpin)).at(host.dir()).add(&host, "c-one", &container);
    container.sh("nft 'add table arp heard; add chain arp heard in { type filter hook input priority 0; }; add rule arp heard in counter'");
    is_out_of_reach(&container, "10.77.0.99");
    let output = container.sh("nft list table arp heard");
    output.split_whitespace().skip_while(|word| *word != "packets").nth(1).and_then(|count| count.parse().ok()).unwrap()
}

#[test]
fn a_port_gets_its_own_frames_back_in_hairpin_mode_only() {
    assert!(own_requests_heard(true) > 0);
    assert_eq!(own_requests_heard(false), 0);
}

#[test]
fn isolated_containers_reach_all_but_each_other() {
    let host = Host::new();
    let isolated = bridge().with("portIsolation", json!(true)).at(host.dir());
    let open = isolated.with("portIsolation", json!(false));
    let one = host.container();
    let two = host.container();
    let third = host.container();
    isolated.add(&host, "c-one", &one);
    isolated.add(&host, "c-two", &two);
    open.add(&host, "c-third", &third);
    for container in [&one, &two] {
        GATEWAYS.iter().chain(&["10.77.0.4", "fd00:77::4"]).for_each(|address| drop(container.sh(&ping(address))));
    }
    FIRST.iter().chain(&SECOND).for_each(|address| drop(third.sh(&ping(address))));
    SECOND.iter().for_each(|address| is_out_of_reach(&one, address));
}

#[test]
fn without_ipam_a_bridge_forwards_addresses_set_by_hand() {
    let host = Host::new();
    let one = Host::new().container();
    let two = Host::new().container();
    let layer2 = subject("bridge", json!({"bridge": "l2"}));
    for (id, container, end) in [("c-one", &one, 1), ("c-two", &two, 2)] {
        let result = layer2.add(&host, id, container);
        assert_eq!(result.get("ips"), None, "{result}");
        container.sh(&format!("ip address add 10.5.0.{end}/24 dev eth0; ip address add fd05::{end}/64 dev eth0 nodad"));
    }
    ["10.5.0.2", "fd05::2"].iter().for_each(|address| assert!(one.reaches(address), "{address}"));
    assert!(!host.sh("ip -4 address show dev l2").contains("inet"), "the host stays out of it");
}

/// ADD of an attachment that requests its addresses.
fn add_at(subject: &Subject, host: &Host, id: &str, container: &Container, addresses: [&str; 2]) -> Value {
    subject.call(host, "ADD", id, &container.path(), &[("runtimeConfig", json!({"ips": addresses}))]).ok()
}

const WRONG: &str = "0a:bb:cc:dd:ee:ff";

/// Some nodes listen to no announcement, so telling them is not enough.
const HARDENED: &str =
    "cd /proc/sys/net; echo 1 > ipv4/conf/cni0/drop_gratuitous_arp; echo 1 > ipv6/conf/cni0/drop_unsolicited_na";

#[test]
fn the_first_ping_reaches_an_address_that_moved_to_another_container() {
    let host = Host::new();
    let subject = bridge().at(host.dir());
    let neighbour = host.container();
    let before = host.container();
    let after = host.container();
    add_at(&subject, &host, "c-neighbour", &neighbour, SECOND);
    let result = add_at(&subject, &host, "c-before", &before, FIRST);
    FIRST.iter().for_each(|address| drop((neighbour.sh(&ping(address)), host.sh(&ping(address)))));
    subject.del(&host, "c-before", &before, &result);
    host.sh(HARDENED);
    for address in FIRST {
        host.sh(&format!("ip neigh replace {address} lladdr {WRONG} nud reachable dev cni0"));
        neighbour.sh(&format!("ip neigh replace {address} lladdr {WRONG} nud reachable dev eth0"));
    }
    add_at(&subject, &host, "c-after", &after, FIRST);
    for address in FIRST {
        host.sh(&ping(address));
        neighbour.sh(&ping(address));
    }
    let remembered = [host.sh("ip neigh show dev cni0"), neighbour.sh("ip neigh show dev eth0")].concat();
    assert!(!remembered.contains(WRONG), "{remembered}");
}

/// What a neighbour on the bridge receives while a container gets its addresses: ARP packets, and neighbour advertisements.
fn announcements_heard(subject: &Subject) -> [u64; 2] {
    let host = Host::new();
    let subject = subject.at(host.dir());
    let neighbour = host.container();
    subject.add(&host, "c-neighbour", &neighbour);
    neighbour.sh(
        "nft 'add table arp heard; add chain arp heard in { type filter hook input priority 0; }; add rule arp heard in counter
         add table ip6 heard; add chain ip6 heard in { type filter hook input priority 0; }
         add rule ip6 heard in icmpv6 type nd-neighbor-advert counter'",
    );
    subject.add(&host, "c-one", &host.container());
    let counted = |family: &str| {
        let output = neighbour.sh(&format!("nft list table {family} heard"));
        output.split_whitespace().skip_while(|word| *word != "packets").nth(1).and_then(|count| count.parse().ok())
    };
    ["arp", "ip6"].map(|family| counted(family).unwrap())
}

/// A bridge floods each announcement to all of its ports.
#[test]
fn an_address_is_announced_once_and_no_neighbour_advertisement_without_one_of_ipv6() {
    let ipam = json!({"type": "host-local", "subnet": "10.77.0.0/24"});
    assert_eq!(announcements_heard(&bridge().with("ipam", ipam)), [1, 0]);
    let [arp, advertisements] = announcements_heard(&bridge());
    // That of the link-local address may come after the answer of ADD.
    assert!(arp == 1 && advertisements >= 1, "{arp} {advertisements}");
}

#[test]
fn the_first_ping_reaches_an_address_that_moved_to_another_pair_of_ptp() {
    let host = Host::new();
    let subject = ptp().at(host.dir());
    let before = host.container();
    let after = host.container();
    let result = add_at(&subject, &host, "c-before", &before, FIRST);
    FIRST.iter().for_each(|address| drop(host.sh(&ping(address))));
    subject.del(&host, "c-before", &before, &result);
    add_at(&subject, &host, "c-after", &after, FIRST);
    FIRST.iter().for_each(|address| drop(host.sh(&ping(address))));
}

#[test]
fn with_enabledad_an_address_of_a_neighbour_is_refused() {
    let host = Host::new();
    let subject = bridge().with("enabledad", json!(true)).with("hairpinMode", json!(true)).at(host.dir());
    let other = host.container();
    let neighbour = host.container();
    let container = host.container();
    subject.add(&host, "c-other", &other);
    self::subject("bridge", json!({"name": "by-hand"})).add(&host, "c-neighbour", &neighbour);
    neighbour.sh("ip address add fd00:77::3/64 dev eth0 nodad");
    host.sh(UNTIL_DETECTED);
    assert!(neighbour.reaches("fd00:77::1"));
    let before = HostSnapshot::of(&host);
    let inside = HostSnapshot::inside(&container);
    let (code, text) = subject.call(&host, "ADD", "c-one", &container.path(), &[]).refused();
    assert!(code == 101 && text.contains("fd00:77::3"), "{code} {text}");
    HostSnapshot::of(&host).assert_unchanged_since(&before, &HINTS, "a duplicate address");
    HostSnapshot::inside(&container).assert_unchanged_since(&inside, &[], "a duplicate address");
    let result = subject.add(&host, "c-one", &container);
    container.sh(&ping("fd00:77::1"));
    subject.check(&host, "c-one", &container, &result).ok();
}

/// A second for each probe. On a busy node one probe takes as long, because the kernel waits for its lock for all links.
#[test]
fn with_enabledad_add_waits_for_a_detection_that_takes_seven_seconds() {
    let host = Host::new();
    let subject = bridge().with("enabledad", json!(true)).at(host.dir());
    let container = host.container();
    container.sh(&detecting_with(7));
    let result = subject.add(&host, "c-one", &container);
    assert_eq!(container.sh("ip -6 address show dev eth0 scope global tentative"), "");
    subject.check(&host, "c-one", &container, &result).ok();
}

/// Here it takes a minute, of an address that was added again.
#[test]
fn check_waits_two_seconds_for_duplicate_address_detection() {
    let host = Host::new();
    let container = host.container();
    let subject = bridge().at(host.dir());
    let result = subject.add(&host, "c-one", &container);
    container.sh("cd /proc/sys/net/ipv6/conf/eth0; echo 1 >accept_dad; echo 60 >dad_transmits");
    container.sh("ip -6 address del fd00:77::2/64 dev eth0; ip -6 address add fd00:77::2/64 dev eth0");
    let begin = Instant::now();
    let (_, text) = subject.call(&host, "CHECK", "c-one", &container.path(), &[("prevResult", result)]).refused();
    assert!(begin.elapsed() >= Duration::from_secs(2), "{:?}", begin.elapsed());
    assert!(text.contains("wanted fd00:77::2/64 usable, found it under duplicate address detection"), "{text}");
}

/// A port does not route, and the kernel would give it an anycast address for each of its own, which delays DEL.
#[test]
fn the_hosts_end_forwards_with_ptp_and_not_on_a_bridge() {
    for (subject, wanted) in [(bridge(), "0"), (ptp(), "1")] {
        let host = Host::new();
        host.sh("echo 1 >/proc/sys/net/ipv6/conf/all/forwarding");
        let container = host.container();
        let subject = subject.at(host.dir());
        subject.add(&host, "c-one", &container);
        assert_eq!(host.sh("cat /proc/sys/net/ipv6/conf/veth*/forwarding").trim(), wanted, "{}", subject.plugin);
    }
}

#[test]
fn the_route_of_the_host_to_a_container_on_ptp_is_the_hosts_alone() {
    let host = Host::new();
    let container = host.container();
    let subject = ptp().at(host.dir());
    subject.add(&host, "c-one", &container);
    assert!(host.sh("ip route show 10.77.0.2").contains(" scope host"), "{}", host.sh("ip route"));
}

#[test]
fn a_dual_stack_add_does_not_wait_for_duplicate_address_detection() {
    for subject in [bridge(), ptp()] {
        let host = Host::new();
        let container = Host::new().container();
        let subject = subject.at(host.dir());
        // Duplicate address detection takes a minute here.
        host.sh(&detecting_with(60));
        container.sh(&detecting_with(60));
        let begin = Instant::now();
        subject.add(&host, "c-one", &container);
        assert!(begin.elapsed() < Duration::from_secs(30), "{}: {:?}", subject.plugin, begin.elapsed());
        let tentative = container.sh("ip -6 address show dev eth0 scope global tentative");
        assert_eq!(tentative, "", "{} left it to be detected", subject.plugin);
    }
}

/// Each attribute that a route may have, and its text in the output of ip(8).
fn attributed() -> Value {
    let mut ipam = dual_stack();
    ipam["routes"] = json!([
        {"dst": "10.1.0.0/16", "mtu": 1400, "advmss": 1300, "priority": 7},
        {"dst": "10.2.0.0/16", "table": 99},
        {"dst": "10.3.0.0/16", "scope": 253},
        {"dst": "fd01::/48", "mtu": 1400, "advmss": 1300, "priority": 9},
        {"dst": "fd02::/48", "table": 99},
    ]);
    ipam
}

const SHOWN: [&str; 5] = [
    "10.1.0.0/16 via 10.77.0.1 metric 7 mtu 1400 advmss 1300",
    "10.2.0.0/16 via 10.77.0.1 table 99",
    "10.3.0.0/16 scope link",
    "fd01::/48 via fd00:77::1 metric 9 mtu 1400 advmss 1300 pref medium",
    "fd02::/48 via fd00:77::1 table 99 metric 1024 pref medium",
];

const CHANGES: [(&str, &str); 6] = [
    ("ip route change 10.1.0.0/16 via 10.77.0.1 metric 7 advmss 1300", "10.1.0.0/16 via 10.77.0.1 metric 7 mtu 1400"),
    ("ip route change 10.1.0.0/16 via 10.77.0.1 metric 7 mtu 1400", "advmss 1300"),
    ("ip route del 10.1.0.0/16; ip route add 10.1.0.0/16 via 10.77.0.1 metric 8 mtu 1400 advmss 1300", "metric 7"),
    ("ip route del 10.2.0.0/16 table 99", "10.2.0.0/16"),
    ("ip route del 10.3.0.0/16; ip route add 10.3.0.0/16 via 10.77.0.1", "10.3.0.0/16"),
    ("ip -6 route change fd01::/48 via fd00:77::1 metric 9 advmss 1300", "fd01::/48"),
];

fn has_and_checks_the_attributes_of_its_routes(subject: &Subject) {
    let host = Host::new();
    let subject = subject.at(host.dir());
    let container = host.container();
    let result = subject.add(&host, "c-one", &container);
    let output = container.sh("ip -4 route show table all dev eth0; ip -6 route show table all dev eth0");
    let routes: Vec<String> =
        output.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    SHOWN.iter().for_each(|shown| assert!(routes.iter().any(|route| route == shown), "{shown}: {routes:#?}"));
    subject.check(&host, "c-one", &container, &result).ok();
    subject.del(&host, "c-one", &container, &result);
    for (change, named) in CHANGES {
        let result = subject.add(&host, "c-one", &container);
        container.sh(change);
        let (_, text) = subject.check(&host, "c-one", &container, &result).refused();
        assert!(text.contains(named), "{change}: {text}");
        subject.del(&host, "c-one", &container, &result);
    }
}

#[test]
fn routes_have_their_attributes_on_a_bridge_and_check_compares_them() {
    let conf = json!({"isGateway": true, "ipam": attributed()});
    has_and_checks_the_attributes_of_its_routes(&subject("bridge", conf));
}

#[test]
fn routes_have_their_attributes_on_ptp_and_check_compares_them() {
    has_and_checks_the_attributes_of_its_routes(&subject("ptp", json!({"ipam": attributed()})));
}

//! CHECK of our plugin after other plugins of a chain have changed its objects, and after each of its objects was changed.

use std::collections::BTreeSet;

use cnikit_testkit::Host;
use cnikit_tests::chain::{RELEASES, stays_true};
use cnikit_tests::mixed::{Names, UpstreamRelease, fits};
use cnikit_tests::tampering::{BRIDGE, COMMON, IPTABLES, NOT_COMPARED, PTP};
use cnikit_tests::{dual_stack, subject};
use serde_json::json;

const OURS: [&str; 2] = ["bridge", "ptp"];

/// No other table has such a route: it is removed, and not only moved.
const FROM_EVERYWHERE: &str = "ip route del 10.8.0.0/16 table $(ip route show table all 10.8.0.0/16 | sed -n 's/.*table \\([0-9]*\\).*/\\1/p' | grep . || echo main)";

#[test]
fn source_based_routing_moves_routes_and_one_that_is_gone_is_named() {
    let gone = (FROM_EVERYWHERE, "route of eth0: wanted 10.8.0.0/16 via 10.77.0.1");
    stays_true(
        &OURS,
        RELEASES,
        &[("sbr", json!({}))],
        &[gone, ("ip address del fd00:77::2/64 dev eth0", "address of eth0: wanted fd00:77::2/64")],
    );
}

#[test]
fn a_tuned_mac_is_the_recorded_one_and_another_is_named() {
    let mac = json!({"mac": "0a:00:00:00:00:07"});
    let other = (
        "ip link set eth0 address 0a:00:00:00:00:08",
        "MAC of eth0: wanted 0a:00:00:00:00:07, found 0a:00:00:00:00:08",
    );
    stays_true(&OURS, RELEASES, &[("tuning", mac.clone())], &[other]);
    stays_true(&OURS, &[UpstreamRelease::Newest], &[("our tuning", mac)], &[other]);
}

#[test]
fn a_tuned_link_and_its_settings_are_the_tuning_plugins() {
    let keys = json!({"mtu": 1400, "promisc": true, "allmulti": true, "txQLen": 500,
        "sysctl": {"net.ipv4.conf.eth0.arp_notify": "0", "net.ipv6.conf.eth0.accept_ra": "1", "net.ipv4.ip_forward": "1"}});
    let down = ("ip link set eth0 down", "eth0: wanted up, found down");
    stays_true(&OURS, RELEASES, &[("tuning", keys.clone())], &[down]);
    stays_true(&OURS, &[UpstreamRelease::Newest], &[("our tuning", keys)], &[down]);
}

#[test]
fn several_in_one_chain_are_no_difference_either() {
    let keys = json!({"mac": "0a:00:00:00:00:07", "mtu": 1400});
    let gone = (FROM_EVERYWHERE, "route of eth0: wanted 10.8.0.0/16 via 10.77.0.1");
    stays_true(&OURS, RELEASES, &[("tuning", keys.clone()), ("sbr", json!({}))], &[gone]);
    let twice = [("our tuning", keys), ("our tuning", json!({"mtu": 1350, "txQLen": 7})), ("sbr", json!({}))];
    stays_true(&OURS, &[UpstreamRelease::Newest], &twice, &[gone]);
}

/// Links as the kernel makes them, with objects that may exist already. The kernel makes one queue per processor.
fn by_hand(bridge: bool) -> BTreeSet<String> {
    let host = Host::new();
    let container = Host::new().container();
    host.sh(if bridge { "ip link add cni0 type bridge" } else { ":" });
    host.sh(&format!(
        "ip link add veth00000000 numrxqueues 2 numtxqueues 2 type veth peer name eth0 numrxqueues 2 numtxqueues 2 netns {}",
        container.path()
    ));
    Names::of(&host, &container, "").state(&host, &container)
}

/// All visible state of an attachment, without the lines that every link has.
fn made(plugin: &str) -> BTreeSet<String> {
    let host = Host::new();
    let container = Host::new().container();
    let keys = json!({"isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": "iptables", "mtu": 1400, "ipam": dual_stack()});
    subject(plugin, keys).at(host.dir()).add(&host, "c-one", &container);
    let by_hand = by_hand(plugin == "bridge");
    let seen = Names::of(&host, &container, "").state(&host, &container);
    let kinds = |line: &String| line.contains(" info_kind = ") && !line.contains(" lo ");
    seen.into_iter().filter(|line| !by_hand.contains(line) || kinds(line)).collect()
}

#[test]
fn everything_that_add_makes_is_tampered_with_or_listed_as_exempt() {
    let bridge = [&COMMON[..], &BRIDGE, &IPTABLES].concat();
    let ptp = [&COMMON[..], &PTP, &IPTABLES].concat();
    let mut used = BTreeSet::new();
    for (plugin, things) in [("bridge", bridge), ("ptp", ptp)] {
        let tampered = things.iter().flat_map(|thing| thing.shows);
        let patterns: Vec<&str> = tampered.copied().chain(NOT_COMPARED.iter().map(|(pattern, _)| *pattern)).collect();
        let made = made(plugin);
        let fitting =
            |line: &String| patterns.iter().filter(|pattern| fits(pattern, line)).copied().collect::<Vec<_>>();
        let forgotten: Vec<&String> = made.iter().filter(|line| fitting(line).is_empty()).collect();
        assert!(forgotten.is_empty(), "{plugin} makes what no tampering changes: {forgotten:#?}");
        used.extend(made.iter().flat_map(fitting));
    }
    let all = COMMON.iter().chain(&BRIDGE).chain(&PTP).chain(&IPTABLES).flat_map(|thing| thing.shows).copied();
    let idle: Vec<&str> =
        all.chain(NOT_COMPARED.iter().map(|(pattern, _)| *pattern)).filter(|one| !used.contains(one)).collect();
    assert!(idle.is_empty(), "no plugin makes what shows as {idle:#?}");
}

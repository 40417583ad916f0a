//! macvlan: ADD, CHECK and DEL, masters, modes, MACs, duplicate address detection, and which hosts can reach each other.
//!
//! Where the kernel has no macvlan they are reported as not run, as those of the ring are.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]
#![expect(clippy::print_stdout, reason = "what was not run is part of what a test program says")]

#[path = "ring/test.rs"]
mod test;

use std::process::ExitCode;
use std::thread;

use cnikit_testkit::life::{self, Tampering};
use cnikit_testkit::need::Need;
use cnikit_testkit::{Container, Host, HostSnapshot, Subject, fault, flood};
use cnikit_tests::campaign_subjects::interface_result;
use cnikit_tests::upper::{self, DETECTION, FIRST, GATEWAYS, Lan, SECOND};
use cnikit_tests::world::{detecting_with, once_within, ping, ping_briefly};
use cnikit_tests::{HOST_LOCAL, MASTER, dual_stack, macvlan, routed, subject};
use serde_json::{Value, json};

use test::{Here, Test, test};

const TESTS: &[Test] = &[
    test!(an_attachment_leaves_no_trace_and_a_second_one_adds_nothing needs Need::MACVLAN),
    test!(del_succeeds_with_incomplete_input needs Need::MACVLAN),
    test!(del_succeeds_with_incomplete_input_without_layer_3 needs Need::MACVLAN),
    test!(a_fault_before_any_step_leaves_nothing needs Need::MACVLAN),
    test!(sixty_four_at_once_get_sixty_four_addresses needs Need::MACVLAN),
    test!(check_names_everything_that_was_tampered_with needs Need::MACVLAN),
    test!(containers_reach_the_outer_host_at_once_and_each_other_as_the_mode_says needs Need::MACVLAN),
    test!(passthru_reserves_the_master_for_one_container needs Need::MACVLAN),
    test!(a_master_may_be_in_the_container needs Need::MACVLAN),
    test!(no_link_event_of_it_is_seen_on_the_host needs Need::MACVLAN),
    test!(a_master_may_be_a_macvlan_itself needs Need::MACVLAN),
    test!(a_master_on_a_link_of_a_third_namespace_is_told_from_another_one needs Need::MACVLAN),
    test!(the_host_may_have_a_link_of_the_same_name needs Need::MACVLAN),
    test!(a_result_has_the_containers_interface_and_the_previous_result needs Need::MACVLAN),
    test!(the_mac_is_that_of_the_source_with_the_highest_priority needs Need::MACVLAN),
    test!(invalid_configurations_are_refused_before_anything_is_made needs Need::MACVLAN),
    test!(the_master_is_that_of_the_default_route needs Need::MACVLAN),
    test!(add_waits_for_duplicate_address_detection needs Need::MACVLAN),
    test!(a_taken_address_is_refused_and_released_unless_detection_is_off needs Need::MACVLAN),
    test!(a_master_without_carrier_does_not_delay_add needs Need::MACVLAN),
    test!(a_lost_carrier_during_duplicate_detection_ends_the_wait needs Need::MACVLAN),
    test!(addresses_of_other_containers_on_the_link_are_not_compared needs Need::MACVLAN),
    test!(a_del_does_not_look_for_the_master needs Need::MACVLAN),
    test!(del_restores_tuned_settings_that_fit_the_master needs Need::MACVLAN),
    test!(a_tuning_that_the_master_refuses_changes_nothing needs Need::MACVLAN),
    test!(router_advertisements_are_those_of_the_wire_and_can_be_refused needs Need::MACVLAN),
    test!(a_link_that_is_not_the_attachments_stays needs Need::MACVLAN),
    test!(foreign_links_on_the_master_stay needs Need::MACVLAN),
    test!(gc_removes_invalid_links_in_named_namespaces needs Need::MACVLAN),
    test!(status_fails_while_the_master_is_missing needs Need::MACVLAN),
];

fn main() -> ExitCode {
    let here = Here::new(None);
    let arguments = libtest_mimic::Arguments::from_args();
    let conclusion = libtest_mimic::run(&arguments, TESTS.iter().map(|test| test.trial(&here)).collect());
    if let Some(line) = here.not_run() {
        println!("{line}\n");
    }
    conclusion.exit_code()
}

/// It has no addresses.
fn layer2() -> Subject {
    subject("macvlan", json!({"master": "master0"})).on(MASTER).called("macvlan of layer 2")
}

/// IPv4 only, because without an IPv6 address there is no duplicate address detection to wait for.
fn v4(keys: Value) -> Subject {
    let mut keys = keys;
    keys["ipam"] = json!({"type": "host-local", "subnet": "10.77.0.0/24"});
    subject("macvlan", keys).on(MASTER)
}

fn on_master() -> Subject {
    v4(json!({"master": "master0"}))
}

fn an_attachment_leaves_no_trace_and_a_second_one_adds_nothing() {
    let all = json!({"master": "master0", "mode": "vepa", "mtu": 1400, "bcqueuelen": 50, "mac": "0a:00:00:00:00:05",
                     "dns": {"nameservers": ["10.0.0.53"]}, "ipam": dual_stack()});
    let detecting = subject("macvlan", all).on(MASTER);
    let alone = v4(json!({"master": "master0", "mode": "passthru"}));
    [macvlan(), layer2(), detecting, alone].iter().for_each(life::leaves_no_trace);
}

fn del_succeeds_with_incomplete_input() {
    life::survives_incomplete_dels(&macvlan());
}

fn del_succeeds_with_incomplete_input_without_layer_3() {
    life::survives_incomplete_dels(&layer2().on(cnikit_tests::MASTER_OF_MACVLANS));
}

fn a_fault_before_any_step_leaves_nothing() {
    let tried = fault::leaves_nothing::<macvlan::MacvlanPlugin>(&macvlan(), HOST_LOCAL);
    assert_eq!(tried, 4, "1 step of the link, 1 of layer 3, and the place behind each");
}

fn sixty_four_at_once_get_sixty_four_addresses() {
    flood::survives(&macvlan(), 64);
}

fn check_names_everything_that_was_tampered_with() {
    let subject = macvlan().with("mtu", json!(1400)).with("bcqueuelen", json!(100)).on(MASTER);
    let things = [
        Tampering::inside("ip link set eth0 down", "eth0: wanted up, found down"),
        Tampering::inside(
            "ip link del eth0 && ip link add eth0 type bridge",
            "kind of eth0: wanted macvlan, found bridge",
        ),
        Tampering::inside("ip link del eth0", "interface eth0: wanted macvlan, found none"),
        Tampering::inside("ip link set eth0 address 0a:00:00:00:00:01", "MAC of eth0"),
        Tampering::inside("ip link set eth0 mtu 1300", "MTU of eth0: wanted 1400, found 1300"),
        Tampering::inside("ip link set eth0 type macvlan mode private", "mode of eth0: wanted bridge, found private"),
        Tampering::inside("ip link set eth0 type macvlan bcqueuelen 50", "bcqueuelen of eth0: wanted 100, found 50"),
        Tampering::inside(upper::ALIAS_OF_ANOTHER, "found the alias"),
        Tampering::inside("ip address del 10.77.0.2/24 dev eth0", "address of eth0: wanted 10.77.0.2/24"),
        Tampering::inside("ip address del fd00:77::2/64 dev eth0", "address of eth0: wanted fd00:77::2/64"),
        Tampering::inside("ip route del default", "route of eth0: wanted 0.0.0.0/0 via 10.77.0.1"),
        Tampering::inside("ip -6 route del default", "route of eth0: wanted ::/0 via fd00:77::1"),
        Tampering::on_host("ip link del master0", "interface eth0: wanted macvlan, found none"),
        Tampering::on_host(
            "ip link set master0 down; ip link set master0 name other0",
            "master of eth0: wanted master0 on the host, found none",
        ),
        Tampering::on_host(
            "ip link set master0 down; ip link set master0 name other0; ip link add master0 type veth",
            "master of eth0: wanted master0 on the host, found another link",
        ),
        Tampering::on_host("rm $DIR/leases/testnet/10.77.0.2", "10.77.0.2"),
    ];
    life::names_tampering_of_all(&subject, &things);
    let down = Tampering::inside("ip link set eth0 down", "eth0: wanted up, found down");
    life::names_tampering_of_all(&layer2(), &[down]);
}

/// Two containers; whether they reach each other. Each reaches the outer host, and is reached from there.
fn two(lan: &Lan, subject: &Subject) -> bool {
    let one = lan.add(subject, "c-one");
    let two = lan.add(subject, "c-two");
    for address in FIRST.iter().chain(&SECOND) {
        lan.outer.sh(&ping(address));
    }
    for container in [&one, &two] {
        GATEWAYS.iter().for_each(|address| drop(container.sh(&ping(address))));
    }
    let reached = SECOND.map(|address| one.try_sh(&ping_briefly(address)).0);
    assert_eq!(reached[0], reached[1], "of both families or of none");
    reached[0]
}

/// There is no switch that sends frames back on the same port (802.1Qbg), as the mode vepa expects.
fn containers_reach_the_outer_host_at_once_and_each_other_as_the_mode_says() {
    for (mode, reach) in [("bridge", true), ("", true), ("private", false), ("vepa", false)] {
        let subject = macvlan().with("mode", json!(mode));
        assert_eq!(two(&Lan::new(), &subject), reach, "{mode}");
    }
}

fn passthru_reserves_the_master_for_one_container() {
    let lan = Lan::new();
    let subject = macvlan().with("mode", json!("passthru"));
    let one = lan.add(&subject, "c-one");
    GATEWAYS.iter().for_each(|address| drop(one.sh(&ping(address))));
    let mac = lan.host.sh("ip -o link show master0 2>/dev/null | sed 's/.*ether //; s/ .*//'");
    assert!(one.sh("ip -o link show eth0").contains(mac.trim()), "it has the master's MAC");
    let two = lan.host.container();
    let before = HostSnapshot::of(&lan.host);
    let output = subject.at(lan.host.dir()).call(&lan.host, "ADD", "c-two", &two.path(), &[]);
    let (code, text) = output.refused();
    assert!(code == 100 && text.contains("only one with `passthru`"), "{code} {text}");
    HostSnapshot::of(&lan.host).assert_unchanged_since(&before, &cnikit_testkit::snapshot::HINTS, "after the refusal");
}

fn a_master_may_be_in_the_container() {
    let lan = Lan::new();
    let container = lan.host.container();
    lan.host.sh(&format!("ip link set master0 netns {}", container.path()));
    container.sh("ip link set master0 name inner0; ip link set inner0 up");
    let keys = json!({"master": "inner0", "linkInContainer": true, "enabledad": false, "ipam": routed()});
    let subject = subject("macvlan", keys).at(lan.host.dir());
    let result = subject.add(&lan.host, "c-one", &container);
    GATEWAYS.iter().for_each(|address| drop(container.sh(&ping(address))));
    subject.check(&lan.host, "c-one", &container, &result).ok();
    let other = subject.with("master", json!("lo")).check(&lan.host, "c-one", &container, &result).refused().1;
    assert!(other.contains("master of eth0: wanted lo in the container, found another link"), "{other}");
    subject.del(&lan.host, "c-one", &container, &result);
    assert!(!container.sh("ip -o link").contains("eth0"));
}

fn no_link_event_of_it_is_seen_on_the_host() {
    upper::no_link_event_of_it_is_seen_on_the_host(&on_master());
}

/// The kernel then makes the new one on the same lower link.
fn a_master_may_be_a_macvlan_itself() {
    let host = on_master().host();
    let container = Host::new().container();
    host.sh("ip link add link master0 name over0 type macvlan mode bridge; ip link set over0 up");
    let inner = format!("ip link add link master0 name inner0 netns {} type macvlan mode bridge", container.path());
    host.sh(&inner);
    container.sh("ip link set inner0 up");
    for (keys, other) in
        [(json!({"master": "over0"}), "outer0"), (json!({"master": "inner0", "linkInContainer": true}), "lo")]
    {
        let subject = v4(keys).at(host.dir());
        let result = subject.add(&host, "c-one", &container);
        subject.check(&host, "c-one", &container, &result).ok();
        let output = subject.with("master", json!(other)).check(&host, "c-one", &container, &result).refused().1;
        assert!(
            output.contains(&format!("master of eth0: wanted {other}")) && output.contains("found another link"),
            "{output}"
        );
        subject.del(&host, "c-one", &container, &result);
    }
}

/// Another program made two macvlans of the host, on links of a namespace of its own.
fn a_master_on_a_link_of_a_third_namespace_is_told_from_another_one() {
    let host = on_master().host();
    let (container, third) = (Host::new().container(), Host::new().container());
    for number in [1, 2] {
        third.sh(&format!(
            "ip link add up{number} type ifb && ip link set up{number} up && \
             ip link add link up{number} name over{number} netns {} type macvlan mode bridge",
            host.path()
        ));
        host.sh(&format!("ip link set over{number} up"));
    }
    let subject = v4(json!({"master": "over1"})).at(host.dir());
    let result = subject.add(&host, "c-one", &container);
    subject.check(&host, "c-one", &container, &result).ok();
    let another = subject.with("master", json!("over2")).check(&host, "c-one", &container, &result).refused().1;
    assert!(another.contains("master of eth0: wanted over2 on the host, found another link"), "{another}");
    subject.del(&host, "c-one", &container, &result);
}

fn the_host_may_have_a_link_of_the_same_name() {
    upper::the_host_may_have_a_link_of_the_same_name(&on_master());
}

fn a_result_has_the_containers_interface_and_the_previous_result() {
    let host = on_master().host();
    let container = Host::new().container();
    let before = json!({"cniVersion": "1.1.0", "interfaces": [{"name": "master0"}], "ips": [{"address": "10.9.9.9/24", "interface": 0}]});
    let subject = on_master().at(host.dir());
    let output = subject.call(&host, "ADD", "c-one", &container.path(), &[("prevResult", before)]).ok();
    let names: Vec<&str> =
        output["interfaces"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["master0", "eth0"]);
    assert_eq!((&output["ips"][0]["address"], &output["ips"][1]["interface"]), (&json!("10.9.9.9/24"), &json!(1)));
    assert_eq!(output["interfaces"][1]["mtu"], 1500);
    assert!(container.sh("ip -o link show eth0").contains(output["interfaces"][1]["mac"].as_str().unwrap()));
}

/// The MACs of the four sources, in the order of their precedence.
const MACS: [&str; 4] = ["0a:00:00:00:00:01", "0a:00:00:00:00:02", "0a:00:00:00:00:03", "0a:00:00:00:00:04"];

fn the_mac_is_that_of_the_source_with_the_highest_priority() {
    let host = on_master().host();
    let macs = [1, 2, 3, 4].map(|count| mac_of_sources(&host, count));
    assert_eq!(macs, [3, 2, 1, 0].map(|place| json!(MACS[place])));
}

/// The MAC in the result of an ADD with the last `count` of [`MACS`].
fn mac_of_sources(host: &Host, count: usize) -> Value {
    let mut conf = on_master().at(host.dir()).conf;
    conf["mac"] = json!(MACS[3]);
    if count > 1 {
        conf["args"] = json!({"cni": {"mac": MACS[2]}});
    }
    if count > 3 {
        conf["runtimeConfig"] = json!({"mac": MACS[0]});
    }
    let args = if count > 2 { format!("IgnoreUnknown=1;MAC={}", MACS[1]) } else { String::new() };
    let container = host.container();
    let env = [("CNI_ARGS", args.as_str())];
    let id = format!("c-{count}");
    let result = on_master().call_raw(host, "ADD", &id, &container.path(), conf.to_string().as_bytes(), &env).ok();
    assert!(container.sh("ip -o link show eth0").contains(MACS[4 - count]), "{count} sources");
    result["interfaces"][0]["mac"].clone()
}

/// An ADD that is refused, with nothing left.
fn refused(ground: &'static str, subject: &Subject) -> (u64, String) {
    let host = Host::new();
    let container = Host::new().container();
    host.sh(ground);
    let before = HostSnapshot::of(&host);
    let subject = subject.at(host.dir());
    let output = subject.call(&host, "ADD", "c-one", &container.path(), &[]).refused();
    HostSnapshot::of(&host).assert_unchanged_since(&before, &cnikit_testkit::life::SHARED, "after the refusal");
    assert_eq!(container.links(), [""; 0], "nothing is in the container");
    output
}

/// The most common reason why the kernel reports that a link is busy.
const PORT: &str =
    "ip link add br0 type bridge; ip link add port0 type veth peer name p0; ip link set port0 master br0";

fn invalid_configurations_are_refused_before_anything_is_made() {
    let table = [
        (MASTER, json!({"master": "master0", "mtu": 1501}), 7, "invalid MTU 1501, must be [0, master MTU(1500)]"),
        (MASTER, json!({"master": "master0", "mtu": -1}), 7, "invalid MTU -1, must be [0, master MTU]"),
        (MASTER, json!({"master": "none0"}), 101, "failed to lookup master \"none0\""),
        (MASTER, json!({"master": "master0", "mode": "source"}), 7, "unknown macvlan mode: \"source\""),
        (MASTER, json!({"master": "master0", "mac": "01:00:00:00:00:01"}), 7, "cannot be the MAC of an interface"),
        (
            MASTER,
            json!({"master": "master0", "mode": "passthru", "mac": "0a:00:00:00:00:01"}),
            7,
            "MAC 0a:00:00:00:00:01 with mode \"passthru\", in which the container has the master's",
        ),
        (MASTER, json!({"master": "master0", "bcqueuelen": -1}), 7, "bcqueuelen"),
        (MASTER, json!({"master": "lo"}), 100, "create macvlan"),
        (
            PORT,
            json!({"master": "port0"}),
            100,
            "port0 is a port of br0: use that as `master`, or remove the port from it",
        ),
        (MASTER, json!({}), 101, "no default route interface found on the host"),
        (MASTER, json!({"linkInContainer": true}), 101, "no default route interface found in the container"),
    ];
    for (ground, keys, code, says) in table {
        let output = refused(ground, &v4(keys.clone()));
        assert!(output.0 == code && output.1.contains(says), "{keys}: {output:?}");
    }
    let host = on_master().host();
    let container = Host::new().container();
    container.sh("ip link add eth0 type bridge");
    let output = on_master().at(host.dir()).call(&host, "ADD", "c-one", &container.path(), &[]).refused();
    assert!(output.0 == 101 && output.1.contains("interface \"eth0\" already exists in"), "{output:?}");
}

/// Which link has the default route.
fn the_master_is_that_of_the_default_route() {
    const LINKS: &str = "for n in 0 1 2; do ip link add up$n type veth peer name p$n; ip link set up$n up; ip link set p$n up; \
        ip address add 10.0.$n.2/24 dev up$n; ip address add fd0$n::2/64 dev up$n nodad; done;";
    let table = [
        ("ip route add default via 10.0.1.1", "up1"),
        ("ip route add default via 10.0.1.1 metric 20; ip route add default via 10.0.2.1 metric 10", "up2"),
        ("ip route add default nexthop via 10.0.1.1 weight 1 nexthop via 10.0.2.1 weight 9", "up1"),
        ("ip route add unreachable default metric 1; ip route add default via 10.0.2.1 metric 9", "up2"),
        ("ip route add blackhole default; ip -6 route add default via fd01::1", "up1"),
        ("ip -6 route add default via fd02::1", "up2"),
        ("ip -6 route add unreachable default metric 1; ip -6 route add default via fd01::1 metric 2048", "up1"),
        ("ip -6 route add default nexthop via fd02::1 nexthop via fd01::1", "up2"),
        ("ip -6 route add default via fd02::1; ip route add default via 10.0.0.1 metric 4000000", "up0"),
        ("ip route add default nexthop via 10.0.1.1 nexthop via 10.0.2.1; ip link set p1 down", "up2"),
        ("ip route add default via 10.0.1.1; ip route add default via 10.0.2.1 metric 9; ip link set p1 down", "up2"),
        ("ip -6 route add default nexthop via fd02::1 nexthop via fd01::1; ip link set p2 down", "up1"),
        ("ip route add default via 10.0.1.1; ip link set p1 down", "up1"),
        ("ip route add default via 10.0.1.1 table 7; ip route add default dev up2", "up2"),
    ];
    for (routes, master) in table {
        let host = Host::new();
        let container = Host::new().container();
        host.sh(&format!("{LINKS} {routes}"));
        let subject = subject("macvlan", json!({}));
        let result = subject.add(&host, "c-one", &container);
        let index = host.sh(&format!("ip -o link show {master} | cut -d: -f1"));
        let seen = container.sh("ip -o link show eth0");
        assert!(seen.contains(&format!("eth0@if{}:", index.trim())), "{routes}: {seen}");
        // The current owner of the address does not matter to a running container.
        host.sh("ip route flush table main; ip -6 route flush table main");
        subject.check(&host, "c-one", &container, &result).ok();
        subject.del(&host, "c-one", &container, &result);
        assert_eq!(container.links(), [""; 0], "{routes}");
    }
}

fn add_waits_for_duplicate_address_detection() {
    let lan = Lan::new();
    let container = Host::new().container();
    let subject = macvlan().with("enabledad", json!(true)).at(lan.host.dir());
    subject.add(&lan.host, "c-one", &container);
    assert_eq!(container.sh("ip -6 address show scope global tentative").trim(), "");
    container.sh(&ping("fd00:77::1"));
}

fn a_taken_address_is_refused_and_released_unless_detection_is_off() {
    upper::a_taken_address_is_refused_unless_detection_is_off(&macvlan());
}

fn a_master_without_carrier_does_not_delay_add() {
    upper::without_carrier_nothing_is_waited_for(&macvlan());
}

fn a_lost_carrier_during_duplicate_detection_ends_the_wait() {
    assert!(once_within(DETECTION, add_while_the_carrier_is_lost), "ADD waits for the outcome of detection");
}

fn add_while_the_carrier_is_lost() {
    let lan = Lan::new();
    let container = Host::new().container();
    let subject = macvlan().with("enabledad", json!(true)).at(lan.host.dir());
    container.sh(&detecting_with(60));
    thread::scope(|scope| {
        scope.spawn(|| unplug_once_up(&lan, &container));
        subject.add(&lan.host, "c-one", &container);
    });
}

/// Takes the carrier away as soon as the container's interface has it.
fn unplug_once_up(lan: &Lan, container: &Container) {
    container.sh("until ip -o link show eth0 2>/dev/null | grep -q LOWER_UP; do :; done");
    lan.outer.sh("ip link set outer0 down");
}

/// Another host has the address that the kernel derives from the MAC.
fn addresses_of_other_containers_on_the_link_are_not_compared() {
    let lan = Lan::new();
    let container = Host::new().container();
    lan.outer.sh("ip address add fe80::800:ff:fe00:7/64 dev outer0 nodad");
    let subject = macvlan().with("enabledad", json!(true)).with("mac", json!("0a:00:00:00:00:07")).at(lan.host.dir());
    subject.add(&lan.host, "c-one", &container);
    assert!(container.sh("ip -6 address show dadfailed").contains("fe80::800:ff:fe00:7"));
    container.sh(&ping("fd00:77::1"));
}

/// The values of `accept_ra` and `autoconf` after ADD.
fn router_advertisement_settings(slaac: bool, ipam: bool) -> String {
    let host = on_master().host();
    let container = Host::new().container();
    let subject = if ipam { on_master() } else { layer2() }.with("slaac", json!(slaac)).at(host.dir());
    let result = subject.add(&host, "c-one", &container);
    subject.check(&host, "c-one", &container, &result).ok();
    container.sh("cat /proc/sys/net/ipv6/conf/eth0/accept_ra /proc/sys/net/ipv6/conf/eth0/autoconf")
}

fn router_advertisements_are_those_of_the_wire_and_can_be_refused() {
    for ipam in [true, false] {
        assert_eq!([true, false].map(|slaac| router_advertisement_settings(slaac, ipam)), ["1\n1\n", "0\n0\n"]);
    }
}

fn a_del_does_not_look_for_the_master() {
    upper::a_del_does_not_look_for_the_master(&on_master());
}

fn foreign_links_on_the_master_stay() {
    upper::foreign_links_on_the_master_stay(&macvlan());
}

/// Links without a mark: only the one with the attachment's name and recorded MAC is upstream's for this attachment.
fn a_link_that_is_not_the_attachments_stays() {
    let host = on_master().host();
    let container = Host::new().container();
    let made = |mac: &str| {
        let line = format!("ip link add link master0 name eth0 address {mac} netns {} type macvlan", container.path());
        host.sh(&line);
    };
    let subject = on_master().at(host.dir());
    let record = json!({"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "mac": "0a:00:00:00:00:01", "sandbox": container.path()}]});
    let is_there = || container.sh("ip -o link").contains("eth0");
    let del = || subject.call(&host, "DEL", "c-one", &container.path(), &[("prevResult", record.clone())]).ok();
    made("0a:00:00:00:00:02");
    del();
    assert!(is_there(), "another MAC");
    container.sh("ip link del eth0");
    made("0a:00:00:00:00:01");
    container.sh("ip link set eth0 group 7");
    del();
    assert!(is_there(), "of a program that is at work on it");
    container.sh("ip link set eth0 group 0");
    del();
    assert!(!is_there(), "the reference's");
    container.sh("ip link add eth0 type bridge");
    del();
    assert!(is_there(), "no macvlan");
}

fn gc_removes_invalid_links_in_named_namespaces() {
    upper::gc_removes_invalid_links_in_named_namespaces(&on_master());
}

fn status_fails_while_the_master_is_missing() {
    upper::status_fails_while_the_master_is_missing(&on_master());
}

/// A container with a macvlan whose master is inside too, and tuning after it.
fn tuned(host: &Host, keys: &Value) -> (Container, Subject) {
    let line = "ip link add ve0 mtu 9000 type veth peer name ve1 && \
        ip link add link ve0 name eth0 address 0a:00:00:00:00:01 mtu 9000 type macvlan";
    let mut keys = keys.clone();
    keys["dataDir"] = "$DIR/tuning".into();
    let subject = subject("tuning", keys).after(line, interface_result()).at(host.dir());
    (subject.container(host), subject)
}

/// An MTU that is too much by now, and a MAC that another has.
fn del_restores_tuned_settings_that_fit_the_master() {
    let host = Host::new();
    let (container, subject) =
        tuned(&host, &json!({"mtu": 1400, "mac": "0a:00:00:00:00:07", "txQLen": 7, "promisc": true}));
    let result = subject.add(&host, "c-one", &container);
    container.sh("ip link set ve0 mtu 1500 && ip link add link ve0 address 0a:00:00:00:00:01 type macvlan");
    container.sh("ip link set ve0 up; ip link set eth0 up; ip link set macvlan0 up");
    subject.del(&host, "c-one", &container, &result);
    let link = container.sh("ip -o link show dev eth0");
    assert!(link.contains("mtu 1400") && link.contains("qlen 1000") && !link.contains("PROMISC"), "{link}");
    assert_eq!(std::fs::read_dir(host.dir().join("tuning")).unwrap().count(), 0);
}

fn a_tuning_that_the_master_refuses_changes_nothing() {
    let host = Host::new();
    let (container, subject) = tuned(&host, &json!({"mtu": 9001, "mac": "0a:00:00:00:00:07", "txQLen": 7}));
    let before = HostSnapshot::inside(&container);
    let (code, text) = subject.call(&host, "ADD", "c-one", &container.path(), &[]).refused();
    assert!(code == 100 && text.contains("change link \"eth0\": Invalid argument"), "{code} {text}");
    HostSnapshot::inside(&container).assert_unchanged_since(&before, &[], "after an ADD that failed");
    assert_eq!(std::fs::read_dir(host.dir().join("tuning")).unwrap().count(), 0);
}

//! dummy: its life, with and without addresses, and what it leaves alone.

use cnikit_testkit::campaign::case_limit;
use cnikit_testkit::life::{self, Tampering};
use cnikit_testkit::need::Need;
use cnikit_testkit::transcripts::survives;
use cnikit_testkit::{Host, HostSnapshot, Subject, errno, fault, flood, kill};
use cnikit_tests::transcripts::scenes;
use cnikit_tests::{HOST_LOCAL, dual_stack, dummy, subject, upper};
use serde_json::json;

use crate::test::{Test, test};

pub(crate) const TESTS: &[Test] = &[
    test!(an_attachment_leaves_no_trace needs Need::DUMMY),
    test!(del_succeeds_with_incomplete_input needs Need::DUMMY),
    test!(sixty_four_at_once_get_sixty_four_addresses needs Need::DUMMY),
    test!(no_flood_leaves_an_orphan_or_gives_an_address_twice needs Need::DUMMY),
    test!(a_fault_before_any_step_leaves_nothing needs Need::DUMMY),
    test!(it_is_killed_at_some_calls needs Need::DUMMY),
    test!(it_is_terminated_at_some_moments needs Need::DUMMY),
    test!(it_lacks_memory_or_files needs Need::DUMMY),
    test!(recorded_requests_of_a_runtime_are_answered needs Need::DUMMY),
    test!(it_meets_some_errors needs Need::DUMMY),
    test!(check_names_what_was_tampered_with needs Need::DUMMY),
    test!(its_mac_is_that_of_the_tag_and_the_result_has_the_previous_one needs Need::DUMMY),
    test!(an_address_alone_in_its_prefix_passes_check needs Need::DUMMY),
    test!(its_address_is_reached_over_another_network needs Need::DUMMY),
    test!(invalid_configurations_are_refused_before_anything_is_made needs Need::DUMMY),
    test!(foreign_links_stay needs Need::DUMMY),
    test!(gc_removes_invalid_links_in_named_namespaces needs Need::DUMMY),
    test!(a_dry_run_makes_nothing needs Need::DUMMY),
    test!(a_kernel_without_it_is_named),
];

/// It has no addresses.
fn layer2() -> Subject {
    subject("dummy", json!({})).called("dummy of layer 2")
}

fn an_attachment_leaves_no_trace() {
    let mut routed = dual_stack();
    routed["routes"] = json!([{"dst": "10.9.0.0/16", "gw": "10.77.0.9", "priority": 7}, {"dst": "fd09::/64"}]);
    [dummy(), layer2(), dummy().with("ipam", routed)].iter().for_each(life::leaves_no_trace);
}

fn del_succeeds_with_incomplete_input() {
    [dummy(), layer2()].iter().for_each(life::survives_incomplete_dels);
}

fn sixty_four_at_once_get_sixty_four_addresses() {
    flood::survives(&dummy(), 64);
}

fn no_flood_leaves_an_orphan_or_gives_an_address_twice() {
    flood::random_calls(&dummy(), 80);
}

fn a_fault_before_any_step_leaves_nothing() {
    let tried = fault::leaves_nothing::<dummy::DummyPlugin>(&dummy(), HOST_LOCAL);
    assert_eq!(tried, 4, "1 step of the link, 1 of layer 3, and the place behind each");
}

/// Its addresses have no gateway: the campaigns have the other container talk to that, which no dummy can.
fn without_gateway() -> Subject {
    let addresses = json!([{"address": "10.77.0.5/24"}, {"address": "fd00:77::5/64"}]);
    dummy().with("ipam", json!({"type": "static", "addresses": addresses}))
}

fn it_is_killed_at_some_calls() {
    kill::at_every_call(&without_gateway(), 1);
}

fn it_is_terminated_at_some_moments() {
    kill::at_moments(&without_gateway(), case_limit(1).min(50));
}

fn it_lacks_memory_or_files() {
    kill::with_resource_limits(&without_gateway(), 1);
}

fn recorded_requests_of_a_runtime_are_answered() {
    survives(&layer2(), &scenes("podman-4.3-run"), 1);
}

fn it_meets_some_errors() {
    errno::at_every_call(&without_gateway(), 1);
}

fn check_names_what_was_tampered_with() {
    let things = [
        Tampering::inside("ip link set eth0 down", "eth0: wanted up, found down"),
        Tampering::inside("ip link del eth0", "interface eth0: wanted dummy, found none"),
        Tampering::inside(
            "ip link del eth0 && ip link add eth0 type bridge",
            "kind of eth0: wanted dummy, found bridge",
        ),
        Tampering::inside("ip link set eth0 address 0a:00:00:00:00:01", "MAC of eth0"),
        Tampering::inside(upper::ALIAS_OF_ANOTHER, "found the alias"),
        Tampering::inside("ip address del 10.77.0.2/24 dev eth0", "address of eth0: wanted 10.77.0.2/24"),
        Tampering::inside("ip address del fd00:77::2/64 dev eth0", "address of eth0: wanted fd00:77::2/64"),
        Tampering::inside("ip route del 10.77.0.0/24", "route of eth0: wanted 10.77.0.0/24"),
        Tampering::on_host("rm $DIR/leases/testnet/10.77.0.2", "10.77.0.2"),
    ];
    life::names_tampering_of_all(&dummy(), &things);
    // The others remove each other.
    life::names_all_at_once(&dummy(), &[&things[3..5], &things[6..]].concat());
    let things = [things[0], things[1]];
    life::names_tampering_of_all(&layer2(), &things);
}

fn its_mac_is_that_of_the_tag_and_the_result_has_the_previous_one() {
    let host = Host::new();
    let before = json!({"cniVersion": "1.1.0", "interfaces": [{"name": "eth9", "sandbox": "/run/netns/x"}],
                        "ips": [{"address": "10.9.9.9/24", "interface": 0}]});
    let mut macs = Vec::new();
    for _ in 0..2 {
        let container = host.container();
        let subject = dummy().at(host.dir());
        let result = subject.call(&host, "ADD", "c-one", &container.path(), &[("prevResult", before.clone())]).ok();
        assert_eq!((&result["interfaces"][0]["name"], &result["ips"][1]["interface"]), (&json!("eth9"), &json!(1)));
        assert_eq!(result["interfaces"][1]["mtu"], 1500);
        let mac = result["interfaces"][1]["mac"].as_str().unwrap().to_owned();
        assert!(container.sh("ip -o link show type dummy").contains(&mac), "{mac}");
        macs.push(mac);
        subject.del(&host, "c-one", &container, &result);
    }
    assert_eq!(macs[0], macs[1], "the same attachment has the same MAC");
}

/// Upstream's CHECK looks for a route to the prefix, which there is none to a single address.
fn an_address_alone_in_its_prefix_passes_check() {
    let host = Host::new();
    let container = host.container();
    let addresses = json!([{"address": "10.96.7.2/32"}, {"address": "2001:db8:7::2/128"}]);
    let subject = dummy().with("ipam", json!({"type": "static", "addresses": addresses}));
    let result = subject.add(&host, "c-one", &container);
    subject.check(&host, "c-one", &container, &result).ok();
    subject.del(&host, "c-one", &container, &result);
}

/// Packets for the addresses come in by the container's other network, from a host that routes to them.
fn its_address_is_reached_over_another_network() {
    let host = Host::new();
    let container = host.container();
    host.sh(&format!("ip link add to0 type veth peer name eth0 netns {}", container.path()));
    container
        .sh("ip address add 10.5.0.2/24 dev eth0; ip address add fd00:5::2/64 dev eth0 nodad; ip link set eth0 up");
    host.sh("ip address add 10.5.0.1/24 dev to0; ip address add fd00:5::1/64 dev to0 nodad; ip link set to0 up");
    host.sh("ip route add 10.77.0.0/24 via 10.5.0.2; ip -6 route add fd00:77::/64 via fd00:5::2");
    let subject = dummy().at(host.dir());
    let env = [("CNI_IFNAME", "dummy0")];
    let conf = subject.conf.to_string();
    let result = subject.call_raw(&host, "ADD", "c-one", &container.path(), conf.as_bytes(), &env).ok();
    for n in 0..2 {
        let address = result["ips"][n]["address"].as_str().unwrap().split('/').next().unwrap();
        host.sh(&format!("ping -n -q -c 1 -w 10 {address}"));
    }
}

fn invalid_configurations_are_refused_before_anything_is_made() {
    let host = Host::new();
    let container = host.container();
    container.sh("ip link add eth0 type bridge");
    let inside = HostSnapshot::inside(&container);
    let before = HostSnapshot::of(&host);
    let (code, text) = dummy().at(host.dir()).call(&host, "ADD", "c-one", &container.path(), &[]).refused();
    assert!(code == 101 && text.contains("interface \"eth0\" already exists in"), "{code} {text}");
    HostSnapshot::inside(&container).assert_unchanged_since(&inside, &[], "in the container");
    HostSnapshot::of(&host).assert_unchanged_since(&before, &life::SHARED, "on the host");
    // The IPAM plugin has no address.
    let none = dummy().with("ipam", json!({"type": "static"})).at(host.dir());
    let empty = host.container();
    let (code, text) = none.call(&host, "ADD", "c-two", &empty.path(), &[]).refused();
    assert!(text.contains("IPAM plugin returned missing IP config"), "{code} {text}");
    assert_eq!(empty.links(), [""; 0]);
}

fn foreign_links_stay() {
    upper::foreign_links_on_the_master_stay(&dummy());
}

fn gc_removes_invalid_links_in_named_namespaces() {
    upper::gc_removes_invalid_links_in_named_namespaces(&dummy());
}

fn a_dry_run_makes_nothing() {
    upper::a_dry_run_makes_nothing(&dummy(), "dummy eth0 in the container");
}

fn a_kernel_without_it_is_named() {
    let host = Host::new();
    let container = host.container();
    let add = layer2().call(&host, "ADD", "c-one", &container.path(), &[]);
    let status = layer2().call(&host, "STATUS", "", "", &[]);
    assert!(!host.sh("ip -o link").contains("probe"), "it makes nothing");
    if Need::DUMMY.unmet().is_none() {
        add.ok();
        status.ok();
        return;
    }
    for (output, code) in [(add, 100), (status, 50)] {
        let (found, text) = output.refused();
        assert!(found == code && text.contains("this kernel has no dummy"), "{found} {text}");
        assert!(text.contains("`modprobe dummy`"), "{text}");
    }
}

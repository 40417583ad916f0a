//! ipvlan: its life, alone and in a chain; masters, modes, who reaches whom. And what both have of a master that is a link
//! that leads nowhere.

use std::time::{Duration, Instant};

use cnikit_testkit::life::{self, Tampering};
use cnikit_testkit::need::Need;
use cnikit_testkit::{Container, Host, Subject, errno, flood, kill};
use cnikit_tests::world::ping;
use cnikit_tests::{MASTER, ipvlan, macvlan, subject};
use serde_json::{Value, json};

use crate::test::{Test, test};

pub(crate) const TESTS: &[Test] = &[
    test!(an_attachment_leaves_no_trace needs Need::IPVLAN),
    test!(a_chained_attachment_leaves_no_trace needs Need::IPVLAN),
    test!(del_succeeds_in_every_poor_form needs Need::IPVLAN),
    test!(eight_at_once_get_eight_addresses needs Need::IPVLAN),
    test!(it_is_killed_at_some_calls needs Need::IPVLAN),
    test!(it_meets_some_errors needs Need::IPVLAN),
    test!(check_names_what_was_tampered_with needs Need::IPVLAN),
    test!(containers_reach_each_other_and_outside_as_the_mode_says needs Need::IPVLAN),
    test!(a_chain_keeps_what_came_before_and_takes_its_addresses needs Need::IPVLAN),
    test!(what_cannot_be_is_refused_before_anything_is_made needs Need::IPVLAN),
    test!(another_mode_than_that_of_the_running_ones_is_refused needs Need::IPVLAN),
    test!(a_master_may_be_an_ipvlan_itself needs Need::IPVLAN),
    test!(a_master_may_be_in_the_container needs Need::IPVLAN),
    test!(the_host_may_have_a_link_of_the_same_name needs Need::IPVLAN, Need::MACVLAN),
    test!(an_address_that_somebody_on_the_segment_has_is_refused needs Need::IPVLAN),
    test!(macvlan_and_ipvlan_exclude_each_other_on_a_master needs Need::IPVLAN, Need::DUMMY),
    test!(a_link_that_is_not_the_attachments_stays needs Need::IPVLAN),
    test!(a_kernel_without_it_is_named),
];

const FIRST: [&str; 2] = ["10.77.0.2", "fd00:77::2"];
const SECOND: [&str; 2] = ["10.77.0.3", "fd00:77::3"];
const GATEWAYS: [&str; 2] = ["10.77.0.1", "fd00:77::1"];

/// What a plugin before it in the chain answered: the master, and addresses for whoever comes next.
fn before() -> Value {
    let ips = [("10.77.0.9/24", "10.77.0.1"), ("fd00:77::9/64", "fd00:77::1")];
    let ips: Vec<Value> =
        ips.iter().map(|(address, gateway)| json!({"address": address, "gateway": gateway, "interface": 0})).collect();
    json!({"cniVersion": "1.1.0", "interfaces": [{"name": "master0"}], "ips": ips, "routes": [{"dst": "0.0.0.0/0"}],
           "dns": {"nameservers": ["10.0.0.53"]}})
}

/// In a chain, where it has neither a master nor an IPAM plugin of its own.
fn chained() -> Subject {
    subject("ipvlan", json!({"enabledad": false, "prevResult": before()})).on(MASTER).called("ipvlan chained")
}

fn an_attachment_leaves_no_trace() {
    let alone = subject("ipvlan", json!({"master": "master0", "mtu": 1400})).on(MASTER);
    [ipvlan(), alone].iter().for_each(life::leaves_no_trace);
}

/// As a runtime does it: DEL has the result of the whole chain.
fn a_chained_attachment_leaves_no_trace() {
    life::leaves_no_trace(&chained());
}

fn del_succeeds_in_every_poor_form() {
    life::survives_poor_dels(&ipvlan());
}

fn eight_at_once_get_eight_addresses() {
    flood::survives(&ipvlan(), 8);
}

fn it_is_killed_at_some_calls() {
    kill::at_every_call(&ipvlan(), 1);
}

fn it_meets_some_errors() {
    errno::at_every_call(&ipvlan(), 2);
}

const fn inside(line: &'static str, names: &'static str) -> Tampering {
    Tampering { line, inside: true, names }
}

fn check_names_what_was_tampered_with() {
    let subject = ipvlan().with("mtu", json!(1400)).on(MASTER);
    let host = |line, names| Tampering { line, inside: false, names };
    let things = [
        inside("ip link set eth0 down", "eth0: wanted up, found down"),
        inside("ip link set eth0 type ipvlan mode l3", "mode of eth0: wanted l2, found l3"),
        inside("ip link set eth0 mtu 1300", "MTU of eth0: wanted 1400, found 1300"),
        inside("ip address del 10.77.0.2/24 dev eth0", "address of eth0: wanted 10.77.0.2/24"),
        inside("ip -6 route del default", "route of eth0: wanted ::/0 via fd00:77::1"),
        host("ip link del master0", "interface eth0: wanted ipvlan, found none"),
    ];
    life::names_tampering_of_all(&subject, &things);
}

/// A master whose wire leads to another host, with the gateways' addresses.
fn lan() -> (Host, Container) {
    let (host, outer) = (Host::new(), Host::new().container());
    host.sh(&format!("ip link add master0 type veth peer name outer0 netns {}", outer.path()));
    outer.sh("echo 0 > /proc/sys/net/ipv6/conf/outer0/accept_dad; ip address add 10.77.0.1/24 dev outer0; \
         ip address add fd00:77::1/64 dev outer0 nodad; ip link set outer0 up");
    host.sh("ip link set master0 up");
    (host, outer)
}

/// In the modes of layer 3 nobody answers for the containers' addresses: the outer host is told that the master does.
fn containers_reach_each_other_and_outside_as_the_mode_says() {
    for mode in ["l2", "l3", "l3s"] {
        let (host, outer) = lan();
        let mut ipam = cnikit_tests::dual_stack();
        ipam["routes"] = json!([{"dst": "0.0.0.0/0", "scope": 253}, {"dst": "::/0", "scope": 253}]);
        let subject = ipvlan().with("mode", json!(mode)).at(host.dir());
        let subject = if mode == "l2" { subject } else { subject.with("ipam", ipam).at(host.dir()) };
        let (one, two) = (host.container(), host.container());
        subject.add(&host, "c-one", &one);
        subject.add(&host, "c-two", &two);
        SECOND.iter().for_each(|address| drop(one.sh(&ping(address))));
        if mode != "l2" {
            // The host of the master routes what they send, and the outer host has to know the way back.
            let mac = host.sh("ip -o link show master0 2>/dev/null | sed 's/.*ether //; s/ .*//'");
            for address in FIRST {
                outer.sh(&format!("ip neigh replace {address} lladdr {} dev outer0", mac.trim()));
            }
            host.sh("ip address add 10.77.0.200/24 dev master0; ip address add fd00:77::200/64 dev master0 nodad");
        }
        for gateway in GATEWAYS {
            assert!(one.reaches(gateway), "{mode}: {gateway}");
        }
        assert_eq!(
            one.sh("cat /proc/net/dev | grep -c eth0").trim(),
            "1",
            "{mode}: there is one interface and it is the container's"
        );
    }
}

fn a_chain_keeps_what_came_before_and_takes_its_addresses() {
    let (host, _outer) = lan();
    let container = host.container();
    let result = chained().add(&host, "c-one", &container);
    let names: Vec<&str> =
        result["interfaces"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["master0", "eth0"]);
    let ips: Vec<(&Value, &Value)> =
        result["ips"].as_array().unwrap().iter().map(|ip| (&ip["address"], &ip["interface"])).collect();
    assert_eq!(ips, [(&json!("10.77.0.9/24"), &json!(1)), (&json!("fd00:77::9/64"), &json!(1))]);
    assert_eq!((&result["dns"], result["routes"].as_array().unwrap().len()), (&before()["dns"], 1));
    GATEWAYS.iter().for_each(|address| drop(container.sh(&ping(address))));
    chained().check(&host, "c-one", &container, &result).ok();
    // The whole chain's result names several interfaces, which is nothing to a DEL.
    chained().del(&host, "c-one", &container, &result);
    assert_eq!(container.sh("ip -o link").lines().count(), 1);
}

fn what_cannot_be_is_refused_before_anything_is_made() {
    let several = json!({"cniVersion": "1.1.0", "interfaces": [{"name": "master0"}, {"name": "outer0"}]});
    let table = [
        (json!({"master": "master0", "mtu": 1501}), 7, "invalid MTU 1501, must be [0, master MTU(1500)]"),
        (json!({"master": "none0"}), 101, "failed to lookup master \"none0\""),
        (json!({"master": "master0", "mode": "l4"}), 7, "unknown ipvlan mode: \"l4\""),
        (json!({"prevResult": several}), 7, "chained master failure. PrevResult lacks a single named interface"),
        (json!({}), 101, "no default route interface found on the host"),
        (json!({"master": "lo"}), 100, "create ipvlan"),
    ];
    for (keys, code, says) in table {
        let (host, container) = (subject("ipvlan", json!({})).on(MASTER).host(), Host::new().container());
        let said = subject("ipvlan", keys.clone()).call(&host, "ADD", "c-one", &container.path(), &[]).refused();
        assert!(said.0 == code && said.1.contains(says), "{keys}: {said:?}");
        assert_eq!(container.sh("ip -o link").lines().count(), 1, "{keys}");
    }
}

/// Of those that run one is in a container, one on the host, one in a namespace that nothing but its mount tells of.
fn another_mode_than_that_of_the_running_ones_is_refused() {
    let beside = "unshare --mount sh -euc 'ip netns add other; ip link add link master0 name over0 netns other type ipvlan mode l2; ";
    for (ground, inside) in
        [("ip link add link master0 name over0 type ipvlan mode l2".to_owned(), false), ("true".to_owned(), true)]
    {
        let (host, container) = (subject("ipvlan", json!({})).on(MASTER).host(), Host::new().container());
        host.sh(&ground);
        if inside {
            let line = format!("ip link add link master0 name over0 netns {} type ipvlan mode l2", container.path());
            host.sh(&line);
        }
        let with = |mode: &str| subject("ipvlan", json!({"master": "master0", "mode": mode}));
        let said = with("l3").call(&host, "ADD", "c-one", &container.path(), &[]).refused();
        assert!(said.0 == 101 && said.1.contains("master0 bears ipvlans of mode l2, and one of mode l3"), "{said:?}");
        assert!(said.1.contains("set `mode` to l2"), "{said:?}");
        let there = if inside { container.sh("ip -d link show over0") } else { host.sh("ip -d link show over0") };
        assert!(there.contains("mode l2"), "{there}");
        with("l2").add(&host, "c-one", &container);
    }
    let (host, container) = (subject("ipvlan", json!({})).on(MASTER).host(), Host::new().container());
    let alone = subject("ipvlan", json!({"master": "master0", "mode": "l3s"})).at(host.dir());
    std::fs::write(host.dir().join("conf"), alone.conf.to_string()).unwrap();
    let said = host.sh(&format!(
        "{beside} CNI_COMMAND=ADD CNI_CONTAINERID=c-one CNI_NETNS={} CNI_IFNAME=eth0 CNI_PATH={bin} {bin}/ipvlan <{}/conf || true'",
        container.path(),
        host.dir().display(),
        bin = alone.bin.display(),
    ));
    assert!(said.contains("master0 bears ipvlans of mode l2"), "{said}");
}

/// The kernel puts the new one beside it.
fn a_master_may_be_an_ipvlan_itself() {
    let (host, container) = (subject("ipvlan", json!({})).on(MASTER).host(), Host::new().container());
    host.sh("ip link add link master0 name over0 type ipvlan mode l2; ip link set over0 up");
    let on = |master: &str| ipvlan().with("master", json!(master)).at(host.dir());
    let said = on("over0").with("mode", json!("l3")).call(&host, "ADD", "c-one", &container.path(), &[]).refused();
    assert!(said.0 == 101 && said.1.contains("over0 bears ipvlans of mode l2"), "{said:?}");
    let result = on("over0").add(&host, "c-one", &container);
    on("over0").check(&host, "c-one", &container, &result).ok();
    let other = on("outer0").check(&host, "c-one", &container, &result).refused().1;
    assert!(other.contains("master of eth0: wanted outer0 on the host, found another link"), "{other}");
}

/// Kernels before 6.15, as that of the ring's machine, look for the name there too.
fn the_host_may_have_a_link_of_the_same_name() {
    for subject in [ipvlan(), macvlan()] {
        let (host, container) = (subject.host(), Host::new().container());
        host.sh("ip link add eth0 type bridge");
        let (subject, links) = (subject.at(host.dir()), host.sh("ip -o link"));
        let result = subject.add(&host, "c-one", &container);
        assert_eq!(host.sh("ip -o link"), links);
        subject.check(&host, "c-one", &container, &result).ok();
        let taken = subject.call(&host, "ADD", "c-two", &container.path(), &[]).refused();
        assert!(taken.0 == 101 && taken.1.contains("already exists in"), "{taken:?}");
        subject.del(&host, "c-one", &container, &result);
        assert_eq!(container.sh("ip -o link").lines().count(), 1);
    }
}

fn a_master_may_be_in_the_container() {
    let (host, _outer) = lan();
    let container = host.container();
    host.sh(&format!("ip link set master0 netns {}", container.path()));
    container.sh("ip link set master0 up");
    let subject = ipvlan().with("linkInContainer", json!(true)).at(host.dir());
    let result = subject.add(&host, "c-one", &container);
    GATEWAYS.iter().for_each(|address| drop(container.sh(&ping(address))));
    subject.check(&host, "c-one", &container, &result).ok();
    subject.del(&host, "c-one", &container, &result);
    assert!(!container.sh("ip -o link").contains("eth0"));
}

fn an_address_that_somebody_on_the_segment_has_is_refused() {
    let (host, outer) = lan();
    let container = host.container();
    outer.sh("ip address add fd00:77::2/64 dev outer0 nodad");
    let detecting = ipvlan().with("enabledad", json!(true)).at(host.dir());
    let said = detecting.call(&host, "ADD", "c-one", &container.path(), &[]).refused();
    assert!(said.0 == 101 && said.1.contains("somebody else on the segment of eth0 has fd00:77::2/64"), "{said:?}");
    assert_eq!(container.sh("ip -o link").lines().count(), 1);
    outer.sh("ip link set outer0 down");
    let begin = Instant::now();
    detecting.add(&host, "c-one", &container);
    assert!(begin.elapsed() < Duration::from_secs(3), "without carrier nobody is asked: {:?}", begin.elapsed());
}

fn macvlan_and_ipvlan_exclude_each_other_on_a_master() {
    let (host, one, two) = (Host::new(), Host::new().container(), Host::new().container());
    host.sh("ip link add dummy0 type dummy && ip link set dummy0 up");
    let on = |plugin| subject(plugin, json!({"master": "dummy0"}));
    on("macvlan").add(&host, "c-one", &one);
    let said = on("ipvlan").call(&host, "ADD", "c-two", &two.path(), &[]).refused();
    assert!(said.0 == 100 && said.1.contains("a master bears either macvlans or ipvlans"), "{said:?}");
}

/// One that nobody marked has the recorded MAC in any case, as all on its master.
fn a_link_that_is_not_the_attachments_stays() {
    let (host, container) = (subject("ipvlan", json!({})).on(MASTER).host(), Host::new().container());
    host.sh(&format!("ip link add link master0 name eth0 netns {} type ipvlan mode l2", container.path()));
    // It complains of names in /run/netns that somebody is about to mount a namespace on.
    let mac = container.sh("ip -o link show eth0 2>/dev/null | sed 's/.*ether //; s/ .*//'");
    let record = json!({"cniVersion": "1.1.0", "ips": [{"address": "10.77.0.2/24", "interface": 0}],
                        "interfaces": [{"name": "eth0", "mac": mac.trim(), "sandbox": container.path()}]});
    let subject = subject("ipvlan", json!({"master": "master0"})).at(host.dir());
    let stays = || {
        subject.call(&host, "DEL", "c-one", &container.path(), &[("prevResult", record.clone())]).ok();
        container.sh("ip -o link").contains("eth0")
    };
    container.sh("ip address add 10.77.0.3/24 dev eth0");
    assert!(stays(), "another's address");
    container.sh("ip address add 10.77.0.2/24 dev eth0");
    assert!(!stays(), "the reference's");
}

fn a_kernel_without_it_is_named() {
    let (host, container) = (subject("ipvlan", json!({})).on(MASTER).host(), Host::new().container());
    let alone = subject("ipvlan", json!({"master": "master0"}));
    let (add, status) =
        (alone.call(&host, "ADD", "c-one", &container.path(), &[]), alone.call(&host, "STATUS", "", "", &[]));
    if Need::IPVLAN.unmet().is_none() {
        add.ok();
        status.ok();
        return;
    }
    for (said, code) in [(add, 100), (status, 50)] {
        let (found, text) = said.refused();
        assert!(found == code && text.contains("this kernel has no ipvlan"), "{found} {text}");
        assert!(text.contains("`modprobe ipvlan`"), "{text}");
    }
}

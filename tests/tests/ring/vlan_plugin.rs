//! The plugin vlan: its life, masters, numbers and protocols of VLANs, who reaches whom, and who has a VLAN.

use std::thread;

use cnikit_testkit::campaign::case_limit;
use cnikit_testkit::life::{self, Tampering};
use cnikit_testkit::need::Need;
use cnikit_testkit::transcripts::survives;
use cnikit_testkit::{Host, HostSnapshot, Subject, errno, fault, flood, kill};
use cnikit_tests::transcripts::scenes;
use cnikit_tests::upper::{self, FIRST, GATEWAYS, Lan};
use cnikit_tests::world::{ping, ping_briefly, undisturbed};
use cnikit_tests::{HOST_LOCAL, MASTER, subject, vlan, vlans};
use serde_json::{Value, json};

use crate::test::{Test, test};

pub(crate) const TESTS: &[Test] = &[
    test!(an_attachment_leaves_no_trace needs Need::VLAN),
    test!(del_succeeds_with_incomplete_input needs Need::VLAN),
    test!(sixty_four_at_once_get_sixty_four_addresses needs Need::VLAN),
    test!(no_flood_leaves_an_orphan_or_gives_an_address_twice needs Need::VLAN),
    test!(a_fault_before_any_step_leaves_nothing needs Need::VLAN),
    test!(it_is_killed_at_some_calls needs Need::VLAN),
    test!(it_is_terminated_at_some_moments needs Need::VLAN),
    test!(it_lacks_memory_or_files needs Need::VLAN),
    test!(recorded_requests_of_a_runtime_are_answered needs Need::VLAN),
    test!(it_meets_some_errors needs Need::VLAN),
    test!(check_names_what_was_tampered_with needs Need::VLAN),
    test!(containers_of_two_hosts_talk_in_their_vlan_and_in_no_other needs Need::VLAN),
    test!(a_container_in_another_vlan_of_the_master_is_not_disturbed needs Need::VLAN),
    test!(frames_of_qinq_have_both_tags needs Need::VLAN),
    test!(a_vlan_in_use_is_refused_and_its_holder_is_named needs Need::VLAN),
    test!(the_holder_is_named_on_a_master_with_the_largest_mtu needs Need::VLAN),
    test!(of_two_at_once_in_one_vlan_one_is_refused needs Need::VLAN),
    test!(a_container_that_is_started_anew_gets_the_vlan_of_the_one_before needs Need::VLAN),
    test!(a_master_may_be_in_the_container needs Need::VLAN),
    test!(the_master_is_that_of_the_default_route needs Need::VLAN),
    test!(invalid_configurations_are_refused_before_anything_is_made needs Need::VLAN),
    test!(a_del_needs_neither_the_master_nor_its_mtu needs Need::VLAN),
    test!(a_master_that_goes_down_and_up_takes_its_vlans_along needs Need::VLAN),
    test!(the_host_may_have_a_link_of_the_same_name needs Need::VLAN),
    test!(a_dry_run_makes_nothing needs Need::VLAN),
    test!(no_link_event_of_it_is_seen_on_the_host needs Need::VLAN),
    test!(a_taken_address_is_refused_and_released_unless_detection_is_off needs Need::VLAN),
    test!(a_master_without_carrier_does_not_delay_add needs Need::VLAN),
    test!(foreign_links_on_the_master_stay needs Need::VLAN),
    test!(gc_removes_invalid_links_in_named_namespaces needs Need::VLAN),
    test!(status_fails_while_the_master_is_missing_or_down needs Need::VLAN),
    test!(a_kernel_without_it_is_named),
];

/// It has no addresses.
fn layer2() -> Subject {
    subject("vlan", json!({"master": "master0", "vlanId": 7})).on(MASTER).called("vlan of layer 2")
}

fn an_attachment_leaves_no_trace() {
    let all = vlan().with("protocol", json!("802.1ad")).with("mtu", json!(1400)).with("slaac", json!(false));
    [vlan(), layer2(), all].iter().for_each(life::leaves_no_trace);
}

fn del_succeeds_with_incomplete_input() {
    life::survives_incomplete_dels(&vlans());
}

fn sixty_four_at_once_get_sixty_four_addresses() {
    flood::survives(&vlans(), 64);
}

fn no_flood_leaves_an_orphan_or_gives_an_address_twice() {
    flood::random_calls(&vlans(), 80);
}

fn a_fault_before_any_step_leaves_nothing() {
    let tried = fault::leaves_nothing::<vlan::VlanPlugin>(&vlans(), HOST_LOCAL);
    assert_eq!(tried, 4, "1 step of the link, 1 of layer 3, and the place behind each");
}

/// Each container is in a VLAN of its own, where no gateway is.
fn without_gateway() -> Subject {
    let addresses = json!([{"address": "10.77.0.5/24"}, {"address": "fd00:77::5/64"}]);
    vlans().with("ipam", json!({"type": "static", "addresses": addresses}))
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
    survives(&layer2().with("vlanId", json!("$NUMBER")), &scenes("podman-4.3-run"), 1);
}

fn it_meets_some_errors() {
    errno::at_every_call(&without_gateway(), 1);
}

fn a_container_in_another_vlan_of_the_master_is_not_disturbed() {
    let lan = Lan::of(&vlan());
    let one = lan.add(&vlan(), "c-one");
    let subject = vlan().with("vlanId", json!(8)).at(lan.host.dir());
    undisturbed(&one, GATEWAYS[0], || {
        let container = lan.host.container();
        let result = subject.add(&lan.host, "c-two", &container);
        subject.del(&lan.host, "c-two", &container, &result);
        let mut failing = subject.clone();
        let routes = json!([{"dst": "10.1.0.0/16", "gw": "10.77.0.1", "scope": 254}]);
        failing.conf["ipam"]["routes"] = routes;
        failing.call(&lan.host, "ADD", "c-two", &container.path(), &[]).refused();
    });
}

/// Neither number nor protocol of a VLAN can be changed, so another one takes its place.
fn check_names_what_was_tampered_with() {
    let subject = vlan().with("mtu", json!(1400)).on(MASTER);
    let things = [
        Tampering::inside("ip link set eth0 down", "eth0: wanted up, found down"),
        Tampering::inside("ip link del eth0", "interface eth0: wanted vlan, found none"),
        Tampering::inside(
            "ip link del eth0 && ip link add eth0 type bridge",
            "kind of eth0: wanted vlan, found bridge",
        ),
        Tampering::inside(
            "ip link add in0 type veth && ip link del eth0 && ip link add link in0 name eth0 type vlan id 8",
            "VLAN ID of eth0: wanted 7, found 8",
        ),
        Tampering::inside(
            "ip link add in0 type veth && ip link del eth0 && ip link add link in0 name eth0 type vlan protocol 802.1ad id 7",
            "protocol of eth0: wanted 802.1Q, found 802.1ad",
        ),
        Tampering::inside("ip link set eth0 address 0a:00:00:00:00:01", "MAC of eth0"),
        Tampering::inside("ip link set eth0 mtu 1300", "MTU of eth0: wanted 1400, found 1300"),
        Tampering::inside(upper::ALIAS_OF_ANOTHER, "found the alias"),
        Tampering::inside("ip address del 10.77.0.2/24 dev eth0", "address of eth0: wanted 10.77.0.2/24"),
        Tampering::inside("ip -6 route del default", "route of eth0: wanted ::/0 via fd00:77::1"),
        Tampering::on_host("ip link set master0 mtu 1280", "MTU of eth0: wanted 1400, found 1280"),
        Tampering::on_host("ip link del master0", "interface eth0: wanted vlan, found none"),
        Tampering::on_host(
            "ip link set master0 down; ip link set master0 name other0",
            "master of eth0: wanted master0 on the host, found none",
        ),
        Tampering::on_host(
            "ip link set master0 down; ip link set master0 name other0; ip link add master0 type veth",
            "master of eth0: wanted master0 on the host, found another link",
        ),
    ];
    life::names_tampering_of_all(&subject, &things);
    // The others remove each other.
    life::names_all_at_once(&subject, &things[5..10]);
    life::names_tampering_of_all(
        &layer2(),
        &[Tampering::inside("ip link set eth0 down", "eth0: wanted up, found down")],
    );
}

/// Two hosts whose masters are the ends of one wire. Their containers have addresses of one subnet.
fn containers_of_two_hosts_talk_in_their_vlan_and_in_no_other() {
    for protocol in ["802.1q", "802.1ad"] {
        let hosts = [Host::new(), Host::new()];
        let there = hosts[1].container();
        // One end goes by way of a namespace that has a path.
        hosts[0].sh(&format!("ip link add master0 type veth peer name master0 netns {}", there.path()));
        hosts[0].sh("ip link set master0 up");
        there.sh("ip link set master0 up");
        let ipam = |first: &str| {
            json!({"type": "host-local", "ranges": [[{"subnet": "10.77.0.0/24", "rangeStart": format!("10.77.0.{first}")}],
                   [{"subnet": "fd00:77::/64", "rangeStart": format!("fd00:77::{first}")}]]})
        };
        let on = |id: u16, first: &str| {
            vlan().with("vlanId", json!(id)).with("protocol", json!(protocol)).with("ipam", ipam(first))
        };
        let one = hosts[0].container();
        on(7, "10").at(hosts[0].dir()).add(&hosts[0], "c-one", &one);
        // The second master is in the containers' own namespace, which is the second host's for this.
        let far = |id: u16, first: &str, ifname: &str| {
            let subject = on(id, first).with("linkInContainer", json!(true)).at(hosts[1].dir());
            let conf = subject.conf.to_string();
            let env = [("CNI_IFNAME", ifname)];
            subject.call_raw(&hosts[1], "ADD", ifname, &there.path(), conf.as_bytes(), &env).ok()
        };
        far(7, "20", "eth0");
        for address in ["10.77.0.20", "fd00:77::20"] {
            one.sh(&ping(address));
        }
        for address in ["10.77.0.10", "fd00:77::10"] {
            there.sh(&ping(address));
        }
        let other = hosts[0].container();
        on(8, "30").at(hosts[0].dir()).add(&hosts[0], "c-other", &other);
        for address in ["10.77.0.20", "fd00:77::20", "10.77.0.10"] {
            assert!(!other.try_sh(&ping_briefly(address)).0, "{protocol}: {address} in another VLAN");
        }
    }
}

/// The outer tag is the host's, the inner one the container's; and the other way round, where the container has its own inside.
fn frames_of_qinq_have_both_tags() {
    let lan = Lan::new();
    lan.tag("protocol 802.1ad id 200");
    lan.outer.sh("ip address flush dev outer0; ip link add link outer0 name inner0 type vlan id 7
         echo 0 > /proc/sys/net/ipv6/conf/inner0/accept_dad
         ip address add 10.77.0.1/24 dev inner0; ip address add fd00:77::1/64 dev inner0 nodad; ip link set inner0 up");
    lan.host.sh("ip link add link master0 name service0 type vlan protocol 802.1ad id 200; ip link set service0 up");
    let inner = vlan().with("master", json!("service0")).at(lan.host.dir());
    let one = lan.host.container();
    let result = inner.add(&lan.host, "c-one", &one);
    GATEWAYS.iter().for_each(|address| drop(one.sh(&ping(address))));
    inner.check(&lan.host, "c-one", &one, &result).ok();
    let on_the_wire = inner.with("master", json!("master0"));
    let output = on_the_wire.check(&lan.host, "c-one", &one, &result).refused().1;
    assert!(output.contains("master of eth0: wanted master0 on the host, found another link"), "{output}");
    inner.del(&lan.host, "c-one", &one, &result);

    lan.host.sh("ip link del service0");
    let outer = layer2().with("protocol", json!("802.1ad")).with("vlanId", json!(200));
    outer.add(&lan.host, "c-one", &one);
    one.sh("ip link add link eth0 name in0 type vlan id 7; ip address add 10.77.0.9/24 dev in0
            ip address add fd00:77::9/64 dev in0 nodad; ip link set in0 up");
    GATEWAYS.iter().for_each(|address| drop(one.sh(&ping(address))));
}

/// The holder is on the host, in the container, in a namespace that only its mount tells of, in one that only its process tells
/// of, and an attachment of ours.
const HOLDERS: &str = r#"unshare --mount sh -euc '
    mount -t tmpfs tmpfs /run/netns
    call() {
        CNI_COMMAND=$1 CNI_CONTAINERID=$2 CNI_NETNS=/run/netns/$2 CNI_IFNAME=eth0 CNI_PATH=$bin $bin/vlan <$dir/conf || :
        echo
    }
    hold() { ip link add link master0 name held0 "$@" type vlan id 7; }
    for name in one two; do ip netns add $name; done
    hold; call ADD one; ip link del held0
    hold netns one; call ADD one; ip -n one link del held0
    hold netns two; call ADD one; ip -n two link del held0
    mkfifo $dir/told
    unshare --net sh -c "echo >$dir/told; exec sleep 60" & read -r _ <$dir/told
    hold netns $!; call ADD one; nsenter --net=/proc/$!/ns/net ip link del held0; kill $!
    call ADD two >/dev/null
    call ADD one
    ip -n one -o link | grep -c eth0 || :
    call DEL two; call ADD one >/dev/null; ip -n one -o link | grep -c eth0
    for name in one two; do ip netns del $name; done
'"#;

fn a_vlan_in_use_is_refused_and_its_holder_is_named() {
    let host = vlan().host();
    let subject = vlan().at(host.dir());
    std::fs::write(host.dir().join("conf"), subject.conf.to_string()).unwrap();
    let bin = subject.bin.display();
    let output = host.sh(&format!("export bin='{bin}' dir='{}'; {HOLDERS}", host.dir().display()));
    let lines: Vec<&str> = output.lines().filter(|line| !line.is_empty()).collect();
    let wanted = [
        "already in use by held0 on the host",
        "already in use by held0 in /run/netns/one",
        "already in use by held0 in /run/netns/two",
        "already in use by held0 in /proc/",
        "already in use by eth0 in /run/netns/two, the interface of testnet/two/eth0",
    ];
    for (line, wanted) in lines.iter().zip(wanted) {
        let error: Value = serde_json::from_str(line).unwrap();
        let text = error["msg"].as_str().unwrap();
        assert!(error["code"] == 101 && text.contains("VLAN 7 of master0 is") && text.contains(wanted), "{error}");
        assert!(error["details"].as_str().unwrap().contains("choose another `vlanId` or `master`"), "{error}");
    }
    assert_eq!(lines[wanted.len()..], ["0", "1"], "{output}");
}

/// Before it makes a VLAN, the plugin asks the kernel for one with an MTU above the master's, and here is none.
fn the_holder_is_named_on_a_master_with_the_largest_mtu() {
    let host = vlan().host();
    host.sh("ip link set master0 mtu 65535 && ip link add held0 link master0 type vlan id 7");
    let container = host.container();
    let (code, text) = vlan().at(host.dir()).call(&host, "ADD", "c-one", &container.path(), &[]).refused();
    assert!(code == 101 && text.contains("VLAN 7 of master0 is already in use by held0 on the host"), "{code} {text}");
    assert_eq!(container.links(), [""; 0]);
}

/// Each pair for a VLAN of its own. The link of the other is found, or the kernel's own words are all there is.
fn of_two_at_once_in_one_vlan_one_is_refused() {
    let host = vlan().host();
    for id in 10..14 {
        let subject = vlan().with("vlanId", json!(id)).at(host.dir());
        let containers = [host.container(), host.container()];
        let before = HostSnapshot::of(&host);
        let add = |n: usize| subject.call(&host, "ADD", &format!("c-{n}"), &containers[n].path(), &[]);
        let ends = thread::scope(|scope| {
            let first = scope.spawn(|| add(0));
            let second = add(1);
            [first.join().unwrap(), second]
        });
        let winner = ends.iter().position(|output| output.exit == 0).unwrap();
        let (code, text) = ends[1 - winner].refused();
        assert!([100, 101].contains(&code), "{code} {text}");
        assert_eq!(containers[winner].links(), ["eth0"]);
        assert_eq!(containers[1 - winner].links(), [""; 0]);
        let id = format!("c-{winner}");
        subject.del(&host, &id, &containers[winner], &ends[winner].clone().json());
        HostSnapshot::of(&host).assert_unchanged_since(&before, &life::SHARED, "after the DEL");
    }
}

/// The namespace of the one before is destroyed while the next one is added.
fn a_container_that_is_started_anew_gets_the_vlan_of_the_one_before() {
    let host = vlan().host();
    let subject = vlan().at(host.dir());
    for n in 0..4 {
        let container = Host::new().container();
        let id = format!("c-{n}");
        let result = subject.add(&host, &id, &container);
        let gone = format!("{}-that-is-gone", container.path());
        drop(container);
        subject.call(&host, "DEL", &id, &gone, &[("prevResult", result)]).ok();
    }
}

fn a_master_may_be_in_the_container() {
    let lan = Lan::of(&vlan());
    let container = lan.host.container();
    lan.host.sh(&format!("ip link set master0 netns {}", container.path()));
    container.sh("ip link set master0 name inner0; ip link set inner0 up");
    let subject = vlan().with("master", json!("inner0")).with("linkInContainer", json!(true)).at(lan.host.dir());
    let result = subject.add(&lan.host, "c-one", &container);
    GATEWAYS.iter().for_each(|address| drop(container.sh(&ping(address))));
    subject.check(&lan.host, "c-one", &container, &result).ok();
    let other = subject.with("master", json!("lo")).check(&lan.host, "c-one", &container, &result).refused().1;
    assert!(other.contains("master of eth0: wanted lo in the container, found another link"), "{other}");
    let (code, text) = subject.call(&lan.host, "ADD", "c-one", &container.path(), &[]).refused();
    assert!(code == 101 && text.contains("already exists in"), "{code} {text}");
    subject.del(&lan.host, "c-one", &container, &result);
    assert!(!container.sh("ip -o link").contains("eth0"));
}

fn the_master_is_that_of_the_default_route() {
    let lan = Lan::of(&vlan());
    lan.host.sh("ip address add 192.0.2.2/24 dev master0; ip route add default via 192.0.2.1");
    let mut conf = vlan();
    conf.conf.as_object_mut().unwrap().remove("master");
    let subject = conf.at(lan.host.dir());
    let container = lan.host.container();
    let result = subject.add(&lan.host, "c-one", &container);
    GATEWAYS.iter().for_each(|address| drop(container.sh(&ping(address))));
    lan.host.sh("ip route flush table main");
    subject.check(&lan.host, "c-one", &container, &result).ok();
    subject.del(&lan.host, "c-one", &container, &result);
    assert_eq!(container.links(), [""; 0]);
}

fn invalid_configurations_are_refused_before_anything_is_made() {
    let table = [
        ("", json!({"mtu": 1501}), 7, "invalid MTU 1501, must be [0, master MTU(1500)]"),
        ("", json!({"master": "none0"}), 101, "failed to lookup master \"none0\""),
        ("", json!({"master": ""}), 101, "no default route interface found on the host"),
        ("", json!({"vlanId": null}), 7, "\"vlanId\" field is required"),
        ("", json!({"vlanId": 4095}), 7, "invalid VLAN ID 4095"),
        ("", json!({"protocol": "802.1x"}), 7, "unknown VLAN protocol: \"802.1x\""),
        ("", json!({"master": "lo"}), 101, "lo cannot have a vlan on it"),
        ("ip link set lo mtu 1500", json!({"master": "lo"}), 101, "lo cannot have a vlan on it"),
        ("ip link set master0 down", json!({}), 101, "the master master0 is down, and a VLAN cannot be up on it"),
    ];
    for (ground, keys, code, says) in table {
        let host = vlan().on(MASTER).host();
        host.sh(ground);
        let container = Host::new().container();
        let before = HostSnapshot::of(&host);
        let mut subject = vlan().at(host.dir());
        for (key, value) in keys.as_object().unwrap() {
            subject = subject.with(key, value.clone());
        }
        let output = subject.call(&host, "ADD", "c-one", &container.path(), &[]).refused();
        assert!(output.0 == code && output.1.contains(says), "{keys}: {output:?}");
        assert_eq!(container.links(), [""; 0], "{keys}");
        HostSnapshot::of(&host).assert_unchanged_since(&before, &life::SHARED, "after the refusal");
    }
}

/// Whatever becomes of the master while the container runs, DEL succeeds and the address is free.
fn a_del_needs_neither_the_master_nor_its_mtu() {
    upper::a_del_does_not_look_for_the_master(&vlan());
    for later in ["ip link set master0 mtu 1280", "ip link set master0 down", "ip link del master0", "move"] {
        let host = vlan().host();
        let elsewhere = Host::new().container();
        let container = Host::new().container();
        let subject = vlan().with("mtu", json!(1400)).at(host.dir());
        let result = subject.add(&host, "c-one", &container);
        let later =
            if later == "move" { format!("ip link set master0 netns {}", elsewhere.path()) } else { later.into() };
        host.sh(&later);
        for _ in 0..2 {
            subject.del(&host, "c-one", &container, &result);
        }
        assert_eq!(container.links(), [""; 0], "{later}");
        let leases = host.sh(&format!("ls {}/leases/testnet | grep -c '^10[.]' || :", host.dir().display()));
        assert_eq!(leases.trim(), "0", "{later}");
    }
}

/// What the page says of it.
fn a_master_that_goes_down_and_up_takes_its_vlans_along() {
    let lan = Lan::of(&vlan());
    let container = lan.host.container();
    let subject = vlan().at(lan.host.dir());
    let result = subject.add(&lan.host, "c-one", &container);
    lan.host.sh("ip link set master0 down");
    let down = subject.check(&lan.host, "c-one", &container, &result).refused().1;
    assert!(down.contains("eth0: wanted up, found down"), "{down}");
    lan.host.sh("ip link set master0 up");
    let addresses = container.sh("ip -o address show dev eth0");
    assert!(FIRST.iter().all(|address| addresses.contains(address)), "{addresses}");
    let up = subject.check(&lan.host, "c-one", &container, &result).refused().1;
    assert!(!up.contains("found down") && up.contains("route of eth0: wanted 0.0.0.0/0 via 10.77.0.1"), "{up}");
    assert!(!up.contains("address of eth0"), "{up}");
    lan.host.sh("ip link set master0 mtu 1280; ip link set master0 mtu 1500");
    assert!(container.sh("ip -o link show eth0").contains("mtu 1280"));
}

fn the_host_may_have_a_link_of_the_same_name() {
    upper::the_host_may_have_a_link_of_the_same_name(&vlan());
}

fn a_dry_run_makes_nothing() {
    upper::a_dry_run_makes_nothing(&vlan(), "vlan eth0 in the container, VLAN 7, on master0 on the host");
}

fn no_link_event_of_it_is_seen_on_the_host() {
    upper::no_link_event_of_it_is_seen_on_the_host(&vlan().on(MASTER));
}

fn a_taken_address_is_refused_and_released_unless_detection_is_off() {
    upper::a_taken_address_is_refused_unless_detection_is_off(&vlan());
}

fn a_master_without_carrier_does_not_delay_add() {
    upper::without_carrier_nothing_is_waited_for(&vlan());
}

fn foreign_links_on_the_master_stay() {
    upper::foreign_links_on_the_master_stay(&vlan());
}

fn gc_removes_invalid_links_in_named_namespaces() {
    upper::gc_removes_invalid_links_in_named_namespaces(&vlans());
}

fn status_fails_while_the_master_is_missing_or_down() {
    upper::status_fails_while_the_master_is_missing(&vlan());
    let host = vlan().host();
    host.sh("ip link set master0 down");
    let (code, text) = vlan().at(host.dir()).call(&host, "STATUS", "", "", &[]).refused();
    assert!(code == 50 && text.contains("the master master0 is down"), "{code} {text}");
    assert!(text.contains("`ip link set master0 up`"), "{text}");
}

fn a_kernel_without_it_is_named() {
    let host = vlan().on(MASTER).host();
    let container = Host::new().container();
    let add = layer2().call(&host, "ADD", "c-one", &container.path(), &[]);
    let status = layer2().call(&host, "STATUS", "", "", &[]);
    if Need::VLAN.unmet().is_none() {
        add.ok();
        status.ok();
        return;
    }
    for (output, code) in [(add, 100), (status, 50)] {
        let (found, text) = output.refused();
        assert!(found == code && text.contains("this kernel has no vlan"), "{found} {text}");
        assert!(text.contains("`modprobe 8021q`"), "{text}");
    }
}

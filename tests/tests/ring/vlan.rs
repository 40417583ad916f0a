//! VLANs of a bridge: the VLANs of ports, which containers can reach each other, CHECK, and objects of other programs.

use cnikit_testkit::life::{self, Tampering};
use cnikit_testkit::need::Need;
use cnikit_testkit::{Container, Host, Subject, flood};
use cnikit_tests::world::{ping, ping_once};
use cnikit_tests::{dual_stack, subject};
use serde_json::{Value, json};

use crate::test::{Test, test};

pub(crate) const TESTS: &[Test] = &[
    test!(a_vlan_is_served_or_the_kernel_is_named),
    test!(every_configuration_is_seen_on_the_port needs Need::BRIDGE_VLAN_FILTERING),
    test!(a_bridge_without_filtering_is_refused_with_what_would_change_it needs Need::BRIDGE_VLAN_FILTERING),
    test!(attachments_to_vlans_leave_no_trace needs Need::BRIDGE_VLAN_FILTERING),
    test!(an_add_that_cannot_write_its_result_leaves_nothing_of_its_own needs Need::BRIDGE_VLAN_FILTERING),
    test!(eight_at_once_share_one_gateway needs Need::BRIDGE_VLAN_FILTERING),
    test!(check_names_what_was_tampered_with_on_the_port needs Need::BRIDGE_VLAN_FILTERING),
    test!(check_names_what_was_tampered_with_at_the_gateway needs Need::BRIDGE_VLAN_FILTERING),
    test!(networks_with_and_without_the_default_vlan_share_a_gateway needs Need::BRIDGE_VLAN_FILTERING),
    test!(containers_of_one_vlan_reach_each_other_and_no_other needs Need::BRIDGE_VLAN_FILTERING),
    test!(a_trunk_carries_tagged_frames_of_its_vlans_alone needs Need::BRIDGE_VLAN_FILTERING, Need::VLAN),
    test!(the_default_vlan_reaches_the_port_only_if_preserved needs Need::BRIDGE_VLAN_FILTERING),
    test!(the_gateway_is_reached_from_its_vlan_and_from_no_other needs Need::BRIDGE_VLAN_FILTERING),
    test!(a_gateway_that_is_there_is_adopted needs Need::BRIDGE_VLAN_FILTERING),
    test!(a_foreign_link_is_not_used_as_the_gateway needs Need::BRIDGE_VLAN_FILTERING),
];

fn bridge(keys: Value) -> Subject {
    subject("bridge", keys)
}

/// A network whose gateway is in VLAN 100.
fn routed() -> Subject {
    bridge(json!({"vlan": 100, "isDefaultGateway": true, "ipam": dual_stack()}))
}

/// The host's end.
fn port(result: &Value) -> &str {
    result["interfaces"][1]["name"].as_str().unwrap()
}

/// The VLANs of a port in the words of bridge(8): `100 PVID Egress Untagged, 200-210`.
fn vlans(host: &Host, port: &str) -> String {
    let output = host.sh(&format!("bridge -compressvlans vlan show dev '{port}' | tail -n +2"));
    let lines: Vec<String> = output.lines().map(|line| line.replace(port, "").trim().to_owned()).collect();
    lines.join(", ")
}

/// The state of a host that a plugin could change, in short: a whole [`cnikit_testkit::Snapshot`] takes seconds in a virtual
/// machine.
fn state(host: &Host) -> String {
    let links = "ip -o link show | sed -E 's/ state .*//; s/,?(NO-CARRIER|LOWER_UP)//'";
    let rest = "ip -o address show | grep -v fe80; bridge -compressvlans vlan show";
    host.sh(&format!("{links}; {rest}; find '{}' -not -name '*.idx'", host.dir().display()))
}

/// Adds an attachment: the container and the result.
fn add(host: &Host, keys: Value, id: &str) -> (Container, Value) {
    let container = host.container();
    let result = bridge(keys).at(host.dir()).add(host, id, &container);
    (container, result)
}

fn a_vlan_is_served_or_the_kernel_is_named() {
    let lacking = Need::BRIDGE_VLAN_FILTERING.unmet().is_some();
    for existing in
        [None, Some("ip link add cni0 type bridge"), Some("ip link add cni0 type bridge && ip link set cni0 up")]
    {
        let host = Host::new();
        let container = Host::new().container();
        existing.map(|line| host.sh(line));
        let before = state(&host);
        let output = bridge(json!({"vlan": 100})).call(&host, "ADD", "c-one", &container.path(), &[]);
        if !lacking && existing.is_none() {
            output.ok();
            continue;
        }
        let (code, text) = output.refused();
        let (wanted, says) =
            if lacking { (100, "CONFIG_BRIDGE_VLAN_FILTERING") } else { (101, "does not filter by VLAN") };
        assert!(code == wanted && text.contains(says), "{code} {text}");
        assert_eq!(state(&host), before, "after the refusal");
    }
}

/// A bridge that is there, if any; the keys; the VLANs of the port.
struct Seen(&'static str, Value, &'static str);

const FILTERING: &str = "ip link add cni0 type bridge vlan_filtering 1";
const FROM_NINE: &str = "ip link add cni0 type bridge vlan_filtering 1 vlan_default_pvid 9";

fn every_configuration_is_seen_on_the_port() {
    let table = [
        Seen("", json!({"vlan": 100}), "100 PVID Egress Untagged"),
        Seen(FILTERING, json!({"vlan": 100}), "100 PVID Egress Untagged"),
        Seen(
            "",
            json!({"vlanTrunk": [{"minID": 200, "maxID": 210}, {"id": 300}]}),
            "1 PVID Egress Untagged, 200-210, 300",
        ),
        Seen("", json!({"vlan": 100, "vlanTrunk": [{"minID": 99, "maxID": 101}]}), "99, 100 PVID Egress Untagged, 101"),
        Seen(
            "",
            json!({"vlan": 4094, "vlanTrunk": [{"minID": 1, "maxID": 4094}]}),
            "1-4093, 4094 PVID Egress Untagged",
        ),
        Seen("", json!({"vlan": 100, "preserveDefaultVlan": true}), "1 Egress Untagged, 100 PVID Egress Untagged"),
        Seen(
            FROM_NINE,
            json!({"vlan": 100, "preserveDefaultVlan": true}),
            "9 Egress Untagged, 100 PVID Egress Untagged",
        ),
        Seen(FROM_NINE, json!({"vlanTrunk": [{"id": 9}]}), "1 PVID Egress Untagged, 9"),
        Seen(
            FROM_NINE,
            json!({"vlanTrunk": [{"id": 5}], "preserveDefaultVlan": true}),
            "1 PVID Egress Untagged, 5, 9 Egress Untagged",
        ),
        Seen("", json!({"vlanTrunk": []}), "1 PVID Egress Untagged"),
        Seen("ip link add cni0 type bridge", json!({"vlanTrunk": [{}]}), "1 PVID Egress Untagged"),
        Seen(FROM_NINE, json!({"preserveDefaultVlan": true}), "9 PVID Egress Untagged"),
    ];
    for Seen(existing, keys, wanted) in table {
        let host = Host::new();
        host.sh(existing);
        let (container, result) = add(&host, keys.clone(), "c-one");
        assert_eq!(vlans(&host, port(&result)), wanted, "{existing} {keys}");
        bridge(keys.clone()).check(&host, "c-one", &container, &result).ok();
        let filters = host.sh("ip -d link show cni0").contains("vlan_filtering 1");
        assert_eq!(filters, existing != "ip link add cni0 type bridge", "{existing} {keys}");
    }
}

fn a_bridge_without_filtering_is_refused_with_what_would_change_it() {
    let host = Host::new();
    let container = Host::new().container();
    host.sh("ip link add cni0 type bridge");
    let subject = bridge(json!({"vlanTrunk": [{"id": 7}]}));
    let (code, text) = subject.call(&host, "ADD", "c-one", &container.path(), &[]).refused();
    let (_, command) = text.split_once("hint: `").unwrap();
    assert_eq!(
        (code, command.split('`').next()),
        (101, Some("ip link set dev cni0 type bridge vlan_filtering 1")),
        "{text}"
    );
    host.sh("ip link set dev cni0 type bridge vlan_filtering 1");
    subject.add(&host, "c-one", &container);
}

fn attachments_to_vlans_leave_no_trace() {
    life::leaves_no_trace(&routed().with("vlanTrunk", json!([{"minID": 2, "maxID": 50}])));
}

/// The result cannot be written. Shared objects existed before; the reserved address is released.
fn an_add_that_cannot_write_its_result_leaves_nothing_of_its_own() {
    let host = Host::new();
    let container = Host::new().container();
    let trunk = json!([{"minID": 7, "maxID": 9}]);
    let subject = routed().with("vlanTrunk", trunk).at(host.dir());
    subject.add(&host, "c-other", &host.container());
    let conf = host.dir().join("conf");
    let plugins = subject.bin.display();
    std::fs::write(&conf, subject.conf.to_string()).unwrap();
    let before = state(&host);
    let (succeeded, output) = host.try_sh(&format!(
        "CNI_COMMAND=ADD CNI_CONTAINERID=c-one CNI_NETNS={} CNI_IFNAME=eth0 CNI_PATH='{plugins}' \
         '{plugins}/bridge' < '{}' > /dev/full",
        container.path(),
        conf.display()
    ));
    assert!(!succeeded && container.links().is_empty(), "{output}");
    assert_eq!(state(&host), before);
}

fn eight_at_once_share_one_gateway() {
    flood::survives(&routed(), 8);
}

fn check_names_what_was_tampered_with_on_the_port() {
    let subject = bridge(json!({"vlan": 100, "vlanTrunk": [{"minID": 7, "maxID": 9}]}));
    let more = "wanted [7-9, 100 PVID untagged], found [5, 7, 9, 100 PVID untagged]";
    let at_once = [
        Tampering::on_host(
            "ip link set cni0 type bridge vlan_filtering 0",
            "VLAN filtering of cni0: wanted on, found off",
        ),
        Tampering::on_host("bridge vlan add dev $HOSTEND vid 5; bridge vlan del dev $HOSTEND vid 8", more),
    ];
    life::names_all_at_once(&subject, &at_once);
    let moved = "found [7-9, 100 untagged, 200 PVID untagged]";
    life::names_tampering(&subject, &[Tampering::on_host("bridge vlan add dev $HOSTEND vid 200 pvid untagged", moved)]);
    life::names_tampering(
        &subject,
        &[Tampering::on_host("bridge vlan del dev $HOSTEND vid 1-4094", "100 PVID untagged], found []")],
    );
}

fn check_names_what_was_tampered_with_at_the_gateway() {
    let compared = life::checked_resources(&routed());
    let kinds: Vec<&str> = compared.iter().filter_map(|one| Some(one.split_once(": ")?.0)).collect();
    assert!(["VLANs of the port", "VLAN gateway"].iter().all(|kind| kinds.contains(kind)), "{compared:?}");
    let native = "VLANs of cni0~100: wanted 100 PVID untagged, found [7 PVID untagged, 100 untagged]";
    let at_once = [
        Tampering::on_host("bridge vlan add dev cni0~100 vid 7 pvid untagged", native),
        Tampering::on_host("ip address del 10.77.0.1/24 dev cni0.100", "gateway on cni0.100: wanted 10.77.0.1/24"),
        Tampering::on_host("ip link set cni0.100 address 0a:00:00:00:00:02", "MAC of cni0.100"),
        Tampering::on_host(
            "echo 1 >/proc/sys/net/ipv6/conf/cni0.100/accept_ra",
            "accept_ra of cni0.100: wanted 0, found 1",
        ),
        Tampering::on_host(
            "echo 1 >/proc/sys/net/ipv6/conf/cni0~100/accept_ra",
            "accept_ra of cni0~100: wanted 0, found 1",
        ),
        Tampering::on_host(
            "ip link set cni0~100 mtu 1300",
            "MTU of cni0.100 and cni0~100: wanted the same, found 1500 and 1300",
        ),
        Tampering::on_host("ip link set cni0.100 down", "VLAN gateway cni0.100: wanted up, found down"),
        Tampering::on_host("ip link set cni0~100 down", "cni0~100: wanted up, found down"),
    ];
    life::names_all_at_once(&routed(), &at_once);
    let none_but = "VLANs of cni0~100: wanted none but [1 untagged, 100 PVID untagged], found";
    let alone = [
        Tampering::on_host("bridge vlan add dev cni0~100 vid 200 untagged", none_but),
        Tampering::on_host("bridge vlan add dev cni0~100 vid 1", none_but),
        Tampering::on_host(
            "ip link set cni0.100 mtu 1300",
            "MTU of cni0.100 and cni0~100: wanted the same, found 1300 and 1500",
        ),
        Tampering::on_host("ip link set cni0~100 nomaster", "bridge of cni0~100: wanted cni0, found none"),
        Tampering::on_host("ip link del cni0.100", "VLAN gateway cni0.100: wanted on the host, found none"),
    ];
    life::names_tampering(&routed(), &alone);
}

/// The network that is added first decides whether the gateway stays in it. CHECK of neither reports a difference, nor that the MTU
/// of the bridge followed a port.
fn networks_with_and_without_the_default_vlan_share_a_gateway() {
    for first in [true, false] {
        let host = Host::new();
        let attach = |kept: bool| {
            let subject = routed().with("preserveDefaultVlan", json!(kept)).at(host.dir());
            let container = host.container();
            let result = subject.add(&host, &format!("c-{kept}"), &container);
            (subject, container, result)
        };
        let both = [attach(first), attach(!first)];
        let found = if first { "1 Egress Untagged, 100 PVID Egress Untagged" } else { "100 PVID Egress Untagged" };
        assert_eq!(vlans(&host, "cni0~100"), found);
        host.sh("ip link add small mtu 1300 type veth && ip link set small master cni0");
        assert!(host.sh("ip link show cni0").contains("mtu 1300"), "the bridge follows its ports");
        for ((subject, container, result), kept) in both.iter().zip([first, !first]) {
            subject.check(&host, &format!("c-{kept}"), container, result).ok();
        }
    }
}

/// A container with its own address in the one subnet of all tests, in any VLAN: only the VLAN separates them.
fn neighbour(host: &Host, keys: Value, number: u8) -> Container {
    let (container, _) = add(host, keys, &format!("c-{number}"));
    give_address(&container, "eth0", number);
    container
}

fn give_address(container: &Container, link: &str, number: u8) {
    let [ipv4, ipv6] = addresses(number);
    container.sh(&format!("ip address add {ipv4}/24 dev {link} && ip address add {ipv6}/64 dev {link} nodad"));
}

fn addresses(number: u8) -> [String; 2] {
    [format!("10.77.0.{number}"), format!("fd00:77::{number}")]
}

fn reach(from: &Container, number: u8) {
    addresses(number).iter().for_each(|address| drop(from.sh(&ping(address))));
}

/// In neither family. There will be no answer, so both are asked at once.
fn is_out_of_reach(from: &Container, number: u8) {
    let [ipv4, ipv6] = addresses(number).map(|address| ping_once(&address));
    let (heard, output) = from.try_sh(&format!("{ipv4} & first=$!; {ipv6} && exit; wait $first"));
    assert!(!heard, "{number} should be out of reach: {output}");
}

fn containers_of_one_vlan_reach_each_other_and_no_other() {
    let host = Host::new();
    let one = neighbour(&host, json!({"vlan": 100}), 11);
    let two = neighbour(&host, json!({"vlan": 100}), 12);
    let other = neighbour(&host, json!({"vlan": 200}), 13);
    let default = neighbour(&host, json!({}), 14);
    reach(&one, 12);
    reach(&two, 11);
    is_out_of_reach(&one, 13);
    is_out_of_reach(&other, 11);
    is_out_of_reach(&default, 12);
    is_out_of_reach(&one, 14);
}

fn a_trunk_carries_tagged_frames_of_its_vlans_alone() {
    let host = Host::new();
    let trunk = json!({"vlan": 300, "vlanTrunk": [{"minID": 99, "maxID": 100}]});
    let (router, _) = add(&host, trunk, "c-router");
    for vlan in ["100", "200"] {
        router.sh(&format!("ip link add link eth0 name eth0.{vlan} type vlan id {vlan} && ip link set eth0.{vlan} up"));
    }
    let one = neighbour(&host, json!({"vlan": 100}), 11);
    let other = neighbour(&host, json!({"vlan": 200}), 12);
    let native = neighbour(&host, json!({"vlan": 300}), 13);
    give_address(&router, "eth0.100", 10);
    reach(&router, 11);
    reach(&one, 10);
    is_out_of_reach(&router, 12);
    is_out_of_reach(&native, 10);
    router.sh("ip address flush dev eth0.100");
    give_address(&router, "eth0.200", 10);
    is_out_of_reach(&router, 12);
    is_out_of_reach(&other, 10);
    router.sh("ip address flush dev eth0.200");
    give_address(&router, "eth0", 10);
    reach(&router, 13);
    is_out_of_reach(&one, 10);
}

/// Packets from the default VLAN arrive; the reply is sent in VLAN 100 and does not arrive.
fn the_default_vlan_reaches_the_port_only_if_preserved() {
    for kept in [true, false] {
        let host = Host::new();
        let one = neighbour(&host, json!({"vlan": 100, "preserveDefaultVlan": kept}), 11);
        let sender = neighbour(&host, json!({}), 12);
        let two = neighbour(&host, json!({"vlan": 100, "preserveDefaultVlan": kept}), 13);
        reach(&two, 11);
        let mac =
            one.sh("cat /sys/class/net/eth0/address 2>/dev/null; ip -o link show eth0 2>/dev/null | sed 's/.*ether //; s/ .*//'");
        sender.sh(&format!("ip neigh add 10.77.0.11 lladdr {} dev eth0", mac.lines().last().unwrap()));
        let before = echo_requests(&one);
        assert!(!sender.try_sh(&ping_once("10.77.0.11")).0, "no answer comes in the default VLAN");
        assert_eq!(echo_requests(&one) - before, u32::from(kept));
    }
}

/// The number of echo requests that ever arrived.
fn echo_requests(container: &Container) -> u32 {
    let counts = container.sh("awk '/^Icmp:/ { if (!n) for (i = 1; i <= NF; i++) { if ($i == \"InEchos\") n = i } else print $n }' /proc/net/snmp");
    counts.trim().parse().unwrap()
}

fn the_gateway_is_reached_from_its_vlan_and_from_no_other() {
    let host = Host::new();
    let container = host.container();
    let subject = routed().at(host.dir());
    let result = subject.add(&host, "c-one", &container);
    let listed = &result["interfaces"][3];
    let mac = host.sh("ip -o link show cni0.100 | sed 's/.*ether //; s/ .*//'");
    assert_eq!((listed["name"].as_str(), listed["mac"].as_str()), (Some("cni0.100"), Some(mac.trim())), "{result}");
    assert_eq!(result["interfaces"].as_array().unwrap().len(), 4);
    reach(&container, 1);
    addresses(2).iter().for_each(|address| drop(host.sh(&ping(address))));
    is_out_of_reach(&neighbour(&host, json!({"vlan": 200}), 11), 1);
    is_out_of_reach(&neighbour(&host, json!({}), 12), 1);
    reach(&neighbour(&host, json!({"vlan": 100}), 13), 1);
    assert!(!host.sh("ip address show dev cni0").contains("10.77.0.1"), "the bridge itself has no address");
    subject.check(&host, "c-one", &container, &result).ok();
    subject.del(&host, "c-one", &container, &result);
    assert!(host.sh("ip address show dev cni0.100").contains("10.77.0.1/24"), "it stays, as the bridge does");
}

/// One that upstream made, one of ours whose ADD was interrupted, and one of ours whose bridge was made again.
fn a_gateway_that_is_there_is_adopted() {
    let pair = "ip link add cni0.100 type veth peer name";
    for (lines, end) in [
        (
            format!(
                "{FILTERING}; {pair} veth0a1b2c3d; ip link set veth0a1b2c3d master cni0 up; bridge vlan add dev veth0a1b2c3d vid 100 pvid untagged"
            ),
            "veth0a1b2c3d",
        ),
        (format!("{FILTERING}; {pair} cni0~100; ip link set cni0~100 master cni0"), "cni0~100"),
        (format!("{pair} cni0~100; ip link set cni0~100 up; ip link set cni0.100 up"), "cni0~100"),
    ] {
        let host = Host::new();
        let container = Host::new().container();
        host.sh(&lines);
        let subject = routed().at(host.dir());
        let result = subject.add(&host, "c-one", &container);
        reach(&container, 1);
        assert!(vlans(&host, end).contains("100 PVID Egress Untagged"), "{lines}");
        subject.check(&host, "c-one", &container, &result).ok();
    }
}

fn a_foreign_link_is_not_used_as_the_gateway() {
    let pair = format!("{FILTERING}; ip link add cni0.100 type veth peer name other");
    for (lines, names) in [
        ("ip link add cni0.100 type bridge".to_owned(), "it is not a veth whose other end is here too"),
        ("ip link add cni0~100 type bridge".to_owned(), "\"cni0~100\" already exists"),
        (pair.clone(), "its other end other is not a port"),
        (format!("{pair}; ip link set other master cni0"), "its other end other is in VLANs [1 PVID untagged]"),
        (
            format!("{pair}; ip link add br1 type bridge; ip link set other master br1"),
            "its other end other is a port of br1",
        ),
        (format!("{FILTERING}; ip link add link cni0 name cni0.100 type vlan id 100"), "it is not a veth"),
        (
            format!("{FILTERING}; ip link add x type bridge; ip link property add dev x altname cni0.100"),
            "alternative name",
        ),
    ] {
        let host = Host::new();
        let container = Host::new().container();
        host.sh(&lines);
        let before = state(&host);
        let (code, text) = routed().at(host.dir()).call(&host, "ADD", "c-one", &container.path(), &[]).refused();
        assert!(code == 101 && text.contains(names) && text.contains("ip link del"), "{lines}: {code} {text}");
        assert_eq!(state(&host), before, "{lines}");
    }
}

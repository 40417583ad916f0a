//! Every configuration through everything that the kit holds a plugin to.

use cnikit::{Entry, Ipam};
use cnikit_testkit::life::{self, Tampering};
use cnikit_testkit::{Host, Subject, fault, flood};
use cnikit_tests::{dual_stack, interface_subjects, subject};
use serde_json::json;

fn loopback() -> Subject {
    subject("loopback", json!({}))
}

fn bridge() -> Subject {
    subject("bridge", json!({"isDefaultGateway": true, "ipMasq": true, "mtu": 1500, "ipam": dual_stack()}))
}

fn ptp() -> Subject {
    subject("ptp", json!({"ipMasq": true, "mtu": 1500, "ipam": dual_stack()}))
}

#[test]
fn an_attachment_leaves_no_trace_and_a_second_one_adds_nothing() {
    interface_subjects().iter().chain([&loopback()]).for_each(life::leaves_no_trace);
}

#[test]
fn del_succeeds_in_every_poor_form_of_bridge() {
    life::survives_poor_dels(&bridge());
}

#[test]
fn del_succeeds_in_every_poor_form_of_a_bridge_without_layer_3() {
    life::survives_poor_dels(&subject("bridge", json!({})));
}

#[test]
fn del_succeeds_in_every_poor_form_of_ptp() {
    life::survives_poor_dels(&ptp());
}

/// host-local is called in this process, for it is this very program under another name.
static BESIDE: &[Entry] = &[Entry::of::<Ipam<host_local::HostLocal>>("host-local")];

#[test]
fn a_fault_before_any_step_of_bridge_leaves_nothing() {
    let tried = fault::leaves_nothing::<bridge::Bridge>(&bridge(), BESIDE);
    assert_eq!(tried, 9, "2 steps of the link, 5 of layer 3, and the place behind each");
}

#[test]
fn a_fault_before_any_step_of_ptp_leaves_nothing() {
    let tried = fault::leaves_nothing::<ptp::Ptp>(&ptp(), BESIDE);
    assert_eq!(tried, 7, "1 step of the link, 4 of layer 3, and the place behind each");
}

#[test]
fn sixty_four_at_once_get_sixty_four_addresses_on_a_bridge() {
    flood::survives(&bridge(), 64);
}

#[test]
fn sixty_four_at_once_get_sixty_four_addresses_on_ptp() {
    flood::survives(&ptp(), 64);
}

const fn on_host(line: &'static str, names: &'static str) -> Tampering {
    Tampering { line, inside: false, names }
}

const fn inside(line: &'static str, names: &'static str) -> Tampering {
    Tampering { line, inside: true, names }
}

/// Each thing that both plugins make in the container or beside it.
const COMMON: [Tampering; 11] = [
    inside("ip link set eth0 down", "eth0: wanted up, found down"),
    inside("ip link set eth0 address 0a:00:00:00:00:01", "MAC of eth0"),
    inside("ip link set eth0 mtu 1300", "MTU of eth0: wanted 1500, found 1300"),
    inside("ip address del 10.77.0.2/24 dev eth0", "address of eth0: wanted 10.77.0.2/24"),
    inside("ip address del fd00:77::2/64 dev eth0", "address of eth0: wanted fd00:77::2/64"),
    on_host("ip link set $HOSTEND down", "wanted up, found down"),
    on_host("ip link del $HOSTEND", "interface eth0: wanted a veth, found none"),
    on_host("sysctl -qw net.ipv6.conf.$HOSTEND.accept_ra=1", "accept_ra of veth"),
    on_host("sysctl -qw net.ipv4.ip_forward=0", "net/ipv4/ip_forward: wanted 1, found 0"),
    on_host("sysctl -qw net.ipv6.conf.all.forwarding=0", "net/ipv6/conf/all/forwarding: wanted 1, found 0"),
    on_host("nft flush chain inet cni_plugins_masquerade masq_checks", "masquerade"),
];

const BRIDGE: [Tampering; 9] = [
    on_host("ip address del 10.77.0.1/24 dev cni0", "gateway on cni0: wanted 10.77.0.1/24"),
    on_host("ip address del fd00:77::1/64 dev cni0", "gateway on cni0: wanted fd00:77::1/64"),
    on_host("ip link set cni0 address 0a:00:00:00:00:02", "MAC of cni0"),
    on_host("ip link set cni0 down", "bridge cni0: wanted up, found down"),
    on_host("ip link del cni0", "bridge cni0: wanted on the host, found none"),
    on_host("ip link set $HOSTEND nomaster", "bridge of veth"),
    on_host("ip link set $HOSTEND type bridge_slave hairpin on", "hairpin of veth"),
    on_host("ip link set $HOSTEND type bridge_slave isolated on", "isolation of veth"),
    on_host("nft flush chain inet cni_plugins_masquerade postrouting", "masquerade"),
];

const PTP: [Tampering; 5] = [
    on_host("ip address del 10.77.0.1/32 dev $HOSTEND", "wanted 10.77.0.1/32"),
    on_host("ip route del 10.77.0.2 dev $HOSTEND", "host route to 10.77.0.2/32"),
    on_host("ip -6 route del fd00:77::2 dev $HOSTEND", "host route to fd00:77::2/128"),
    inside("ip route del 10.77.0.0/24", "route of eth0: wanted 10.77.0.0/24 via 10.77.0.1"),
    inside("ip route del 10.77.0.1", "route of eth0: wanted 10.77.0.1/32"),
];

#[test]
fn check_names_each_thing_that_was_tampered_with_on_a_bridge() {
    life::names_tampering(&bridge(), &COMMON);
    life::names_tampering(&bridge(), &BRIDGE);
    life::names_tampering(&bridge(), &[inside("ip route del default", "route of eth0: wanted 0.0.0.0/0")]);
    let promiscuous = bridge().with("promiscMode", json!(true));
    life::names_tampering(&promiscuous, &[on_host("ip link set cni0 promisc off", "wanted promiscuous, found not")]);
}

#[test]
fn check_names_each_thing_that_was_tampered_with_on_ptp() {
    life::names_tampering(&ptp(), &COMMON);
    life::names_tampering(&ptp(), &PTP);
}

#[test]
fn check_names_a_down_loopback() {
    life::names_tampering(&loopback(), &[inside("ip link set lo down", "loopback interface is down")]);
}

#[test]
fn check_names_every_difference_at_once() {
    let several = [COMMON[2], COMMON[4], COMMON[8], BRIDGE[0], BRIDGE[6]];
    life::names_all_at_once(&bridge(), &several);
}

#[test]
fn check_asks_the_ipam_plugin_too() {
    let (host, subject) = (Host::new(), bridge());
    let subject = subject.at(host.dir());
    let container = host.container();
    let result = subject.add(&host, "c-one", &container);
    std::fs::remove_file(host.dir().join("leases/testnet/10.77.0.2")).unwrap();
    std::fs::remove_file(host.dir().join("leases/testnet/fd00:77::2")).unwrap();
    let (_, text) = subject.check(&host, "c-one", &container, &result).refused();
    assert!(text.contains("host-local"), "{text}");
    subject.del(&host, "c-one", &container, &result);
}

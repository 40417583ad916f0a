//! Packets: what the rules are for.

use crate::host::Host;
use crate::scene::{frame, masquerade};

/// A container behind a host, and a machine outside that knows the host only: no route leads back to the container.
pub(crate) struct Net {
    pub(crate) container: Host,
    pub(crate) host: Host,
    pub(crate) outside: Host,
}

impl Net {
    pub(crate) fn new() -> Self {
        let net = Self { container: Host::new(), host: Host::new(), outside: Host::new() };
        cable(&net.host, "inner", &net.container);
        cable(&net.host, "outer", &net.outside);
        up(&net.host, "inner", &["10.0.0.1/24", "fd00::1/64"]);
        up(&net.host, "outer", &["192.0.2.1/24", "2001:db8::1/64"]);
        up(&net.container, "eth0", &["10.0.0.2/24", "fd00::2/64"]);
        up(&net.outside, "eth0", &["192.0.2.2/24", "2001:db8::2/64"]);
        net.container.said("ip", &["route", "add", "default", "via", "10.0.0.1"]);
        net.container.said("ip", &["-6", "route", "add", "default", "via", "fd00::1"]);
        net.host.said("sysctl", &["-w", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"]);
        net
    }

    fn reaches(&self, address: &str) -> bool {
        self.container.run("ping", &["-c", "1", "-W", "1", address]).status.success()
    }
}

fn cable(host: &Host, name: &str, peer: &Host) {
    let netns = peer.netns.path().to_str().unwrap();
    host.said("ip", &["link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", netns]);
}

fn up(host: &Host, link: &str, addresses: &[&str]) {
    host.said("ip", &["link", "set", link, "up"]);
    for address in addresses {
        let nodad: &[&str] = if address.contains(':') { &["nodad"] } else { &[] };
        host.said("ip", &[&["address", "add", address, "dev", link], nodad].concat());
    }
}

#[test]
fn a_container_reaches_who_knows_only_the_host_while_its_rules_stand() {
    let net = Net::new();
    let rules = [masquerade("10.0.0.2", "10.0.0.0/24", "aa-1"), masquerade("fd00::2", "fd00::/64", "aa-1")];
    assert!(!net.reaches("192.0.2.2") && !net.reaches("2001:db8::2"));
    let nftables = net.host.nftables();
    nftables.replace(&frame(), "aa-1", &rules).unwrap();
    assert!(net.reaches("192.0.2.2") && net.reaches("2001:db8::2"));
    nftables.release(&frame(), "aa-1").unwrap();
    assert!(!net.reaches("192.0.2.2") && !net.reaches("2001:db8::2"));
}

#[test]
fn a_rule_for_one_address_masquerades_no_other() {
    let net = Net::new();
    net.host.nftables().replace(&frame(), "aa-1", &[masquerade("10.0.0.3", "10.0.0.0/24", "aa-1")]).unwrap();
    assert!(!net.reaches("192.0.2.2"));
}

#[test]
fn traffic_inside_the_network_keeps_its_source() {
    let net = Net::new();
    // With this network the machine outside counts as inside, and answers nobody that it has no route to.
    net.host.nftables().replace(&frame(), "aa-1", &[masquerade("10.0.0.2", "192.0.2.0/24", "aa-1")]).unwrap();
    assert!(!net.reaches("192.0.2.2"));
}

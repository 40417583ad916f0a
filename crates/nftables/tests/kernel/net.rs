//! A container, its host and a machine outside, each a network namespace.

use crate::host::Host;

/// A container behind a host, and a machine outside that has a route to the host only, and none to the container.
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
        net.container.stdout_of("ip", &["route", "add", "default", "via", "10.0.0.1"]);
        net.container.stdout_of("ip", &["-6", "route", "add", "default", "via", "fd00::1"]);
        net.host.stdout_of("sysctl", &["-w", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"]);
        net
    }
}

fn cable(host: &Host, name: &str, peer: &Host) {
    let netns = peer.netns.path().to_str().unwrap();
    host.stdout_of("ip", &["link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", netns]);
}

fn up(host: &Host, link: &str, addresses: &[&str]) {
    host.stdout_of("ip", &["link", "set", link, "up"]);
    for address in addresses {
        let nodad: &[&str] = if address.contains(':') { &["nodad"] } else { &[] };
        host.stdout_of("ip", &[&["address", "add", address, "dev", link], nodad].concat());
    }
}

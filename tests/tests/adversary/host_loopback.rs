//! A container sends to the loopback addresses of the host (CVE-2020-8558).

use std::io::Write;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::thread;
use std::time::Duration;

use cnikit_netns::Netns;
use cnikit_testkit::{CallOutput, Host, Subject};
use cnikit_tests::attached::Attached;
use cnikit_tests::way::{Way, on_path};
use cnikit_tests::world::read_all_from;
use cnikit_tests::{bridge, references, subject};
use serde_json::{Value, json};

use crate::actor::{IPV4, IPV6, ethernet, mac, send, udp4, with_net_admin};

/// The bridge, its address, and that of the container.
const LINK: &str = "cni0";
const GATEWAY: &str = "10.66.0.1";
const CONTAINER: &str = "10.66.0.2";
/// The port of a service that only the host may reach.
const SERVICE: u16 = 9999;
const GUARD: &str = "table ip cnikit_loopback";

/// A host with a service on its loopback, and a bridge.
struct Node {
    host: Host,
    bridge: Subject,
    service: UdpSocket,
}

impl Node {
    fn new() -> Node {
        let host = Host::new();
        let bridge = bridge()
            .with("ipMasqBackend", json!("nftables"))
            .with("bridge", json!(LINK))
            .with(
                "ipam",
                json!({
                    "type": "host-local",
                    "dataDir": host.dir().join("leases"),
                    "ranges": [[{"subnet": "10.66.0.0/24"}], [{"subnet": "fd66::/64"}]],
                }),
            )
            .at(host.dir());
        let service = host.enter(|| UdpSocket::bind(("127.0.0.1", SERVICE)).unwrap());
        service.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        Node { host, bridge, service }
    }

    fn pod(&self, id: &str) -> Attached {
        Attached::by(&self.bridge, &self.host, id)
    }

    fn call(&self, portmap: &Subject, verb: &str, pod: &Attached) -> CallOutput {
        pod.call(portmap, &self.host, verb)
    }

    fn setting(&self) -> String {
        self.host.sh(&format!("cat /proc/sys/net/ipv4/conf/{LINK}/route_localnet")).trim().to_owned()
    }

    fn is_guarded(&self) -> bool {
        let rules = self.host.sh("nft list ruleset");
        let whole = rules.contains(GUARD) && rules.contains(&format!("iifname \"{LINK}\" jump link-{LINK}"));
        assert_eq!(rules.contains(GUARD), whole, "{rules}");
        whole
    }

    /// Frames to 127.0.0.1 by a container that has `CAP_NET_RAW` only: whether one of them reaches the service.
    fn is_reached_by_frames(&self, pod: &Attached) -> bool {
        let address = |netns: &str| netns.split_whitespace().skip_while(|word| *word != "link/ether").nth(1).map(mac);
        let to = address(&self.host.sh(&format!("ip -o link show {LINK}"))).unwrap();
        let from = address(&pod.container.sh("ip -o link show eth0")).unwrap();
        let packet = udp4((CONTAINER, 7), ("127.0.0.1", SERVICE), b"attack");
        send(&pod.container, "eth0", &[ethernet(to, from, &[], IPV4, &packet)]);
        let mut buffer = [0; 16];
        self.service.recv_from(&mut buffer).is_ok_and(|(size, _)| &buffer[..size] == b"attack")
    }

    /// The same by a container with `CAP_NET_ADMIN`, which adds a route.
    fn is_reached_by_a_route(&self, pod: &Attached) -> bool {
        pod.container.sh("sysctl -qw net.ipv4.conf.eth0.route_localnet=1");
        let route = format!(
            "ip route del table local local 127.0.0.0/8 dev lo; ip route del table local local 127.0.0.1 dev lo; \
             ip route replace 127.0.0.1/32 via {GATEWAY} dev eth0 src {CONTAINER}"
        );
        pod.container.try_sh(&with_net_admin(&route));
        let sent = pod.container.netns().enter(|_| {
            let socket = UdpSocket::bind((CONTAINER, 0)).unwrap();
            socket.send_to(b"route", ("127.0.0.1", SERVICE)).is_ok()
        });
        assert!(sent.unwrap(), "the container has no route: {}", pod.container.sh("ip route show table all"));
        let mut buffer = [0; 16];
        self.service.recv_from(&mut buffer).is_ok_and(|(size, _)| &buffer[..size] == b"route")
    }
}

fn portmap(backend: &str) -> Subject {
    let mappings = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
    subject("portmap", json!({"backend": backend, "runtimeConfig": {"portMappings": mappings}}))
}

/// Answers every connection until this program ends.
fn serves(netns: &Netns) {
    let listener = netns.enter(|_| TcpListener::bind("0.0.0.0:80").unwrap()).unwrap();
    thread::spawn(move || listener.incoming().flatten().for_each(|mut stream| drop(stream.write_all(b"pod"))));
}

/// Whether the published port is reached from the host's own loopback.
fn is_published(host: &Host) -> bool {
    let server = SocketAddr::from(([127, 0, 0, 1], 8080));
    host.enter(|| read_all_from(server).is_some_and(|output| output == "pod"))
}

#[test]
fn a_container_does_not_reach_the_hosts_loopback_by_a_published_port() {
    for way in Way::ALL {
        let node = Node::new();
        let programs = way.directory();
        let portmap = on_path(&portmap(way.backend()), programs.path());
        let pod = node.pod("c-one");
        serves(pod.container.netns());
        assert_eq!(node.setting(), "0");
        node.call(&portmap, "ADD", &pod).ok();
        node.call(&portmap, "CHECK", &pod).ok();
        assert_eq!(node.setting(), "1");
        assert!(is_published(&node.host), "{way:?}: the host's own connection");
        assert!(!node.is_reached_by_frames(&pod), "{way:?}");
        assert!(!node.is_reached_by_a_route(&pod), "{way:?}");
        assert!(is_published(&node.host), "{way:?}: the host's own connection, after all that");
        // The attacks themselves: without the guard they succeed.
        node.host.sh("nft delete table ip cnikit_loopback");
        assert!(node.is_reached_by_frames(&pod), "{way:?}: no frame arrives, so the test shows nothing");
        assert!(node.is_reached_by_a_route(&pod), "{way:?}: no packet arrives, so the test shows nothing");
        let (code, text) = node.call(&portmap, "CHECK", &pod).refused();
        assert_eq!(code, 102, "{text}");
        assert!(text.contains("127.0.0.0/8") && text.contains("cnikit_loopback is missing"), "{text}");
        node.call(&portmap, "RESTORE", &pod);
        node.call(&portmap, "CHECK", &pod).ok();
        assert!(!node.is_reached_by_frames(&pod), "{way:?}: after RESTORE");
        assert!(is_published(&node.host), "{way:?}: after RESTORE");
        node.call(&portmap, "DEL", &pod).ok();
        assert!(!node.is_guarded(), "{way:?}");
        assert_eq!(node.setting(), "0", "{way:?}: also after RESTORE, which found no record");
        assert!(!node.is_reached_by_frames(&pod), "{way:?}: after DEL");
    }
}

#[test]
fn the_last_port_of_a_link_takes_guard_and_setting_away() {
    for (first, second) in [("nftables", "iptables"), ("iptables", "nftables")] {
        let node = Node::new();
        let one = node.pod("c-one");
        let two = node.pod("c-two");
        let other = portmap(second).with(
            "runtimeConfig",
            json!({"portMappings": [{"hostPort": 8081, "containerPort": 80, "protocol": "tcp"}]}),
        );
        node.call(&portmap(first), "ADD", &one).ok();
        node.call(&other, "ADD", &two).ok();
        node.call(&portmap(first), "DEL", &one).ok();
        assert!(node.is_guarded() && node.setting() == "1", "{first}");
        assert!(!node.is_reached_by_frames(&two));
        // Gone by GC.
        let gc = json!({"cni.dev/valid-attachments": []});
        other
            .with("cni.dev/valid-attachments", gc["cni.dev/valid-attachments"].clone())
            .call(&node.host, "GC", "", "", &[])
            .ok();
        assert!(!node.is_guarded() && node.setting() == "0", "{second}");
        // The same again, and without snat nothing is needed.
        node.call(&other, "ADD", &two).ok();
        assert!(node.is_guarded() && node.setting() == "1");
        node.call(&other.with("snat", json!(false)), "ADD", &two).ok();
        assert!(!node.is_guarded() && node.setting() == "0", "{second}: without snat");
        node.call(&other, "DEL", &two).ok();
    }
}

#[test]
fn route_localnet_set_by_another_program_stays() {
    for backend in ["nftables", "iptables"] {
        let node = Node::new();
        let portmap = portmap(backend);
        let pod = node.pod("c-one");
        node.host.sh(&format!("echo 1 > /proc/sys/net/ipv4/conf/{LINK}/route_localnet"));
        node.call(&portmap, "ADD", &pod).ok();
        assert!(!node.is_reached_by_frames(&pod), "{backend}");
        node.call(&portmap, "DEL", &pod).ok();
        assert!(!node.is_guarded() && node.setting() == "1", "{backend}");
    }
}

/// The upstream plugin sets `route_localnet` too, and guards nothing.
#[test]
fn a_port_that_the_upstream_plugin_published_keeps_the_setting() {
    for bin in references() {
        for backend in ["iptables", "nftables"] {
            let node = Node::new();
            let own = portmap(backend);
            let one = node.pod("c-one");
            let two = node.pod("c-two");
            let mapping = json!({"portMappings": [{"hostPort": 8081, "containerPort": 80, "protocol": "tcp"}]});
            let theirs = portmap(backend).with("runtimeConfig", mapping).in_directory(bin.clone());
            node.call(&own, "ADD", &one).ok();
            let output = node.call(&theirs, "ADD", &two);
            if output.exit != 0 {
                // The oldest release does not support nftables, and ignores the key.
                continue;
            }
            assert!(!node.is_reached_by_frames(&two), "{backend}: ours guards both");
            node.call(&own, "DEL", &one).ok();
            assert!(!node.is_guarded() && node.setting() == "1", "{backend}: {}", node.host.sh("nft list ruleset"));
            node.call(&theirs, "DEL", &two).ok();
            // Once it is removed, our next plugin finds the setting already changed, and does not change it.
            node.call(&own, "ADD", &one).ok();
            node.call(&own, "DEL", &one).ok();
            assert!(!node.is_guarded() && node.setting() == "1", "{backend}");
        }
    }
}

/// With `br_netfilter` the kernel passes packets to netfilter as they enter the bridge, with the name of the bridge only. This
/// concerns a VLAN device on a bridge as well as a macvlan, which every kernel has.
#[test]
fn a_link_upon_a_bridge_is_guarded_where_packets_enter_the_bridge() {
    for backend in ["iptables", "nftables"] {
        let node = Node::new();
        let bridge = node.bridge.with("isDefaultGateway", json!(false)).with("ipMasq", json!(false));
        let pod = Attached::by(&bridge, &node.host, "c-one");
        node.host.sh(&format!("ip link add upon0 link {LINK} type macvlan mode bridge"));
        node.host.sh(&format!("ip address add {GATEWAY}/24 dev upon0; ip link set upon0 up"));
        node.host.try_sh("sysctl -qw net.bridge.bridge-nf-call-iptables=1");
        let to = node.host.sh("ip -o link show upon0");
        let to = to.split_whitespace().skip_while(|word| *word != "link/ether").nth(1).map(mac).unwrap();
        let portmap = portmap(backend);
        node.call(&portmap, "ADD", &pod).ok();
        node.call(&portmap, "CHECK", &pod).ok();
        assert_eq!(node.host.sh("cat /proc/sys/net/ipv4/conf/upon0/route_localnet").trim(), "1");
        let is_reached = || {
            let from = pod.container.sh("ip -o link show eth0");
            let from = from.split_whitespace().skip_while(|word| *word != "link/ether").nth(1).map(mac).unwrap();
            let packet = udp4((CONTAINER, 7), ("127.0.0.1", SERVICE), b"attack");
            send(&pod.container, "eth0", &[ethernet(to, from, &[], IPV4, &packet)]);
            let mut buffer = [0; 16];
            node.service.recv_from(&mut buffer).is_ok_and(|(size, _)| &buffer[..size] == b"attack")
        };
        assert!(!is_reached(), "{backend}");
        let rules = node.host.sh("nft --handle list chain ip cnikit_loopback prerouting");
        let handle = rules.lines().find(|line| line.contains(&format!("iifname \"{LINK}\""))).unwrap();
        let handle = handle.rsplit(' ').next().unwrap();
        node.host.sh(&format!("nft delete rule ip cnikit_loopback prerouting handle {handle}"));
        let (code, text) = node.call(&portmap, "CHECK", &pod).refused();
        assert!(code == 102 && text.contains(&format!("iifname \"{LINK}\" jump link-upon0")), "{text}");
        if node.host.try_sh("test \"$(sysctl -n net.bridge.bridge-nf-call-iptables)\" = 1").0 {
            assert!(is_reached(), "{backend}: no frame arrives, so the test shows nothing");
        }
        node.call(&portmap, "RESTORE", &pod);
        assert!(!is_reached(), "{backend}: after RESTORE");
        node.call(&portmap, "DEL", &pod).ok();
        assert!(!node.host.sh("nft list ruleset").contains(GUARD), "{backend}");
    }
}

/// A tenant may be able to request addresses, in a network without a gateway on the host: the port would lead to the host itself.
/// Services that only the host may reach have link-local addresses, such as the metadata service of a cloud.
#[test]
fn no_port_leads_to_an_address_of_the_hosts_own_or_to_one_that_no_container_has() {
    for backend in ["iptables", "nftables"] {
        let node = Node::new();
        let mut own = node.pod("c-one");
        node.host.sh("ip address add 192.0.2.1/24 dev cni0; ip route add 169.254.169.254/32 via 192.0.2.9");
        let portmap = leading_to_service(backend);
        let before = rules_and_settings(&node.host);
        let addresses = ["127.0.0.1/8", "127.9.9.9/32", "192.0.2.1/24", "192.0.2.255/24", "224.0.0.9/24", "0.0.0.0/0"];
        let link_local = ["169.254.169.254/32", "169.254.7.7/16", "fe80::1/64", "255.255.255.255/32"];
        for address in addresses.into_iter().chain(["::1/128", "fd66::1/64", "ff02::1/64"]).chain(link_local) {
            own.prev["ips"] = json!([{"address": address, "interface": 2}]);
            let (code, text) = node.call(&portmap, "ADD", &own).refused();
            assert!(code == 101 && text.contains("no port can lead to the address"), "{backend} {address}: {text}");
            node.call(&portmap, "RESTORE", &own).refused();
            node.call(&portmap, "DEL", &own).ok();
            assert_eq!(rules_and_settings(&node.host), before, "{backend} {address}");
        }
        // The host's own loopback still works.
        node.host.enter(|| UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"own", ("127.0.0.1", SERVICE)).unwrap());
        let mut buffer = [0; 16];
        assert_eq!(node.service.recv_from(&mut buffer).unwrap().0, 3, "{backend}");
    }
}

/// An attachment in the list of a RESTORE, with this published port.
fn restored_with_port(pod: &Attached, port: u16) -> Value {
    json!({
        "containerID": pod.id, "ifname": "eth0", "netns": pod.container.path(), "prevResult": pod.prev,
        "runtimeConfig": {"portMappings": [{"hostPort": port, "containerPort": SERVICE, "protocol": "udp"}]},
    })
}

/// A container whose recorded address is the host's own by now, among other containers of one RESTORE.
#[test]
fn a_restore_of_many_makes_no_port_lead_to_an_address_of_the_hosts_own() {
    for backend in ["iptables", "nftables"] {
        let node = Node::new();
        let right = node.pod("c-right");
        let mut wrong = node.pod("c-wrong");
        let portmap = leading_to_service(backend);
        let before = rules_and_settings(&node.host);
        for address in ["127.0.0.1/8", "10.66.0.1/24", "169.254.169.254/32", "fd66::1/64"] {
            wrong.prev["ips"] = json!([{"address": address, "interface": 2}]);
            let list = json!([restored_with_port(&right, 8081), restored_with_port(&wrong, 8080)]);
            let output = portmap.call(&node.host, "RESTORE", "", "", &[("cni.dev/attachments", list)]).ok();
            let outcomes = output["cni.dev/attachments"].as_array().unwrap();
            assert_eq!(outcomes[0].get("error"), None, "{backend} {address}: {output}");
            let text = outcomes[1].to_string();
            assert!(text.contains("no port can lead to the address"), "{backend} {address}: {text}");
            let rules = rules_and_settings(&node.host);
            assert!(rules.contains("8081") && !rules.contains("8080"), "{backend} {address}: {rules}");
            node.call(&portmap, "DEL", &right).ok();
            node.call(&portmap, "DEL", &wrong).ok();
        }
        assert!(!rules_and_settings(&node.host).contains("808"), "{backend}: {before}");
    }
}

/// portmap that maps port 8080 of the host to the port number of [`Node::service`].
fn leading_to_service(backend: &str) -> Subject {
    let mapping = json!([{"hostPort": 8080, "containerPort": SERVICE, "protocol": "udp"}]);
    portmap(backend).with("runtimeConfig", json!({"portMappings": mapping}))
}

fn rules_and_settings(host: &Host) -> String {
    host.sh("nft list ruleset; sysctl -a 2>/dev/null | grep route_localnet")
}

/// IPv6 has no such setting: the kernel drops a packet to `::1` that enters by another link before netfilter.
#[test]
fn a_container_does_not_reach_the_hosts_loopback_by_ipv6() {
    let node = Node::new();
    let pod = node.pod("c-one");
    let portmap = portmap("nftables");
    node.call(&portmap, "ADD", &pod).ok();
    let service = node.host.enter(|| UdpSocket::bind(("::", SERVICE + 1)).unwrap());
    service.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let address = |shown: &str| shown.split_whitespace().skip_while(|word| *word != "link/ether").nth(1).map(mac);
    let to = address(&node.host.sh(&format!("ip -o link show {LINK}"))).unwrap();
    let from = address(&pod.container.sh("ip -o link show eth0")).unwrap();
    let frame =
        |destination: &str| ethernet(to, from, &[], IPV6, &udp6("fd66::2", destination, SERVICE + 1, b"attack"));
    let arrives = || {
        let mut buffer = [0; 16];
        service.recv_from(&mut buffer).is_ok_and(|(size, _)| &buffer[..size] == b"attack")
    };
    send(&pod.container, "eth0", &[frame("fd66::1")]);
    assert!(arrives(), "the same frame to an address of the bridge arrives");
    // Where the kernel has br_netfilter, it shows frames to netfilter as they cross the bridge, before IPv6 has a look at them.
    node.host.try_sh("sysctl -qw net.bridge.bridge-nf-call-ip6tables=0");
    let seen = "nft add table ip6 t; nft 'add chain ip6 t c { type filter hook prerouting priority raw; }'; \
                nft add rule ip6 t c ip6 daddr ::1 counter";
    node.host.sh(seen);
    send(&pod.container, "eth0", &[frame("::1")]);
    assert!(!arrives());
    assert!(node.host.sh("nft list chain ip6 t c").contains("packets 0 "), "it came as far as netfilter");
}

/// A UDP datagram over IPv6.
fn udp6(from: &str, to: &str, port: u16, data: &[u8]) -> Vec<u8> {
    let [from, to] = [from, to].map(|address| address.parse::<std::net::Ipv6Addr>().unwrap().octets());
    let size = u16::try_from(data.len() + 8).unwrap().to_be_bytes();
    let mut datagram = [&[0, 7], &port.to_be_bytes()[..], &size, &[0, 0], data].concat();
    let pseudo = [&from[..], &to, &[0, 0], &size, &[0, 0, 0, 17], &datagram].concat();
    let mut sum: u32 =
        pseudo.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    datagram[6..8].copy_from_slice(&(!u16::try_from(sum).unwrap()).to_be_bytes());
    [&[0x60, 0, 0, 0], &size[..], &[17, 64], &from, &to, &datagram].concat()
}

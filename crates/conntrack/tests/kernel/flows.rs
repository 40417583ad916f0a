//! Flows that the kernel tracks, and the deletion of some of them.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use cnikit_conntrack::{Conntrack, Flows, testing};
use cnikit_netlink::{Family, Netlink, Socket};
use cnikit_process::Deadline;
use cnikit_testkit::own_process::{in_own_process, processor_time};

use crate::host::Host;
use crate::net::Net;

const UDP: u8 = 17;
const SCTP: u8 = 132;
/// The timeout for a packet that has to arrive. Duplicate address detection of IPv6 takes a second or two.
const LONG: Duration = Duration::from_secs(10);
/// The timeout for a packet that must not arrive.
const SHORT: Duration = Duration::from_millis(200);

fn socket(host: &Host, address: &str) -> UdpSocket {
    host.netns.enter(|_| UdpSocket::bind(address)).unwrap().unwrap()
}

/// Whether this server receives the packet of the client. The server answers, so that the flow has packets in both directions.
fn comes(client: &UdpSocket, server: &UdpSocket, patience: Duration) -> bool {
    let word = format!("{:?}", Instant::now());
    // If a port has no server, the next operation of a connected socket fails.
    while let Err(error) = client.send(word.as_bytes()) {
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    }
    let Some((got, from)) = next(server, patience) else { return false };
    assert_eq!(got, word);
    server.send_to(b"yes", from).unwrap();
    next(client, LONG).unwrap();
    true
}

/// The next packet that a socket receives, and its source.
fn next(socket: &UdpSocket, patience: Duration) -> Option<(String, SocketAddr)> {
    let (deadline, mut bytes) = (Deadline::after(patience), [0; 100]);
    loop {
        let left = deadline.remaining().filter(|left| !left.is_zero())?;
        socket.set_read_timeout(Some(left)).unwrap();
        match socket.recv_from(&mut bytes) {
            Ok((length, from)) => return Some((String::from_utf8_lossy(&bytes[..length]).into_owned(), from)),
            Err(error) => assert!([ErrorKind::WouldBlock, ErrorKind::Interrupted].contains(&error.kind()), "{error}"),
        }
    }
}

fn reaches(client: &UdpSocket, server: &UdpSocket) -> bool {
    comes(client, server, LONG)
}

fn misses(client: &UdpSocket, server: &UdpSocket) -> bool {
    !comes(client, server, SHORT)
}

/// Replaces the rule of the port; `None` removes it. The chain stays, because without any nat chain flows lose their translation.
fn publish(host: &Host, ipv6: bool, to: Option<&str>) {
    let family = if ipv6 { "ip6" } else { "ip" };
    let rule = to.map(|to| format!("fib daddr type local udp dport 5353 dnat to {to}")).unwrap_or_default();
    host.nft(&format!(
        "table {family} ports {{ chain c {{ type nat hook prerouting priority -100; }}; }}
        flush chain {family} ports c
        table {family} ports {{ chain c {{ {rule}; }}; }}"
    ));
}

fn udp(address: Option<&str>, target: &str) -> Flows {
    Flows {
        protocol: UDP,
        port: 5353,
        address: address.map(|address| address.parse().unwrap()),
        target: target.parse().unwrap(),
    }
}

fn the_next_container_is_reached(host: &str, [first, second]: [&str; 2]) {
    let (net, ipv6) = (Net::new(), host.starts_with('['));
    let (address, any) = if ipv6 { ("fd00::3/64", "[::]:0") } else { ("10.0.0.3/24", "0.0.0.0:0") };
    let nodad: &[&str] = if ipv6 { &["nodad"] } else { &[] };
    net.container.stdout_of("ip", &[&["address", "add", address, "dev", "eth0"], nodad].concat());
    let (one, two) = (socket(&net.container, first), socket(&net.container, second));
    let client = socket(&net.outside, any);
    client.connect(host).unwrap();
    let netlink = Netlink::inside(&net.host.netns).unwrap();
    let mut conntrack = Conntrack::inside(&net.host.netns).unwrap();

    // The kernel tracks flows only if a rule needs it.
    net.host.nft("table inet any { chain c { type filter hook prerouting priority 0; ct state new accept; }; }");
    publish(&net.host, ipv6, None);
    assert!(misses(&client, &one), "no container has published the port yet");
    publish(&net.host, ipv6, Some(first));
    assert!(misses(&client, &one), "the flow is remembered as one to the host itself");
    assert_eq!(conntrack.forget_stale(&[udp(None, first)], &netlink).unwrap(), 1);
    assert!(reaches(&client, &one));
    assert_eq!(conntrack.forget_stale(&[udp(None, first)], &netlink).unwrap(), 0, "it is led there already");

    publish(&net.host, ipv6, Some(second));
    assert!(reaches(&client, &one) && misses(&client, &two), "the flow is remembered as one to the first container");
    // The packet that the first server received instead.
    next(&one, LONG).unwrap();
    assert_eq!(conntrack.forget_led(&[udp(None, second)]).unwrap(), 0);
    assert_eq!(conntrack.forget_stale(&[udp(None, second)], &netlink).unwrap(), 1);
    assert!(reaches(&client, &two));

    publish(&net.host, ipv6, None);
    assert!(reaches(&client, &two), "the flow is remembered as one to the second container");
    assert_eq!(conntrack.forget_led(&[udp(None, first)]).unwrap(), 0);
    assert_eq!(conntrack.forget_led(&[udp(None, second)]).unwrap(), 1);
    assert!(misses(&client, &two));
}

#[test]
fn a_client_that_keeps_sending_reaches_the_next_container() {
    the_next_container_is_reached("192.0.2.1:5353", ["10.0.0.2:53", "10.0.0.3:53"]);
}

#[test]
fn a_client_that_keeps_sending_over_ipv6_reaches_the_next_container() {
    the_next_container_is_reached("[2001:db8::1]:5353", ["[fd00::2]:53", "[fd00::3]:53"]);
}

/// A flow that a test creates: its protocol, source, destination, and the source of the answers.
#[derive(Clone, Copy, Debug)]
struct Made(u8, &'static str, &'static str, &'static str);

/// An encoded attribute with its padding.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).unwrap();
    let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn nested(kind: u16, values: &[Vec<u8>]) -> Vec<u8> {
    attribute(kind | 1 << 15, &values.concat())
}

fn tuple(kind: u16, protocol: u8, from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let address = |kind, end: SocketAddr| match end.ip() {
        IpAddr::V4(ipv4) => attribute(kind, &ipv4.octets()),
        IpAddr::V6(ipv6) => attribute(kind + 2, &ipv6.octets()),
    };
    let ports = [attribute(2, &from.port().to_be_bytes()), attribute(3, &to.port().to_be_bytes())].concat();
    nested(kind, &[nested(1, &[address(1, from), address(2, to)]), nested(2, &[attribute(1, &[protocol]), ports])])
}

/// The message that creates a flow with a timeout of one hour.
fn new_flow(protocol: u8, from: SocketAddr, to: SocketAddr, answers: SocketAddr, zone: u16, sequence: u32) -> Vec<u8> {
    let parts = [
        tuple(1, protocol, from, to),
        tuple(2, protocol, answers, from),
        attribute(7, &3600_u32.to_be_bytes()),
        attribute(18, &zone.to_be_bytes()),
    ];
    let body = [&[if to.is_ipv4() { 2 } else { 10 }, 0, 0, 0][..], &parts.concat()].concat();
    let length = u32::try_from(16 + body.len()).unwrap();
    // IPCTNL_MSG_CT_NEW, with NLM_F_EXCL, NLM_F_CREATE and NLM_F_ACK.
    let header = [&length.to_ne_bytes()[..], &0x100_u16.to_ne_bytes(), &0x605_u16.to_ne_bytes()].concat();
    [&header[..], &sequence.to_ne_bytes(), &[0; 4], &body].concat()
}

/// Creates these flows in the kernel.
fn make(host: &Host, flows: impl Iterator<Item = (u8, SocketAddr, SocketAddr, SocketAddr, u16)>) {
    let mut socket = Socket::inside(&host.netns, 12).unwrap();
    let flows: Vec<_> = flows.collect();
    for some in flows.chunks(100) {
        let sequences: Vec<u32> = some.iter().map(|_| socket.next_sequence()).collect();
        let message = |((protocol, from, to, answers, zone), sequence): (&(u8, _, _, _, u16), &u32)| {
            new_flow(*protocol, *from, *to, *answers, *zone, *sequence)
        };
        let datagram: Vec<u8> = some.iter().zip(&sequences).flat_map(message).collect();
        assert_eq!(socket.exchange(&datagram, &sequences).unwrap().errors, []);
    }
}

fn end(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn hand_made(host: &Host, flows: &[Made]) {
    make(host, flows.iter().map(|Made(protocol, from, to, answers)| (*protocol, end(from), end(to), end(answers), 0)));
}

/// The tracked flows: protocol, destination, and the source of the answers.
fn tracked(host: &Host) -> BTreeSet<(u8, SocketAddr, SocketAddr)> {
    let mut socket = Socket::inside(&host.netns, 12).unwrap();
    let header = [&20_u32.to_ne_bytes()[..], &0x101_u16.to_ne_bytes(), &0x301_u16.to_ne_bytes(), &[0; 12]].concat();
    socket.dump(&header).unwrap().iter().filter_map(|message| testing::flow(message)).collect()
}

const TARGET: &str = "10.0.0.2:80";
/// The flows that the current rules, for any address of the host, would send to the container.
const STALE: [Made; 4] = [
    Made(UDP, "192.0.2.9:4000", "192.0.2.1:5353", "192.0.2.1:5353"),
    Made(UDP, "192.0.2.9:4001", "192.0.2.1:5353", "10.0.0.7:80"),
    Made(UDP, "192.0.2.9:4002", "10.0.0.1:5353", "10.0.0.2:81"),
    Made(UDP, "127.0.0.1:4000", "127.0.0.5:5353", "127.0.0.5:5353"),
];
/// The flow that leads to the container.
const LED: Made = Made(UDP, "192.0.2.9:4003", "192.0.2.1:5353", TARGET);
/// Flows that must not be deleted.
const OTHERS: [Made; 9] = [
    // Forwarded through, from outside and out of a container.
    Made(UDP, "192.0.2.9:4000", "198.51.100.1:5353", "198.51.100.1:5353"),
    Made(UDP, "10.0.0.9:4000", "198.51.100.1:5353", "198.51.100.1:5353"),
    // From the port, not to it, and to the container's own port.
    Made(UDP, "192.0.2.9:5353", "192.0.2.1:4000", "192.0.2.1:4000"),
    Made(UDP, "10.0.0.1:4000", "10.0.0.2:80", "10.0.0.2:80"),
    // Of other ports that lead to the same container.
    Made(UDP, "192.0.2.9:4000", "192.0.2.1:5354", TARGET),
    // Of another protocol and another family.
    Made(SCTP, "192.0.2.9:4000", "192.0.2.1:5353", TARGET),
    Made(6, "192.0.2.9:4000", "192.0.2.1:5353", "192.0.2.1:5353"),
    Made(UDP, "[2001:db8::9]:4000", "[2001:db8::1]:5353", "[2001:db8::1]:5353"),
    Made(UDP, "[2001:db8::9]:4001", "[2001:db8::1]:5353", "[fd00::2]:80"),
];

fn seen(flows: &[Made]) -> BTreeSet<(u8, SocketAddr, SocketAddr)> {
    flows.iter().map(|Made(protocol, _, to, answers)| (*protocol, end(to), end(answers))).collect()
}

fn crossroads() -> (Host, Netlink, Conntrack) {
    let host = Host::new();
    host.stdout_of("ip", &["link", "set", "lo", "up"]);
    for address in ["192.0.2.1/24", "10.0.0.1/24", "2001:db8::1/64"] {
        host.stdout_of("ip", &["address", "add", address, "dev", "lo"]);
    }
    hand_made(&host, &[&STALE[..], &[LED], &OTHERS].concat());
    let (netlink, conntrack) = (Netlink::inside(&host.netns).unwrap(), Conntrack::inside(&host.netns).unwrap());
    // The kernel accepts an IPv6 address as its own only a moment after it was added.
    let (deadline, taken) = (Deadline::after(LONG), "2001:db8::1/128".parse().unwrap());
    while !netlink.own_networks(Family::V6).unwrap().contains(&taken) {
        assert!(deadline.pause(Duration::from_millis(1)), "{taken} does not become the host's own");
    }
    (host, netlink, conntrack)
}

#[test]
fn only_flows_to_the_host_itself_that_lead_elsewhere_are_stale() {
    let (host, netlink, mut conntrack) = crossroads();
    assert_eq!(conntrack.forget_stale(&[udp(None, TARGET)], &netlink).unwrap(), 4);
    assert_eq!(tracked(&host), seen(&[&[LED][..], &OTHERS].concat()));
}

#[test]
fn for_a_port_on_one_address_only_flows_to_it_are_stale() {
    let (host, netlink, mut conntrack) = crossroads();
    assert_eq!(conntrack.forget_stale(&[udp(Some("10.0.0.1"), TARGET)], &netlink).unwrap(), 1);
    let left = [&STALE[..2], &STALE[3..], &[LED], &OTHERS].concat();
    assert_eq!(tracked(&host), seen(&left));
    // Packets to an address that is not the host's are forwarded, so their flows are not ours.
    assert_eq!(conntrack.forget_stale(&[udp(Some("198.51.100.1"), TARGET)], &netlink).unwrap(), 0);
    assert_eq!(tracked(&host), seen(&left));
}

#[test]
fn only_flows_that_lead_to_the_container_are_forgotten_with_it() {
    let (host, _, mut conntrack) = crossroads();
    assert_eq!(conntrack.forget_led(&[udp(Some("10.0.0.1"), TARGET)]).unwrap(), 0);
    assert_eq!(conntrack.forget_led(&[udp(Some("192.0.2.1"), TARGET)]).unwrap(), 1);
    assert_eq!(tracked(&host), seen(&[&STALE[..], &OTHERS].concat()));
    assert_eq!(conntrack.forget_led(&[udp(None, TARGET)]).unwrap(), 0);
}

#[test]
fn sctp_and_ipv6_are_forgotten_as_well() {
    let (host, netlink, mut conntrack) = crossroads();
    let ipv6 = udp(None, "[fd00::2]:80");
    let sctp = Flows { protocol: SCTP, ..udp(None, TARGET) };
    assert_eq!(conntrack.forget_stale(&[ipv6, sctp], &netlink).unwrap(), 1);
    assert_eq!(conntrack.forget_led(&[ipv6, sctp]).unwrap(), 2);
    assert_eq!(tracked(&host), seen(&[&STALE[..], &[LED], &OTHERS[..5], &OTHERS[6..7]].concat()));
}

#[test]
fn a_thousand_ports_are_as_exact_as_one() {
    let (host, netlink, mut conntrack) = crossroads();
    let port = |port| Flows { port, ..udp(None, TARGET) };
    let ports: Vec<Flows> = (5000..6000).filter(|number| *number != 5354).map(port).collect();
    assert_eq!(conntrack.forget_stale(&ports, &netlink).unwrap(), 4);
    assert_eq!(tracked(&host), seen(&[&[LED][..], &OTHERS].concat()));
    assert_eq!(conntrack.forget_led(&ports).unwrap(), 1);
    assert_eq!(tracked(&host), seen(&OTHERS));
}

#[test]
fn a_flow_in_another_zone_is_found_there() {
    let (host, netlink, mut conntrack) = crossroads();
    let Made(protocol, from, to, answers) = STALE[0];
    make(&host, [(protocol, end(from), end(to), end(answers), 7)].into_iter());
    assert_eq!(conntrack.forget_stale(&[udp(None, TARGET)], &netlink).unwrap(), 5);
    assert_eq!(tracked(&host), seen(&[&[LED][..], &OTHERS].concat()));
}

#[test]
fn without_tracked_flows_none_is_deleted() {
    let host = Host::new();
    let (netlink, mut conntrack) = (Netlink::inside(&host.netns).unwrap(), Conntrack::inside(&host.netns).unwrap());
    assert_eq!(conntrack.forget_stale(&[udp(None, TARGET), udp(None, "[fd00::2]:80")], &netlink).unwrap(), 0);
    assert_eq!(conntrack.forget_stale(&[], &netlink).unwrap(), 0);
}

/// Flows that are not ours: from this many addresses to one port of other machines.
fn crowd(count: u32) -> impl Iterator<Item = (u8, SocketAddr, SocketAddr, SocketAddr, u16)> {
    (0..count).map(|number| {
        let to = SocketAddr::from(([198, 51, 100, 1], 5353));
        (UDP, SocketAddr::new(IpAddr::from((0x0a10_0000 + number).to_be_bytes()), 4000), to, to, 0)
    })
}

/// As many flows as a node may have, one in ten of them ours: all of ours are deleted within the time that a call has. The test
/// runs in a process of its own, because the memory is measured for a whole process.
#[test]
fn a_hundred_thousand_flows_are_walked_and_ten_thousand_forgotten() {
    let name = "flows::a_hundred_thousand_flows_are_walked_and_ten_thousand_forgotten";
    in_own_process(name, a_hundred_thousand);
}

fn a_hundred_thousand() {
    let (host, netlink, mut conntrack) = crossroads();
    make(&host, crowd(90_000));
    let stale = (0..10_000_u32).map(|number| {
        let to = SocketAddr::from(([192, 0, 2, 1], 5353));
        (UDP, SocketAddr::new(IpAddr::from((0x0b00_0000 + number).to_be_bytes()), 4000), to, to, 0)
    });
    make(&host, stale);
    let other = |port| Flows { port, ..udp(None, TARGET) };
    let others = |count: u16| (20_000..20_000 + count).map(other).collect::<Vec<_>>();
    let scenes = [
        ("another port", others(1), 0),
        ("7 other ports", others(7), 0),
        ("1,000 other ports", others(1000), 0),
        ("10,000 of 100,000", vec![udp(None, TARGET)], 10_004),
        ("90,000 that stay", vec![udp(None, TARGET)], 0),
    ];
    for (what, flows, expected) in scenes {
        let (began, before) = (processor_time(), memory());
        assert_eq!(conntrack.forget_stale(&flows, &netlink).unwrap(), expected, "{what}");
        let (took, after) = (processor_time().saturating_sub(began), memory());
        assert!(took < LONG && after < before + (4 << 10), "{what}: {took:?}, memory {before} to {after} KiB");
    }
    let to = end("198.51.100.1:5353");
    assert!(tracked(&host).contains(&(UDP, to, to)));
}

/// The peak memory of this process, in KiB.
fn memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

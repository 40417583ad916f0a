//! Commands as an unprivileged party runs them, and raw frames as a container sends them.

use std::fmt::Write as _;
use std::os::fd::{AsRawFd, OwnedFd};

use cnikit_netns::Netns;
use cnikit_testkit::Container;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, socket};

/// Another user of the node: uid 65534, no capability.
pub(crate) fn as_another_user(line: &str) -> String {
    dropped(&["--reuid=65534", "--regid=65534", "--clear-groups"], line)
}

/// A container with `CAP_NET_RAW` only, as many runtimes start them.
pub(crate) fn with_net_raw(line: &str) -> String {
    dropped(&["--bounding-set=-all,+net_raw", "--inh-caps=-all"], line)
}

/// A container with `CAP_NET_ADMIN` and `CAP_NET_RAW`.
pub(crate) fn with_net_admin(line: &str) -> String {
    dropped(&["--bounding-set=-all,+net_raw,+net_admin", "--inh-caps=-all"], line)
}

fn dropped(options: &[&str], line: &str) -> String {
    format!("setpriv {} sh -c '{}'", options.join(" "), line.replace('\'', r"'\''"))
}

/// Sends frames as they are by a link of a container, in a process that has `CAP_NET_RAW` only.
pub(crate) fn send(from: &Container, link: &str, frames: &[Vec<u8>]) {
    let frames: Vec<String> = frames.iter().map(|frame| hex(frame)).collect();
    let script = "import socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind((sys.argv[1], 0))
for frame in sys.argv[2:]: s.send(bytes.fromhex(frame))";
    from.sh(&with_net_raw(&format!("python3 -c \"{script}\" {link} {}", frames.join(" "))));
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        write!(text, "{byte:02x}").unwrap();
    }
    text
}

/// All frames that any link of a namespace sends or receives, from its making on.
pub(crate) struct Ear(OwnedFd);

impl Ear {
    pub(crate) fn of(netns: &Netns) -> Ear {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let open = || socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll).unwrap();
        Ear(netns.enter(|_| open()).unwrap())
    }

    /// The number of frames since the last call that contain these bytes. A VLAN tag may be missing, because the kernel strips it.
    pub(crate) fn heard(&self, bytes: &[u8]) -> usize {
        let mut frame = [0; 2048];
        let mut count = 0;
        while let Ok(size) = recv(self.0.as_raw_fd(), &mut frame, MsgFlags::empty()) {
            count += usize::from(frame[..size].windows(bytes.len()).any(|window| window == bytes));
        }
        count
    }
}

/// Six bytes of `02:00:00:00:00:01`.
pub(crate) fn mac(text: &str) -> [u8; 6] {
    let bytes: Vec<u8> = text.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    bytes.try_into().unwrap()
}

pub(crate) const BROADCAST: [u8; 6] = [0xff; 6];
pub(crate) const IPV4: u16 = 0x0800;
pub(crate) const ARP: u16 = 0x0806;
pub(crate) const IPV6: u16 = 0x86dd;
/// Of a tag of 802.1Q, and of the outer one of 802.1ad.
pub(crate) const DOT1Q: u16 = 0x8100;
pub(crate) const DOT1AD: u16 = 0x88a8;

/// A frame, with these tags (protocol and VLAN), the outermost first.
pub(crate) fn ethernet(to: [u8; 6], from: [u8; 6], tags: &[(u16, u16)], ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = [to, from].concat();
    for (protocol, vid) in tags {
        frame.extend(protocol.to_be_bytes());
        frame.extend(vid.to_be_bytes());
    }
    frame.extend(ethertype.to_be_bytes());
    frame.extend(payload);
    frame.resize(frame.len().max(60), 0);
    frame
}

/// An ARP packet: operation 1 is a request, 2 a reply.
pub(crate) fn arp(operation: u8, sender: ([u8; 6], &str), target: ([u8; 6], &str)) -> Vec<u8> {
    let mut packet = vec![0, 1, 8, 0, 6, 4, 0, operation];
    for (mac, address) in [sender, target] {
        packet.extend(mac);
        packet.extend(address.parse::<std::net::Ipv4Addr>().unwrap().octets());
    }
    packet
}

/// A UDP datagram over IPv4, without a UDP checksum.
pub(crate) fn udp4(from: (&str, u16), to: (&str, u16), data: &[u8]) -> Vec<u8> {
    let size = |more: usize| u16::try_from(data.len() + more).unwrap().to_be_bytes();
    let mut packet = vec![0x45, 0];
    packet.extend(size(28));
    packet.extend([0, 0, 0, 0, 64, 17, 0, 0]);
    for (address, _) in [from, to] {
        packet.extend(address.parse::<std::net::Ipv4Addr>().unwrap().octets());
    }
    let sum = checksum(&packet);
    packet[10..12].copy_from_slice(&sum);
    packet.extend([from.1, to.1].map(u16::to_be_bytes).concat());
    packet.extend(size(8));
    packet.extend([0, 0]);
    packet.extend(data);
    packet
}

/// An `ICMPv6` message (type, code 0, body) with both checksums right and hop limit 255.
pub(crate) fn icmpv6(from: &str, to: &str, kind: u8, body: &[u8]) -> Vec<u8> {
    let [from, to] = [from, to].map(|address| address.parse::<std::net::Ipv6Addr>().unwrap().octets());
    let mut message = [&[kind, 0, 0, 0], body].concat();
    let size = u16::try_from(message.len()).unwrap().to_be_bytes();
    let pseudo = [&from[..], &to, &[0, 0], &size, &[0, 0, 0, 58], &message].concat();
    message[2..4].copy_from_slice(&checksum(&pseudo));
    [&[0x60, 0, 0, 0], &size[..], &[58, 255], &from, &to, &message].concat()
}

/// RFC 1071.
pub(crate) fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!u16::try_from(sum).unwrap()).to_be_bytes()
}

#[test]
fn privileges_are_dropped() {
    let host = cnikit_testkit::Host::new();
    let status = |line: String| host.sh(&line);
    assert!(
        status(as_another_user("id -u; grep CapEff /proc/self/status")).starts_with("65534\nCapEff:\t0000000000000000")
    );
    assert!(status(with_net_raw("grep CapEff /proc/self/status")).contains("0000000000002000"));
    assert!(status(with_net_admin("grep CapEff /proc/self/status")).contains("0000000000003000"));
}

/// Two namespaces with a veth pair between them: raw frames arrive, and packets with correct checksums are answered.
#[test]
fn raw_frames_are_sent_unchanged_and_received() {
    let host = cnikit_testkit::Host::new();
    let [one, two] = [host.container(), host.container()];
    host.sh(&format!("ip link add name eth0 netns {} type veth peer name eth0 netns {}", one.path(), two.path()));
    two.sh("ip link set eth0 address 02:00:00:00:00:02; ip address add 10.5.0.2/24 dev eth0; ip link set eth0 up");
    two.sh("ip -6 address add fd05::2/64 dev eth0 nodad");
    one.sh("ip link set eth0 address 02:00:00:00:00:01; ip link set eth0 up");
    one.sh("ip address add 10.5.0.1/24 dev eth0; ip -6 address add fd05::1/64 dev eth0 nodad");
    let [here, there] = [mac("02:00:00:00:00:01"), mac("02:00:00:00:00:02")];
    let ear = Ear::of(two.netns());
    let own = Ear::of(one.netns());
    let target = ([0; 6], "10.5.0.2");
    send(
        &one,
        "eth0",
        &[
            ethernet(BROADCAST, here, &[], ARP, &arp(1, (here, "10.5.0.1"), target)),
            ethernet(there, here, &[], IPV4, &udp4(("10.5.0.1", 7), ("10.5.0.2", 7), b"plain")),
            ethernet(there, here, &[(DOT1AD, 5), (DOT1Q, 6)], IPV4, b"tagged"),
            ethernet(there, here, &[], IPV6, &icmpv6("fd05::1", "fd05::2", 128, b"echo")),
        ],
    );
    one.sh("ping -n -q -c 1 -W 5 10.5.0.2");
    for bytes in [b"plain".as_slice(), b"tagged", b"echo"] {
        assert_eq!(Ear::of(two.netns()).heard(bytes), 0, "nothing from before");
    }
    let own_heard = own.heard(b"echo");
    assert!(own_heard >= 2, "the echo request and its answer: {own_heard}");
    assert!(ear.heard(b"tagged") >= 1);
    assert!(
        two.sh("nstat -asz UdpNoPorts UdpInCsumErrors IpInHdrErrors")
            .lines()
            .any(|line| line.starts_with("UdpNoPorts"))
    );
    assert!(two.sh("nstat -asz UdpNoPorts | tail -n 1").split_whitespace().nth(1).is_some_and(|count| count != "0"));
}

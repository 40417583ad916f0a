//! A rule as a value.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use cnikit_netlink::Mac;
use ipnetwork::IpNetwork;

/// A rule: a packet that meets all matches gets the verdict.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// The matches, all of which a packet must meet. Without matches every packet gets the verdict.
    pub matches: Vec<Match>,
    /// What happens to such a packet.
    pub verdict: Verdict,
    /// At most 128 bytes, without quotation marks and control characters.
    #[doc(alias = "NFTNL_UDATA_RULE_COMMENT")]
    pub comment: Option<String>,
}

/// A condition on a packet. In a table of several families, a match of an address includes the check of its family.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Match {
    /// The packet enters or leaves by the interface of this name, or by any other. The interface need not exist.
    Interface {
        /// Which of the packet's interfaces.
        way: Direction,
        /// False: any other interface.
        is: bool,
        /// At most 15 bytes.
        name: String,
    },
    /// The frame has this source address. In a table of family bridge only.
    #[doc(alias = "ether saddr")]
    SourceMac(Mac),
    /// The packet has this source address.
    #[doc(alias = "saddr")]
    Source(IpAddr),
    /// The source address is in this network. The host part of the network's address is ignored.
    SourceIn(IpNetwork),
    /// The source address is not in this network, but of the same family.
    SourceNotIn(IpNetwork),
    /// The destination address is in this network. The host part of the network's address is ignored.
    #[doc(alias = "daddr")]
    DestinationIn(IpNetwork),
    /// The destination address is not in this network, but of the same family.
    DestinationNotIn(IpNetwork),
    /// The packet has this transport protocol.
    #[doc(alias = "l4proto")]
    Protocol(L4Protocol),
    /// The packet has the transport protocol of this number, or any other. A packet whose extension headers cannot be followed to
    /// the transport protocol meets neither.
    #[doc(alias = "l4proto")]
    Transport {
        /// False: any other protocol.
        is: bool,
        /// The protocol number of the IP header. For a number of [`L4Protocol`], `is` must be false.
        number: u8,
    },
    /// The frame is an ARP packet. In a table of family bridge only.
    Arp,
    /// A header of the packet has these bytes at an offset.
    Bytes {
        /// The header that the offset is counted from.
        layer: Layer,
        /// The offset of the first byte, in bytes. Addresses and ports have matches of their own, and their offsets are refused,
        /// except after [`Match::Arp`].
        offset: u32,
        /// 1 to 16 bytes.
        bytes: Vec<u8>,
    },
    /// The packet has this transport protocol, and this port or any other.
    Port {
        /// The protocol.
        protocol: L4Protocol,
        /// The source port or the destination port.
        side: Side,
        /// False: any other port.
        is: bool,
        /// The port.
        port: u16,
    },
    /// The destination is an address of the host.
    #[doc(alias = "fib daddr type local")]
    LocalDestination,
    /// The packet belongs to an established connection, or is related to one.
    #[doc(alias = "ct state established,related")]
    Established,
    /// The packet belongs to a connection whose destination was translated.
    #[doc(alias = "ct status dnat")]
    CtStatusDnat,
    /// The packet belongs to a connection whose first packet had this destination port, before any translation. A match of the
    /// protocol must precede it.
    #[doc(alias = "ct original proto-dst")]
    OriginalDport(u16),
    /// The mark of the packet, under a mask, has this value or any other.
    #[doc(alias = "meta mark")]
    Mark {
        /// The bits that are compared.
        mask: u32,
        /// False: any other value.
        is: bool,
        /// The value of these bits.
        value: u32,
    },
    /// A named set of the table has the concatenation of these fields as a key, or lacks it.
    InSet {
        /// In the order of the set's key.
        fields: Vec<Field>,
        /// False: the set lacks the key.
        is: bool,
        /// The name of the set.
        set: String,
    },
}

/// A header of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layer {
    /// The header of IP or ARP.
    Network,
    /// The header of the transport protocol. Only the first fragment of a packet has it.
    Transport,
}

/// One of the interfaces of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// The interface by which the packet enters. On a bridge this is the port.
    #[doc(alias = "iifname")]
    In,
    /// The interface by which the packet leaves.
    #[doc(alias = "oifname")]
    Out,
    /// The bridge of the port by which the packet enters. In a table of family bridge only.
    #[doc(alias = "ibrname")]
    InBridge,
    /// The bridge of the port by which the packet leaves. In a table of family bridge only.
    #[doc(alias = "obrname")]
    OutBridge,
}

/// The source or the destination of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The source.
    Source,
    /// The destination.
    Destination,
}

/// A transport protocol that has ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum L4Protocol {
    /// RFC 9293.
    Tcp,
    /// RFC 768.
    Udp,
    /// RFC 9260.
    Sctp,
}

/// What happens to a packet that meets the matches of a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Verdict {
    /// The source address is replaced by that of the interface by which the packet leaves.
    #[doc(alias = "masq")]
    Masquerade,
    /// The destination is replaced. In a table of family inet nft(8) shows the family of the address too.
    #[doc(alias = "dnat")]
    Dnat(SocketAddr),
    /// The packet returns to the chain that jumped to this one; in a base chain, its policy is applied.
    Return,
    /// The packet enters another chain, and returns to this one at its end.
    Jump(String),
    /// The packet enters another chain, and does not return to this one.
    Goto(String),
    /// The packet is accepted by this base chain.
    Accept,
    /// The packet is dropped.
    Drop,
}

/// A field of a packet that is looked up in a set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Field {
    /// The transport protocol.
    Protocol,
    /// The source port or the destination port, of any protocol.
    Port(Side),
    /// An IPv4 address.
    Ipv4(Side),
    /// An IPv6 address.
    Ipv6(Side),
    /// The name of an interface.
    Interface(Direction),
    /// The mark.
    Mark,
}

/// The type of a part of a set's key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum KeyType {
    /// A transport protocol.
    #[doc(alias = "inet_proto")]
    Protocol,
    /// A port.
    #[doc(alias = "inet_service")]
    Port,
    /// An IPv4 address.
    #[doc(alias = "ipv4_addr")]
    Ipv4,
    /// An IPv6 address.
    #[doc(alias = "ipv6_addr")]
    Ipv6,
    /// The name of an interface.
    #[doc(alias = "ifname")]
    Interface,
    /// A mark, or any other number of 32 bits.
    Mark,
}

/// A part of the key of an element.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum KeyValue {
    /// A transport protocol.
    Protocol(L4Protocol),
    /// A port.
    Port(u16),
    /// An address.
    Address(IpAddr),
    /// The name of an interface.
    Interface(String),
    /// A mark.
    Mark(u32),
}

/// The family of a table: which packets its chains see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TableFamily {
    /// IPv4 and IPv6.
    Inet,
    /// IPv4.
    Ip,
    /// IPv6.
    Ip6,
    /// Ethernet frames that cross a bridge.
    Bridge,
}

impl Rule {
    /// The single addresses that the rule matches, and the target of its `dnat`. Networks are not included.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let matched = self.matches.iter().filter_map(Match::address);
        let target = if let Verdict::Dnat(target) = &self.verdict { Some(target.ip()) } else { None };
        matched.chain(target)
    }
}

impl Match {
    /// The packet enters by the interface of this name.
    #[doc(alias = "iifname")]
    pub fn from(name: impl Into<String>) -> Match {
        Match::Interface { way: Direction::In, is: true, name: name.into() }
    }

    /// The packet has this destination port.
    #[doc(alias = "dport")]
    pub fn to_port(protocol: L4Protocol, port: u16) -> Match {
        Match::Port { protocol, side: Side::Destination, is: true, port }
    }

    /// The packet has this destination address.
    pub fn to(address: IpAddr) -> Match {
        Match::DestinationIn(address.into())
    }

    /// The single address that it matches; `None` if it matches a network or something else.
    fn address(&self) -> Option<IpAddr> {
        match self {
            Match::Source(address) => Some(*address),
            Match::DestinationIn(to) if *to == IpNetwork::from(to.ip()) => Some(to.ip()),
            _ => None,
        }
    }
}

impl From<Direction> for Field {
    fn from(way: Direction) -> Field {
        Field::Interface(way)
    }
}

impl TableFamily {
    /// The kernel's number of the family.
    #[doc(alias = "NFPROTO_INET")]
    pub(crate) fn number(self) -> u8 {
        match self {
            TableFamily::Inet => 1,
            TableFamily::Ip => 2,
            TableFamily::Bridge => 7,
            TableFamily::Ip6 => 10,
        }
    }
}

impl L4Protocol {
    /// All protocols.
    pub const ALL: [L4Protocol; 3] = [L4Protocol::Tcp, L4Protocol::Udp, L4Protocol::Sctp];

    /// The protocol of this name, in upper or lower case.
    pub fn named(name: &str) -> Option<L4Protocol> {
        L4Protocol::ALL.into_iter().find(|one| one.to_string().eq_ignore_ascii_case(name))
    }

    /// The protocol of this number in the IP header.
    pub fn numbered(number: u8) -> Option<L4Protocol> {
        L4Protocol::ALL.into_iter().find(|one| one.number() == number)
    }

    /// The number in the IP header.
    #[doc(alias = "IPPROTO_TCP")]
    pub fn number(self) -> u8 {
        match self {
            L4Protocol::Tcp => 6,
            L4Protocol::Udp => 17,
            L4Protocol::Sctp => 132,
        }
    }
}

/// The name in nft(8) and iptables(8).
impl fmt::Display for L4Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            L4Protocol::Tcp => "tcp",
            L4Protocol::Udp => "udp",
            L4Protocol::Sctp => "sctp",
        })
    }
}

/// As nft(8) shows it.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.matches.iter().try_for_each(|one| write!(f, "{one} "))?;
        write!(f, "{}", self.verdict)?;
        match &self.comment {
            Some(comment) => write!(f, " comment \"{comment}\""),
            None => Ok(()),
        }
    }
}

/// As nft(8) shows it.
impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Match::Interface { way, is, name } => write!(f, "{} {}\"{name}\"", Field::from(*way), unless(*is)),
            Match::SourceMac(mac) => write!(f, "ether saddr {mac}"),
            Match::Source(address) => write!(f, "{} saddr {address}", family(address)),
            Match::SourceIn(network) => write!(f, "{} saddr {}", family(&network.ip()), Network(network)),
            Match::SourceNotIn(network) => write!(f, "{} saddr != {}", family(&network.ip()), Network(network)),
            Match::DestinationIn(network) => write!(f, "{} daddr {}", family(&network.ip()), Network(network)),
            Match::DestinationNotIn(network) => write!(f, "{} daddr != {}", family(&network.ip()), Network(network)),
            Match::Protocol(protocol) => write!(f, "meta l4proto {protocol}"),
            Match::Transport { is, number } => write!(f, "meta l4proto {}{number}", unless(*is)),
            Match::Arp => f.write_str("meta protocol arp"),
            Match::Bytes { layer, offset, bytes } => {
                let base = if *layer == Layer::Network { "nh" } else { "th" };
                write!(f, "@{base},{},{} 0x", offset * 8, bytes.len() * 8)?;
                bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
            Match::Port { protocol, side, is, port } => {
                write!(f, "{protocol} {} {}{port}", port_of(*side), unless(*is))
            }
            Match::LocalDestination => f.write_str("fib daddr type local"),
            Match::Established => f.write_str("ct state established,related"),
            Match::CtStatusDnat => f.write_str("ct status dnat"),
            Match::OriginalDport(port) => write!(f, "ct original proto-dst {port}"),
            Match::Mark { mask: u32::MAX, is, value } => write!(f, "meta mark {}0x{value:08x}", unless(*is)),
            Match::Mark { mask, is, value } => {
                let compared = if *is { "==" } else { "!=" };
                write!(f, "meta mark & 0x{mask:08x} {compared} 0x{value:08x}")
            }
            Match::InSet { fields, is, set } => write!(f, "{} {}@{set}", Concatenation(fields), unless(*is)),
        }
    }
}

fn unless(is: bool) -> &'static str {
    if is { "" } else { "!= " }
}

fn port_of(side: Side) -> &'static str {
    match side {
        Side::Source => "sport",
        Side::Destination => "dport",
    }
}

fn family(address: &IpAddr) -> &'static str {
    match address {
        IpAddr::V4(_) => "ip",
        IpAddr::V6(_) => "ip6",
    }
}

/// Shows a network as nft(8) does: without host part, and without the length if it is the whole address.
struct Network<'a>(&'a IpNetwork);

impl fmt::Display for Network<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.0.network();
        let length = self.0.prefix();
        match address {
            IpAddr::V4(address) if length == 32 => write!(f, "{address}"),
            IpAddr::V6(address) if length == 128 => write!(f, "{address}"),
            _ => write!(f, "{address}/{length}"),
        }
    }
}

/// As nft(8) shows it.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Masquerade => f.write_str("masquerade"),
            Verdict::Dnat(to) => write!(f, "dnat to {to}"),
            Verdict::Return => f.write_str("return"),
            Verdict::Jump(chain) => write!(f, "jump {chain}"),
            Verdict::Goto(chain) => write!(f, "goto {chain}"),
            Verdict::Accept => f.write_str("accept"),
            Verdict::Drop => f.write_str("drop"),
        }
    }
}

/// Shows the parts of a concatenation as nft(8) does.
pub(crate) struct Concatenation<'a, T>(pub(crate) &'a [T]);

impl<T: fmt::Display> fmt::Display for Concatenation<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, part) in self.0.iter().enumerate() {
            let separator = if position == 0 { "" } else { " . " };
            write!(f, "{separator}{part}")?;
        }
        Ok(())
    }
}

/// As nft(8) shows it.
impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Field::Protocol => "meta l4proto",
            Field::Port(Side::Source) => "th sport",
            Field::Port(Side::Destination) => "th dport",
            Field::Ipv4(Side::Source) => "ip saddr",
            Field::Ipv4(Side::Destination) => "ip daddr",
            Field::Ipv6(Side::Source) => "ip6 saddr",
            Field::Ipv6(Side::Destination) => "ip6 daddr",
            Field::Interface(Direction::In) => "iifname",
            Field::Interface(Direction::Out) => "oifname",
            Field::Interface(Direction::InBridge) => "meta ibrname",
            Field::Interface(Direction::OutBridge) => "meta obrname",
            Field::Mark => "meta mark",
        })
    }
}

/// As nft(8) shows it.
impl fmt::Display for KeyType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KeyType::Protocol => "inet_proto",
            KeyType::Port => "inet_service",
            KeyType::Ipv4 => "ipv4_addr",
            KeyType::Ipv6 => "ipv6_addr",
            KeyType::Interface => "ifname",
            KeyType::Mark => "mark",
        })
    }
}

/// As nft(8) shows it.
impl fmt::Display for KeyValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyValue::Protocol(protocol) => write!(f, "{protocol}"),
            KeyValue::Port(port) => write!(f, "{port}"),
            KeyValue::Address(address) => write!(f, "{address}"),
            KeyValue::Interface(name) => write!(f, "\"{name}\""),
            KeyValue::Mark(mark) => write!(f, "0x{mark:08x}"),
        }
    }
}

/// The name in nft(8).
impl fmt::Display for TableFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TableFamily::Inet => "inet",
            TableFamily::Ip => "ip",
            TableFamily::Ip6 => "ip6",
            TableFamily::Bridge => "bridge",
        })
    }
}

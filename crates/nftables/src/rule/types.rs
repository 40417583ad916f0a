//! A rule as a value.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use cnikit_netlink::Mac;
use ipnetwork::IpNetwork;

/// A rule: all `matches` must hold, then the verdict falls.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// What a packet must be like; none: every packet.
    pub matches: Vec<Match>,
    /// What happens to it.
    pub verdict: Verdict,
    /// By which the rule is found again: at most 128 bytes, no quotation mark, no control character.
    #[doc(alias = "NFTNL_UDATA_RULE_COMMENT")]
    pub comment: Option<String>,
}

/// One thing to look at in a packet. In a table of several families, a match brings the check of its family with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Match {
    /// It comes or leaves by the interface of this name, which need not be there yet, or by any other.
    Interface {
        /// Which one of those that it passes.
        way: Direction,
        /// It is this one; false: any other.
        is: bool,
        /// At most 15 bytes.
        name: String,
    },
    /// Its frame bears this source address. In a table of family bridge only.
    #[doc(alias = "ether saddr")]
    SourceMac(Mac),
    /// It comes from this address.
    #[doc(alias = "saddr")]
    Source(IpAddr),
    /// It comes out of this network. The host part of the address does not count.
    SourceIn(IpNetwork),
    /// It comes from elsewhere, within the same family.
    SourceNotIn(IpNetwork),
    /// It goes into this network. The host part of the address does not count.
    #[doc(alias = "daddr")]
    DestinationIn(IpNetwork),
    /// It goes elsewhere, within the same family.
    DestinationNotIn(IpNetwork),
    /// It is of this transport protocol.
    #[doc(alias = "l4proto")]
    Protocol(L4Protocol),
    /// It is of the transport protocol of this number, of which this crate knows no more, or of any other than this number.
    /// A packet whose headers cannot be followed to the transport protocol matches neither.
    #[doc(alias = "l4proto")]
    Transport {
        /// It is this one; false: any other.
        is: bool,
        /// Its number in the header of IP. If it is one of a [`L4Protocol`], only `is: false` can be said.
        number: u8,
    },
    /// It is an ARP packet. In a table of family bridge only.
    Arp,
    /// It has these bytes there.
    Bytes {
        /// From where the offset is counted.
        layer: Layer,
        /// Of the first one, in bytes. Where addresses and ports are, they have matches of their own; but an ARP packet
        /// ([`Match::Arp`], which has to be said before) has none.
        offset: u32,
        /// 1 to 16 of them.
        bytes: Vec<u8>,
    },
    /// It is of this protocol, and has this port or any other.
    Port {
        /// The protocol.
        protocol: L4Protocol,
        /// Which one of its two ports.
        side: Side,
        /// It is this one; false: any other.
        is: bool,
        /// The port.
        port: u16,
    },
    /// It goes to an address of the host itself.
    #[doc(alias = "fib daddr type local")]
    LocalDestination,
    /// It belongs to a connection that was let through before, or to one that such a connection asked for.
    #[doc(alias = "ct state established,related")]
    Established,
    /// It belongs to a connection that a rule has sent elsewhere.
    #[doc(alias = "ct status dnat")]
    CtStatusDnat,
    /// It belongs to a connection that was begun with this port as its destination, wherever it goes by now. The protocol has
    /// to be said before.
    #[doc(alias = "ct original proto-dst")]
    OriginalDport(u16),
    /// Its mark, under a mask, is this or anything else.
    #[doc(alias = "meta mark")]
    Mark {
        /// The bits that count.
        mask: u32,
        /// They are these; false: any other.
        is: bool,
        /// The bits.
        value: u32,
    },
    /// These together are in a named set of the table, or are not.
    InSet {
        /// In the order of the set's key.
        fields: Vec<Field>,
        /// They are in the set; false: they are not.
        is: bool,
        /// The name of the set.
        set: String,
    },
}

/// A header of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layer {
    /// That of IP, or of ARP.
    Network,
    /// That of the transport protocol. A fragment behind the first has none.
    Transport,
}

/// One of the interfaces that a packet passes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// The one by which it came. On a bridge that is the port.
    #[doc(alias = "iifname")]
    In,
    /// The one by which it leaves.
    #[doc(alias = "oifname")]
    Out,
    /// The bridge that the port is of by which it came. In a table of family bridge only.
    #[doc(alias = "ibrname")]
    InBridge,
    /// The bridge that the port is of by which it leaves. In a table of family bridge only.
    #[doc(alias = "obrname")]
    OutBridge,
}

/// One end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Where the packet comes from.
    Source,
    /// Where it goes.
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

/// What happens to a packet that matches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Its source address becomes that of the interface by which it leaves.
    #[doc(alias = "masq")]
    Masquerade,
    /// It goes there instead. In a table of family inet nft(8) adds the family of the address.
    #[doc(alias = "dnat")]
    Dnat(SocketAddr),
    /// Back to the chain that jumped here; in a base chain, its policy.
    Return,
    /// On to another chain, and back here from its end.
    Jump(String),
    /// On to another chain, and from its end to where this one would have gone.
    Goto(String),
    /// It passes this base chain.
    Accept,
    /// It is gone.
    Drop,
}

/// A part of a packet that is looked up in a set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Field {
    /// The transport protocol.
    Protocol,
    /// The port that it comes from or goes to, of whatever protocol.
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

/// What a part of a set's key is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
pub enum Value {
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
    /// The addresses, no networks, that a packet has to have or is sent to.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let one = |one: &Match| match one {
            Match::Source(address) => Some(*address),
            Match::DestinationIn(to) if *to == IpNetwork::from(to.ip()) => Some(to.ip()),
            _ => None,
        };
        let to = if let Verdict::Dnat(to) = &self.verdict { Some(to.ip()) } else { None };
        self.matches.iter().filter_map(one).chain(to)
    }
}

impl Match {
    /// It came in by the interface of this name.
    #[doc(alias = "iifname")]
    pub fn from(name: impl Into<String>) -> Match {
        Match::Interface { way: Direction::In, is: true, name: name.into() }
    }

    /// It goes to this port.
    #[doc(alias = "dport")]
    pub fn to_port(protocol: L4Protocol, port: u16) -> Match {
        Match::Port { protocol, side: Side::Destination, is: true, port }
    }

    /// It goes to this address.
    pub fn to(address: IpAddr) -> Match {
        Match::DestinationIn(address.into())
    }
}

impl From<Direction> for Field {
    fn from(way: Direction) -> Field {
        Field::Interface(way)
    }
}

impl TableFamily {
    /// The kernel's number for it.
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
    /// Every one.
    pub const ALL: [L4Protocol; 3] = [L4Protocol::Tcp, L4Protocol::Udp, L4Protocol::Sctp];

    /// The one of this name, in any case.
    pub fn named(name: &str) -> Option<L4Protocol> {
        L4Protocol::ALL.into_iter().find(|one| one.to_string().eq_ignore_ascii_case(name))
    }

    /// The one of this number in the header of IP.
    pub fn numbered(number: u8) -> Option<L4Protocol> {
        L4Protocol::ALL.into_iter().find(|one| one.number() == number)
    }

    /// Its number in the header of IP.
    #[doc(alias = "IPPROTO_TCP")]
    pub fn number(self) -> u8 {
        match self {
            L4Protocol::Tcp => 6,
            L4Protocol::Udp => 17,
            L4Protocol::Sctp => 132,
        }
    }
}

/// As nft(8) and iptables(8) have it.
impl fmt::Display for L4Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            L4Protocol::Tcp => "tcp",
            L4Protocol::Udp => "udp",
            L4Protocol::Sctp => "sctp",
        })
    }
}

/// As nft(8) writes it.
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

/// As nft(8) writes it.
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
            Match::InSet { fields, is, set } => write!(f, "{} {}@{set}", Joined(fields), unless(*is)),
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

/// A network as nft(8) writes it: without host part, and without the length where that is the whole address.
struct Network<'a>(&'a IpNetwork);

impl fmt::Display for Network<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (address, length) = (self.0.network(), self.0.prefix());
        match address {
            IpAddr::V4(address) if length == 32 => write!(f, "{address}"),
            IpAddr::V6(address) if length == 128 => write!(f, "{address}"),
            _ => write!(f, "{address}/{length}"),
        }
    }
}

/// As nft(8) writes it.
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

/// Parts of a key as nft(8) writes them.
pub(crate) struct Joined<'a, T>(pub(crate) &'a [T]);

impl<T: fmt::Display> fmt::Display for Joined<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = self.0.iter();
        parts.next().map_or(Ok(()), |first| write!(f, "{first}"))?;
        parts.try_for_each(|part| write!(f, " . {part}"))
    }
}

/// As nft(8) writes it.
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

/// As nft(8) writes it.
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

/// As nft(8) writes it.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Protocol(protocol) => write!(f, "{protocol}"),
            Value::Port(port) => write!(f, "{port}"),
            Value::Address(address) => write!(f, "{address}"),
            Value::Interface(name) => write!(f, "\"{name}\""),
            Value::Mark(mark) => write!(f, "0x{mark:08x}"),
        }
    }
}

/// The word that nft(8) has for it.
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

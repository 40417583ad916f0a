//! What of a packet a set can have as its key, and the keys.

use std::fmt;
use std::net::IpAddr;

use crate::expression::{FROM, FROM_BRIDGE, Header, Load, MARK, PROTOCOL, TO, TO_BRIDGE};
use crate::layout::TableFamily;
use crate::rule::{Direction, L4Protocol, Side};
use crate::{Error, Result};

/// How many bytes the kernel compares of the name of an interface, its terminating zero included.
#[doc(alias = "IFNAMSIZ")]
const NAME: usize = 16;

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

impl Field {
    /// Every one.
    pub(crate) const ALL: [Field; 12] = [
        Field::Protocol,
        Field::Port(Side::Source),
        Field::Port(Side::Destination),
        Field::Ipv4(Side::Source),
        Field::Ipv4(Side::Destination),
        Field::Ipv6(Side::Source),
        Field::Ipv6(Side::Destination),
        Field::Interface(Direction::In),
        Field::Interface(Direction::Out),
        Field::Interface(Direction::InBridge),
        Field::Interface(Direction::OutBridge),
        Field::Mark,
    ];

    /// What it is loaded by.
    pub(crate) fn load(self) -> Load {
        match self {
            Field::Protocol => Load::Meta(PROTOCOL),
            Field::Port(side) => port(side),
            Field::Ipv4(side) => Load::Payload { header: Header::Network, offset: offset(true, side), length: 4 },
            Field::Ipv6(side) => Load::Payload { header: Header::Network, offset: offset(false, side), length: 16 },
            Field::Interface(Direction::In) => Load::Meta(FROM),
            Field::Interface(Direction::Out) => Load::Meta(TO),
            Field::Interface(Direction::InBridge) => Load::Meta(FROM_BRIDGE),
            Field::Interface(Direction::OutBridge) => Load::Meta(TO_BRIDGE),
            Field::Mark => Load::Meta(MARK),
        }
    }

    /// What part of a key it is compared with.
    pub(crate) fn key_type(self) -> KeyType {
        match self {
            Field::Protocol => KeyType::Protocol,
            Field::Port(_) => KeyType::Port,
            Field::Ipv4(_) => KeyType::Ipv4,
            Field::Ipv6(_) => KeyType::Ipv6,
            Field::Interface(_) => KeyType::Interface,
            Field::Mark => KeyType::Mark,
        }
    }

    /// The family that alone has it.
    pub(crate) fn family(self) -> Option<TableFamily> {
        match self {
            Field::Ipv4(_) => Some(TableFamily::Ip),
            Field::Ipv6(_) => Some(TableFamily::Ip6),
            _ => None,
        }
    }
}

impl From<Direction> for Field {
    fn from(way: Direction) -> Field {
        Field::Interface(way)
    }
}

/// Where the ports of the protocols that we know stand: the first two, RFC 9293 section 3.1, RFC 768, RFC 9260 section 3.1.
pub(crate) fn port(side: Side) -> Load {
    let offset = if side == Side::Source { 0 } else { 2 };
    Load::Payload { header: Header::Transport, offset, length: 2 }
}

/// Where an address stands in the header: RFC 791 section 3.1, RFC 8200 section 3.
pub(crate) fn offset(ipv4: bool, side: Side) -> u32 {
    match (ipv4, side) {
        (true, Side::Source) => 12,
        (true, Side::Destination) => 16,
        (false, Side::Source) => 8,
        (false, Side::Destination) => 24,
    }
}

/// The name of an interface as the kernel compares it.
///
/// # Errors
/// A name that no interface can have.
pub(crate) fn filled_up(name: &str) -> Result<[u8; NAME]> {
    let mut bytes = [0; NAME];
    let fits = (1..NAME).contains(&name.len()) && !name.contains('\0');
    let room = bytes.get_mut(..name.len()).filter(|_| fits);
    room.ok_or_else(|| Error::ours("look for an interface", format!("{name:?}"), "no interface can have this name"))?
        .copy_from_slice(name.as_bytes());
    Ok(bytes)
}

impl KeyType {
    /// The number that nft(8) knows it by; in a key of several parts each takes six bits.
    pub(crate) fn number(self) -> u32 {
        match self {
            KeyType::Ipv4 => 7,
            KeyType::Ipv6 => 8,
            KeyType::Protocol => 12,
            KeyType::Port => 13,
            KeyType::Mark => 19,
            KeyType::Interface => 41,
        }
    }

    /// In bytes.
    pub(crate) fn length(self) -> usize {
        match self {
            KeyType::Protocol => 1,
            KeyType::Port => 2,
            KeyType::Ipv4 | KeyType::Mark => 4,
            KeyType::Ipv6 | KeyType::Interface => 16,
        }
    }

    /// Whether its bytes are in the order of the host, and not in that of the network.
    pub(crate) fn is_of_host(self) -> bool {
        matches!(self, KeyType::Mark | KeyType::Interface)
    }
}

impl Value {
    /// What part of a key it is.
    pub(crate) fn key_type(&self) -> KeyType {
        match self {
            Value::Protocol(_) => KeyType::Protocol,
            Value::Port(_) => KeyType::Port,
            Value::Address(IpAddr::V4(_)) => KeyType::Ipv4,
            Value::Address(IpAddr::V6(_)) => KeyType::Ipv6,
            Value::Interface(_) => KeyType::Interface,
            Value::Mark(_) => KeyType::Mark,
        }
    }

    /// As the kernel compares it.
    pub(crate) fn bytes(&self) -> Result<Vec<u8>> {
        Ok(match self {
            Value::Protocol(protocol) => vec![protocol.number()],
            Value::Port(port) => port.to_be_bytes().to_vec(),
            Value::Address(IpAddr::V4(address)) => address.octets().to_vec(),
            Value::Address(IpAddr::V6(address)) => address.octets().to_vec(),
            Value::Interface(name) => filled_up(name)?.to_vec(),
            Value::Mark(mark) => mark.to_ne_bytes().to_vec(),
        })
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

//! Keys of sets as the kernel compares them: where the parts of a packet are, and the bytes of values.

use std::net::IpAddr;

use crate::rule::types::{Direction, Field, KeyType, Side, TableFamily, Value};
use crate::wire::expression::{FROM, FROM_BRIDGE, Header, Load, MARK, PROTOCOL, TO, TO_BRIDGE};
use crate::{Error, Result};

/// How many bytes the kernel compares of the name of an interface, its terminating zero included.
#[doc(alias = "IFNAMSIZ")]
const NAME: usize = 16;

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

//! Fields of packets and parts of keys, as the kernel loads and compares them.

use std::net::IpAddr;

use crate::rule::types::{Direction, Field, KeyType, KeyValue, Side, TableFamily};
use crate::wire::expression::{FROM, Header, INPUT_BRIDGE, Load, MARK, OUTPUT_BRIDGE, PROTOCOL, TO};
use crate::{Error, Result};

/// The bytes of an interface's name that the kernel compares, with its terminating NUL.
#[doc(alias = "IFNAMSIZ")]
const NAME: usize = 16;

impl Field {
    /// All fields.
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

    /// The source that it is loaded from.
    pub(crate) fn load(self) -> Load {
        match self {
            Field::Protocol => Load::Meta(PROTOCOL),
            Field::Port(side) => port(side),
            Field::Ipv4(side) => Load::Payload { header: Header::Network, offset: offset(true, side), length: 4 },
            Field::Ipv6(side) => Load::Payload { header: Header::Network, offset: offset(false, side), length: 16 },
            Field::Interface(Direction::In) => Load::Meta(FROM),
            Field::Interface(Direction::Out) => Load::Meta(TO),
            Field::Interface(Direction::InBridge) => Load::Meta(INPUT_BRIDGE),
            Field::Interface(Direction::OutBridge) => Load::Meta(OUTPUT_BRIDGE),
            Field::Mark => Load::Meta(MARK),
        }
    }

    /// The type of the part of a key that it is compared with.
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

    /// The only family whose packets have the field; `None` if both have it.
    pub(crate) fn family(self) -> Option<TableFamily> {
        match self {
            Field::Ipv4(_) => Some(TableFamily::Ip),
            Field::Ipv6(_) => Some(TableFamily::Ip6),
            _ => None,
        }
    }
}

/// A port in the header of TCP, UDP or SCTP: RFC 9293 section 3.1, RFC 768, RFC 9260 section 3.1.
pub(crate) fn port(side: Side) -> Load {
    let offset = if side == Side::Source { 0 } else { 2 };
    Load::Payload { header: Header::Transport, offset, length: 2 }
}

/// The offset of an address in the IP header: RFC 791 section 3.1, RFC 8200 section 3.
pub(crate) fn offset(ipv4: bool, side: Side) -> u32 {
    match (ipv4, side) {
        (true, Side::Source) => 12,
        (true, Side::Destination) => 16,
        (false, Side::Source) => 8,
        (false, Side::Destination) => 24,
    }
}

/// The name of an interface, padded with zeros as the kernel compares it.
///
/// # Errors
/// A name that no interface can have.
pub(crate) fn padded_name(name: &str) -> Result<[u8; NAME]> {
    if !(1..NAME).contains(&name.len()) || name.contains('\0') {
        let why = "no interface can have this name";
        return Err(Error::ours("look for an interface", format!("{name:?}"), why));
    }
    let mut bytes = [0; NAME];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    Ok(bytes)
}

impl KeyType {
    /// nft(8)'s number of the type. In the type of a concatenation each part takes six bits.
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

    /// The length in bytes.
    pub(crate) fn length(self) -> usize {
        match self {
            KeyType::Protocol => 1,
            KeyType::Port => 2,
            KeyType::Ipv4 | KeyType::Mark => 4,
            KeyType::Ipv6 | KeyType::Interface => 16,
        }
    }

    /// Whether it is in host byte order, not in network byte order.
    pub(crate) fn is_of_host(self) -> bool {
        matches!(self, KeyType::Mark | KeyType::Interface)
    }
}

impl KeyValue {
    /// The type of this part of a key.
    pub(crate) fn key_type(&self) -> KeyType {
        match self {
            KeyValue::Protocol(_) => KeyType::Protocol,
            KeyValue::Port(_) => KeyType::Port,
            KeyValue::Address(IpAddr::V4(_)) => KeyType::Ipv4,
            KeyValue::Address(IpAddr::V6(_)) => KeyType::Ipv6,
            KeyValue::Interface(_) => KeyType::Interface,
            KeyValue::Mark(_) => KeyType::Mark,
        }
    }

    /// The bytes that the kernel compares.
    ///
    /// # Errors
    /// A name that no interface can have.
    pub(crate) fn bytes(&self) -> Result<Vec<u8>> {
        Ok(match self {
            KeyValue::Protocol(protocol) => vec![protocol.number()],
            KeyValue::Port(port) => port.to_be_bytes().to_vec(),
            KeyValue::Address(IpAddr::V4(address)) => address.octets().to_vec(),
            KeyValue::Address(IpAddr::V6(address)) => address.octets().to_vec(),
            KeyValue::Interface(name) => padded_name(name)?.to_vec(),
            KeyValue::Mark(mark) => mark.to_ne_bytes().to_vec(),
        })
    }
}

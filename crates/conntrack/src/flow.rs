//! Messages of `nfnetlink_conntrack`: a tracked flow, its deletion, and filtered lists.

use std::net::{IpAddr, SocketAddr};

use cnikit_netlink::attribute::{Attributes, value};
use cnikit_netlink::nfnetlink::{HEADERS, NetfilterMessage};

const ACK: u16 = 0x4;
const DUMP: u16 = 0x300;
/// The subsystem of connection tracking.
#[doc(alias = "NFNL_SUBSYS_CTNETLINK")]
const CONNTRACK: u16 = 1;
const GET_FLOW: u16 = CONNTRACK << 8 | 1;
const DELETE_FLOW: u16 = CONNTRACK << 8 | 2;

// Attributes of `linux/netfilter/nfnetlink_conntrack.h`.
const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const ID: u16 = 12;
const ZONE: u16 = 18;
const FILTER: u16 = 25;
const FILTER_ORIGINAL: u16 = 1;
const TUPLE_ADDRESSES: u16 = 1;
const TUPLE_PROTOCOL: u16 = 2;
const IPV4_SOURCE: u16 = 1;
const IPV4_DESTINATION: u16 = 2;
const IPV6_SOURCE: u16 = 3;
const IPV6_DESTINATION: u16 = 4;
const PROTOCOL_NUMBER: u16 = 1;
const SOURCE_PORT: u16 = 2;
const DESTINATION_PORT: u16 = 3;
/// The flags of a filter: which parts of a tuple are compared.
const BY_PROTOCOL: u32 = 1 << 3;
const BY_DESTINATION_PORT: u32 = 1 << 5;

/// The address families of `nfgenmsg`.
const IPV4: u8 = 2;
const IPV6: u8 = 10;
/// The offset of the family in a message.
const FAMILY: usize = 16;

/// One flow of a protocol that has ports.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    pub(crate) protocol: u8,
    /// The destination of its first packet.
    pub(crate) to: SocketAddr,
    /// The source of the replies: the destination after translation.
    pub(crate) reply_from: SocketAddr,
    /// The tuple, the number and the zone identify the flow.
    original: &'a [u8],
    id: &'a [u8],
    zone: Option<&'a [u8]>,
}

impl<'a> Entry<'a> {
    /// Reads a flow in a message of a dump; `None` if its protocol has no ports, or its family is neither IPv4 nor IPv6.
    pub(crate) fn read(message: &'a [u8]) -> Option<Self> {
        let list = message.get(HEADERS..)?;
        let ipv4 = match *message.get(FAMILY)? {
            IPV4 => true,
            IPV6 => false,
            _ => return None,
        };
        let original = value(list, ORIGINAL)?;
        let reply = value(list, REPLY)?;
        let destination = if ipv4 { IPV4_DESTINATION } else { IPV6_DESTINATION };
        let source = if ipv4 { IPV4_SOURCE } else { IPV6_SOURCE };
        Some(Self {
            protocol: *value(value(original, TUPLE_PROTOCOL)?, PROTOCOL_NUMBER)?.first()?,
            to: end(original, destination, DESTINATION_PORT)?,
            reply_from: end(reply, source, SOURCE_PORT)?,
            original,
            id: value(list, ID)?,
            zone: value(list, ZONE),
        })
    }

    /// The message that deletes the flow. It always has a tuple: without one, the kernel deletes all flows.
    pub(crate) fn deletion(&self) -> NetfilterMessage {
        let mut list = Attributes::new().nested(ORIGINAL, &Attributes::raw(self.original)).bytes(ID, self.id);
        if let Some(zone) = self.zone {
            list = list.bytes(ZONE, zone);
        }
        let message = NetfilterMessage::request(DELETE_FLOW, ACK, family(self.to.is_ipv4()), list);
        message.described("forget the flow", format!("of protocol {} to {}", self.protocol, self.to))
    }
}

/// One end of a tuple, from the attributes of these types.
fn end(tuple: &[u8], address_type: u16, port_type: u16) -> Option<SocketAddr> {
    let bytes = value(value(tuple, TUPLE_ADDRESSES)?, address_type)?;
    let address = match address_type {
        IPV4_SOURCE | IPV4_DESTINATION => IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?),
        _ => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?),
    };
    let port = value(value(tuple, TUPLE_PROTOCOL)?, port_type)?.try_into().ok()?;
    Some(SocketAddr::new(address, u16::from_be_bytes(port)))
}

/// The message that lists the flows of a family which a filter selects.
pub(crate) fn list(ipv4: bool, filter: Attributes) -> NetfilterMessage {
    NetfilterMessage::request(GET_FLOW, DUMP, family(ipv4), filter).described("list", "tracked flows".to_owned())
}

/// Selects flows of this protocol, and with a port only those to this port.
pub(crate) fn filter(protocol: u8, port: Option<u16>) -> Attributes {
    let mut selected_by = BY_PROTOCOL;
    let mut tuple = Attributes::new().bytes(PROTOCOL_NUMBER, &[protocol]);
    if let Some(port) = port {
        selected_by |= BY_DESTINATION_PORT;
        tuple = tuple.bytes(DESTINATION_PORT, &port.to_be_bytes());
    }
    // Unlike other numbers of netfilter, the flags are in host byte order.
    let flags = Attributes::new().bytes(FILTER_ORIGINAL, &selected_by.to_ne_bytes());
    Attributes::new().nested(FILTER, &flags).nested(ORIGINAL, &Attributes::new().nested(TUPLE_PROTOCOL, &tuple))
}

/// Selects all flows.
pub(crate) fn no_filter() -> Attributes {
    Attributes::new()
}

fn family(ipv4: bool) -> u8 {
    if ipv4 { IPV4 } else { IPV6 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(source: IpAddr, destination: IpAddr, protocol: u8, ports: [u16; 2]) -> Attributes {
        let bytes = |list: Attributes, kind, address| match address {
            IpAddr::V4(ipv4) => list.bytes(kind, &ipv4.octets()),
            IpAddr::V6(ipv6) => list.bytes(kind + 2, &ipv6.octets()),
        };
        let addresses = bytes(bytes(Attributes::new(), IPV4_SOURCE, source), IPV4_DESTINATION, destination);
        let protocol = Attributes::new()
            .bytes(PROTOCOL_NUMBER, &[protocol])
            .bytes(SOURCE_PORT, &ports[0].to_be_bytes())
            .bytes(DESTINATION_PORT, &ports[1].to_be_bytes());
        Attributes::new().nested(TUPLE_ADDRESSES, &addresses).nested(TUPLE_PROTOCOL, &protocol)
    }

    fn message(client: &str, host: &str, container: &str) -> Vec<u8> {
        let [client, host, container] = [client, host, container].map(|text| text.parse::<IpAddr>().unwrap());
        let list = Attributes::new()
            .nested(ORIGINAL, &tuple(client, host, 17, [4000, 53]))
            .nested(REPLY, &tuple(container, client, 17, [5353, 4000]))
            .bytes(ID, &[1, 2, 3, 4])
            .bytes(ZONE, &[0, 7]);
        super::list(client.is_ipv4(), list).encode(1)
    }

    #[test]
    fn an_entry_has_the_original_destination_and_the_reply_source() {
        for (client, host, container) in [("192.0.2.9", "192.0.2.1", "10.0.0.2"), ("fd01::9", "fd01::1", "fd00::2")] {
            let message = message(client, host, container);
            let entry = Entry::read(&message).unwrap();
            assert_eq!((entry.protocol, entry.to.ip(), entry.to.port()), (17, host.parse().unwrap(), 53));
            assert_eq!((entry.reply_from.ip(), entry.reply_from.port()), (container.parse().unwrap(), 5353));
        }
    }

    #[test]
    fn an_entry_is_deleted_by_its_tuple_id_and_zone() {
        let message = message("192.0.2.9", "192.0.2.1", "10.0.0.2");
        let entry = Entry::read(&message).unwrap();
        let bytes = entry.deletion().encode(5);
        let list = &bytes[HEADERS..];
        let whole = &message[HEADERS..];
        assert_eq!((bytes[4..8].to_vec(), bytes[FAMILY]), (vec![2, 1, 5, 0], IPV4));
        for kind in [ORIGINAL, ID, ZONE] {
            assert_eq!(value(list, kind), value(whole, kind));
        }
        assert!(value(list, ORIGINAL).is_some_and(|tuple| tuple.len() > 24));
        assert_eq!(value(list, REPLY), None);
    }

    #[test]
    fn a_truncated_message_is_not_an_entry() {
        let message = message("192.0.2.9", "192.0.2.1", "10.0.0.2");
        // The zone is the last attribute, and it is optional.
        for end in 0..message.len() - 8 {
            assert_eq!(Entry::read(&message[..end]), None, "{end}");
        }
        let mut other = message.clone();
        other[FAMILY] = IPV6;
        assert_eq!(Entry::read(&other), None, "addresses of another family");
        other[FAMILY] = 7;
        assert_eq!(Entry::read(&other), None);
    }

    #[test]
    fn a_filter_has_the_flags_of_its_fields() {
        let flags =
            |list: &Attributes| value(value(list.as_bytes(), FILTER).unwrap(), FILTER_ORIGINAL).unwrap().to_vec();
        let one = filter(17, Some(53));
        let all = filter(17, None);
        assert_eq!((flags(&one), flags(&all)), (40_u32.to_ne_bytes().to_vec(), 8_u32.to_ne_bytes().to_vec()));
        let protocol = value(value(one.as_bytes(), ORIGINAL).unwrap(), TUPLE_PROTOCOL).unwrap();
        assert_eq!(value(protocol, DESTINATION_PORT), Some(&[0, 53][..]));
    }
}

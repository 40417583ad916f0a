//! Neighbours: the entries of the ARP and neighbour discovery caches.

use std::net::IpAddr;

use netlink_packet_core::parse_ip;
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourHeader, NeighbourMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::attribute::value;
use crate::frame::HEADER;
use crate::netlink::{Forgives, Request};
use crate::{Mac, Netlink, Result};

// The attributes that are read here, from `linux/neighbour.h`.
pub(crate) const DST: u16 = 1;
pub(crate) const LLADDR: u16 = 2;

/// Length of an `ndmsg`.
pub(crate) const NEIGHBOUR_HEADER: usize = 12;

/// An entry of the ARP or neighbour discovery cache. See ip-neighbour(8).
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "ndmsg")]
#[doc(alias = "ARP")]
pub struct Neighbour {
    /// The index of the link.
    pub index: u32,
    /// The IP address.
    pub address: IpAddr,
    /// The hardware address, if the neighbour answered.
    #[doc(alias = "NDA_LLADDR")]
    pub mac: Option<Mac>,
    /// The state, as bits: 1 incomplete, 2 reachable, 4 stale, 8 delay, 16 probe, 32 failed, 64 no ARP, 128 permanent.
    #[doc(alias = "NUD_REACHABLE")]
    pub state: u16,
}

impl Netlink {
    /// The neighbours on a link. The kernel filters them.
    ///
    /// # Errors
    /// There is no such link ([`crate::Error::is_absent`]), or the dump fails, see [`Socket::dump`](crate::Socket::dump).
    #[doc(alias = "RTM_GETNEIGH")]
    pub fn neighbours(&self, index: u32) -> Result<Vec<Neighbour>> {
        let mut message = NeighbourMessage::default();
        message.attributes.push(NeighbourAttribute::IfIndex(index));
        let message = RouteNetlinkMessage::GetNeighbour(message);
        let messages = self.dump(&message, "list neighbours on link", &format!("number {index}"))?;
        let ours = |neighbour: &Neighbour| neighbour.index == index;
        Ok(messages.iter().filter_map(|message| Neighbour::parse(message)).filter(ours).collect())
    }

    /// Removes a neighbour.
    ///
    /// # Errors
    /// The kernel refuses the request. A neighbour or a link that does not exist is not an error.
    #[doc(alias = "RTM_DELNEIGH")]
    pub fn delete_neighbour(&self, index: u32, address: IpAddr) -> Result<()> {
        self.ask(deletion(index, address)).map(drop)
    }
}

pub(crate) fn deletion(index: u32, address: IpAddr) -> Request {
    let mut message = NeighbourMessage::default();
    message.header.family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    message.header.ifindex = index;
    message.attributes.push(NeighbourAttribute::Destination(address.into()));
    Request {
        message: RouteNetlinkMessage::DelNeighbour(message).into(),
        flags: 0,
        operation: "delete neighbour",
        object: format!("{address} on").into(),
        link: Some(index),
        forgives: Forgives::Absent,
    }
}

impl Neighbour {
    /// Parses an `RTM_NEWNEIGH` message; `None` if it is something else, such as an entry of a bridge's forwarding database.
    pub(crate) fn parse(message: &[u8]) -> Option<Self> {
        let body = message.get(HEADER..)?;
        let header = NeighbourHeader::parse(body).ok()?;
        let find = |wanted| value(body.get(NEIGHBOUR_HEADER..).unwrap_or_default(), wanted);
        Some(Self {
            index: header.ifindex,
            address: parse_ip(find(DST)?).ok()?,
            mac: find(LLADDR).and_then(|bytes| bytes.try_into().ok()).map(Mac),
            state: header.state.into(),
        })
    }
}

//! Forwarding entries: where a link with several remote ends sends the frames for a MAC.

use std::net::IpAddr;

use netlink_packet_core::{NLM_F_APPEND, NLM_F_CREATE, parse_ip};
use netlink_packet_route::neighbour::{
    NeighbourAttribute, NeighbourFlags, NeighbourHeader, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::attribute::value;
use crate::frame::HEADER;
use crate::neighbour::{DST, LLADDR, NEIGHBOUR_HEADER};
use crate::netlink::{Forgives, Request};
use crate::{Mac, Netlink, Result};

/// An entry of the forwarding database of a VXLAN link. See bridge(8), `bridge fdb`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "fdb")]
pub struct ForwardingEntry {
    /// The frames: those to this MAC. Of the zero MAC are the entries for broadcasts and for MACs without an entry of their own.
    #[doc(alias = "NDA_LLADDR")]
    pub mac: Mac,
    /// The host that they are sent to.
    #[doc(alias = "NDA_DST")]
    pub destination: IpAddr,
}

impl Netlink {
    /// The forwarding entries of a link that have a destination, also those that the kernel has learned.
    ///
    /// # Errors
    /// The dump fails, see [`Socket::dump`](crate::Socket::dump). A link without such entries, or that does not exist, has none.
    #[doc(alias = "RTM_GETNEIGH")]
    pub fn forwarding_entries(&self, index: u32) -> Result<Vec<ForwardingEntry>> {
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Bridge;
        let message = RouteNetlinkMessage::GetNeighbour(message);
        let messages = self.dump(&message, "list forwarding entries of link", &format!("number {index}"))?;
        Ok(messages.iter().filter_map(|message| ForwardingEntry::parse(message, index)).collect())
    }

    /// Adds a permanent forwarding entry to a VXLAN link; the entries that its MAC has already stay. The zero MAC may have many,
    /// and each of their hosts gets a copy of the frame; another MAC has one. An entry that exists is not an error.
    ///
    /// # Errors
    /// There is no such link, it has no forwarding entries with destinations, the destination is of another address family than the
    /// link ([`Error::unsupported`](crate::Error::unsupported)), or `CAP_NET_ADMIN` is missing.
    #[doc(alias = "RTM_NEWNEIGH")]
    pub fn append_forwarding_entry(&self, index: u32, entry: ForwardingEntry) -> Result<()> {
        let ForwardingEntry { mac, destination } = entry;
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Bridge;
        message.header.ifindex = index;
        message.header.state = NeighbourState::Permanent;
        message.header.flags = NeighbourFlags::Own;
        message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.0.to_vec()));
        message.attributes.push(NeighbourAttribute::Destination(destination.into()));
        let request = Request {
            message: RouteNetlinkMessage::NewNeighbour(message).into(),
            flags: NLM_F_CREATE | NLM_F_APPEND,
            operation: "add forwarding entry",
            object: format!("{mac} to {destination} on").into(),
            link: Some(index),
            forgives: Forgives::Present,
        };
        self.ask(request).map(drop)
    }
}

impl ForwardingEntry {
    /// Parses an `RTM_NEWNEIGH` message; `None` if it is of another link or has no destination.
    fn parse(message: &[u8], index: u32) -> Option<Self> {
        let body = message.get(HEADER..)?;
        let header = NeighbourHeader::parse(body).ok()?;
        if header.ifindex != index || header.family != AddressFamily::Bridge {
            return None;
        }
        let find = |wanted| value(body.get(NEIGHBOUR_HEADER..).unwrap_or_default(), wanted);
        let mac = Mac(find(LLADDR)?.try_into().ok()?);
        Some(Self { mac, destination: parse_ip(find(DST)?).ok()? })
    }
}

//! Whole routes, with the properties that [`KernelRoute`] lacks: they can be put into another table and put back.

use libc::{RTM_DELROUTE, RTM_NEWROUTE};
use netlink_packet_core::{Emitable, NLM_F_CREATE};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::route::{RouteAttribute, RouteFlags, RouteHeader};

use crate::attribute::{Attributes, attributes};
use crate::frame::HEADER;
use crate::netlink::{Forgives, Message, Request};
use crate::route::{GATEWAY, MULTIPATH, NEXT_HOP_HEADER, OIF, ROUTE_HEADER, TABLE, VIA, parse};
use crate::{Batch, Error, KernelRoute, Netlink, Result};

// More attributes of `linux/rtnetlink.h`.
const CACHE_INFO: u16 = 12;
const ENCAP_TYPE: u16 = 21;
const ENCAP: u16 = 22;
const NEXT_HOP_ID: u16 = 30;
/// What a route that names a nexthop object must not say itself: link, gateways, next hops and encapsulation.
const OF_NEXT_HOP: [u16; 6] = [OIF, GATEWAY, MULTIPATH, VIA, ENCAP_TYPE, ENCAP];
/// The position of the flags in an `rtnexthop`.
const HOP_FLAGS: usize = 2;
const ONLINK: u8 = 4;

/// A route with all its properties, as the kernel reported it.
///
/// An IPv6 route with several next hops is as many copies, because each of them can be added and removed alone. An IPv4 route with
/// several next hops is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteCopy {
    header: RouteHeader,
    attributes: Vec<(u16, Vec<u8>)>,
    route: KernelRoute,
}

impl Netlink {
    /// The routes of both families and all tables that lead over a link and over no other. The kernel filters them.
    ///
    /// # Errors
    /// The dump fails, see [`Socket::dump`](crate::Socket::dump).
    pub fn route_copies_of(&self, index: u32) -> Result<Vec<RouteCopy>> {
        let messages = self.dump_routes(None, vec![RouteAttribute::Oif(index)], &format!("over link {index}"))?;
        let copies = messages.iter().flat_map(|message| RouteCopy::read_all(message));
        Ok(copies.filter(|copy| copy.is_only_over(index)).collect())
    }
}

impl Batch {
    /// Adds a route, in addition to one to the same destination with the same priority; the same route is not an error. Of two
    /// such IPv4 routes the newer one is used.
    pub fn add_copy_beside(&mut self, copy: &RouteCopy) {
        self.add(copy.request("add route", RTM_NEWROUTE, NLM_F_CREATE, Forgives::Present));
    }

    /// Removes a route; a route that does not exist is not an error.
    pub fn delete_copy(&mut self, copy: &RouteCopy) {
        self.add(copy.request("delete route", RTM_DELROUTE, 0, Forgives::Absent));
    }
}

impl RouteCopy {
    /// A route that is to be added.
    ///
    /// # Errors
    /// `route` mixes address families in a way that no message can express.
    pub fn new(route: &KernelRoute) -> Result<Self> {
        let request = route.addition()?;
        let copy = Self::read_all(&request.pack(0)).pop();
        copy.ok_or_else(|| Error::unreadable("add route", request.object.to_string(), "it has no message"))
    }

    /// The properties that [`KernelRoute`] has.
    pub fn route(&self) -> &KernelRoute {
        &self.route
    }

    /// Whether it leads over a gateway, which other routes have to reach.
    pub fn needs_gateway(&self) -> bool {
        let is_of_gateways = |kind: u16| [GATEWAY, VIA, MULTIPATH, NEXT_HOP_ID].contains(&kind);
        self.attributes.iter().any(|(kind, _)| is_of_gateways(*kind))
    }

    /// The same route in another table.
    #[must_use]
    pub fn in_table(&self, table: u32) -> Self {
        let mut copy = self.clone();
        copy.header.table = u8::try_from(table).unwrap_or_default();
        copy.attributes.retain(|(kind, _)| *kind != TABLE);
        copy.attributes.push((TABLE, table.to_ne_bytes().to_vec()));
        copy.route.table = table;
        copy
    }

    /// The `rtmsg` with its attributes, to be stored. Numbers are in the byte order of this machine.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut header = [0; ROUTE_HEADER];
        self.header.emit(&mut header);
        let mut list = Attributes::raw(&header);
        for (kind, value) in &self.attributes {
            list = list.bytes(*kind, value);
        }
        list.into_bytes()
    }

    /// Reads what [`RouteCopy::to_bytes`] wrote; `None` if it is something else.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut copies = Self::read_all(&[&[0; HEADER], bytes].concat());
        if copies.len() == 1 { copies.pop() } else { None }
    }

    /// Reads an `RTM_NEWROUTE` message; nothing if it is something else.
    pub(crate) fn read_all(message: &[u8]) -> Vec<Self> {
        let (Some(routes), Some(body)) = (parse(message), message.get(HEADER..)) else { return Vec::new() };
        let (Ok(mut header), Some(list)) = (RouteHeader::parse(body), body.get(ROUTE_HEADER..)) else {
            return Vec::new();
        };
        header.flags &= RouteFlags::Onlink;
        let names_next_hop = attributes(list).any(|(kind, _)| kind == NEXT_HOP_ID);
        let mut common = Vec::new();
        let mut hops = None;
        for (kind, value) in attributes(list) {
            match kind {
                CACHE_INFO => {}
                _ if names_next_hop && OF_NEXT_HOP.contains(&kind) => {}
                MULTIPATH if header.address_family == AddressFamily::Inet6 => hops = Some(value),
                MULTIPATH => common.push((kind, without_state(value))),
                _ => common.push((kind, value.to_vec())),
            }
        }
        let Some(hops) = hops else {
            let Some(route) = routes.into_iter().next() else { return Vec::new() };
            return vec![Self { header, attributes: common, route }];
        };
        let mut copies = Vec::new();
        for (hop, route) in each_hop(hops).zip(routes) {
            let mut own = common.clone();
            own.push((MULTIPATH, without_state(hop)));
            copies.push(Self { header: header.clone(), attributes: own, route });
        }
        copies
    }

    fn is_only_over(&self, index: u32) -> bool {
        if self.route.index != Some(index) {
            return false;
        }
        let of_hops = self.attributes.iter().find(|(kind, _)| *kind == MULTIPATH);
        of_hops.is_none_or(|(_, hops)| each_hop(hops).all(|hop| hop[4..NEXT_HOP_HEADER] == index.to_ne_bytes()))
    }

    fn request(&self, operation: &'static str, kind: u16, flags: u16, forgives: Forgives) -> Request {
        let message = Message::Encoded { kind, body: self.to_bytes() };
        let object = self.route().into();
        Request { message, flags, operation, object, link: self.route.index, forgives }
    }
}

/// Each `rtnexthop` of a list, with its attributes.
fn each_hop(mut list: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes([*list.first()?, *list.get(1)?]));
        let hop = list.get(..length).filter(|hop| hop.len() >= NEXT_HOP_HEADER)?;
        list = list.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(hop)
    })
}

/// Next hops without the flags that only the kernel sets, which it refuses.
fn without_state(hops: &[u8]) -> Vec<u8> {
    let mut copy = hops.to_vec();
    let mut at = 0;
    for hop in each_hop(hops) {
        copy[at + HOP_FLAGS] &= ONLINK;
        at += hop.len().next_multiple_of(4);
    }
    copy
}

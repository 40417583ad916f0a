//! Routes of the kernel.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, parse_ip, parse_u32};
use netlink_packet_route::route::{
    RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMetric, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::RouteMessageBuilder;

use crate::attribute::attributes;
use crate::frame::HEADER;
use crate::netlink::{Forgives, Request};
use crate::{Error, Netlink, Result};

// The attributes that are read here, from `linux/rtnetlink.h`.
const DST: u16 = 1;
pub(crate) const OIF: u16 = 4;
pub(crate) const GATEWAY: u16 = 5;
const PRIORITY: u16 = 6;
const PREFSRC: u16 = 7;
const METRICS: u16 = 8;
pub(crate) const MULTIPATH: u16 = 9;
pub(crate) const TABLE: u16 = 15;
pub(crate) const VIA: u16 = 18;
const METRIC_MTU: u16 = 2;
const METRIC_ADVMSS: u16 = 8;

/// Length of an `rtmsg`.
pub(crate) const ROUTE_HEADER: usize = 12;
/// Length of an `rtnexthop`.
pub(crate) const NEXT_HOP_HEADER: usize = 8;
const ONLINK: u8 = 4;
/// `RTNH_F_DEAD` and `RTNH_F_LINKDOWN`.
const DEAD: u8 = 1 | 16;

/// The main routing table, which is used unless a routing rule selects another one.
#[doc(alias = "RT_TABLE_MAIN")]
pub const MAIN_TABLE: u32 = 254;
/// The protocol number of the routes that ip(8) adds. A routing daemon may replace such routes.
#[doc(alias = "RTPROT_BOOT")]
const BOOT: u8 = 3;
/// The type of ordinary routes.
#[doc(alias = "RTN_UNICAST")]
const UNICAST: u8 = 1;
/// The table of the addresses that the host accepts as its own.
#[doc(alias = "RT_TABLE_LOCAL")]
const LOCAL_TABLE: u32 = 255;
/// The type of routes to the host itself.
#[doc(alias = "RTN_LOCAL")]
const LOCAL: u8 = 2;
// The types of routes to broadcast, anycast and multicast addresses.
const BROADCAST: u8 = 3;
const ANYCAST: u8 = 4;
const MULTICAST: u8 = 5;

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// A route. A route with several next hops is read as one route per next hop. See ip-route(8).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[doc(alias = "rtmsg")]
pub struct KernelRoute {
    /// The destination; `0.0.0.0/0` and `::/0` are the default routes.
    pub dst: IpNetwork,
    /// The gateway; `None` if the destination is on the link. An IPv4 route may have an IPv6 gateway.
    #[doc(alias = "via")]
    pub gateway: Option<IpAddr>,
    /// The index of the output link.
    #[doc(alias = "RTA_OIF")]
    pub index: Option<u32>,
    /// The preferred source address, for packets whose sender chose none.
    #[doc(alias = "RTA_PREFSRC")]
    pub source: Option<IpAddr>,
    /// The routing table: 254 is the main table, 255 the local one.
    pub table: u32,
    /// The scope: 0 global, 253 link, 254 host. `None` chooses as ip(8) does: link for an IPv4 route without gateway, otherwise
    /// global; in a deletion it matches any scope.
    pub scope: Option<u8>,
    /// The metric: of several routes to one destination the kernel uses the one with the lowest.
    #[doc(alias = "metric")]
    pub priority: Option<u32>,
    /// The path MTU in bytes; 0 and `None` mean the MTU of the link.
    pub mtu: Option<u32>,
    /// The TCP MSS to advertise, in bytes.
    pub advmss: Option<u32>,
    /// The origin of the route: 2 the kernel, 3 ip(8), 4 an administrator.
    #[doc(alias = "RTPROT_BOOT")]
    pub protocol: u8,
    /// The gateway is on the link, even if no address of the link covers it.
    #[doc(alias = "RTNH_F_ONLINK")]
    pub onlink: bool,
    /// The route cannot be used: its link is down or has no carrier. Only the kernel sets this flag.
    #[doc(alias = "RTNH_F_DEAD")]
    #[doc(alias = "RTNH_F_LINKDOWN")]
    pub dead: bool,
    /// The type: 1 unicast, 2 local, 3 broadcast, 6 blackhole, 7 unreachable.
    #[doc(alias = "RTN_UNICAST")]
    pub kind: u8,
}

impl KernelRoute {
    /// A unicast route to `dst` in the main table; the kernel chooses everything else.
    pub fn to(dst: IpNetwork) -> Self {
        Self {
            dst,
            gateway: None,
            index: None,
            source: None,
            table: MAIN_TABLE,
            scope: None,
            priority: None,
            mtu: None,
            advmss: None,
            protocol: BOOT,
            onlink: false,
            dead: false,
            kind: UNICAST,
        }
    }

    /// Whether it is a unicast route of the main table. The kernel adds local, broadcast and multicast routes itself.
    pub fn is_ordinary(&self) -> bool {
        self.table == MAIN_TABLE && self.kind == UNICAST
    }

    /// Whether it is a local, broadcast, anycast or multicast route, which the kernel adds itself.
    ///
    /// The type decides, not the table: in the answer to a look-up the kernel may report the main table for such an IPv4 route.
    #[doc(alias = "RTN_LOCAL")]
    pub fn is_of_host(&self) -> bool {
        [LOCAL, BROADCAST, ANYCAST, MULTICAST].contains(&self.kind)
    }

    /// Whether it is a default route.
    pub fn is_default(&self) -> bool {
        self.dst.prefix() == 0
    }
}

impl Netlink {
    /// All routes of a family, in all tables.
    ///
    /// A host may have a million of them: prefer [`Netlink::routes_of`] and [`Netlink::routes_to`].
    ///
    /// # Errors
    /// The dump fails, see [`Socket::dump`](crate::Socket::dump).
    #[doc(alias = "RTM_GETROUTE")]
    pub fn routes(&self, family: Family) -> Result<Vec<KernelRoute>> {
        self.list_routes(Some(family), Vec::new(), "")
    }

    /// The routes over a link, of both families and in all tables. The kernel filters them.
    ///
    /// # Errors
    /// As [`Netlink::routes`].
    pub fn routes_of(&self, index: u32) -> Result<Vec<KernelRoute>> {
        let object = format!("over link {index}");
        let mut routes = self.list_routes(None, vec![RouteAttribute::Oif(index)], &object)?;
        routes.retain(|route| route.index == Some(index));
        Ok(routes)
    }

    /// The routes to exactly this prefix in one table, with any metric and gateway.
    ///
    /// The kernel sends the whole table for this: it can look up an address, but not a prefix.
    ///
    /// # Errors
    /// As [`Netlink::routes`]. A table that does not exist is not an error.
    pub fn routes_to(&self, dst: IpNetwork, table: u32) -> Result<Vec<KernelRoute>> {
        let family = if dst.is_ipv4() { Family::V4 } else { Family::V6 };
        let listed = self.list_routes(Some(family), vec![RouteAttribute::Table(table)], &format!("to {dst}"));
        let mut routes = match listed {
            // A table does not exist before its first route is added.
            Err(error) if error.is_absent() => Vec::new(),
            listed => listed?,
        };
        routes.retain(|route| route.dst == dst && route.table == table);
        Ok(routes)
    }

    /// A route of a table, of either family; `None` if the table has none.
    ///
    /// The kernel sends the whole table for this.
    ///
    /// # Errors
    /// As [`Netlink::routes`].
    pub fn any_route_of(&self, table: u32) -> Result<Option<KernelRoute>> {
        let listed = self.list_routes(None, vec![RouteAttribute::Table(table)], &format!("of table {table}"));
        match listed {
            // A table comes into being with its first route.
            Err(error) if error.is_absent() => Ok(None),
            listed => Ok(listed?.into_iter().find(|route| route.table == table)),
        }
    }

    /// The destinations that the host accepts as its own: its addresses of a family, and whole networks such as `127.0.0.0/8`.
    ///
    /// These are the destinations that `fib daddr type local` of nft(8) and `--dst-type LOCAL` of iptables(8) match.
    ///
    /// # Errors
    /// As [`Netlink::routes`].
    #[doc(alias = "RTN_LOCAL")]
    pub fn own_networks(&self, family: Family) -> Result<Vec<IpNetwork>> {
        let routes = self.list_routes(Some(family), vec![RouteAttribute::Table(LOCAL_TABLE)], "to the host itself")?;
        let own = routes.into_iter().filter(|route| route.table == LOCAL_TABLE && route.kind == LOCAL);
        Ok(own.map(|route| route.dst).collect())
    }

    /// The route that packets to this address would take, with its prefix as `dst`. It is `None` if no route leads
    /// there; without IPv6 in the kernel, no route leads to any address of IPv6.
    ///
    /// It is one look-up, however many routes there are. A route to exactly this address takes precedence over any shorter
    /// prefix.
    ///
    /// # Errors
    /// The kernel refuses the request, for another reason than that the address is unreachable.
    #[doc(alias = "RTM_F_FIB_MATCH")]
    pub fn route_for(&self, address: IpAddr) -> Result<Option<KernelRoute>> {
        let message = RouteMessageBuilder::<IpAddr>::new().destination_prefix(address, host_prefix(address));
        let mut message = message.map_err(|error| Error::unreadable("look up route", "", &error.to_string()))?.build();
        message.header = RouteHeader {
            address_family: message.header.address_family,
            destination_prefix_length: message.header.destination_prefix_length,
            flags: RouteFlags::FibMatch,
            ..RouteHeader::default()
        };
        let message = RouteNetlinkMessage::GetRoute(message);
        let object = format!("to {address}");
        let operation = "look up route";
        match self.ask(Request {
            message: message.into(),
            flags: 0,
            operation,
            object: object.into(),
            link: None,
            forgives: Forgives::Nothing,
        }) {
            // No route leads there, or a blackhole, unreachable or prohibit route does, or the kernel lacks IPv6.
            Err(error) if NO_WAY.contains(&error.errno) || error.unsupported() => Ok(None),
            found => Ok(found?.iter().find_map(|message| parse(message)?.into_iter().next())),
        }
    }

    /// Adds a route.
    ///
    /// # Errors
    /// There is one to the same destination with the same priority ([`Error::exists`]), its link does not exist or its gateway
    /// is not reachable, or `route` mixes address families in a way that no message can express.
    #[doc(alias = "RTM_NEWROUTE")]
    pub fn add_route(&self, route: &KernelRoute) -> Result<()> {
        self.ask(route.addition()?).map(drop)
    }

    /// Removes a route; fields that are `None` in `route` match any value.
    ///
    /// # Errors
    /// There is no such route ([`Error::is_absent`]), or `route` mixes address families in a way that no message can express.
    #[doc(alias = "RTM_DELROUTE")]
    pub fn delete_route(&self, route: &KernelRoute) -> Result<()> {
        self.ask(route.deletion()?).map(drop)
    }

    /// The routes of a family, or of both.
    fn list_routes(
        &self,
        family: Option<Family>,
        attributes: Vec<RouteAttribute>,
        object: &str,
    ) -> Result<Vec<KernelRoute>> {
        let messages = self.dump_routes(family, attributes, object)?;
        // A kernel without IPv6 answers a request for IPv6 routes with the routes of the families that it supports.
        let of_family = |route: &KernelRoute| family.is_none_or(|family| route.dst.is_ipv4() == (family == Family::V4));
        Ok(messages.iter().flat_map(|message| parse(message).unwrap_or_default()).filter(of_family).collect())
    }

    /// The messages of the routes of a family. Without one they are those of all families that the kernel has; [`parse`] knows only
    /// some of those.
    pub(crate) fn dump_routes(
        &self,
        family: Option<Family>,
        attributes: Vec<RouteAttribute>,
        object: &str,
    ) -> Result<Vec<Vec<u8>>> {
        let mut message = RouteMessage::default();
        message.header.address_family = match family {
            Some(Family::V4) => AddressFamily::Inet,
            Some(Family::V6) => AddressFamily::Inet6,
            None => AddressFamily::Unspec,
        };
        message.attributes = attributes;
        self.dump(&RouteNetlinkMessage::GetRoute(message), "list routes", object)
    }
}

impl KernelRoute {
    pub(crate) fn addition(&self) -> Result<Request> {
        self.request("add route", NLM_F_CREATE | NLM_F_EXCL, RouteNetlinkMessage::NewRoute, self.default_scope())
    }

    pub(crate) fn addition_beside(&self) -> Result<Request> {
        self.request("add route", NLM_F_CREATE, RouteNetlinkMessage::NewRoute, self.default_scope())
    }

    pub(crate) fn replacement(&self) -> Result<Request> {
        self.request("replace route", NLM_F_CREATE | NLM_F_REPLACE, RouteNetlinkMessage::NewRoute, self.default_scope())
    }

    pub(crate) fn deletion(&self) -> Result<Request> {
        self.request("delete route", 0, RouteNetlinkMessage::DelRoute, RouteScope::NoWhere)
    }

    fn request(
        &self,
        operation: &'static str,
        flags: u16,
        wrap: fn(RouteMessage) -> RouteNetlinkMessage,
        scope: RouteScope,
    ) -> Result<Request> {
        let scope = self.scope.map_or(scope, RouteScope::from);
        let message = self.message(scope).map_err(|why| Error::unreadable(operation, self.describe(), &why))?;
        let message = wrap(message);
        let link = self.index;
        Ok(Request {
            message: message.into(),
            flags,
            operation,
            object: self.into(),
            link,
            forgives: Forgives::Nothing,
        })
    }

    /// The scope that ip(8) would choose. IPv6 routes have no scopes.
    fn default_scope(&self) -> RouteScope {
        if self.dst.is_ipv4() && self.gateway.is_none() && self.kind == UNICAST {
            RouteScope::Link
        } else {
            RouteScope::Universe
        }
    }

    fn message(&self, scope: RouteScope) -> std::result::Result<RouteMessage, String> {
        let mut builder = RouteMessageBuilder::<IpAddr>::new()
            .table_id(self.table)
            .scope(scope)
            .protocol(RouteProtocol::from(self.protocol))
            .kind(RouteType::from(self.kind))
            .destination_prefix(self.dst.ip(), self.dst.prefix())
            .map_err(|error| error.to_string())?;
        if let Some(gateway) = self.gateway {
            builder = builder.gateway(gateway).map_err(|error| error.to_string())?;
        }
        if let Some(source) = self.source {
            builder = builder.pref_source(source).map_err(|error| error.to_string())?;
        }
        if let Some(index) = self.index {
            builder = builder.output_interface(index);
        }
        if let Some(priority) = self.priority {
            builder = builder.priority(priority);
        }
        if self.onlink {
            builder = builder.onlink();
        }
        let mut message = builder.build();
        let metrics = self.metrics();
        if !metrics.is_empty() {
            message.attributes.push(RouteAttribute::Metrics(metrics));
        }
        Ok(message)
    }

    fn metrics(&self) -> Vec<RouteMetric> {
        let mut metrics = Vec::new();
        if let Some(mtu) = self.mtu {
            metrics.push(RouteMetric::Mtu(mtu));
        }
        if let Some(advmss) = self.advmss {
            metrics.push(RouteMetric::Advmss(advmss));
        }
        metrics
    }

    /// The route as ip(8) writes it, up to the word before the link's name.
    pub(crate) fn describe(&self) -> String {
        let mut text = self.dst.to_string();
        let mut add = |word: &str, value: Option<String>| {
            if let Some(value) = value {
                text.extend([" ", word, " ", &value]);
            }
        };
        add("via", self.gateway.map(|gateway| gateway.to_string()));
        add("src", self.source.map(|source| source.to_string()));
        add("metric", self.priority.map(|priority| priority.to_string()));
        add("table", (self.table != MAIN_TABLE).then(|| self.table.to_string()));
        if self.index.is_some() {
            text.push_str(" dev");
        }
        text
    }
}

/// The error numbers of a route look-up that found no usable route.
const NO_WAY: [i32; 5] = [libc::ENETUNREACH, libc::EHOSTUNREACH, libc::ESRCH, libc::EACCES, libc::EINVAL];

fn host_prefix(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// Parses an `RTM_NEWROUTE` message into one route per next hop; `None` if it is something else.
pub(crate) fn parse(message: &[u8]) -> Option<Vec<KernelRoute>> {
    let body = message.get(HEADER..)?;
    let header = RouteHeader::parse(body).ok()?;
    let everywhere: IpAddr = match header.address_family {
        AddressFamily::Inet => Ipv4Addr::UNSPECIFIED.into(),
        AddressFamily::Inet6 => Ipv6Addr::UNSPECIFIED.into(),
        _ => return None,
    };
    let mut route = KernelRoute {
        table: header.table.into(),
        scope: Some(header.scope.into()),
        protocol: header.protocol.into(),
        onlink: header.flags.contains(RouteFlags::Onlink),
        dead: header.flags.intersects(RouteFlags::Dead | RouteFlags::Linkdown),
        kind: header.kind.into(),
        ..KernelRoute::to(IpNetwork::new(everywhere, header.destination_prefix_length).ok()?)
    };
    let mut hops = None;
    for (kind, value) in attributes(body.get(ROUTE_HEADER..)?) {
        match kind {
            MULTIPATH => hops = Some(value),
            _ => route.take(kind, value),
        }
    }
    Some(hops.map_or_else(|| vec![route.clone()], |hops| route.each_way(hops)))
}

impl KernelRoute {
    fn take(&mut self, kind: u16, value: &[u8]) {
        match kind {
            DST => {
                let dst = parse_ip(value).ok().and_then(|ip| IpNetwork::new(ip, self.dst.prefix()).ok());
                self.dst = dst.unwrap_or(self.dst);
            }
            GATEWAY => self.gateway = parse_ip(value).ok(),
            // An `rtvia` begins with two bytes of address family.
            VIA => self.gateway = value.get(2..).and_then(|ip| parse_ip(ip).ok()),
            PREFSRC => self.source = parse_ip(value).ok(),
            OIF => self.index = parse_u32(value).ok(),
            PRIORITY => self.priority = parse_u32(value).ok(),
            TABLE => self.table = parse_u32(value).unwrap_or(self.table),
            METRICS => attributes(value).for_each(|(kind, value)| self.take_metric(kind, value)),
            _ => {}
        }
    }

    fn take_metric(&mut self, kind: u16, value: &[u8]) {
        match kind {
            METRIC_MTU => self.mtu = parse_u32(value).ok(),
            METRIC_ADVMSS => self.advmss = parse_u32(value).ok(),
            _ => {}
        }
    }

    /// One route per `rtnexthop` in `hops`, with the attributes that they share.
    fn each_way(&self, hops: &[u8]) -> Vec<Self> {
        let mut rest = hops;
        let mut routes = Vec::new();
        while let [a, b, flags, _weight, ..] = *rest {
            let length = usize::from(u16::from_ne_bytes([a, b]));
            let Some(hop) = rest.get(..length).filter(|hop| hop.len() >= NEXT_HOP_HEADER) else { break };
            let onlink = flags & ONLINK != 0;
            let dead = flags & DEAD != 0;
            let mut route = Self { onlink, dead, index: parse_u32(&hop[4..8]).ok(), ..self.clone() };
            attributes(&hop[NEXT_HOP_HEADER..]).for_each(|(kind, value)| route.take(kind, value));
            routes.push(route);
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        routes
    }
}

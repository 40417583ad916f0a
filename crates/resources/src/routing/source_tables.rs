//! Which routes the table of each address has, and which leave the main table: pure.

use std::net::IpAddr;

use cnikit_netlink::{KernelRoute, MAIN_TABLE, RouteCopy};
use cnikit_skel::{Error, Result};
use cnikit_types::limit;
use ipnetwork::IpNetwork;

use crate::address::layer3::SCOPE_LINK;
use crate::routing::route_index::metric;
use crate::routing::source_state::PROTOCOL;

/// How many routes are copied at most.
const MOST_ROUTES: usize = 16_384;

/// An address that packets are routed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceAddress {
    /// The address with the prefix of its subnet.
    pub address: IpNetwork,
    /// The gateway of the default route in its table.
    pub gateway: Option<IpAddr>,
    /// The gateway is used even if the main table has a default route over another one.
    pub has_static_gateway: bool,
}

/// The routes that are wanted.
#[derive(Debug, Default)]
pub(super) struct WantedRoutes {
    /// Routes to be there, in any table.
    pub(super) added: Vec<RouteCopy>,
    /// Routes not to be in the main table.
    pub(super) removed: Vec<RouteCopy>,
}

/// A route of the interface in the main table.
struct MainRoute<'a> {
    copy: &'a RouteCopy,
    /// Its gateway is in the subnet of an address, and is not link-local.
    has_near_gateway: bool,
}

/// The routes for addresses with a table each. `main`: the interface's routes in the main table, those included that an earlier
/// ADD of the attachment has removed.
///
/// # Errors
/// They are more than [`MOST_ROUTES`], or a gateway is not of its address's family.
pub(super) fn wanted(
    addresses: &[(SourceAddress, u32)],
    index: u32,
    main: &[RouteCopy],
    add_source_hints: bool,
) -> Result<WantedRoutes> {
    let mut wanted = WantedRoutes::default();
    let mut main_routes = Vec::with_capacity(main.len());
    for copy in main {
        main_routes.push(MainRoute { copy, has_near_gateway: has_near_gateway(copy.route(), addresses) });
    }
    for (address, table) in addresses {
        wanted.added.extend(of_table(address, *table, index, addresses, &main_routes)?);
        if let Err(error) = limit::count("routes to copy", wanted.added.len(), MOST_ROUTES) {
            let text = format!("{error}: each address has a table with the routes of the interface");
            return Err(Error::conflict(text).hint("remove routes of the interface, or configure `table`"));
        }
    }
    let mut hinted = Vec::new();
    if add_source_hints {
        for (address, _) in addresses {
            if let Some(hint) = source_hint(address, index, main, &hinted)? {
                hinted.push(hint);
            }
        }
    }
    for route in &main_routes {
        let is_hint = add_source_hints && route.copy.route().scope == Some(SCOPE_LINK);
        let has_table = addresses.iter().any(|(address, _)| belongs_to(route, address));
        if has_table && !is_hint && !is_link_local(route.copy.route()) {
            wanted.removed.push(route.copy.clone());
        }
    }
    wanted.added.extend(hinted);
    Ok(wanted)
}

/// A link-local gateway is near to no address: it can be reached from all addresses of the link, whatever their subnets are.
fn has_near_gateway(route: &KernelRoute, addresses: &[(SourceAddress, u32)]) -> bool {
    let Some(gateway) = route.gateway else { return false };
    !is_link_local_ip(gateway) && addresses.iter().any(|(one, _)| one.address.contains(gateway))
}

/// The routes of one address's table.
fn of_table(
    address: &SourceAddress,
    table: u32,
    index: u32,
    addresses: &[(SourceAddress, u32)],
    main: &[MainRoute],
) -> Result<Vec<RouteCopy>> {
    let mut copies = Vec::new();
    for route in main {
        if belongs_to(route, address) {
            copies.push(route.copy.in_table(table));
        }
    }
    let Some(gateway) = address.gateway else { return Ok(copies) };
    let default = default_route(address, gateway, table, index, addresses);
    let is_same_default =
        |copy: &RouteCopy| copy.route().dst == default.dst && metric(copy.route()) == metric(&default);
    if address.has_static_gateway {
        copies.retain(|copy| !is_same_default(copy));
    } else if copies.iter().any(is_same_default) {
        return Ok(copies);
    }
    copies.insert(0, RouteCopy::new(&default)?);
    Ok(copies)
}

fn default_route(
    address: &SourceAddress,
    gateway: IpAddr,
    table: u32,
    index: u32,
    addresses: &[(SourceAddress, u32)],
) -> KernelRoute {
    let is_in_subnet = addresses.iter().any(|(one, _)| one.address.contains(gateway));
    KernelRoute {
        gateway: Some(gateway),
        index: Some(index),
        table,
        protocol: PROTOCOL,
        onlink: !is_in_subnet,
        ..KernelRoute::to(everywhere(address.address))
    }
}

/// Whether a route of the interface belongs into the table of an address. A gateway that is link-local, or in the subnet of no
/// address, serves all addresses of the family; so does a route without source and gateway.
fn belongs_to(route: &MainRoute, address: &SourceAddress) -> bool {
    let MainRoute { copy, has_near_gateway } = route;
    let route = copy.route();
    if route.dst.is_ipv4() != address.address.is_ipv4() {
        return false;
    }
    let is_in = |ip: Option<IpAddr>| ip.is_some_and(|ip| address.address.contains(ip));
    is_in(route.source) || is_in(route.gateway) || route.source.is_none() && !has_near_gateway
}

/// `SUBNET dev LINK scope link src ADDRESS`; `None` if the main table has such a route, which then stays.
fn source_hint(
    address: &SourceAddress,
    index: u32,
    main: &[RouteCopy],
    hinted: &[RouteCopy],
) -> Result<Option<RouteCopy>> {
    let dst = IpNetwork::new(address.address.network(), address.address.prefix());
    let Ok(dst) = dst else { return Ok(None) };
    let is_there = |copy: &RouteCopy| {
        let route = copy.route();
        route.dst == dst && route.source.is_some() && route.gateway.is_none() && route.scope == Some(SCOPE_LINK)
    };
    let is_hinted = hinted.iter().any(|copy| copy.route().dst == dst);
    if is_hinted || main.iter().any(is_there) {
        return Ok(None);
    }
    let route = KernelRoute {
        index: Some(index),
        source: Some(address.address.ip()),
        scope: dst.is_ipv4().then_some(SCOPE_LINK),
        protocol: PROTOCOL,
        table: MAIN_TABLE,
        ..KernelRoute::to(dst)
    };
    Ok(Some(RouteCopy::new(&route)?))
}

/// Whether a route leads to link-local addresses, which each link needs in the main table: the address that the kernel gives a link
/// has no table.
fn is_link_local(route: &KernelRoute) -> bool {
    is_link_local_ip(route.dst.ip())
}

fn is_link_local_ip(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
        IpAddr::V4(_) => false,
    }
}

fn everywhere(of: IpNetwork) -> IpNetwork {
    let any: IpAddr = match of {
        IpNetwork::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        IpNetwork::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    IpNetwork::new(any, 0).unwrap_or(of)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str, gateway: Option<&str>) -> SourceAddress {
        let gateway = gateway.map(|gateway| gateway.parse().unwrap());
        SourceAddress { address: text.parse().unwrap(), gateway, has_static_gateway: false }
    }

    fn route(dst: &str, gateway: Option<&str>, source: Option<&str>) -> RouteCopy {
        let route = KernelRoute {
            gateway: gateway.map(|ip| ip.parse().unwrap()),
            source: source.map(|ip| ip.parse().unwrap()),
            index: Some(3),
            ..KernelRoute::to(dst.parse().unwrap())
        };
        RouteCopy::new(&route).unwrap()
    }

    /// Each added route as `DST [via GATEWAY] TABLE`.
    fn texts(copies: &[RouteCopy]) -> Vec<String> {
        let text = |copy: &RouteCopy| {
            let route = copy.route();
            let via = route.gateway.map_or_else(String::new, |gateway| format!(" via {gateway}"));
            format!("{}{via} {}", route.dst, route.table)
        };
        copies.iter().map(text).collect()
    }

    #[test]
    fn each_table_has_the_routes_of_its_subnet_and_its_family() {
        let addresses = [
            (address("10.0.0.2/24", Some("10.0.0.1")), 100),
            (address("10.1.0.2/24", None), 101),
            (address("fd00::2/64", None), 102),
        ];
        let main = [
            route("10.0.0.0/24", None, Some("10.0.0.2")),
            route("10.9.0.0/16", Some("10.1.0.1"), None),
            route("10.8.0.0/16", None, None),
            route("fd00::/64", None, None),
            route("fe80::/64", None, None),
            route("::/0", Some("fe80::1"), None),
        ];
        let wanted = wanted(&addresses, 3, &main, false).unwrap();
        assert_eq!(
            texts(&wanted.added),
            [
                "0.0.0.0/0 via 10.0.0.1 100",
                "10.0.0.0/24 100",
                "10.8.0.0/16 100",
                "10.9.0.0/16 via 10.1.0.1 101",
                "10.8.0.0/16 101",
                "fd00::/64 102",
                "fe80::/64 102",
                "::/0 via fe80::1 102",
            ]
        );
        let left: Vec<String> = texts(&wanted.removed);
        assert_eq!(left.len(), 5, "{left:?}");
        assert!(!left.contains(&"fe80::/64 254".to_owned()));
    }

    #[test]
    fn a_link_local_gateway_serves_every_address_of_its_family() {
        let addresses = [
            (address("fd00::2/64", None), 100),
            (address("fe80::5/64", None), 101),
            (address("10.0.0.2/24", None), 102),
        ];
        let main = [route("fd09::/64", Some("fe80::9"), None)];
        let wanted = wanted(&addresses, 3, &main, false).unwrap();
        assert_eq!(texts(&wanted.added), ["fd09::/64 via fe80::9 100", "fd09::/64 via fe80::9 101"]);
        assert_eq!(texts(&wanted.removed), ["fd09::/64 via fe80::9 254"]);
    }

    #[test]
    fn a_route_that_no_table_has_stays_in_the_main_table() {
        let addresses = [(address("10.0.0.2/24", None), 100)];
        let main = [route("fd00::/64", None, None), route("10.9.0.0/16", None, Some("192.0.2.1"))];
        let wanted = wanted(&addresses, 3, &main, false).unwrap();
        assert_eq!((wanted.added.len(), wanted.removed.len()), (0, 0), "{wanted:?}");
    }

    #[test]
    fn a_static_gateway_replaces_the_default_route_and_an_addresss_own_gateway_does_not() {
        let main = [route("0.0.0.0/0", Some("10.0.0.254"), None)];
        for (has_static_gateway, gateway) in [(true, "10.0.0.1"), (false, "10.0.0.254")] {
            let address = SourceAddress { has_static_gateway, ..address("10.0.0.2/24", Some("10.0.0.1")) };
            let wanted = wanted(&[(address, 100)], 3, &main, false).unwrap();
            assert_eq!(texts(&wanted.added), [format!("0.0.0.0/0 via {gateway} 100")]);
        }
    }

    #[test]
    fn source_hints_keep_the_subnets_in_the_main_table() {
        let addresses = [(address("10.0.0.2/24", None), 100), (address("fd00::2/64", None), 101)];
        let main = [
            route("10.0.0.0/24", None, Some("10.0.0.2")),
            route("0.0.0.0/0", Some("10.0.0.1"), None),
            route("fd00::/64", None, None),
        ];
        let of_four = wanted(&addresses[..1], 3, &[route("10.0.0.0/24", None, None)], true).unwrap();
        let hint = of_four.added.last().unwrap().route();
        assert_eq!((hint.source, hint.scope), (Some("10.0.0.2".parse().unwrap()), Some(SCOPE_LINK)));
        let wanted = wanted(&addresses, 3, &main, true).unwrap();
        assert_eq!(texts(&wanted.removed), ["0.0.0.0/0 via 10.0.0.1 254", "fd00::/64 254"]);
        let hint = wanted.added.last().unwrap().route();
        assert_eq!((hint.dst.to_string(), hint.source), ("fd00::/64".into(), Some("fd00::2".parse().unwrap())));
        assert_eq!(wanted.added.iter().filter(|copy| copy.route().table == MAIN_TABLE).count(), 1);
    }
}

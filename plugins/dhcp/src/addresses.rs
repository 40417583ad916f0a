//! The addresses, routes and DNS of leases.

use cnikit::types::{Dns, Ip, Route};
use cnikit::{Addresses, Result};
use cnikit_dhcp::v4::Lease;
use cnikit_dhcp::v6::Lease6;
use ipnetwork::{IpNetwork, Ipv4Network};

/// The scope of routes to destinations on the link (`RT_SCOPE_LINK`).
const SCOPE_LINK: u8 = 253;

/// A lease of either family.
#[derive(Debug)]
pub(crate) enum AnyLease {
    V4(Box<Lease>),
    V6(Box<Lease6>),
}

impl AnyLease {
    /// What the result gets. `priority` is the metric of each route.
    pub(crate) fn addresses(&self, priority: Option<u32>) -> Result<Addresses> {
        match self {
            AnyLease::V4(lease) => of_v4(lease, priority),
            AnyLease::V6(lease) => Ok(of_v6(lease)),
        }
    }
}

fn of_v4(lease: &Lease, priority: Option<u32>) -> Result<Addresses> {
    let parameters = &lease.parameters;
    let address = Ipv4Network::new(lease.address, parameters.prefix.unwrap_or(32))?;
    let gateway = parameters.routers.first().map(|router| (*router).into());
    let mut routes = Vec::new();
    for route in &parameters.routes {
        routes.push(Route {
            gw: route.gateway.map(Into::into),
            scope: if route.gateway.is_none() { Some(SCOPE_LINK) } else { None },
            priority,
            ..Route::to(IpNetwork::V4(route.destination))
        });
    }
    let dns = Dns {
        nameservers: parameters.dns.iter().map(ToString::to_string).collect(),
        domain: parameters.domain.clone().unwrap_or_default(),
        search: parameters.search.clone(),
        ..Dns::default()
    };
    Ok(Addresses { ips: vec![Ip { gateway, ..Ip::new(IpNetwork::V4(address)) }], routes, dns })
}

/// Which other addresses are on the link, and which router leads elsewhere, is known from router advertisements only.
fn of_v6(lease: &Lease6) -> Addresses {
    let networks = lease.addresses.iter().map(|one| IpNetwork::V6(one.address.into()));
    let dns = Dns {
        nameservers: lease.dns.iter().map(ToString::to_string).collect(),
        search: lease.search.clone(),
        ..Dns::default()
    };
    Addresses { ips: networks.map(Ip::new).collect(), dns, ..Addresses::default() }
}

/// Adds the addresses, routes and DNS of another source.
pub(crate) fn add(all: &mut Addresses, more: Addresses) {
    all.ips.extend(more.ips);
    all.routes.extend(more.routes);
    all.dns.nameservers.extend(more.dns.nameservers);
    for domain in more.dns.search {
        if !all.dns.search.contains(&domain) {
            all.dns.search.push(domain);
        }
    }
    if all.dns.domain.is_empty() {
        all.dns.domain = more.dns.domain;
    }
}

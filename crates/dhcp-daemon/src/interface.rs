//! The interface that has a lease, in its namespace. No descriptor stays open here.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cnikit_dhcp::v4::{Lease, LeaseRoute};
use cnikit_dhcp::v6::Lease6;
use cnikit_netlink::{KernelRoute, Link, LinkChange, Netlink, NewAddress};
use cnikit_netns::{Netns, NetnsLookup, boot_id, find};
use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};

use crate::record::{Place, Record, StoredRecord};
use crate::uplink::{self, Uplink};

/// Finds the namespace and the interface in it, and sets that up. Also returns the link of the host below it.
pub(crate) fn locate(netns: &str, ifname: &str) -> Result<(Place, Option<Uplink>), String> {
    let found = match find(netns) {
        NetnsLookup::Present(found) => found,
        NetnsLookup::Own(_) => return Err(format!("{netns} is the daemon's own network namespace")),
        NetnsLookup::Empty => return Err("no network namespace is named".to_owned()),
        NetnsLookup::Gone => return Err(format!("there is no network namespace at {netns}")),
        NetnsLookup::NotNetns { why, .. } => return Err(format!("{netns} is not a network namespace: {why}")),
        NetnsLookup::Unknown { why, .. } => return Err(format!("{netns} cannot be opened: {why}")),
    };
    let netlink = Netlink::inside(&found).map_err(|error| error.to_string())?;
    let link = netlink.link(ifname).map_err(|error| error.to_string())?;
    let Some(mac) = link.mac.filter(|mac| !mac.is_zero()) else {
        return Err(format!("{ifname} has no Ethernet address, and DHCP needs one"));
    };
    if !link.up {
        let up = LinkChange { up: Some(true), ..LinkChange::default() };
        netlink.change(link.index, &up).map_err(|error| error.to_string())?;
    }
    let place = Place {
        netns: netns.to_owned(),
        cookie: found.cookie().map_err(|error| error.to_string())?,
        boot: boot_id().map_err(|error| error.to_string())?,
        link: ifname.to_owned(),
        index: link.index,
        mac,
    };
    Ok((place, uplink::find(&netlink, &link)))
}

/// The namespace of a place; `None` if it does not exist any more, or another one is at its path. No namespace survives a reboot,
/// and cookies are of one boot.
pub(crate) fn reopen(place: &Place) -> Result<Option<Netns>, String> {
    if place.boot != boot_id().map_err(|error| error.to_string())? {
        return Ok(None);
    }
    let found = match find(&place.netns) {
        NetnsLookup::Present(found) => found,
        NetnsLookup::Unknown { why, .. } => return Err(format!("{} cannot be opened: {why}", place.netns)),
        _ => return Ok(None),
    };
    let cookie = found.cookie().map_err(|error| error.to_string())?;
    Ok(if cookie == place.cookie { Some(found) } else { None })
}

/// The interface of a place in its namespace; `None` if another interface has its name by now, or none.
fn link(netlink: &Netlink, place: &Place) -> Result<Option<Link>, String> {
    let link = netlink.find_link_at(place.index).map_err(|error| error.to_string())?;
    Ok(link.filter(|link| link.mac == Some(place.mac)))
}

/// Whether the interface has the address; `None` if there is no such interface.
pub(crate) fn find_address(netns: &Netns, record: &StoredRecord) -> Result<Option<bool>, String> {
    let netlink = Netlink::inside(netns).map_err(|error| error.to_string())?;
    if link(&netlink, record.place())?.is_none() {
        return Ok(None);
    }
    let wanted: Vec<IpAddr> = match record {
        StoredRecord::V4(record) => vec![record.lease.address.into()],
        StoredRecord::V6(record) => record.lease.addresses.iter().map(|one| one.address.into()).collect(),
    };
    let addresses = netlink.addresses(record.place().index).map_err(|error| error.to_string())?;
    Ok(Some(addresses.iter().any(|one| wanted.contains(&one.address.ip()))))
}

/// Whether the path leads to the namespace of this place.
pub(crate) fn is_at(netns: &str, place: &Place) -> Result<bool, String> {
    Ok(reopen(&Place { netns: netns.to_owned(), ..place.clone() })?.is_some())
}

/// Each difference between the interface, the result of its ADD, of which these are the addresses, and the lease.
pub(crate) fn differences(
    netns: &Netns,
    record: &Record,
    reported: Option<&[IpNetwork]>,
) -> Result<Vec<String>, String> {
    let (place, lease) = (&record.place, &record.lease);
    let netlink = Netlink::inside(netns).map_err(|error| error.to_string())?;
    let Some(link) = link(&netlink, place)? else {
        return Ok(vec![format!("{} with the address {} does not exist", place.link, place.mac)]);
    };
    let mut differences = Vec::new();
    if !link.up {
        differences.push(format!("{} is down", link.name));
    }
    let addresses = netlink.addresses(link.index).map_err(|error| error.to_string())?;
    let wanted = network(lease);
    if !addresses.iter().any(|one| one.address == wanted) {
        differences.push(format!("{} does not have {wanted}, the address of the lease", link.name));
    }
    if reported.is_some_and(|reported| !reported.contains(&wanted)) {
        differences.push(format!("prevResult does not have {wanted}, the address of the lease of {}", link.name));
    }
    if let Some(mtu) = smaller_mtu(record, &link) {
        differences.push(format!("{} has an MTU of {}, and the server of the lease wants {mtu}", link.name, link.mtu));
    }
    Ok(differences)
}

/// Makes the interface as the lease says, after it was as another lease, or none, said. The first error is reported; everything
/// else is done.
pub(crate) fn configure(netns: &Netns, record: &Record, former: Option<&Lease>) -> Result<(), String> {
    let netlink = Netlink::inside(netns).map_err(|error| error.to_string())?;
    let Some(link) = link(&netlink, &record.place)? else {
        return Err(format!("{} does not exist any more", record.place.link));
    };
    let lease = &record.lease;
    let mut failures = Vec::new();
    let mut note = |done: Result<(), cnikit_netlink::Error>| {
        if let Err(error) = done.or_else(|error| if error.exists() || error.is_absent() { Ok(()) } else { Err(error) })
        {
            failures.push(error.to_string());
        }
    };
    if let Some(mtu) = smaller_mtu(record, &link) {
        note(netlink.change(link.index, &LinkChange { mtu: Some(mtu), ..LinkChange::default() }));
    }
    let is_new = former.is_none_or(|former| network(former) != network(lease));
    if is_new {
        note(netlink.add_address(link.index, &NewAddress::from(network(lease))));
    }
    if let Some(former) = former {
        for route in former.parameters.routes.iter().filter(|route| !lease.parameters.routes.contains(route)) {
            note(netlink.delete_route(&kernel_route(route, record, link.index)));
        }
        if is_new {
            note(netlink.delete_address(link.index, network(former)));
        }
    }
    for route in &lease.parameters.routes {
        if is_new || former.is_some_and(|former| !former.parameters.routes.contains(route)) {
            note(netlink.add_route(&kernel_route(route, record, link.index)));
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("; ")) }
}

/// Gives the interface the MTU of the lease, if it is smaller than the one that it has.
pub(crate) fn lower_mtu(netns: &Netns, record: &Record) -> Result<(), String> {
    let netlink = Netlink::inside(netns).map_err(|error| error.to_string())?;
    let Some(link) = link(&netlink, &record.place)? else { return Ok(()) };
    let Some(mtu) = smaller_mtu(record, &link) else { return Ok(()) };
    let change = LinkChange { mtu: Some(mtu), ..LinkChange::default() };
    netlink.change(link.index, &change).map_err(|error| error.to_string())
}

/// Takes the lease's address from the interface; its routes go with it.
pub(crate) fn remove_address(netns: &Netns, record: &Record) -> Result<(), String> {
    let netlink = Netlink::inside(netns).map_err(|error| error.to_string())?;
    if link(&netlink, &record.place)?.is_none() {
        return Ok(());
    }
    match netlink.delete_address(record.place.index, network(&record.lease)) {
        Err(error) if !error.is_absent() => Err(error.to_string()),
        _ => Ok(()),
    }
}

/// The MTU that the server names, if it may be set and the interface has a larger one.
fn smaller_mtu(record: &Record, link: &Link) -> Option<u32> {
    let wanted = u32::from(record.lease.parameters.mtu?);
    (record.mtu && wanted < link.mtu).then_some(wanted)
}

/// The address of a lease with its prefix. A lease without a prefix is refused before it gets here; it would be one address.
fn network(lease: &Lease) -> IpNetwork {
    let host = Ipv4Network::from(lease.address);
    let prefix = lease.parameters.prefix.unwrap_or(host.prefix());
    IpNetwork::V4(Ipv4Network::new(lease.address, prefix).unwrap_or(host))
}

fn kernel_route(route: &LeaseRoute, record: &Record, index: u32) -> KernelRoute {
    let gateway: Option<Ipv4Addr> = route.gateway;
    KernelRoute {
        gateway: gateway.map(IpAddr::V4),
        index: Some(index),
        priority: record.priority,
        ..KernelRoute::to(IpNetwork::V4(route.destination))
    }
}

// ------------------------------------------------------------------------------------------------------------------- IPv6

/// What an interface has of link-local addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkLocal {
    Usable(Ipv6Addr),
    /// It is under duplicate address detection.
    Tentative,
    /// Another host uses it.
    Duplicate(Ipv6Addr),
    Absent,
}

impl fmt::Display for LinkLocal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkLocal::Usable(address) => write!(f, "has the link-local address {address}"),
            LinkLocal::Tentative => f.write_str("has a link-local address that is under duplicate address detection"),
            LinkLocal::Duplicate(address) => write!(f, "has the link-local address {address}, which another host uses"),
            LinkLocal::Absent => f.write_str("has no link-local address: IPv6 may be switched off there"),
        }
    }
}

/// The link-local address of the interface; `None` if the interface or its namespace is gone.
pub(crate) fn link_local(netns: Option<&Netns>, place: &Place) -> Result<Option<LinkLocal>, String> {
    let Some(netns) = netns else { return Ok(None) };
    let netlink = Netlink::inside(netns).map_err(|error| error.to_string())?;
    if link(&netlink, place)?.is_none() {
        return Ok(None);
    }
    let mut best = LinkLocal::Absent;
    for one in netlink.addresses(place.index).map_err(|error| error.to_string())? {
        let IpAddr::V6(address) = one.address.ip() else { continue };
        if !address.is_unicast_link_local() {
            continue;
        }
        if one.dad_failed {
            best = LinkLocal::Duplicate(address);
        } else if one.tentative {
            best = LinkLocal::Tentative;
        } else {
            return Ok(Some(LinkLocal::Usable(address)));
        }
    }
    Ok(Some(best))
}

/// The addresses of a lease, each alone: which others are on the link is known from router advertisements only.
pub(crate) fn networks6(lease: &Lease6) -> Vec<IpNetwork> {
    lease.addresses.iter().map(|one| IpNetwork::V6(Ipv6Network::from(one.address))).collect()
}

/// The addresses of a lease.
pub(crate) fn addresses6(lease: &Lease6) -> Vec<Ipv6Addr> {
    lease.addresses.iter().map(|one| one.address).collect()
}

/// The addresses of a lease as text.
pub(crate) fn addresses_text(lease: &Lease6) -> String {
    let texts: Vec<String> = lease.addresses.iter().map(|one| one.address.to_string()).collect();
    texts.join(", ")
}

/// Gives the interface these addresses in place of the former ones. The first error is reported; everything else is done.
pub(crate) fn configure6(
    netns: &Netns,
    place: &Place,
    wanted: &[IpNetwork],
    former: &[IpNetwork],
) -> Result<(), String> {
    let netlink = Netlink::inside(netns).map_err(|error| error.to_string())?;
    if link(&netlink, place)?.is_none() {
        return Ok(());
    }
    let mut failures = Vec::new();
    for address in wanted.iter().filter(|address| !former.contains(address)) {
        match netlink.add_address(place.index, &NewAddress::from(*address)) {
            Err(error) if !error.exists() => failures.push(error.to_string()),
            _ => {}
        }
    }
    for address in former.iter().filter(|address| !wanted.contains(address)) {
        match netlink.delete_address(place.index, *address) {
            Err(error) if !error.is_absent() => failures.push(error.to_string()),
            _ => {}
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("; ")) }
}

/// Each difference between the interface, the result of its ADD, of which these are the addresses, and those of the lease.
pub(crate) fn differences6(
    netns: &Netns,
    place: &Place,
    wanted: &[IpNetwork],
    reported: Option<&[IpNetwork]>,
) -> Result<Vec<String>, String> {
    let netlink = Netlink::inside(netns).map_err(|error| error.to_string())?;
    let Some(link) = link(&netlink, place)? else {
        return Ok(vec![format!("{} with the address {} does not exist", place.link, place.mac)]);
    };
    let mut differences = Vec::new();
    let found = netlink.addresses(link.index).map_err(|error| error.to_string())?;
    for address in wanted {
        match found.iter().find(|one| one.address == *address) {
            None => differences.push(format!("{} does not have {address}, an address of the lease", link.name)),
            Some(one) if one.dad_failed => {
                differences.push(format!("another host uses {address}, an address of the lease of {}", link.name));
            }
            Some(_) => {}
        }
        if reported.is_some_and(|reported| !reported.contains(address)) {
            differences.push(format!("prevResult does not have {address}, an address of the lease of {}", link.name));
        }
    }
    Ok(differences)
}

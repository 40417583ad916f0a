//! The interface that has a lease, in its namespace. No descriptor stays open here.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cnikit_dhcp::v4::{Lease, LeaseRoute};
use cnikit_dhcp::v6::Lease6;
use cnikit_netlink::{KernelRoute, Link, LinkChange, Netlink, NewAddress};
use cnikit_netns::{Netns, NetnsLookup, boot_id, find, mounted, of_processes};
use cnikit_types::printable;
use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};

use crate::log::log;
use crate::protocol::LeaseOwner;
use crate::record::{LoweredMtu, Place, Record, StoredRecord};
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
        let up = LinkChange::default().up(true);
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

/// The namespace of a place; `None` if it does not exist any more. No namespace survives a reboot, and cookies are of one boot.
pub(crate) fn reopen(place: &Place) -> Result<Option<Netns>, String> {
    match at_path(place)? {
        Some(found) => Ok(Some(found)),
        None if place.boot != boot_id().map_err(|error| error.to_string())? => Ok(None),
        None => search(place.cookie),
    }
}

/// The namespace with this cookie, by another path: a runtime may have removed the one that its ADD named, and the container runs.
/// `None`: no process is in it and no mount keeps it, so no container has it.
fn search(cookie: u64) -> Result<Option<Netns>, String> {
    let failed = |error: std::io::Error| format!("the network namespaces cannot be listed: {error}");
    for paths in [mounted().map_err(failed)?, of_processes().map_err(failed)?] {
        for path in paths {
            // One that ends meanwhile is not the one that is looked for, or is gone.
            if let Ok(found) = Netns::open(&path)
                && found.cookie().is_ok_and(|other| other == cookie)
            {
                return Ok(Some(found));
            }
        }
    }
    Ok(None)
}

/// The namespace of a place by its path; `None` if another one is there, or none.
fn at_path(place: &Place) -> Result<Option<Netns>, String> {
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

/// The interface of a place in its namespace; `None` if it is gone. Its index identifies it, because the container or a plugin such
/// as tuning may give it another name and another hardware address. One that has neither of these, nor an address of the lease, is
/// another interface that came from another namespace and has kept its index.
///
/// The container has chosen the name, and the log and CHECK report it, so it is printable here. The kernel is asked by the index.
fn link(netlink: &Netlink, place: &Place, leased: &[IpAddr]) -> Result<Option<Link>, String> {
    let found = netlink.find_link_at(place.index).map_err(|error| error.to_string())?;
    let Some(mut link) = found else { return Ok(None) };
    link.name = printable(&link.name).into_owned();
    if link.mac == Some(place.mac) || link.name == place.link {
        return Ok(Some(link));
    }
    let addresses = netlink.addresses(link.index).map_err(|error| error.to_string())?;
    let is_it = addresses.iter().any(|one| leased.contains(&one.address.ip()));
    Ok(if is_it { Some(link) } else { None })
}

/// The state of the interface of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Revisited {
    /// It, or its namespace, does not exist any more.
    Gone,
    /// It has the hardware address that it had.
    Same,
    /// It has another hardware address.
    OtherMac,
}

/// Looks for the interface of a place, whose lease has these addresses. The place gets the name and the hardware address that the
/// interface has now. An interface that cannot be looked for counts as unchanged; the reason is logged.
pub(crate) fn revisit(owner: &LeaseOwner, place: &mut Place, leased: &[IpAddr]) -> Revisited {
    match find_interface(place, leased) {
        Ok(Some(link)) if place.adopt(&link) => {
            log(owner, format!("{} has the hardware address {} now", place.link, place.mac));
            Revisited::OtherMac
        }
        Ok(Some(_)) => Revisited::Same,
        Ok(None) => Revisited::Gone,
        Err(why) => {
            log(owner, why);
            Revisited::Same
        }
    }
}

fn find_interface(place: &Place, leased: &[IpAddr]) -> Result<Option<Link>, String> {
    let Some(netns) = reopen(place)? else { return Ok(None) };
    link(&Netlink::inside(&netns).map_err(|error| error.to_string())?, place, leased)
}

/// Whether the interface has an address of the lease; `None` if there is no such interface. Its name and hardware address of now
/// replace those of the record.
pub(crate) fn find_address(netns: &Netns, record: &mut StoredRecord) -> Result<Option<bool>, String> {
    let netlink = Netlink::inside(netns).map_err(|error| error.to_string())?;
    let leased = record.addresses();
    let Some(link) = link(&netlink, record.place(), &leased)? else { return Ok(None) };
    record.place_mut().adopt(&link);
    let addresses = netlink.addresses(link.index).map_err(|error| error.to_string())?;
    Ok(Some(addresses.iter().any(|one| leased.contains(&one.address.ip()))))
}

/// Whether the path leads to the namespace of this place.
pub(crate) fn is_at(netns: &str, place: &Place) -> Result<bool, String> {
    Ok(at_path(&Place { netns: netns.to_owned(), ..place.clone() })?.is_some())
}

/// Each difference between the interface, the result of its ADD, of which these are the addresses, and the lease.
pub(crate) fn differences(
    netns: &Netns,
    record: &Record,
    reported: Option<&[IpNetwork]>,
) -> Result<Vec<String>, String> {
    let (place, lease) = (&record.place, &record.lease);
    let netlink = Netlink::inside(netns).map_err(|error| error.to_string())?;
    let Some(link) = link(&netlink, place, &[lease.address.into()])? else {
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
    if let Some(LoweredMtu { to: mtu, .. }) = wanted_mtu(record, &link) {
        differences.push(format!("{} has an MTU of {}, and the server of the lease wants {mtu}", link.name, link.mtu));
    }
    Ok(differences)
}

/// Gives the interface the address and the routes of the lease, after it had those of another lease, or none. The first error is
/// reported; everything else is done.
pub(crate) fn configure(netns: &Netns, record: &Record, former: Option<&Lease>) -> Result<(), String> {
    let netlink = Netlink::inside(netns).map_err(|error| error.to_string())?;
    let Some(link) = link(&netlink, &record.place, &addresses_of(record, former))? else {
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

/// The addresses of the lease of now and of the one before.
fn addresses_of(record: &Record, former: Option<&Lease>) -> Vec<IpAddr> {
    let mut addresses = vec![record.lease.address.into()];
    if let Some(former) = former {
        addresses.push(former.address.into());
    }
    addresses
}

/// Gives the interface the MTU of the lease, if that may be set. Returns the change; `None` if it has that MTU.
pub(crate) fn set_mtu(netns: &Netns, record: &Record) -> Result<Option<LoweredMtu>, String> {
    let netlink = Netlink::inside(netns).map_err(|error| error.to_string())?;
    let Some(link) = link(&netlink, &record.place, &[record.lease.address.into()])? else { return Ok(None) };
    let Some(wanted) = wanted_mtu(record, &link) else { return Ok(None) };
    let change = LinkChange::default().mtu(wanted.to);
    netlink.change(link.index, &change).map_err(|error| error.to_string())?;
    Ok(Some(wanted))
}

/// Takes the lease's address from the interface; its routes go with it.
pub(crate) fn remove_address(netns: &Netns, record: &Record) -> Result<(), String> {
    let netlink = Netlink::inside(netns).map_err(|error| error.to_string())?;
    if link(&netlink, &record.place, &[record.lease.address.into()])?.is_none() {
        return Ok(());
    }
    match netlink.delete_address(record.place.index, network(&record.lease)) {
        Err(error) if !error.is_absent() => Err(error.to_string()),
        _ => Ok(()),
    }
}

/// The MTU that the interface should have; `None` if it may not be set, or the interface has it. It is the one that the server
/// names, but never larger than the one that the interface had before, and one that another program has set is not made larger.
fn wanted_mtu(record: &Record, link: &Link) -> Option<LoweredMtu> {
    if !record.mtu {
        return None;
    }
    let most = match record.lowered_mtu {
        Some(lowered) if lowered.to == link.mtu => lowered.from,
        _ => link.mtu,
    };
    let wanted = record.lease.parameters.mtu.map_or(most, |named| most.min(named.into()));
    if wanted == link.mtu { None } else { Some(LoweredMtu { from: most, to: wanted }) }
}

/// What is different in the parameters of a renewed lease, with the values of before and of now.
pub(crate) fn changes(former: &Lease, lease: &Lease) -> String {
    let (before, now) = (&former.parameters, &lease.parameters);
    let mut changes = Vec::new();
    let mut compare = |what: &str, before: String, now: String| {
        if before != now {
            let named = |value: String| if value.is_empty() { "none".to_owned() } else { value };
            changes.push(format!("{what} from {} to {}", named(before), named(now)));
        }
    };
    compare("the network", network(former).to_string(), network(lease).to_string());
    compare("the routers", list(&before.routers), list(&now.routers));
    let routes = |lease: &Lease| lease.parameters.routes.iter().map(route_text).collect::<Vec<_>>();
    compare("the routes", list(&routes(former)), list(&routes(lease)));
    let mtu = |lease: &Lease| lease.parameters.mtu.map(|mtu| mtu.to_string()).unwrap_or_default();
    compare("the MTU", mtu(former), mtu(lease));
    compare("the DNS servers", list(&before.dns), list(&now.dns));
    if changes.is_empty() { "other parameters".to_owned() } else { changes.join(", ") }
}

fn route_text(route: &LeaseRoute) -> String {
    match route.gateway {
        Some(gateway) => format!("{} via {gateway}", route.destination),
        None => route.destination.to_string(),
    }
}

fn list<T: fmt::Display>(values: &[T]) -> String {
    let texts: Vec<String> = values.iter().map(ToString::to_string).collect();
    texts.join(" and ")
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

/// The link-local address of the interface, whose lease has these addresses; `None` if the interface or its namespace is gone.
pub(crate) fn link_local(netns: Option<&Netns>, place: &Place, leased: &[IpAddr]) -> Result<Option<LinkLocal>, String> {
    let Some(netns) = netns else { return Ok(None) };
    let netlink = Netlink::inside(netns).map_err(|error| error.to_string())?;
    if link(&netlink, place, leased)?.is_none() {
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
    let leased: Vec<IpAddr> = wanted.iter().chain(former).map(IpNetwork::ip).collect();
    if link(&netlink, place, &leased)?.is_none() {
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
    let leased: Vec<IpAddr> = wanted.iter().map(IpNetwork::ip).collect();
    let Some(link) = link(&netlink, place, &leased)? else {
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

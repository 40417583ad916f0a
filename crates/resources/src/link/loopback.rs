//! The container's own loopback interface.

use std::fmt;
use std::net::IpAddr;

use cnikit_netlink::{Link, LinkChange, Netlink};
use cnikit_plan::{ApplyContext, Drifts, GcContext, Kind, Made, ReleaseContext, Resource};
use cnikit_skel::{Error, Journal, Result};
use cnikit_types::Interface;
use ipnetwork::IpNetwork;

/// `lo` is up. It is lent: the kernel made it, and every namespace has one.
#[derive(Clone, Copy, Debug)]
pub struct Loopback;

/// `lo` goes down again when the container has nothing else that is up.
pub const KIND: Kind = Kind { name: "loopback", release, sweep: |_: &GcContext| Ok(()), outlives_link: true };

/// The name that the kernel gives it.
pub const NAME: &str = "lo";

impl Resource for Loopback {
    fn kind(&self) -> Kind {
        KIND
    }

    fn preflight(&self, context: &ApplyContext) -> Result<()> {
        let link = context.container()?.link(NAME)?;
        let stranger = addresses(context, &link)?.into_iter().find(|address| !address.ip().is_loopback());
        stranger.map_or(Ok(()), |address| {
            Err(Error::conflict(format!("loopback interface found with non-loopback address \"{}\"", address.ip()))
                .hint(format!("remove it: `ip address del {address} dev lo` in {}", context.sandbox)))
        })
    }

    fn ensure(&self, context: &ApplyContext, journal: &mut Journal) -> Result<Made> {
        let container = context.container()?;
        let link = container.link(NAME)?;
        if !link.up {
            let lent = Lent(container.clone(), link.index);
            let _ = journal.undo(&lent, |Lent(netlink, index)| netlink.change(*index, &to(false)));
            container.change(link.index, &to(true))?;
        }
        Ok(Made::one(Interface { name: NAME.into(), sandbox: context.sandbox.clone(), ..Interface::default() }))
    }

    fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        let link = context.container()?.link(NAME)?;
        drifts.unless(link.up, || format!("loopback interface is down: wanted lo up in {}", context.sandbox));
        Ok(())
    }
}

impl fmt::Display for Loopback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("lo up in the container")
    }
}

/// The first IPv4 and the first IPv6 address of `lo`, which the kernel assigns when the link goes up.
///
/// # Errors
/// The container's namespace or its `lo` cannot be read.
pub fn first_addresses(context: &ApplyContext) -> Result<Vec<IpNetwork>> {
    let link = context.container()?.link(NAME)?;
    let all = addresses(context, &link)?;
    let first = |ipv4| all.iter().copied().find(|address| address.is_ipv4() == ipv4);
    Ok([first(true), first(false)].into_iter().flatten().collect())
}

fn addresses(context: &ApplyContext, link: &Link) -> Result<Vec<IpNetwork>> {
    let found = context.container()?.addresses(link.index)?;
    let is_link_local = |ip: IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    Ok(found.into_iter().map(|one| one.address).filter(|address| !is_link_local(address.ip())).collect())
}

/// A link of the container, for giving back.
#[derive(Clone)]
struct Lent(Netlink, u32);

impl fmt::Display for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAME)
    }
}

fn to(up: bool) -> LinkChange {
    LinkChange { up: Some(up), ..LinkChange::default() }
}

/// Whatever else the container still has may talk over `lo`, so it goes down last.
fn release(context: &ReleaseContext) -> Result<()> {
    let Some(container) = context.container()? else { return Ok(()) };
    let links = container.links()?;
    let in_use = links.iter().any(|link| link.name != NAME && link.up);
    let lo = links.iter().find(|link| link.name == NAME && link.up && !in_use);
    lo.map_or(Ok(()), |lo| Ok(container.change(lo.index, &to(false))?))
}

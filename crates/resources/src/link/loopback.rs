//! The container's loopback interface.

use std::fmt;
use std::net::IpAddr;

use cnikit_netlink::{LinkChange, Netlink};
use cnikit_plan::{ApplyContext, Drifts, GcContext, Kind, Made, ReleaseContext, Resource};
use cnikit_skel::{Error, Journal, Result};
use cnikit_types::Interface;
use ipnetwork::IpNetwork;

/// `lo` is up. The kernel made it, so it is never removed.
#[derive(Clone, Copy, Debug)]
pub struct Loopback;

/// DEL sets `lo` down if no other link of the container is up.
pub const KIND: Kind = Kind { name: "loopback", release, sweep: |_: &GcContext| Ok(()), outlives_link: true };

/// The name of the loopback interface.
pub const NAME: &str = "lo";
/// Its index, the same in every namespace.
#[doc(alias = "LOOPBACK_IFINDEX")]
const INDEX: u32 = 1;

impl Resource for Loopback {
    fn kind(&self) -> Kind {
        KIND
    }

    fn preflight(&self, context: &ApplyContext) -> Result<()> {
        context.container()?.link(NAME)?;
        let other = addresses(context)?.into_iter().find(|address| !address.ip().is_loopback());
        let Some(address) = other else { return Ok(()) };
        Err(Error::conflict(format!("loopback interface found with non-loopback address \"{}\"", address.ip()))
            .hint(format!("remove it: `ip address del {address} dev lo` in {}", context.sandbox)))
    }

    fn ensure(&self, context: &ApplyContext, journal: &mut Journal) -> Result<Made> {
        let container = context.container()?;
        let link = container.recent_link(NAME)?;
        if !link.up {
            let lo = SetUp { netlink: container.clone(), index: link.index };
            let _ = journal.undo(&lo, |lo| lo.netlink.change(lo.index, &to(false)));
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
    let all = addresses(context)?;
    let first = |ipv4| all.iter().copied().find(|address| address.is_ipv4() == ipv4);
    Ok([first(true), first(false)].into_iter().flatten().collect())
}

fn addresses(context: &ApplyContext) -> Result<Vec<IpNetwork>> {
    let found = context.container()?.addresses(INDEX)?;
    let is_link_local = |ip: IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    Ok(found.into_iter().map(|one| one.address).filter(|address| !is_link_local(address.ip())).collect())
}

/// `lo`, which this ADD set up, for the journal.
#[derive(Clone)]
struct SetUp {
    netlink: Netlink,
    index: u32,
}

impl fmt::Display for SetUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAME)
    }
}

fn to(up: bool) -> LinkChange {
    LinkChange::default().up(up)
}

/// Sets `lo` down, unless another link of the container is up: its programs may still use `lo`.
fn release(context: &ReleaseContext) -> Result<()> {
    let Some(container) = context.container()? else { return Ok(()) };
    let links = container.links()?;
    if links.iter().any(|link| link.name != NAME && link.up) {
        return Ok(());
    }
    if let Some(lo) = links.iter().find(|link| link.name == NAME && link.up) {
        container.change(lo.index, &to(false))?;
    }
    Ok(())
}

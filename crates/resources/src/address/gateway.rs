//! The gateway's addresses on a link of the host that containers share.

use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;

use cnikit_netlink::{Address, Batch, Link, LinkChange, NewAddress};
use cnikit_netns::{Inside, sysctl};
use cnikit_plan::{ApplyContext, Drifts, Kind, Made, Resource};
use cnikit_skel::{Error, Journal, Result};
use ipnetwork::IpNetwork;

use crate::address::ipv6_ready;

/// A link of the host has these addresses. They stay: other containers use them.
#[derive(Clone, Debug)]
pub struct Gateway {
    /// The link.
    pub link: String,
    /// The addresses, with the prefixes of the containers'.
    pub addresses: Vec<IpNetwork>,
    /// An address that is in the way is removed; else it is an error.
    pub force: bool,
    /// The addresses of the container that they are for: none of the link's own.
    pub containers: Vec<IpAddr>,
}

/// `RT_SCOPE_UNIVERSE`: link-local addresses are in nobody's way.
const GLOBAL: u8 = 0;

/// The kind that these are of.
pub const KIND: Kind = Kind::shared("gateway");

impl Resource for Gateway {
    fn kind(&self) -> Kind {
        KIND
    }

    fn preflight(&self, context: &ApplyContext) -> Result<()> {
        let own = self.addresses.iter().map(IpNetwork::ip);
        refuse_shared(&self.link, own, &self.containers)?;
        let Some(link) = context.host()?.find_recent_link(&self.link)? else { return Ok(()) };
        let present = context.host()?.addresses(link.index)?;
        refuse_shared(&self.link, present.iter().map(|one| one.address.ip()), &self.containers)?;
        self.in_the_way(&self.missing(&present), &present).first().map_or(Ok(()), |other| self.refuse(other))
    }

    fn ensure(&self, context: &ApplyContext, _journal: &mut Journal) -> Result<Made> {
        let host = context.host()?;
        let link = host.link(&self.link)?;
        let present = host.addresses(link.index)?;
        let missing = self.missing(&present);
        if missing.is_empty() {
            return Ok(Made::nothing());
        }
        if missing.iter().any(IpNetwork::is_ipv6) {
            sysctl::set(&Inside::here(), &format!("net/ipv6/conf/{}/disable_ipv6", self.link), "0")?;
        }
        for other in self.in_the_way(&missing, &present) {
            self.refuse(other)?;
            match host.delete_address(link.index, other.address) {
                Err(error) if !error.is_absent() => return Err(error.into()),
                _ => {} // gone, or removed by another ADD meanwhile
            }
        }
        host.send(changes(&link, &missing))?;
        ipv6_ready::wait_ipv6_ready(host, &missing)?;
        Ok(Made::nothing())
    }

    fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        let Some(link) = context.host()?.find_recent_link(&self.link)? else { return Ok(()) };
        let present = context.host()?.addresses(link.index)?;
        let found: Vec<String> = present.iter().map(|one| one.address.to_string()).collect();
        drifts.extend(
            self.missing(&present)
                .iter()
                .map(|address| format!("gateway on {}: wanted {address}, found [{}]", self.link, found.join(" "))),
        );
        Ok(())
    }
}

impl Gateway {
    fn missing(&self, present: &[Address]) -> Vec<IpNetwork> {
        let is_missing = |wanted: &IpNetwork| present.iter().all(|one| one.address != *wanted);
        self.addresses.iter().copied().filter(is_missing).collect()
    }

    /// What stands where missing addresses are to go: of IPv4 any other address, of IPv6 one in an overlapping network, for
    /// networks of IPv6 live side by side on a link. Where nothing is missing nothing is in the way.
    fn in_the_way<'a>(&self, missing: &[IpNetwork], present: &'a [Address]) -> Vec<&'a Address> {
        let clashes = |one: &&Address| {
            let mut rivals = missing.iter().filter(|wanted| wanted.is_ipv4() == one.address.is_ipv4());
            let rivalled = rivals.any(|wanted| one.address.is_ipv4() || overlap(*wanted, one.address));
            one.scope == GLOBAL && rivalled && !self.addresses.contains(&one.address)
        };
        present.iter().filter(clashes).collect()
    }

    fn refuse(&self, other: &Address) -> Result<()> {
        if self.force {
            return Ok(());
        }
        let wanted: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        let link = &self.link;
        let other = other.address;
        let wanted = wanted.join(", ");
        Err(Error::conflict(format!("{link:?} already has an IP address different from {wanted}: {other}")).hint(
            format!("if no container needs it: `ip address del {other} dev {link}`, or set `forceAddress`; else give this network another bridge"),
        ))
    }
}

/// Refuses to give a container an address that a link of the host has, or will have, in the same segment.
pub(crate) fn refuse_shared(link: &str, own: impl Iterator<Item = IpAddr>, containers: &[IpAddr]) -> Result<()> {
    let containers: HashSet<IpAddr> = containers.iter().copied().collect();
    for address in own {
        if containers.contains(&address) {
            return Err(Error::conflict(format!("the container cannot have {address}: it is the host's on {link}"))
                .hint("give the container another address, or the host another gateway"));
        }
    }
    Ok(())
}

/// New addresses, and the link's own MAC made its own to keep: containers remember it as the gateway's.
fn changes(link: &Link, missing: &[IpNetwork]) -> Batch {
    let mut batch = Batch::new();
    for address in missing {
        let new = NewAddress { address: *address, no_dad: true, no_prefix_route: false, scope: GLOBAL };
        batch.add_address_if_absent(link.index, &new);
    }
    if let Some(mac) = link.mac.filter(|mac| !mac.is_zero()) {
        batch.set_link(link.index, &LinkChange { mac: Some(mac), ..LinkChange::default() });
    }
    batch
}

fn overlap(one: IpNetwork, other: IpNetwork) -> bool {
    one.contains(other.network()) || other.contains(one.network())
}

impl fmt::Display for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        write!(f, "gateway on {}: {}", self.link, addresses.join(", "))?;
        f.write_str(if self.force { ", in place of any other" } else { "" })
    }
}

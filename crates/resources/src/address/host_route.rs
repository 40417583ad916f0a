//! Gateway addresses on the host end of a veth pair, and the host's routes to the container.

use std::fmt;
use std::net::IpAddr;

use cnikit_netlink::{Batch, KernelRoute, NewAddress};
use cnikit_netns::{Inside, sysctl};
use cnikit_plan::{ApplyContext, Drifts, Kind, Made, Resource};
use cnikit_skel::{Error, Journal, Result};
use ipnetwork::IpNetwork;

use crate::address::gateway::refuse_shared;
use crate::link::veth_ends;

/// The host end has the gateways' addresses, and the host routes the container's addresses to it.
#[derive(Clone, Debug)]
pub struct HostRoute {
    /// The container's interface.
    pub ifname: String,
    /// The gateways, without duplicates.
    pub gateways: Vec<IpAddr>,
    /// The container's addresses.
    pub addresses: Vec<IpAddr>,
}

/// `RT_SCOPE_HOST`, the same as upstream's.
const SCOPE_HOST: u8 = 254;

/// The kind of [`HostRoute`].
pub const KIND: Kind = Kind::goes_with_link("host route");

impl Resource for HostRoute {
    fn kind(&self) -> Kind {
        KIND
    }

    /// Refuses an address that the host routes to another link, because it may be a running container's.
    fn preflight(&self, context: &ApplyContext) -> Result<()> {
        refuse_shared("the host end", self.gateways.iter().copied(), &self.addresses)?;
        let host = context.host()?;
        for address in &self.addresses {
            let Some(route) = host.route_for(*address)? else { continue };
            if route.dst != IpNetwork::from(*address) {
                continue;
            }
            let link = route.index.and_then(|index| host.find_link_at(index).ok().flatten());
            let name = link.as_ref().map_or("another link", |link| link.name.as_str());
            return Err(Error::conflict(format!("the host routes {address} to {name} already")).hint(format!(
                "DEL the attachment that has it; if there is no attachment: `ip route del {address} dev {name}`"
            )));
        }
        Ok(())
    }

    fn ensure(&self, context: &ApplyContext, _journal: &mut Journal) -> Result<Made> {
        let host = context.host()?;
        let end = veth_ends::own_host_end(host, &context.tag)?;
        if self.gateways.iter().any(IpAddr::is_ipv6) {
            sysctl::set(&Inside::here(), &format!("net/ipv6/conf/{}/disable_ipv6", end.name), "0")?;
        }
        let mut batch = Batch::new();
        for gateway in &self.gateways {
            let new = NewAddress::from(IpNetwork::from(*gateway)).no_dad(true);
            batch.add_address(end.index, &new);
        }
        for route in self.routes() {
            batch.add_route(&KernelRoute { index: Some(end.index), ..route });
        }
        host.send(batch)?;
        Ok(Made::nothing())
    }

    fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        let host = context.host()?;
        let Some(end) = veth_ends::host_end_of_interface(context, &self.ifname)? else { return Ok(()) };
        let addresses = host.addresses(end.index)?;
        let routes = host.routes_of(end.index)?;
        for gateway in &self.gateways {
            let gateway = IpNetwork::from(*gateway);
            drifts.unless(addresses.iter().any(|one| one.address == gateway), || {
                let found: Vec<String> = addresses.iter().map(|one| one.address.to_string()).collect();
                format!("gateway on {}: wanted {gateway}, found [{}]", end.name, found.join(" "))
            });
        }
        for wanted in self.routes() {
            drifts.unless(routes.iter().any(|one| one.dst == wanted.dst), || {
                format!("host route to {}: wanted over {}, found none there", wanted.dst, end.name)
            });
        }
        Ok(())
    }
}

impl HostRoute {
    fn routes(&self) -> Vec<KernelRoute> {
        let mut routes = Vec::new();
        for address in &self.addresses {
            let scope = address.is_ipv4().then_some(SCOPE_HOST);
            routes.push(KernelRoute { scope, ..KernelRoute::to((*address).into()) });
        }
        routes
    }
}

impl fmt::Display for HostRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts = |addresses: &[IpAddr]| addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        write!(f, "on the host's end: gateway {}, route to {}", texts(&self.gateways), texts(&self.addresses))
    }
}

//! A bridge port in forwarding state, and the announcement of the container's addresses to its neighbours.

use std::fmt;
use std::net::IpAddr;

use cnikit_netlink::{Batch, LinkChange};
use cnikit_netns::Inside;
use cnikit_plan::{ApplyContext, Drifts, Kind, Made, Resource};
use cnikit_skel::{Journal, Result};

use crate::address::gateway::refuse_shared;
use crate::address::layer3::set_of_families;
use crate::link::veth_ends;

/// The host end is in forwarding state. The host's neighbour entries for the container's addresses are deleted, and the addresses
/// are announced in the segment.
#[derive(Clone, Debug)]
pub struct ForwardingPort {
    /// The container's interface.
    pub ifname: String,
    /// The bridge.
    pub bridge: String,
    /// The link by which the host itself is in the segment: the bridge, or the gateway of a VLAN.
    pub gateway: String,
    /// The container's addresses.
    pub addresses: Vec<IpAddr>,
    /// Links of the host in the segment whose addresses the container must not have.
    pub shared_links: Vec<String>,
}

/// The kind of [`ForwardingPort`].
pub const KIND: Kind = Kind::goes_with_link("forwarding port");

impl Resource for ForwardingPort {
    fn kind(&self) -> Kind {
        KIND
    }

    fn preflight(&self, context: &ApplyContext) -> Result<()> {
        for name in &self.shared_links {
            let Some(link) = context.host()?.find_recent_link(name)? else { continue };
            let present = context.host()?.addresses(link.index)?;
            refuse_shared(name, present.iter().map(|one| one.address.ip()), &self.addresses)?;
        }
        Ok(())
    }

    fn ensure(&self, context: &ApplyContext, _journal: &mut Journal) -> Result<Made> {
        let host = context.host()?;
        let port = veth_ends::own_host_end(host, &context.tag)?;
        veth_ends::wait_running(host, &port)?;
        if !self.addresses.is_empty() {
            self.announce(context)?;
        }
        Ok(Made::nothing())
    }

    fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        if let Some(port) = veth_ends::host_end_of_interface(context, &self.ifname)? {
            drifts.unless(port.running, || format!("bridge port {}: wanted up, found {}", port.name, port.operstate));
        }
        Ok(())
    }
}

impl ForwardingPort {
    fn announce(&self, context: &ApplyContext) -> Result<()> {
        let host = context.host()?;
        let container = context.container()?;
        let gateway = host.recent_link(&self.gateway)?;
        let mut batch = Batch::new();
        for address in &self.addresses {
            batch.delete_neighbour(gateway.index, *address);
        }
        host.send(batch)?;
        context.netns.enter(|inside| self.enable_announcements(inside))?;
        // Setting the same MAC makes the kernel announce every address of the link, now that the port forwards the announcement.
        let end = container.link(&self.ifname)?;
        Ok(container.change(end.index, &LinkChange::default().mac(end.mac))?)
    }

    /// Has the kernel announce addresses, as [`Layer3::announce`](crate::layer3::Layer3::announce) does, but not before the port
    /// forwards: the bridge floods each announcement to all of its ports, which takes microseconds for each. For the same reason
    /// IPv6 addresses are announced only if the container has more of them than the link-local one, which no neighbour has had
    /// before.
    fn enable_announcements(&self, inside: &Inside) {
        let mut settings = vec![("ipv4", "arp_notify", "1")];
        if self.addresses.iter().any(IpAddr::is_ipv6) {
            settings.push(("ipv6", "ndisc_notify", "1"));
        }
        set_of_families(inside, &self.ifname, &settings);
    }
}

impl fmt::Display for ForwardingPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the port of bridge {} forwards", self.bridge)?;
        if self.addresses.is_empty() {
            return Ok(());
        }
        let addresses: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        write!(f, " and announces {} to its neighbours", addresses.join(", "))
    }
}

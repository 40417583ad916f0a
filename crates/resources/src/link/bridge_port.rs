//! A bridge port that forwards, and neighbours that know who is there now.

use std::fmt;
use std::net::IpAddr;

use cnikit_netlink::{Batch, Link, LinkChange};
use cnikit_plan::{ApplyContext, Drifts, Kind, Made, Resource};
use cnikit_skel::{Journal, Result};

use crate::address::gateway::refuse_shared;
use crate::link::veth;

/// The host's end of the pair forwards; what the host remembered of who had these addresses is forgotten, and the segment
/// is told who has them now.
#[derive(Clone, Debug)]
pub struct ForwardingPort {
    /// The container's end.
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

/// The kind that these are of.
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
        let port = veth::own_host_end(host, &context.tag)?;
        veth::wait_running(host, &port)?;
        if !self.addresses.is_empty() {
            self.tell(context)?;
        }
        Ok(Made::nothing())
    }

    fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        if let Some(port) = of(context, &self.ifname)? {
            drifts.unless(port.running, || format!("bridge port {}: wanted up, found {}", port.name, port.operstate));
        }
        Ok(())
    }
}

impl ForwardingPort {
    fn tell(&self, context: &ApplyContext) -> Result<()> {
        let host = context.host()?;
        let container = context.container()?;
        let gateway = host.recent_link(&self.gateway)?;
        let mut batch = Batch::new();
        self.addresses.iter().for_each(|address| batch.delete_neighbour(gateway.index, *address));
        host.send(batch)?;
        // Saying the MAC again makes the kernel announce every address of the link, now that the port passes it on.
        let end = container.link(&self.ifname)?;
        Ok(container.change(end.index, &LinkChange { mac: end.mac, ..LinkChange::default() })?)
    }
}

/// The host's end of the pair whose other end the container has under this name.
pub(crate) fn of(context: &ApplyContext, ifname: &str) -> Result<Option<Link>> {
    match context.container()?.find_recent_link(ifname)? {
        Some(end) => veth::host_end_of(context.host()?, &context.netns, &end),
        None => Ok(None),
    }
}

impl fmt::Display for ForwardingPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the port of bridge {} forwards", self.bridge)?;
        let addresses: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        if addresses.is_empty() { Ok(()) } else { write!(f, ", neighbours are told of {}", addresses.join(", ")) }
    }
}

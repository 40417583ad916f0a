//! A bridge port that forwards, and neighbours that know who is there now.

use std::fmt;
use std::net::IpAddr;

use cnikit_netlink::{Batch, Change, Link};
use cnikit_plan::{Drifts, Kind, Made, Resource, Scene};
use cnikit_skel::{Journal, Result};

use crate::gateway::refuse_shared;
use crate::veth;

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

    fn judge(&self, scene: &Scene) -> Result<()> {
        for name in &self.shared_links {
            let Some(link) = scene.host()?.find_recent_link(name)? else { continue };
            let present = scene.host()?.addresses(link.index)?;
            refuse_shared(name, present.iter().map(|one| one.address.ip()), &self.addresses)?;
        }
        Ok(())
    }

    fn ensure(&self, scene: &Scene, _journal: &mut Journal) -> Result<Made> {
        let host = scene.host()?;
        let port = veth::own_host_end(host, &scene.tag)?;
        veth::wait_running(host, &port)?;
        if !self.addresses.is_empty() {
            self.tell(scene)?;
        }
        Ok(Made::nothing())
    }

    fn verify(&self, scene: &Scene, drifts: &mut Drifts) -> Result<()> {
        if let Some(port) = of(scene, &self.ifname)? {
            drifts.unless(port.running, || format!("bridge port {}: wanted up, found {}", port.name, port.operstate));
        }
        Ok(())
    }
}

impl ForwardingPort {
    fn tell(&self, scene: &Scene) -> Result<()> {
        let (host, container) = (scene.host()?, scene.container()?);
        let gateway = host.recent_link(&self.gateway)?;
        let mut batch = Batch::new();
        self.addresses.iter().for_each(|address| batch.delete_neighbour(gateway.index, *address));
        host.send(batch)?;
        // Saying the MAC again makes the kernel announce every address of the link, now that the port passes it on.
        let end = container.link(&self.ifname)?;
        Ok(container.change(end.index, &Change { mac: end.mac, ..Change::default() })?)
    }
}

/// The host's end of the pair whose other end the container has under this name.
pub(crate) fn of(scene: &Scene, ifname: &str) -> Result<Option<Link>> {
    match scene.container()?.find_recent_link(ifname)? {
        Some(end) => veth::host_end_of(scene.host()?, &scene.netns, &end),
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

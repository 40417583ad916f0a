//! The VXLAN link in the container.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use cnikit::netlink::attribute::{Attributes, value};
use cnikit::netlink::{ForwardingEntry, Mac, Netlink, NewLink};
use cnikit::plan::{ApplyContext, Drifts, Kind, Made, Resource};
use cnikit::resources::{container_link, veth};
use cnikit::{Error, Journal, Result, code};
use cnikit_process::Deadline;

use crate::config::Segment;

// guide: data
/// The numbers of the settings of a VXLAN link, from `linux/if_link.h`.
const IFLA_VXLAN_ID: u16 = 1;
const IFLA_VXLAN_GROUP: u16 = 2;
const IFLA_VXLAN_LOCAL: u16 = 4;
const IFLA_VXLAN_PORT: u16 = 15;
const IFLA_VXLAN_GROUP6: u16 = 16;
const IFLA_VXLAN_LOCAL6: u16 = 17;

impl Segment {
    /// The settings of the link: the VNI in the order of the machine, the port in that of the network, this host's address, and
    /// the first peer, which tells the kernel the address family too.
    fn data(&self) -> Attributes {
        let mut data = Attributes::new()
            .bytes(IFLA_VXLAN_ID, &self.vni.to_ne_bytes())
            .bytes(IFLA_VXLAN_PORT, &self.port.to_be_bytes());
        if let Some(local) = self.local {
            data = with_address(data, local, IFLA_VXLAN_LOCAL, IFLA_VXLAN_LOCAL6);
        }
        match self.peers.first() {
            Some(peer) => with_address(data, *peer, IFLA_VXLAN_GROUP, IFLA_VXLAN_GROUP6),
            None => data,
        }
    }
}

fn with_address(data: Attributes, address: IpAddr, ipv4: u16, ipv6: u16) -> Attributes {
    match address {
        IpAddr::V4(address) => data.bytes(ipv4, &address.octets()),
        IpAddr::V6(address) => data.bytes(ipv6, &address.octets()),
    }
}
// guide: end

/// An end of a VXLAN in the container. Its UDP socket is on the host, from where it was made.
pub(crate) struct VxlanLink {
    pub(crate) ifname: String,
    pub(crate) segment: Segment,
    pub(crate) mtu: u32,
}

// guide: kind
/// Found by its alias in the container's namespace, whatever the configuration is by then.
pub(crate) const KIND: Kind = Kind {
    name: "vxlan",
    release: |context| container_link::release(KIND.name, context),
    sweep: |context| container_link::sweep(KIND.name, context),
    outlives_link: true,
};
// guide: end

/// The MAC of broadcasts and of frames for hosts that are not known yet: each peer gets a copy.
const EVERY_OTHER: Mac = Mac([0; 6]);

// guide: resource
impl Resource for VxlanLink {
    fn kind(&self) -> Kind {
        KIND
    }

    fn preflight(&self, context: &ApplyContext) -> Result<()> {
        container_link::check_name_is_free(&self.ifname, context)
    }

    fn ensure(&self, context: &ApplyContext, journal: &mut Journal) -> Result<Made> {
        let mut link = NewLink::new(&self.ifname, KIND.name);
        link.data = self.segment.data();
        link.mac = Some(veth::mac(&context.tag, None));
        link.mtu = Some(self.mtu);
        let made = self.create(&link, context, journal)?;
        let container = context.container()?;
        let index = container.link(&self.ifname)?.index;
        for peer in &self.segment.peers {
            let entry = ForwardingEntry { mac: EVERY_OTHER, destination: *peer };
            container.append_forwarding_entry(index, entry)?;
        }
        Ok(made)
    }

    fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        let found = container_link::verify(KIND.name, &self.ifname, Some(self.mtu), context, drifts)?;
        let Some(link) = found else { return Ok(()) };
        let container = context.container()?;
        let data = container.link_data(link.index)?;
        let vni = value(data.as_bytes(), IFLA_VXLAN_ID).and_then(|bytes| bytes.try_into().ok());
        drifts.compare(format!("VNI of {}", self.ifname), self.segment.vni, vni.map_or(0, u32::from_ne_bytes));
        let port = value(data.as_bytes(), IFLA_VXLAN_PORT).and_then(|bytes| bytes.try_into().ok());
        drifts.compare(format!("port of {}", self.ifname), self.segment.port, port.map_or(0, u16::from_be_bytes));
        let entries = container.forwarding_entries(link.index)?;
        for peer in &self.segment.peers {
            let entry = ForwardingEntry { mac: EVERY_OTHER, destination: *peer };
            drifts.unless(entries.contains(&entry), || format!("{}: wanted the peer {peer}, found none", self.ifname));
        }
        Ok(())
    }
}
// guide: end

/// How long ADD waits for the kernel to destroy the namespace of a container that has ended.
const DESTRUCTION: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(20);

// guide: create
impl VxlanLink {
    /// Makes the link. A container that was started again finds its VNI in use for a moment: the kernel destroys the namespace of
    /// the one before it, with its link, some time after the last process in it.
    fn create(&self, link: &NewLink, context: &ApplyContext, journal: &mut Journal) -> Result<Made> {
        let deadline = Deadline::after(DESTRUCTION);
        loop {
            match container_link::create(link.clone(), context, journal) {
                Err(error) if error.code == code::CONFLICT && deadline.pause(PAUSE) => {}
                made => return made.map_err(|error| self.explained(error)),
            }
        }
    }

    /// The name of the link was free, so what exists already is the VNI.
    fn explained(&self, error: Error) -> Error {
        let Segment { vni, port, .. } = self.segment;
        if error.code != code::CONFLICT {
            return error;
        }
        error.hint(format!(
            "VNI {vni} with port {port} is in use on this host: choose another `vni`, or DEL the other container"
        ))
    }
}
// guide: end

impl fmt::Display for VxlanLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Segment { vni, port, peers, .. } = &self.segment;
        write!(f, "VXLAN {vni} as {} in the container, mtu {}, to", self.ifname, self.mtu)?;
        peers.iter().try_for_each(|peer| write!(f, " {peer}"))?;
        write!(f, " at port {port}")
    }
}

// guide: available
/// Checks that the kernel has VXLAN links. It is asked for one with a MAC that no link can have.
pub(crate) fn available() -> Result<()> {
    let mut probe = NewLink::new("cnikit-probe", KIND.name);
    probe.mac = Some(Mac([0; 6]));
    match Netlink::here()?.create_link(&probe) {
        Err(error) if error.unsupported() => Err(container_link::no_kind(KIND.name, "vxlan")),
        _ => Ok(()),
    }
}
// guide: end

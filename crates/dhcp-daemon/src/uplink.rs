//! The link of the host that an interface is on top of, or whose bridge it is connected to. A lease is given back through it when
//! the interface is gone.

use cnikit_dhcp::{UplinkSocket, VlanTag};
use cnikit_netlink::{Link, Mac, Netlink, UpperKind, VlanProtocol};
use cnikit_netns::Netns;
use serde::{Deserialize, Serialize};

/// `ETH_P_8021Q` and `ETH_P_8021AD` of `linux/if_ether.h`.
const ETHERTYPE_8021Q: u16 = 0x8100;
const ETHERTYPE_8021AD: u16 = 0x88a8;

/// A link of the daemon's own namespace, by its name: it may be another one after a reboot, and that does no harm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Uplink {
    pub(crate) link: String,
    /// The tag of the interface's frames there.
    tag: Option<VlanTag>,
}

/// That of an interface; `None` if it has none in this namespace. `inside` is the interface's namespace.
pub(crate) fn find(inside: &Netlink, link: &Link) -> Option<Uplink> {
    let own = Netns::own().ok()?;
    let namespace = inside.namespace_id(&own).ok()?;
    if namespace.is_none() || link.lower_netns != namespace {
        return None;
    }
    let host = Netlink::inside(&own).ok()?;
    let lower = host.find_link_at(link.lower?).ok()??;
    match link.upper {
        Some(UpperKind::Vlan { id, protocol }) => {
            let ethertype = match protocol {
                VlanProtocol::Dot1q => ETHERTYPE_8021Q,
                VlanProtocol::Dot1ad => ETHERTYPE_8021AD,
            };
            Some(Uplink { link: lower.name, tag: Some(VlanTag { ethertype, id }) })
        }
        Some(_) => Some(Uplink { link: lower.name, tag: None }),
        // The other end of a veth pair.
        None => {
            let bridge = host.find_link_at(lower.master?).ok()??;
            Some(Uplink { link: bridge.name, tag: None })
        }
    }
}

impl Uplink {
    /// Sends the packets, each in a frame to this hardware address.
    pub(crate) fn send(&self, packets: &[(Mac, Vec<u8>)]) -> Result<(), String> {
        let host = Netlink::here().map_err(|error| error.to_string())?;
        let link = host.link(&self.link).map_err(|error| error.to_string())?;
        let socket = UplinkSocket::open(&link.name, link.index, self.tag).map_err(|error| error.to_string())?;
        for (to, packet) in packets {
            socket.send(*to, packet).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

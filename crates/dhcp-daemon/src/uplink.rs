//! The link of the host that an interface is on top of, or whose bridge it is connected to. A lease is given back through it when
//! the interface is gone.

use cnikit_dhcp::{UplinkSocket, VlanTag};
use cnikit_netlink::{Link, Mac, Netlink, UpperKind, VlanProtocol};
use cnikit_netns::Netns;
use serde::{Deserialize, Serialize};

use crate::closing;

/// `ETH_P_8021Q` and `ETH_P_8021AD` of `linux/if_ether.h`.
const ETHERTYPE_8021Q: u16 = 0x8100;
const ETHERTYPE_8021AD: u16 = 0x88a8;
/// `BR_STATE_FORWARDING` of `linux/if_bridge.h`.
const FORWARDING: u8 = 3;

/// A link of the daemon's own namespace, by its name: it may be another one after a reboot, and that does no harm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Uplink {
    pub(crate) link: String,
    /// The tag of the interface's frames there.
    tag: Option<VlanTag>,
    /// If it is a bridge that filters by VLAN: the VLAN of the interface.
    #[serde(default)]
    vlan: Option<u16>,
    /// Whether no packet reaches the interface before it has its address: it is an ipvlan, whose master finds it by that.
    #[serde(default)]
    pub(crate) is_ipvlan: bool,
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
            Some(Uplink { tag: Some(VlanTag { ethertype, id }), ..Uplink::untagged(lower.name) })
        }
        Some(upper) => {
            let is_ipvlan = matches!(upper, UpperKind::Ipvlan(_));
            Some(Uplink { is_ipvlan, ..Uplink::untagged(lower.name) })
        }
        // The other end of a veth pair.
        None => {
            let bridge = host.find_link_at(lower.master?).ok()??;
            let mut vlan = None;
            if bridge.vlan_filtering == Some(true) {
                vlan = host.vlans(lower.index).ok()?.iter().find(|range| range.pvid).map(|range| range.first);
            }
            Some(Uplink { vlan, ..Uplink::untagged(bridge.name) })
        }
    }
}

impl Uplink {
    fn untagged(link: String) -> Uplink {
        Uplink { link, tag: None, vlan: None, is_ipvlan: false }
    }

    /// Sends the packets, each in a frame to this hardware address.
    pub(crate) fn send(&self, packets: &[(Mac, Vec<u8>)]) -> Result<(), String> {
        let host = Netlink::here().map_err(|error| error.to_string())?;
        let link = host.link(&self.link).map_err(|error| error.to_string())?;
        if let (Some(vlan), Some(true)) = (self.vlan, link.vlan_filtering) {
            return send_in_vlan(&host, &link, vlan, packets);
        }
        send_by(&link, self.tag, packets)
    }
}

/// Sends by each port of a bridge that is in this VLAN, as the bridge does with a frame for everyone. What is sent by the bridge
/// itself is in a VLAN of its own.
fn send_in_vlan(host: &Netlink, bridge: &Link, vlan: u16, packets: &[(Mac, Vec<u8>)]) -> Result<(), String> {
    let mut failure = Some(format!("{} has no port in VLAN {vlan}", bridge.name));
    for port in host.links_of_master(bridge.index).map_err(|error| error.to_string())? {
        if port.port.is_none_or(|settings| settings.state != FORWARDING) {
            continue;
        }
        let ranges = host.vlans(port.index).map_err(|error| error.to_string())?;
        let Some(range) = ranges.iter().find(|range| (range.first..=range.last).contains(&vlan)) else { continue };
        let tag = VlanTag { ethertype: ETHERTYPE_8021Q, id: vlan };
        match send_by(&port, if range.untagged { None } else { Some(tag) }, packets) {
            Ok(()) => failure = None,
            Err(why) => failure = failure.map(|_| why),
        }
    }
    match failure {
        Some(why) => Err(why),
        None => Ok(()),
    }
}

fn send_by(link: &Link, tag: Option<VlanTag>, packets: &[(Mac, Vec<u8>)]) -> Result<(), String> {
    let socket = UplinkSocket::open(&link.name, link.index, tag).map_err(|error| error.to_string())?;
    let sent = packets.iter().try_for_each(|(to, packet)| socket.send(*to, packet));
    closing::close(socket);
    sent.map_err(|error| error.to_string())
}

//! Who holds a MAC on a bridge: the bridge itself, one of its ports, or the container's end of another attachment.
//!
//! The MAC of a container's end is recorded in the alias of the host end, where the container cannot change it. What the
//! bridge learned is not read: it outlives the container that sent it.

use cnikit_netlink::{Link, Mac, Netlink};
use cnikit_skel::{Error, Result};

use crate::alias;
use crate::veth::is_veth;

/// Refuses a MAC that is requested for an attachment of this bridge and held by something else on it. Of its ports, with `own`
/// those before it alone: of two attachments that were made at the same time, the one with the lower index keeps the MAC.
pub(crate) fn refuse_held(host: &Netlink, bridge: &str, mac: Mac, own: Option<&Link>) -> Result<()> {
    let Some(bridge) = host.find_recent_link(bridge)? else { return Ok(()) };
    if bridge.mac == Some(mac) {
        return Err(refusal(mac, &format!("bridge {}", bridge.name)));
    }
    for port in host.links_of_master(bridge.index)? {
        if own.is_some_and(|own| port.index >= own.index) {
            continue;
        }
        if port.mac == Some(mac) {
            return Err(refusal(mac, &format!("{}, a port of bridge {}", port.name, bridge.name)));
        }
        if is_peer_mac(host, &port, mac)? {
            return Err(refusal(mac, &holder(&port, &bridge.name)));
        }
    }
    Ok(())
}

/// Whether the other end of a port is there and has this MAC, by the record; where there is none, as it is now.
fn is_peer_mac(host: &Netlink, port: &Link, mac: Mac) -> Result<bool> {
    let Some(index) = port.lower.filter(|_| is_veth(port)) else { return Ok(false) };
    let recorded = alias::recorded_mac(port);
    if recorded.is_some_and(|recorded| recorded != mac) {
        return Ok(false);
    }
    let peer = match port.lower_netns {
        Some(netns) => host.find_link_in(netns, index)?,
        None => host.find_link_at(index)?,
    };
    Ok(peer.is_some_and(|peer| recorded.or(peer.mac) == Some(mac)))
}

/// The attachment that a port belongs to, or the port.
fn holder(port: &Link, bridge: &str) -> String {
    match alias::clear_text(port) {
        Some(attachment) => format!("{attachment}, by port {} of bridge {bridge}", port.name),
        None => format!("what is behind {}, a port of bridge {bridge}", port.name),
    }
}

fn refusal(mac: Mac, holder: &str) -> Error {
    Error::conflict(format!("the requested MAC {mac} is held by {holder}"))
        .remedy("request another MAC, or none; if the holder is a container that is gone, DEL it")
}

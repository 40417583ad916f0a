//! Finds the holder of a MAC on a bridge: the bridge itself, one of its ports, or the container's end of another attachment.
//!
//! The MAC of a container's end is recorded in the alias of the host end, where the container cannot change it. The bridge's
//! forwarding database is not read, because its entries remain after the container is gone.

use cnikit_netlink::{Link, LinkChange, Mac, Netlink};
use cnikit_netns::Netns;
use cnikit_skel::{AttachmentId, Error, Result};

use crate::identity::alias::{self, AliasOwner};
use crate::link::veth_ends::{self, is_veth};

/// The ports of the bridge that a requested MAC is compared with.
#[derive(Clone, Copy)]
pub(crate) enum Compared<'a> {
    /// All of them.
    All,
    /// Those that were made before this one: of two attachments that are made at the same time, the one with the lower index
    /// keeps the MAC.
    Before(&'a Link),
    /// All of them, except what is behind this one.
    NotBehind(&'a Link),
}

/// Refuses a MAC that is requested for an attachment of this bridge and held by something else on it.
pub(crate) fn refuse_held(host: &Netlink, bridge: &str, mac: Mac, compared: Compared<'_>) -> Result<()> {
    let Some(bridge) = host.find_recent_link(bridge)? else { return Ok(()) };
    if bridge.mac == Some(mac) {
        return Err(refusal(mac, &format!("bridge {}", bridge.name)));
    }
    for port in host.links_of_master(bridge.index)? {
        if matches!(compared, Compared::Before(own) if port.index >= own.index) {
            continue;
        }
        if port.mac == Some(mac) {
            return Err(refusal(mac, &format!("{}, a port of bridge {}", port.name, bridge.name)));
        }
        if matches!(compared, Compared::NotBehind(own) if port.index == own.index) {
            continue;
        }
        if is_peer_mac(host, &port, mac)? {
            return Err(refusal(mac, &holder(&port, &bridge.name)));
        }
    }
    Ok(())
}

/// A port of a bridge, with a container's interface behind it.
#[derive(Clone)]
pub(crate) struct Behind {
    host: Netlink,
    port: Link,
    bridge: String,
}

impl Behind {
    /// The port that an interface of a container is behind; `None` if it is not a veth, or its host end is not a port of a bridge.
    pub(crate) fn find(host: &Netlink, netns: &Netns, interface: &Link) -> Result<Option<Behind>> {
        let Some(port) = veth_ends::host_end_of(host, netns, interface)? else { return Ok(None) };
        let Some(master) = port.master else { return Ok(None) };
        match host.find_link_at(master)? {
            Some(link) if link.kind.as_deref() == Some("bridge") => {
                Ok(Some(Behind { host: host.clone(), port, bridge: link.name }))
            }
            _ => Ok(None),
        }
    }

    /// Refuses a MAC that something else on the bridge holds.
    pub(crate) fn refuse_held(&self, mac: Mac) -> Result<()> {
        refuse_held(&self.host, &self.bridge, mac, Compared::NotBehind(&self.port))
    }

    /// Records the MAC of the interface in the port's alias, if it is the port of this attachment and records one.
    pub(crate) fn record(&self, tag: &AttachmentId, mac: Mac) -> Result<()> {
        if alias::owner(&self.port, tag) != AliasOwner::This || alias::recorded_mac(&self.port).is_none() {
            return Ok(());
        }
        let change = LinkChange::default().alias(alias::of_port(tag, mac));
        match self.host.change(self.port.index, &change) {
            Err(error) if !error.is_absent() => Err(error.into()),
            _ => Ok(()),
        }
    }
}

/// Whether the other end of a port exists and has this MAC: the recorded one, or the current one if none is recorded.
fn is_peer_mac(host: &Netlink, port: &Link, mac: Mac) -> Result<bool> {
    if !is_veth(port) {
        return Ok(false);
    }
    let Some(index) = port.lower else { return Ok(false) };
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

/// Names the attachment that a port belongs to, or the port.
fn holder(port: &Link, bridge: &str) -> String {
    match alias::clear_text(port) {
        Some(attachment) => format!("{attachment}, by port {} of bridge {bridge}", port.name),
        None => format!("a machine behind {}, a port of bridge {bridge}", port.name),
    }
}

fn refusal(mac: Mac, holder: &str) -> Error {
    Error::conflict(format!("the requested MAC {mac} is held by {holder}"))
        .hint("request another MAC, or none; if the holder is a container that has ended, DEL it")
}

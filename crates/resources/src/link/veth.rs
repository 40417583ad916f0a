//! A pair of links: one end in the container, one on the host.

use std::fmt;
use std::time::Duration;

use cnikit_netlink::{Link, LinkChange, Mac, Netlink, NewVeth, Peer};
use cnikit_netns::{Inside, Netns};
use cnikit_plan::{ApplyContext, Drifts, GcContext, Kind, Made, ReleaseContext, Resource};
use cnikit_process::Deadline;
use cnikit_skel::{AttachmentId, Error, Journal, NetnsLookup, Result};
use cnikit_types::Interface;

use crate::address::router_adverts;
use crate::identity::alias::{self, AliasOwner, Marks, hex};
use crate::identity::recorded;
use crate::link::delete_links::{delete, delete_all};
use crate::link::mac_holder::{Compared, refuse_held};

/// A veth pair. The host's end is named by the tag, both MACs come from it and are set as the pair is made (so that nobody
/// changes them afterwards); nothing is renamed, nothing moved.
#[derive(Clone, Debug)]
pub struct Veth {
    /// The container's end.
    pub ifname: String,
    /// The container's MAC; absent: from the tag.
    pub mac: Option<Mac>,
    /// Of both ends, in bytes; absent: the kernel's choice.
    pub mtu: Option<u32>,
    /// How many queues each end has, each way; absent: the kernel's choice. One is all that a veth uses unless more are
    /// asked for, and what is made beside it for each processor costs time, on a large machine more than all else.
    pub queues: Option<u32>,
    /// What the host's end is part of.
    pub host: HostEnd,
    /// The host's end is left down, so that the container cannot send, until [`crate::ip_spoofing`] brings it up.
    pub shut: bool,
}

/// What the host's end of a veth is part of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostEnd {
    /// Nothing: packets are routed to it.
    Routed,
    /// A bridge.
    Port {
        /// Its name.
        bridge: String,
        /// What comes out of the port may go back into it.
        hairpin: bool,
        /// It exchanges nothing with other isolated ports.
        isolated: bool,
    },
}

/// Pairs are found by name and alias of the host's end.
pub const KIND: Kind = Kind { name: "veth", release, sweep, outlives_link: true };

/// How many names a tag has, one after another, should a hash collide.
const NAMES: usize = 4;
/// As long as the reference waits.
const TIMEOUT: Duration = Duration::from_millis(2550);

impl Resource for Veth {
    fn kind(&self) -> Kind {
        KIND
    }

    fn preflight(&self, context: &ApplyContext) -> Result<()> {
        free_host_name(context.host()?, &context.tag)?;
        if let (Some(mac), HostEnd::Port { bridge, .. }) = (self.mac, &self.host) {
            refuse_held(context.host()?, bridge, mac, Compared::All)?;
        }
        if context.container()?.find_link(&self.ifname)?.is_none() {
            return Ok(());
        }
        Err(Error::conflict(format!("container veth name {:?} already exists in {}", self.ifname, context.sandbox))
            .hint("DEL the attachment that made it, or choose another CNI_IFNAME"))
    }

    fn ensure(&self, context: &ApplyContext, journal: &mut Journal) -> Result<Made> {
        let host = context.host()?;
        let wanted = self.pair(context, free_host_name(host, &context.tag)?)?;
        let made = host.create_veth(&wanted).or_else(|error| clean_up_failed_create(host, &wanted.name, error))?;
        let undo = HostLink { netlink: host.clone(), link: made.clone() };
        let _ = journal.undo(&undo, HostLink::delete);
        router_adverts::ignore_router_adverts(&Inside::here(), &made.name, &router_adverts::ALL)?;
        router_adverts::disable_dad(&Inside::here(), &made.name);
        if self.host != HostEnd::Routed {
            router_adverts::disable_forwarding(&Inside::here(), &made.name);
        }
        host.change(made.index, &self.settings(&context.tag))?;
        if let (Some(mac), HostEnd::Port { bridge, .. }) = (self.mac, &self.host) {
            refuse_held(host, bridge, mac, Compared::Before(&made))?;
        }
        let host_end = Interface { name: made.name, ..Interface::default() };
        let container_end =
            Interface { name: self.ifname.clone(), sandbox: context.sandbox.clone(), ..Interface::default() };
        Ok(Made { interfaces: vec![host_end, container_end] })
    }

    fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        let Some(end) = context.container()?.find_link(&self.ifname)? else {
            drifts.unless(false, || {
                format!("interface {}: wanted a veth, found none in {}", self.ifname, context.sandbox)
            });
            return Ok(());
        };
        drifts.compare(format!("kind of {}", self.ifname), "veth", end.kind.as_deref().unwrap_or("none"));
        recorded::verify(context, &self.ifname, self.mtu, &end, drifts);
        if let Some(host) = host_end_of(context.host()?, &context.netns, &end)? {
            return self.verify_host(context, &host, drifts);
        }
        drifts.unless(false, || format!("host end of {}: wanted in the host's namespace, found none", self.ifname));
        Ok(())
    }
}

impl Veth {
    fn pair(&self, context: &ApplyContext, name: String) -> Result<NewVeth> {
        let master = match &self.host {
            HostEnd::Port { bridge, .. } => Some(context.host()?.recent_link(bridge)?.index),
            HostEnd::Routed => None,
        };
        let [_, host] = macs(&context.tag);
        let own = mac(&context.tag, self.mac);
        let peer = Peer { name: self.ifname.clone(), mac: Some(own), netns: context.netns.clone() };
        Ok(NewVeth { name, mac: Some(host), mtu: self.mtu, queues: self.queues, master, peer })
    }

    /// What the kernel takes only once the link is there; up comes last, when advertisements are off.
    fn settings(&self, tag: &AttachmentId) -> LinkChange {
        let (hairpin, isolated, alias) = match self.host {
            HostEnd::Port { hairpin, isolated, .. } => {
                (Some(hairpin), Some(isolated), alias::of_port(tag, mac(tag, self.mac)))
            }
            HostEnd::Routed => (None, None, alias::of(tag)),
        };
        LinkChange { alias: Some(alias), up: (!self.shut).then_some(true), hairpin, isolated, ..LinkChange::default() }
    }

    fn verify_host(&self, context: &ApplyContext, host: &Link, drifts: &mut Drifts) -> Result<()> {
        let name = &host.name;
        // Other implementations write no alias; ours has lost its own.
        let owner = alias::owner(host, &context.tag);
        let is_ours = names(&context.tag).contains(name);
        drifts.unless(owner == AliasOwner::This || owner == AliasOwner::Unknown && !is_ours, || {
            format!("{name}: wanted the host end of {}, found the alias {:?}", context.tag, host.alias)
        });
        if let Some(recorded) = context.record.interfaces.iter().find(|one| one.sandbox.is_empty() && one.name == *name)
        {
            if let Ok(mac) = recorded.mac.parse::<Mac>() {
                drifts.compare(format!("MAC of {name}"), mac, host.mac.unwrap_or(Mac([0; 6])));
            }
        } else {
            drifts.unless(false, || format!("host end of {}: {name} is not in prevResult", self.ifname));
        }
        drifts.unless(host.up, || format!("{name}: wanted up, found down"));
        self.mtu.iter().for_each(|mtu| drifts.compare(format!("MTU of {name}"), *mtu, host.mtu));
        if is_ours {
            drifts.extend(router_adverts::ra_drift(&Inside::here(), name, &router_adverts::ALL));
        }
        let HostEnd::Port { bridge, hairpin, isolated } = &self.host else { return Ok(()) };
        let netlink = context.host()?;
        let master = host.master.map(|index| netlink.find_recent_link_at(index)).transpose()?.flatten();
        drifts.compare(format!("bridge of {name}"), bridge.as_str(), master.as_ref().map_or("none", |link| &link.name));
        if let Some(port) = &host.port {
            drifts.compare(format!("hairpin of {name}"), *hairpin, port.hairpin);
            drifts.compare(format!("isolation of {name}"), *isolated, port.isolated);
        }
        Ok(())
    }
}

impl fmt::Display for Veth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "veth pair: {} in the container", self.ifname)?;
        self.mac.iter().try_for_each(|mac| write!(f, ", mac {mac}"))?;
        self.mtu.iter().try_for_each(|mtu| write!(f, ", mtu {mtu}"))?;
        self.queues.iter().filter(|count| **count != 1).try_for_each(|count| write!(f, ", {count} queues"))?;
        f.write_str(if self.shut { ", shut until it is guarded" } else { "" })?;
        match &self.host {
            HostEnd::Routed => f.write_str(", the other end routed on the host"),
            HostEnd::Port { bridge, hairpin, isolated } => {
                write!(f, ", the other end a port of bridge {bridge}")?;
                f.write_str(if *hairpin { ", hairpin" } else { "" })?;
                f.write_str(if *isolated { ", isolated" } else { "" })
            }
        }
    }
}

/// A link of the host, for undoing.
#[derive(Clone)]
struct HostLink {
    netlink: Netlink,
    link: Link,
}

impl HostLink {
    fn delete(&self) -> Result<()> {
        delete(&self.netlink, &self.link)
    }
}

impl fmt::Display for HostLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "veth {}", self.link.name)
    }
}

/// The names of a tag's host end, first choice first.
#[doc(alias = "ifname")]
pub fn names(tag: &AttachmentId) -> [String; NAMES] {
    let hash = hex(&tag.hash());
    std::array::from_fn(|n| format!("veth{}", &hash[n * 11..(n + 1) * 11]))
}

/// The MACs of a tag: the container's end, the host's end. Both are locally administered; the host's starts with `fe`, so
/// that a bridge which takes the lowest MAC of its ports never takes it.
fn macs(tag: &AttachmentId) -> [Mac; 2] {
    let hash = tag.hash();
    let mac = |first: u8, at: usize| Mac([first, hash[at], hash[at + 1], hash[at + 2], hash[at + 3], hash[at + 4]]);
    [mac((hash[31] & 0xfc) | 0x02, 22), mac(0xfe, 27)]
}

/// The MAC of the container's end: the one that is asked for, or the tag's.
pub(crate) fn mac(tag: &AttachmentId, asked: Option<Mac>) -> Mac {
    asked.unwrap_or(macs(tag)[0])
}

/// The error of a pair that could not be made. Unless the name was taken, the kernel may have made it all the same and its
/// answer been lost: nothing else can have this name without an alias.
fn clean_up_failed_create(host: &Netlink, name: &str, error: cnikit_netlink::Error) -> Result<Link> {
    if !error.exists()
        && let Some(link) = host.find_link(name)?.filter(|link| is_veth(link) && link.alias.is_none())
    {
        delete(host, &link)?;
    }
    Err(error.into())
}

/// The first name of the tag that is not another tag's. Any other link under it is this attachment.
pub(crate) fn free_host_name(host: &Netlink, tag: &AttachmentId) -> Result<String> {
    for name in names(tag) {
        match host.find_link(&name)? {
            None => return Ok(name),
            Some(link) if alias::owner(&link, tag) == AliasOwner::Another => {}
            Some(_) => {
                return Err(Error::conflict(format!("{tag} is attached already: its host end {name} exists"))
                    .hint("DEL it before it is added again"));
            }
        }
    }
    Err(Error::conflict(format!("all names of the host end of {tag} are taken by other attachments")))
}

/// The host end of this attachment's veth pair, found by its name; `None` if there is none.
///
/// # Errors
/// The kernel cannot be asked.
pub fn host_end(host: &Netlink, tag: &AttachmentId) -> Result<Option<Link>> {
    for name in names(tag) {
        let link = host.find_recent_link(&name)?.filter(is_veth);
        if let Some(link) = link.filter(|link| alias::owner(link, tag) != AliasOwner::Another) {
            return Ok(Some(link));
        }
    }
    Ok(None)
}

/// The host's end of a pair that was made a moment ago.
pub(crate) fn own_host_end(host: &Netlink, tag: &AttachmentId) -> Result<Link> {
    let gone = || Error::conflict(format!("the host end of {tag} is gone: somebody removed it"));
    host_end(host, tag)?.ok_or_else(gone)
}

/// The other end of a veth of the container, if it is in the host's namespace: each end names the other, by number *and* by
/// namespace, for numbers are alike in all.
pub(crate) fn host_end_of(host: &Netlink, netns: &Netns, end: &Link) -> Result<Option<Link>> {
    let Some(index) = end.lower else { return Ok(None) };
    // Read before the namespace's number is asked for: the kernel gives it one when it first describes a link into it.
    let Some(peer) = host.find_recent_link_at(index)?.filter(is_veth) else { return Ok(None) };
    let id = host.namespace_id(netns)?;
    Ok(Some(peer).filter(|peer| peer.lower == Some(end.index) && id.is_some() && peer.lower_netns == id))
}

/// Waits until the host's end passes packets on: a moment after the container's end came up, when the kernel gets to it.
pub(crate) fn wait_running(host: &Netlink, end: &Link) -> Result<()> {
    if end.running {
        return Ok(());
    }
    let running = host.wait_link(end.index, Deadline::after(TIMEOUT), |link| link.running);
    let late = |error| Error::from(error).context(format_args!("host end {} does not come up", end.name));
    running.map(drop).map_err(late)
}

pub(crate) fn is_veth(link: &Link) -> bool {
    link.kind.as_deref() == Some("veth")
}

/// Removes the host's end by its name, whatever became of the namespace, and enters none; only if there is no such link
/// (another implementation made it) is the container's end looked at.
fn release(context: &ReleaseContext) -> Result<()> {
    let host = context.host()?;
    if let Some(link) = host_end(host, &context.tag)? {
        return delete(host, &link);
    }
    match &context.netns {
        NetnsLookup::Present(netns) => release_unmarked(context, host, netns),
        _ => Ok(()),
    }
}

/// Removes the container's end only if it is a veth whose other end is here and bears nobody's tag, and if it has the MAC
/// that was recorded: the path may by now be another container's namespace.
fn release_unmarked(context: &ReleaseContext, host: &Netlink, netns: &Netns) -> Result<()> {
    let container = Netlink::inside(netns)?;
    let Some(end) = container.find_link(&context.tag.ifname)?.filter(is_veth) else { return Ok(()) };
    let Some(peer) = host_end_of(host, netns, &end)? else { return Ok(()) };
    let unmarked = alias::owner(&peer, &context.tag) == AliasOwner::Unknown && !has_name_of_ours(&peer);
    if unmarked && recorded::has_mac_of(context.prev.as_ref(), &context.tag.ifname, &end) {
        delete(&container, &end)?;
    }
    Ok(())
}

/// Made by us, even if its alias is still to come: an ADD may be at work on it this moment.
fn has_name_of_ours(link: &Link) -> bool {
    let digits = link.name.strip_prefix("veth").unwrap_or_default();
    digits.len() == 11 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
}

fn sweep(context: &GcContext) -> Result<()> {
    let host = context.host()?;
    let marks = Marks::of(context);
    let is_meant = |link: &Link| is_veth(link) && marks.is_stale(link);
    let links: Vec<Link> = host.links_of_kind("veth")?.into_iter().filter(is_meant).collect();
    delete_all(host, &links, is_meant)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_macs_are_the_tags_own_and_always_the_same() {
        let tag = |ifname: &str| AttachmentId { network: "n1".into(), container: "c1".into(), ifname: ifname.into() };
        assert_eq!(names(&tag("eth0")), names(&tag("eth0")));
        assert_ne!(names(&tag("eth0"))[0], names(&tag("eth1"))[0]);
        assert!(names(&tag("eth0")).iter().all(|name| name.len() == 15));
        let [container, host] = macs(&tag("eth0"));
        assert!(container.0[0] & 3 == 2 && host.0[0] == 0xfe && container != host);
    }
}

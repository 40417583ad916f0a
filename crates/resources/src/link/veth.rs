//! A veth pair: one end in the container, one on the host.

use std::fmt;

use cnikit_netlink::{Link, LinkChange, Mac, Netlink, NewVeth, Peer, setters};
use cnikit_netns::{Inside, Netns};
use cnikit_plan::{ApplyContext, Drifts, GcContext, Kind, Made, ReleaseContext, Resource};
use cnikit_skel::{AttachmentId, Error, Journal, NetnsLookup, Result};
use cnikit_types::Interface;

use crate::identity::alias::{self, AliasOwner, Marks};
use crate::identity::recorded;
use crate::link::delete_links::{delete, delete_all};
use crate::link::ipv6_settings;
use crate::link::mac_holder::{Compared, refuse_held};
use crate::link::veth_ends::macs;
pub use crate::link::veth_ends::{host_end, host_end_of, is_veth, mac, names, own_host_end};

/// A veth pair. The name of the host end and both MACs are made from the tag. The MACs are set as the pair is made, so that no
/// other program changes them; nothing is renamed or moved.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Veth {
    /// The container's end.
    pub ifname: String,
    /// The container's MAC; absent: from the tag.
    pub mac: Option<Mac>,
    /// The MTU of both ends in bytes; if `None`, the kernel's default.
    pub mtu: Option<u32>,
    /// The number of queues of each end, in each direction; absent: the kernel's choice. A veth uses one unless more are
    /// configured. Making one per processor takes time, on a large machine more than all other steps.
    pub queues: Option<u32>,
    /// What the host end is part of.
    pub host: HostEnd,
    /// The host end is left down, so that the container cannot send, until the IP spoof check brings it up.
    pub shut: bool,
}

impl Veth {
    /// A pair with this end in the container, with the kernel's settings.
    pub fn new(ifname: impl Into<String>, host: HostEnd) -> Veth {
        Veth { ifname: ifname.into(), mac: None, mtu: None, queues: None, host, shut: false }
    }
}

setters!(Veth { shut: bool } { mac: Mac, mtu: u32, queues: u32 });

/// What the host end of a veth pair is part of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostEnd {
    /// Nothing: packets are routed to it.
    Routed,
    /// A bridge.
    Port {
        /// Its name.
        bridge: String,
        /// Frames may leave by the port that they came in by.
        hairpin: bool,
        /// It exchanges nothing with other isolated ports.
        isolated: bool,
    },
}

/// Pairs are found by the name and the alias of the host end.
pub const KIND: Kind = Kind { name: "veth", release, sweep, outlives_link: true };

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
        ipv6_settings::ignore_router_adverts(&Inside::here(), &made.name, &ipv6_settings::ALL)?;
        ipv6_settings::disable_dad(&Inside::here(), &made.name);
        if self.host != HostEnd::Routed {
            ipv6_settings::disable_forwarding(&Inside::here(), &made.name);
        }
        host.change(made.index, &self.settings(&context.tag))?;
        if let (Some(mac), HostEnd::Port { bridge, .. }) = (self.mac, &self.host) {
            refuse_held(host, bridge, mac, Compared::Before(&made))?;
        }
        let host_end = Interface { name: made.name, ..Interface::default() };
        let container_end =
            Interface { name: self.ifname.clone(), sandbox: context.sandbox.clone(), ..Interface::default() };
        Ok(Made { interfaces: vec![host_end, container_end], ..Made::default() })
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
        let peer = Peer::new(self.ifname.clone(), context.netns.clone()).mac(own);
        Ok(NewVeth::new(name, peer).mac(host).mtu(self.mtu).queues(self.queues).master(master))
    }

    /// The settings that the kernel takes only once the link exists. The link is set up last, when router advertisements are off.
    fn settings(&self, tag: &AttachmentId) -> LinkChange {
        let up = (!self.shut).then_some(true);
        match self.host {
            HostEnd::Routed => LinkChange::default().alias(alias::of(tag)).up(up),
            HostEnd::Port { hairpin, isolated, .. } => LinkChange::default()
                .alias(alias::of_port(tag, mac(tag, self.mac)))
                .up(up)
                .hairpin(hairpin)
                .isolated(isolated),
        }
    }

    fn verify_host(&self, context: &ApplyContext, host: &Link, drifts: &mut Drifts) -> Result<()> {
        let name = &host.name;
        // Other implementations write no alias. A link with a name of ours has lost its alias.
        let owner = alias::owner(host, &context.tag);
        let is_ours = names(&context.tag).contains(name);
        let is_right = match owner {
            AliasOwner::This => true,
            AliasOwner::Unknown => !is_ours,
            AliasOwner::Another => false,
        };
        drifts.unless(is_right, || {
            format!("{name}: wanted the host end of {}, found the alias {:?}", context.tag, host.alias)
        });
        if let Some(recorded) = context.record.interfaces.iter().find(|one| one.sandbox.is_empty() && one.name == *name)
        {
            if let Ok(mac) = recorded.mac.parse::<Mac>() {
                drifts.compare(format!("MAC of {name}"), mac, host.mac.unwrap_or(Mac([0; 6])));
            }
        } else {
            drifts.extend([format!("host end of {}: {name} is not in prevResult", self.ifname)]);
        }
        drifts.unless(host.up, || format!("{name}: wanted up, found down"));
        if let Some(mtu) = self.mtu {
            drifts.compare(format!("MTU of {name}"), mtu, host.mtu);
        }
        if is_ours {
            drifts.extend(ipv6_settings::ra_drift(host, &ipv6_settings::ALL));
        }
        let HostEnd::Port { bridge, hairpin, isolated } = &self.host else { return Ok(()) };
        let netlink = context.host()?;
        let master = match host.master {
            Some(index) => netlink.find_recent_link_at(index)?,
            None => None,
        };
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
        if let Some(mac) = self.mac {
            write!(f, ", mac {mac}")?;
        }
        if let Some(mtu) = self.mtu {
            write!(f, ", mtu {mtu}")?;
        }
        if let Some(count) = self.queues
            && count != 1
        {
            write!(f, ", {count} queues")?;
        }
        f.write_str(if self.shut { ", down until the rules exist" } else { "" })?;
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

/// A host end that this ADD made, for the journal.
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

/// The error of a pair that could not be made. Unless the name was taken, the kernel may have made the pair and its answer was
/// lost. Then it is deleted: nothing else can have this name without an alias.
fn clean_up_failed_create(host: &Netlink, name: &str, error: cnikit_netlink::Error) -> Result<Link> {
    if !error.exists()
        && let Some(link) = host.find_link(name)?
        && is_veth(&link)
        && link.alias.is_none()
    {
        delete(host, &link)?;
    }
    Err(error.into())
}

/// The first name of the tag that no link of another tag has. Any other link of that name is this attachment's.
///
/// # Errors
/// A link of this attachment exists already, all names of the tag belong to other attachments (both code 101), or the kernel
/// cannot be asked.
pub fn free_host_name(host: &Netlink, tag: &AttachmentId) -> Result<String> {
    for name in names(tag) {
        match host.find_link(&name)? {
            None => return Ok(name),
            Some(link) if alias::owner(&link, tag) == AliasOwner::Another => {}
            Some(_) => {
                return Err(Error::conflict(format!("{tag} is attached already: its host end {name} exists"))
                    .hint("DEL it before you add it again"));
            }
        }
    }
    Err(Error::conflict(format!("all names of the host end of {tag} are taken by other attachments")))
}

/// Removes the host end by its name, without entering the container's namespace, which may be gone. Only if there is no such link,
/// because another implementation made the pair, the container's end is inspected.
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

/// Removes the container's end only if it is a veth whose host end has no tag, and if it has the recorded MAC. By now the path may
/// be another container's namespace.
fn release_unmarked(context: &ReleaseContext, host: &Netlink, netns: &Netns) -> Result<()> {
    let container = Netlink::inside(netns)?;
    let Some(end) = container.find_link(&context.tag.ifname)? else { return Ok(()) };
    if !is_veth(&end) {
        return Ok(());
    }
    let Some(peer) = host_end_of(host, netns, &end)? else { return Ok(()) };
    let unmarked = alias::owner(&peer, &context.tag) == AliasOwner::Unknown && !has_name_of_ours(&peer);
    if unmarked && recorded::has_mac_of(context.prev.as_ref(), &context.tag.ifname, &end) {
        delete(&container, &end)?;
    }
    Ok(())
}

/// Whether a link has a name as our host ends have. An ADD that is still running may not have written its alias yet.
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

    /// The veth that has the name, without an alias, is another program's if the kernel says that the name is taken. Otherwise it
    /// is the one that was just made.
    #[test]
    fn after_a_failed_create_a_veth_of_another_program_stays() {
        let work = |_: &Inside| {
            let host = Netlink::here().unwrap();
            let wanted = || NewVeth::new("veth0", Peer::new("eth0", Netns::own().unwrap()));
            host.create_veth(&wanted()).unwrap();
            let taken = host.create_veth(&wanted()).unwrap_err();
            clean_up_failed_create(&host, "veth0", taken).unwrap_err();
            assert!(host.find_link("veth0").unwrap().is_some());
            let lost = cnikit_netlink::Error::ours("create veth", "veth0", "the answer was lost");
            clean_up_failed_create(&host, "veth0", lost).unwrap_err();
            assert!(host.find_link("veth0").unwrap().is_none());
        };
        cnikit_netns::make::anonymous().unwrap().enter(work).unwrap();
    }
}

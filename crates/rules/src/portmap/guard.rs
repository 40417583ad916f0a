//! Keep packets to the host's 127.0.0.0/8 out where `route_localnet` would let them in.
//!
//! Published ports are reached from the host's loopback by `route_localnet` of the link toward the container, which lets whoever
//! sends a frame there reach the loopback of the host as well. So such packets are dropped before the setting is made, and until
//! it is taken back. The rules are in `nf_tables`, whatever the ports are published with: a few questions to the kernel tell
//! whether they are there, and no program is started.

use std::io;
use std::net::IpAddr;

use cnikit_netlink::{Link, Netlink};
use cnikit_netns::{Inside, sysctl};
use cnikit_nftables::{GuardedLink, Nftables, RouteLocalnet};
use cnikit_plan::{Drifts, GcContext, ReleaseContext};
use cnikit_resources::alias;
use cnikit_resources::veth::is_veth;
use cnikit_skel::{AttachmentId, Error, Errors, Journal, Result, log};

use super::{iptables, nftables};
use crate::backend::shared_nftables;

/// What a new link gets.
const OF_NEW_LINKS: &str = "net/ipv4/conf/default/route_localnet";

/// How packets of containers enter.
pub(super) struct Ingress {
    /// The link that they are routed by, which has the setting.
    pub(super) link: String,
    /// The links below it, down to a bridge; none if there is no bridge below. With `br_netfilter` the kernel looks at packets as
    /// they enter there, and not again as they enter the link.
    pub(super) below: Vec<String>,
}

/// More links upon one another are not looked at: the kernel takes no more than 8.
const MOST_BELOW: usize = 16;

impl Ingress {
    pub(super) fn of(host: &Netlink, link: Link) -> Result<Ingress> {
        let (mut below, mut at) = (Vec::new(), link.clone());
        while let Some(lower) = at.lower.filter(|_| at.lower_netns.is_none() && !is_veth(&at)) {
            let Some(found) = host.find_link_at(lower)?.filter(|_| below.len() < MOST_BELOW) else { break };
            below.push(found.name.clone());
            at = found;
        }
        if at.kind.as_deref() != Some("bridge") {
            below.clear();
        }
        Ok(Ingress { link: link.name, below })
    }
}

/// What an attachment has of guards already: asked once in a call.
pub(super) struct HeldGuard {
    holder: String,
    /// None where the kernel has no netfilter.
    nftables: Option<Nftables>,
    /// The link whose guard it holds.
    link: Option<String>,
}

impl HeldGuard {
    pub(super) fn of(tag: &AttachmentId) -> Result<HeldGuard> {
        let (holder, nftables) = (holder(tag), Nftables::if_any()?);
        let link = match &nftables {
            Some(nftables) => nftables.guarded_loopback(&holder)?,
            None => None,
        };
        Ok(HeldGuard { holder, nftables, link })
    }
}

/// Sets `route_localnet` of a link, once packets to 127.0.0.0/8 that enter by it are dropped. `restores`: what the setting was
/// before us may be recorded no more, and today's value may be that of an earlier ADD.
pub(super) fn ensure(ingress: &Ingress, held: &HeldGuard, restores: bool) -> Result<()> {
    let link = ingress.link.as_str();
    let (holder, key) = (&held.holder, key(link));
    let before = || {
        let value = sysctl::read(&Inside::here(), &key)?;
        Ok(if restores && value != "0" { sysctl::read(&Inside::here(), OF_NEW_LINKS)? } else { value })
    };
    let Some(nftables) = &held.nftables else { return without(link) };
    if held.link.as_ref().is_some_and(|other| other != link) {
        give_up(nftables, holder)?;
    }
    match nftables.guard_loopback(link, &ingress.below, holder, before) {
        Err(Unguarded::Lacking) => return without(link),
        Err(Unguarded::Failed(error)) => return Err(error),
        Ok(()) => {}
    }
    set(&key, "1").map_err(|error| error.hint(format!("set /proc/sys/{key} to 1, or say `\"snat\": false`")))
}

/// Why there is no guard.
enum Unguarded {
    /// The kernel has no `nf_tables`.
    Lacking,
    Failed(Error),
}

impl From<cnikit_nftables::Error> for Unguarded {
    fn from(error: cnikit_nftables::Error) -> Unguarded {
        if error.unsupported() { Unguarded::Lacking } else { Unguarded::Failed(error.into()) }
    }
}

impl From<cnikit_netns::Error> for Unguarded {
    fn from(error: cnikit_netns::Error) -> Unguarded {
        Unguarded::Failed(error.into())
    }
}

/// Without `nf_tables` nothing could be dropped, so the setting is not made.
#[expect(clippy::unnecessary_wraps, reason = "it is what such an ADD ends with")]
fn without(link: &str) -> Result<()> {
    log::warn(format_args!(
        "published ports are not reached from 127.0.0.1: packets to 127.0.0.0/8 that enter by {link} could not be dropped, for the \
         kernel has no nf_tables"
    ));
    Ok(())
}

/// Notes that what [`ensure`] makes is given up again if the ADD fails; what the attachment had before stays.
pub(super) fn note_undo(held: &HeldGuard, tag: &AttachmentId, journal: &mut Journal) {
    if held.link.is_none() {
        let holder = held.holder.clone();
        let _ = journal.undo(&format!("the guard of 127.0.0.0/8 of {tag}"), move |_| release_holder(&holder));
    }
}

/// What is missing of the guard and the setting.
pub(super) fn verify(ingress: &Ingress, tag: &AttachmentId, with_guard: bool, drifts: &mut Drifts) -> Result<()> {
    let link = ingress.link.as_str();
    let Some(nftables) = Nftables::if_any()? else { return Ok(()) };
    let key = key(link);
    if with_guard {
        let missing = match nftables.verify_loopback(link, &ingress.below, &holder(tag)) {
            Err(error) if error.unsupported() => return Ok(()),
            missing => missing?,
        };
        drifts.extend(missing.into_iter().map(|text| format!("packets to 127.0.0.0/8 that enter by {link}: {text}")));
    }
    drifts.compare(&key, "1", &sysctl::read(&Inside::here(), &key)?);
    Ok(())
}

/// Gives up what the attachment has; nothing is wrong if it has nothing.
pub(super) fn release_if_any(held: &HeldGuard) -> Result<()> {
    match &held.nftables {
        Some(nftables) => give_up(nftables, &held.holder),
        None => Ok(()),
    }
}

pub(super) fn release(context: &ReleaseContext) -> Result<()> {
    let Some(nftables) = shared_nftables(context.shared())? else { return Ok(()) };
    give_up(&nftables, &holder(&context.tag))
}

pub(super) fn sweep(context: &GcContext) -> Result<()> {
    let Some(nftables) = shared_nftables(context.shared())? else { return Ok(()) };
    let valid: Vec<String> = context.tags().map(|tag| holder(&tag)).collect();
    let holders = nftables.loopback_guards(&named(&alias::network_mark(&context.network)))?;
    let gone = holders.iter().filter(|holder| !valid.contains(holder));
    gone.map(|holder| give_up(&nftables, holder)).collect::<Errors>().finish()
}

fn release_holder(holder: &str) -> Result<()> {
    match Nftables::if_any()? {
        Some(nftables) => give_up(&nftables, holder),
        None => Ok(()),
    }
}

fn give_up(nftables: &Nftables, holder: &str) -> Result<()> {
    let released = nftables.release_loopback(holder, |link, setting| match setting {
        RouteLocalnet::SetAgain => set(&key(&link.name), "1").map(|()| true),
        RouteLocalnet::Restore => give_back(nftables, link),
    });
    released.map(drop)
}

/// Gives the setting its former value, unless others need it. Whether packets to 127.0.0.0/8 may enter by the link again.
fn give_back(nftables: &Nftables, link: &GuardedLink) -> Result<bool> {
    let key = key(&link.name);
    let before = match &link.before {
        Some(before) => before.clone(),
        None => sysctl::read(&Inside::here(), OF_NEW_LINKS)?,
    };
    if before != "0" || is_needed_by_upstream(nftables, &link.name)? {
        return Ok(true);
    }
    match sysctl::set(&Inside::here(), &key, &before) {
        Ok(_) => Ok(true),
        Err(error) if error.is_absent() => Ok(true),
        // It cannot be written here, which nothing of a DEL changes.
        Err(error) if is_read_only(&error) => {
            log::warn(format_args!("packets to 127.0.0.0/8 that enter by {} stay dropped: {error}", link.name));
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

fn is_read_only(error: &cnikit_netns::Error) -> bool {
    let kind = error.errno().map(|errno| io::Error::from_raw_os_error(errno).kind());
    matches!(kind, Some(io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied))
}

/// Whether the upstream plugin, which sets `route_localnet` too, has published ports of a container behind the link.
fn is_needed_by_upstream(nftables: &Nftables, link: &str) -> Result<bool> {
    let mut targets: Vec<IpAddr> = nftables::upstream_targets(nftables)?;
    targets.extend(iptables::upstream_targets(nftables)?);
    targets.sort_unstable();
    targets.dedup();
    let host = Netlink::here()?;
    for target in targets.into_iter().filter(IpAddr::is_ipv4) {
        let route = host.route_for(target)?;
        if let Some(index) = route.and_then(|route| route.index)
            && host.link_at(index)?.name == link
        {
            return Ok(true);
        }
    }
    Ok(false)
}

fn set(key: &str, value: &str) -> Result<()> {
    sysctl::set(&Inside::here(), key, value)?;
    Ok(())
}

fn key(link: &str) -> String {
    format!("net/ipv4/conf/{link}/route_localnet")
}

/// The attachment's name among those that hold guards.
fn holder(tag: &AttachmentId) -> String {
    named(&alias::mark_of(tag))
}

/// A mark in letters that nft(8) takes in a name.
fn named(mark: &str) -> String {
    mark.replace(':', "-")
}

//! Keep packets to the host's 127.0.0.0/8 out where `route_localnet` would let them in.
//!
//! Published ports are reached from the host's loopback by `route_localnet` of the link to the container. That setting also admits
//! packets from the link to the loopback of the host. So such packets are dropped before the setting is made, and until it is
//! restored. The rules are in `nf_tables`, whatever backend the ports are published with: a few requests to the kernel report
//! whether the rules exist, and no program is started.

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
use crate::nftables::shared_nftables;

/// The setting that new links get.
const OF_NEW_LINKS: &str = "net/ipv4/conf/default/route_localnet";

/// The link by which packets of containers enter.
pub(super) struct IngressLink {
    /// The link that routes lead to, which has the setting.
    pub(super) link: String,
    /// The links below it, down to a bridge; none if there is no bridge below. With `br_netfilter` the kernel runs the rules when
    /// packets enter there, and not again when they enter the link.
    pub(super) below: Vec<String>,
}

/// The most stacked links that are followed; the kernel allows 8.
const MOST_BELOW: usize = 16;

impl IngressLink {
    pub(super) fn of(host: &Netlink, link: Link) -> Result<IngressLink> {
        let name = link.name.clone();
        let mut below = Vec::new();
        let mut current = link;
        while let Some(lower) = current.lower {
            if current.lower_netns.is_some() || is_veth(&current) {
                break;
            }
            let Some(found) = host.find_link_at(lower)? else { break };
            if below.len() == MOST_BELOW {
                break;
            }
            below.push(found.name.clone());
            current = found;
        }
        if current.kind.as_deref() != Some("bridge") {
            below.clear();
        }
        Ok(IngressLink { link: name, below })
    }
}

/// The guard that an attachment has already, read once per call.
pub(super) struct AttachmentGuard {
    holder: String,
    /// `None` if the kernel has no netfilter.
    nftables: Option<Nftables>,
    /// The link that it guards.
    link: Option<String>,
}

impl AttachmentGuard {
    pub(super) fn of(tag: &AttachmentId) -> Result<AttachmentGuard> {
        let holder = holder(tag);
        let nftables = Nftables::if_any()?;
        let link = match &nftables {
            Some(nftables) => nftables.guarded_loopback(&holder)?,
            None => None,
        };
        Ok(AttachmentGuard { holder, nftables, link })
    }
}

/// Sets `route_localnet` of a link, after packets to 127.0.0.0/8 that enter by it are dropped. With `restores` the first value of
/// the setting may not be recorded any more, and the current value may be that of an earlier ADD.
pub(super) fn ensure(ingress: &IngressLink, guard: &AttachmentGuard, restores: bool) -> Result<()> {
    let link = ingress.link.as_str();
    let key = key(link);
    let Some(nftables) = &guard.nftables else {
        warn_unguarded(link);
        return Ok(());
    };
    if guard.link.as_ref().is_some_and(|other| other != link) {
        release_guard(nftables, &guard.holder)?;
    }
    match nftables.guard_loopback(link, &ingress.below, &guard.holder, || first_value(&key, restores)) {
        Ok(()) => {}
        Err(Unguarded::Unsupported) => {
            warn_unguarded(link);
            return Ok(());
        }
        Err(Unguarded::Failed(error)) => return Err(error),
    }
    set(&key, "1").map_err(|error| error.hint(format!("set /proc/sys/{key} to 1, or set `\"snat\": false`")))
}

/// The value of the setting before any ADD.
fn first_value(key: &str, restores: bool) -> std::result::Result<String, Unguarded> {
    let value = sysctl::read(&Inside::here(), key)?;
    if restores && value != "0" {
        return Ok(sysctl::read(&Inside::here(), OF_NEW_LINKS)?);
    }
    Ok(value)
}

/// Why there is no guard.
enum Unguarded {
    /// The kernel has no `nf_tables`.
    Unsupported,
    Failed(Error),
}

impl From<cnikit_nftables::Error> for Unguarded {
    fn from(error: cnikit_nftables::Error) -> Unguarded {
        if error.unsupported() { Unguarded::Unsupported } else { Unguarded::Failed(error.into()) }
    }
}

impl From<cnikit_netns::Error> for Unguarded {
    fn from(error: cnikit_netns::Error) -> Unguarded {
        Unguarded::Failed(error.into())
    }
}

/// Logs that the setting is not made, because packets could not be dropped.
fn warn_unguarded(link: &str) {
    log::warn(format_args!(
        "published ports are not reached from 127.0.0.1: the kernel has no nf_tables to drop packets to 127.0.0.0/8 that enter by {link}"
    ));
}

/// Records that the guard of [`ensure`] is released if the ADD fails. A guard that the attachment had before stays.
pub(super) fn note_undo(guard: &AttachmentGuard, tag: &AttachmentId, journal: &mut Journal) {
    if guard.link.is_none() {
        let holder = guard.holder.clone();
        let _ = journal.undo(&format!("the rules for 127.0.0.0/8 of {tag}"), move |_| release_holder(&holder));
    }
}

/// Reports whether rules of the guard or the setting are missing.
pub(super) fn verify(ingress: &IngressLink, tag: &AttachmentId, with_guard: bool, drifts: &mut Drifts) -> Result<()> {
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

/// Releases the guard that the attachment has, if any.
pub(super) fn release_if_any(guard: &AttachmentGuard) -> Result<()> {
    match &guard.nftables {
        Some(nftables) => release_guard(nftables, &guard.holder),
        None => Ok(()),
    }
}

pub(super) fn release(context: &ReleaseContext) -> Result<()> {
    let Some(nftables) = shared_nftables(context.shared())? else { return Ok(()) };
    release_guard(&nftables, &holder(&context.tag))
}

pub(super) fn sweep(context: &GcContext) -> Result<()> {
    let Some(nftables) = shared_nftables(context.shared())? else { return Ok(()) };
    let valid: Vec<String> = context.tags().map(|tag| holder(&tag)).collect();
    let holders = nftables.loopback_guards(&named(&alias::network_mark(&context.network)))?;
    let stale = holders.iter().filter(|holder| !valid.contains(holder));
    stale.map(|holder| release_guard(&nftables, holder)).collect::<Errors>().finish()
}

fn release_holder(holder: &str) -> Result<()> {
    match Nftables::if_any()? {
        Some(nftables) => release_guard(&nftables, holder),
        None => Ok(()),
    }
}

fn release_guard(nftables: &Nftables, holder: &str) -> Result<()> {
    nftables.release_loopback(holder, |link, setting| write_setting(nftables, link, setting))?;
    Ok(())
}

/// Sets `route_localnet` of a link as a released guard leaves it. Returns whether packets to 127.0.0.0/8 may enter by the link.
fn write_setting(nftables: &Nftables, link: &GuardedLink, setting: RouteLocalnet) -> Result<bool> {
    match setting {
        RouteLocalnet::SetAgain => {
            set(&key(&link.name), "1")?;
            Ok(true)
        }
        RouteLocalnet::Restore => give_back(nftables, link),
    }
}

/// Restores the setting, unless ports of the upstream plugin need it. Returns whether packets to 127.0.0.0/8 may enter by the link
/// again.
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
        // The setting cannot be written in this environment, and a DEL cannot change that.
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

/// The attachment's name in the list of guard holders.
fn holder(tag: &AttachmentId) -> String {
    named(&alias::mark_of(tag))
}

/// A mark in characters that nft(8) accepts in a name.
fn named(mark: &str) -> String {
    mark.replace(':', "-")
}

//! The firewall in firewalld: the container's addresses are sources of a zone.
//!
//! A source has no owner in firewalld. If the kernel has nftables, the owner is in a *marker*: a rule in a table without packets,
//! whose comment is the mark of the attachment and the zone. So DEL needs to know neither address nor zone.

use std::net::IpAddr;
use std::time::Duration;

use cnikit_firewalld::{Error as FirewalldError, Firewalld};
use cnikit_nftables::{Chain, InstalledRule, Match, Nftables, OwnerFilter, Rule, TableFamily, TableLayout, Verdict};
use cnikit_plan::{GcContext, ReleaseContext};
use cnikit_process::Deadline;
use cnikit_resources::alias::{self, Marks};
use cnikit_skel::{AttachmentId, Error, Journal, Result, code, log};

use super::backend::BACKEND;
use super::settings::{FirewallBackend, FirewallSettings};
use crate::addresses::recorded_addresses;
use crate::backend::Comparison;
use crate::nftables::{replace, shared_nftables};

/// How long all calls of a verb may take if firewalld is the backend.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The same if it is not known whether firewalld is the backend: a bus that does not reply must not make a DEL fail.
const SHORT: Duration = Duration::from_secs(3);
/// Upstream's default zone.
const TRUSTED: &str = "trusted";
const OWNERS: &str = "owners";
/// The verdict of a marker whose source the operator had added before. A marker of our own source has another verdict; no packet
/// meets either.
const OPERATORS: Verdict = Verdict::Return;

/// An address, and the zone that it is a source of.
type Source = (IpAddr, String);

/// The connection to firewalld, if it is the backend.
pub(super) struct FirewalldChoice(pub(super) Option<Firewalld>);

/// Connects to firewalld, if it is the backend.
///
/// # Errors
/// firewalld is configured and does not run.
pub(super) fn chosen(backend: FirewallBackend) -> Result<FirewalldChoice> {
    connect(backend).map(FirewalldChoice)
}

fn connect(backend: FirewallBackend) -> Result<Option<Firewalld>> {
    match backend {
        FirewallBackend::Iptables | FirewallBackend::Nftables => Ok(None),
        FirewallBackend::Firewalld => match running(TIMEOUT).map_err(Error::from)? {
            Some(firewalld) => Ok(Some(firewalld)),
            None => {
                Err(Error::new(code::SYSTEM, "firewalld does not run").hint("start it, or choose another `backend`"))
            }
        },
        FirewallBackend::Automatic => {
            let found = running_with_short_wait();
            if let Err(error) = &found {
                log::warn(format_args!("not with firewalld: {error}"));
            }
            Ok(found.unwrap_or_default())
        }
    }
}

/// A connection with the long timeout, if firewalld answers within the short one.
fn running_with_short_wait() -> std::result::Result<Option<Firewalld>, FirewalldError> {
    match running(SHORT)? {
        Some(_) => running(TIMEOUT),
        None => Ok(None),
    }
}

#[expect(clippy::disallowed_methods, reason = "the address of the system bus is in the environment")]
fn running(timeout: Duration) -> std::result::Result<Option<Firewalld>, FirewalldError> {
    let address = std::env::var_os("DBUS_SYSTEM_BUS_ADDRESS");
    let address = address.as_ref().and_then(|address| address.to_str());
    let Some(mut firewalld) = Firewalld::connect(address, Deadline::after(timeout))? else { return Ok(None) };
    if firewalld.is_running()? { Ok(Some(firewalld)) } else { Ok(None) }
}

/// Adds the addresses to the zone. A marker exists before its source is added and until the source is removed. A source without a
/// marker is the operator's, and stays.
pub(super) fn ensure(
    addresses: &[IpAddr],
    zone: &str,
    firewalld: &mut Firewalld,
    tag: &AttachmentId,
    journal: &mut Journal,
) -> Result<()> {
    let _lock = BACKEND.lock()?;
    let nftables = Nftables::if_any()?;
    let markers = markers(nftables.as_ref(), |owner| owner == alias::mark_of(tag))?;
    let had = claims(&markers.own);
    let others = claims(&markers.others);
    let mut rules = Vec::new();
    let mut missing = Vec::new();
    for address in addresses {
        let source = (*address, zone.to_owned());
        let is = firewalld.query_source(zone, (*address).into()).map_err(Error::from)?;
        let is_operators = is && !had.contains(&source) && !others.contains(&source);
        rules.push(marker(tag, &source, if is_operators { OPERATORS } else { Verdict::Accept }));
        if !is {
            missing.push(source);
        }
    }
    let is_stale = |(address, of): &Source| of != zone || !addresses.contains(address);
    let stale: Vec<Source> = had.into_iter().filter(is_stale).collect();
    let mut rules_until_removed = rules.clone();
    rules_until_removed.extend(stale.iter().map(|source| marker(tag, source, Verdict::Accept)));
    mark(nftables.as_ref(), &rules_until_removed, tag, journal)?;
    for (address, of) in stale.iter().filter(|source| !others.contains(source)) {
        let removed_address = *address;
        let removed_zone = of.clone();
        let undo_name = format!("removal of source {address} of zone {of}");
        let _ = journal.undo(&undo_name, move |_| add_source(&removed_zone, removed_address));
        firewalld.remove_source(of, removed_address.into()).map_err(Error::from)?;
    }
    if !stale.is_empty() {
        mark(nftables.as_ref(), &rules, tag, journal)?;
    }
    for (address, zone) in missing {
        let undone = zone.clone();
        let _ = journal.undo(&format!("source {address} of zone {zone}"), move |_| remove_source(&undone, address));
        firewalld.add_source(&zone, address.into()).map_err(Error::from)?;
    }
    Ok(())
}

/// Replaces the markers of an attachment, if the kernel has nftables.
fn mark(nftables: Option<&Nftables>, rules: &[Rule], tag: &AttachmentId, journal: &mut Journal) -> Result<()> {
    let Some(nftables) = nftables else { return Ok(()) };
    replace(nftables, &layout(), filter(tag), rules, &BACKEND.undo_name(tag), journal)?;
    Ok(())
}

fn marker(tag: &AttachmentId, (address, zone): &Source, verdict: Verdict) -> Rule {
    let comment = Some(format!("{} {zone}", alias::mark_of(tag)));
    Rule { matches: vec![Match::Source(*address)], verdict, comment }
}

/// Compares the sources of the zone with the addresses; `None` if firewalld is not the backend of this attachment.
pub(super) fn verify(
    addresses: &[IpAddr],
    settings: &FirewallSettings,
    tag: &AttachmentId,
) -> Result<Option<Comparison>> {
    let backend = settings.backend;
    if matches!(backend, FirewallBackend::Iptables | FirewallBackend::Nftables) {
        return Ok(None);
    }
    let marked = match Nftables::if_any()? {
        Some(nftables) => !nftables.rules(&layout(), filter(tag))?.is_empty(),
        None => false,
    };
    let zone = &settings.zone;
    let is_certain = marked || backend == FirewallBackend::Firewalld;
    let missing = match missing_sources(addresses, zone, if is_certain { TIMEOUT } else { SHORT }) {
        Ok(Some(missing)) => missing,
        Ok(None) if !is_certain => return Ok(None),
        Ok(None) => {
            let drifts = vec![format!("firewalld does not run, and has no zone {zone}")];
            return Ok(Some(Comparison { any: marked, drifts, ..Comparison::default() }));
        }
        Err(error) if !is_certain => {
            log::warn(format_args!("firewalld is not called: {error}"));
            return Ok(None);
        }
        Err(error) => return Err(Error::from(error)),
    };
    // ADD chose another backend, before firewalld ran.
    if !is_certain && missing.len() == addresses.len() {
        return Ok(None);
    }
    Ok(Some(Comparison { any: marked, drifts: missing, ..Comparison::default() }))
}

/// The addresses that are not sources of the zone, each a sentence; `None` if firewalld does not run.
fn missing_sources(
    addresses: &[IpAddr],
    zone: &str,
    timeout: Duration,
) -> std::result::Result<Option<Vec<String>>, FirewalldError> {
    let Some(mut firewalld) = running(timeout)? else { return Ok(None) };
    let mut missing = Vec::new();
    for address in addresses {
        if !firewalld.query_source(zone, (*address).into())? {
            missing.push(format!("{address} is not a source of zone {zone} of firewalld"));
        }
    }
    Ok(Some(missing))
}

/// Removes the sources of an attachment. Upstream's sources have no marker: those are removed that the result of ADD records,
/// unless a marker of another attachment claims them.
pub(super) fn release(context: &ReleaseContext) -> Result<()> {
    let nftables = shared_nftables(context.shared())?;
    let own = alias::mark_of(&context.tag);
    let member = |name: &str| context.conf.text(name).unwrap_or_default();
    let configured = member("backend");
    let mut zone = member("firewalldZone");
    if zone.is_empty() {
        zone = TRUSTED;
    }
    let mut recorded = Vec::new();
    if configured != "iptables" && configured != "nftables" {
        recorded.extend(recorded_addresses(context).into_iter().map(|address| (address, zone.to_owned())));
    }
    let unmark = |nftables: &Nftables| nftables.release(&layout(), filter(&context.tag)).map(drop);
    clear(nftables.as_deref(), |owner| owner == own, recorded, configured == "firewalld", unmark)
}

/// Removes the sources of an attachment that have a marker.
pub(super) fn remove(tag: &AttachmentId) -> Result<()> {
    let nftables = Nftables::if_any()?;
    let own = alias::mark_of(tag);
    let unmark = |nftables: &Nftables| nftables.release(&layout(), filter(tag)).map(drop);
    clear(nftables.as_ref(), |owner| owner == own, Vec::new(), false, unmark)
}

pub(super) fn sweep(context: &GcContext) -> Result<()> {
    let Some(nftables) = shared_nftables(context.shared())? else { return Ok(()) };
    let marks = Marks::of(context);
    let filter = OwnerFilter::Commented(alias::network_mark(&context.network));
    let unmark = |nftables: &Nftables| nftables.sweep(&layout(), filter, |found| !marks.is_stale_text(found)).map(drop);
    clear(Some(&nftables), |owner| marks.is_stale_text(owner), Vec::new(), false, unmark)
}

/// Removes the sources of these owners and the recorded ones. The markers are removed last, so that sources that are left after a
/// kill still have an owner. `is_configured`: firewalld is the configured backend.
fn clear(
    nftables: Option<&Nftables>,
    is_owner: impl Fn(&str) -> bool,
    recorded: Vec<Source>,
    is_configured: bool,
    unmark: impl FnOnce(&Nftables) -> std::result::Result<(), cnikit_nftables::Error>,
) -> Result<()> {
    let marked = !markers(nftables, &is_owner)?.own.is_empty();
    // If firewalld cannot be asked, it is taken to have no source of this attachment.
    if !marked && (recorded.is_empty() || !is_configured && !may_run()) {
        return Ok(());
    }
    let _lock = BACKEND.lock()?;
    let Markers { own, others } = markers(nftables, &is_owner)?;
    let mut removed = claims(&own);
    let is_certain = is_configured || !removed.is_empty();
    for (address, zone) in recorded {
        if !own.iter().any(|marker| source(marker) == Some(address)) {
            removed.push((address, zone));
        }
    }
    let claimed_by_others = claims(&others);
    removed.retain(|source| !claimed_by_others.contains(source));
    match remove_sources(&removed, if is_certain { TIMEOUT } else { SHORT }) {
        Ok(()) => {}
        Err(error) if !is_certain => log::warn(format_args!("sources may be left in firewalld: {error}")),
        Err(error) => return Err(error.into()),
    }
    if let Some(nftables) = nftables
        && !own.is_empty()
    {
        unmark(nftables)?;
    }
    Ok(())
}

fn may_run() -> bool {
    match running(SHORT) {
        Ok(found) => found.is_some(),
        Err(error) => {
            log::warn(format_args!("firewalld is not called for sources of this attachment: {error}"));
            false
        }
    }
}

fn remove_sources(sources: &[Source], timeout: Duration) -> std::result::Result<(), FirewalldError> {
    if sources.is_empty() {
        return Ok(());
    }
    // Our sources are not permanent, so a firewalld that starts later has none of them.
    let Some(mut firewalld) = running(timeout)? else { return Ok(()) };
    let mut first = Ok(());
    for (address, zone) in sources {
        match firewalld.remove_source(zone, (*address).into()) {
            Err(error) if error.is_absent() => return first,
            removed => first = first.and(removed),
        }
    }
    first
}

fn remove_source(zone: &str, address: IpAddr) -> Result<()> {
    let Some(mut firewalld) = running(TIMEOUT).map_err(Error::from)? else { return Ok(()) };
    firewalld.remove_source(zone, address.into()).map_err(Error::from)
}

fn add_source(zone: &str, address: IpAddr) -> Result<()> {
    let Some(mut firewalld) = running(TIMEOUT).map_err(Error::from)? else { return Ok(()) };
    firewalld.add_source(zone, address.into()).map_err(Error::from)
}

/// The markers of some owners, and of all others.
#[derive(Default)]
struct Markers {
    own: Vec<InstalledRule>,
    others: Vec<InstalledRule>,
}

fn markers(nftables: Option<&Nftables>, is_owner: impl Fn(&str) -> bool) -> Result<Markers> {
    let mut markers = Markers::default();
    let Some(nftables) = nftables else { return Ok(markers) };
    for found in nftables.rules(&layout(), OwnerFilter::Commented(alias::MARK.to_owned()))? {
        if found.comment().and_then(alias::mark).is_some_and(&is_owner) {
            markers.own.push(found);
        } else {
            markers.others.push(found);
        }
    }
    Ok(markers)
}

/// The sources of markers, without those of the operator.
fn claims(markers: &[InstalledRule]) -> Vec<Source> {
    markers.iter().filter_map(claim).collect()
}

fn claim(marker: &InstalledRule) -> Option<Source> {
    if marker.rule()?.verdict == OPERATORS {
        return None;
    }
    let (_, zone) = marker.comment()?.split_once(' ')?;
    Some((source(marker)?, zone.to_owned()))
}

fn source(marker: &InstalledRule) -> Option<IpAddr> {
    match marker.rule()?.matches[..] {
        [Match::Source(address)] => Some(address),
        _ => None,
    }
}

fn filter(tag: &AttachmentId) -> OwnerFilter {
    OwnerFilter::Commented(alias::mark_of(tag))
}

/// The table of the markers. No packet passes through it.
fn layout() -> TableLayout {
    TableLayout {
        table_comment: Some("Whose sources of zones of firewalld are"),
        chains: vec![Chain { name: OWNERS, comment: None, hook: None }],
        rule_chains: vec![OWNERS],
        ..TableLayout::of(TableFamily::Inet, "cni_firewalld")
    }
}

//! The firewall in firewalld: the container's addresses are sources of a zone.
//!
//! A source belongs to nobody: whose an address is says a rule of nftables in a table through which no packet passes, where the
//! kernel has nftables. Its comment is the mark of the tag and the zone, so that DEL needs to know neither.

use std::net::IpAddr;
use std::time::Duration;

use cnikit_firewalld::{Error as Refused, Firewalld};
use cnikit_nftables::{Chain, InstalledRule, Match, Nftables, OwnerFilter, Rule, TableFamily, TableLayout, Verdict};
use cnikit_plan::{GcContext, ReleaseContext};
use cnikit_process::Deadline;
use cnikit_resources::alias::{self, Marks};
use cnikit_skel::{AttachmentId, Error, Journal, Result, code, log};

use super::{Firewall, FirewallBackend, iptables, rules_of};
use crate::backend::{Comparison, replace, shared_nftables};

/// How long all calls of a verb may take where firewalld is the one.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The same where nothing says that it is: a bus that is silent must cost nobody his DEL.
const SHORT: Duration = Duration::from_secs(3);
/// The reference's zone, for containers of its own.
const TRUSTED: &str = "trusted";
const OWNERS: &str = "owners";
/// What a marker does to no packet says whose the source is: so, the operator's, who had it there before.
const OPERATORS: Verdict = Verdict::Return;

/// An address, and the zone that it is a source of.
type Source = (IpAddr, String);

/// firewalld where it is to be used.
pub(super) struct FirewalldChoice(pub(super) Option<Firewalld>);

/// Looks whether it is the one.
pub(super) fn chosen(backend: FirewallBackend) -> Result<FirewalldChoice> {
    looked_for(backend).map(FirewalldChoice)
}

fn looked_for(backend: FirewallBackend) -> Result<Option<Firewalld>> {
    match backend {
        FirewallBackend::Iptables | FirewallBackend::Nftables => Ok(None),
        FirewallBackend::Firewalld => match running(TIMEOUT).map_err(told)? {
            Some(firewalld) => Ok(Some(firewalld)),
            None => {
                Err(Error::new(code::SYSTEM, "firewalld does not run").hint("start it, or choose another `backend`"))
            }
        },
        FirewallBackend::Automatic => {
            let found = running(SHORT).and_then(|found| found.map_or(Ok(None), |_| running(TIMEOUT)));
            Ok(found.unwrap_or_else(|error| {
                log::warn(format_args!("not with firewalld: {error}"));
                None
            }))
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "where the bus of the system is, is the environment's to say")]
fn running(patience: Duration) -> std::result::Result<Option<Firewalld>, Refused> {
    let address = std::env::var_os("DBUS_SYSTEM_BUS_ADDRESS");
    let address = address.as_ref().and_then(|address| address.to_str());
    let Some(mut firewalld) = Firewalld::connect(address, Deadline::after(patience))? else { return Ok(None) };
    Ok(firewalld.is_running()?.then_some(firewalld))
}

/// A source is claimed before it is one, and until it is none any more. What is a source already and nobody claims is the
/// operator's, and stays.
pub(super) fn ensure(
    firewall: &Firewall,
    firewalld: &mut Firewalld,
    (tag, journal): (&AttachmentId, &mut Journal),
) -> Result<()> {
    let (zone, _alone, nftables) = (&firewall.settings.zone, iptables::lock()?, Nftables::if_any()?);
    let (own, others) = markers(nftables.as_ref(), |owner| owner == alias::mark_of(tag))?;
    let (had, others) = (claims(&own), claims(&others));
    let (mut rules, mut missing) = (Vec::new(), Vec::new());
    for address in &firewall.addresses {
        let source = (*address, zone.clone());
        let is = firewalld.query_source(zone, (*address).into()).map_err(told)?;
        let is_operators = is && !had.contains(&source) && !others.contains(&source);
        rules.push(marker(tag, &source, if is_operators { OPERATORS } else { Verdict::Accept }));
        missing.extend((!is).then_some(source));
    }
    let is_stale = |(address, of): &Source| of != zone || !firewall.addresses.contains(address);
    let context: Vec<Source> = had.into_iter().filter(is_stale).collect();
    let leaving = context.iter().map(|source| marker(tag, source, Verdict::Accept));
    mark(nftables.as_ref(), &rules.iter().cloned().chain(leaving).collect::<Vec<_>>(), (tag, journal))?;
    for source in context.iter().filter(|source| !others.contains(source)) {
        let ((address, of), (again, back)) = (source, source.clone());
        let _ = journal.undo(&format!("removal of source {address} of zone {of}"), move |_| add(&back, again));
        firewalld.remove_source(of, (*address).into()).map_err(told)?;
    }
    if !context.is_empty() {
        mark(nftables.as_ref(), &rules, (tag, journal))?;
    }
    for (address, zone) in missing {
        let undone = zone.clone();
        let _ = journal.undo(&format!("source {address} of zone {zone}"), move |_| remove(&undone, address));
        firewalld.add_source(&zone, address.into()).map_err(told)?;
    }
    Ok(())
}

/// Makes these all the markers of a tag, where the kernel has nftables.
fn mark(nftables: Option<&Nftables>, rules: &[Rule], (tag, journal): (&AttachmentId, &mut Journal)) -> Result<()> {
    let Some(nftables) = nftables else { return Ok(()) };
    let what = rules_of(tag);
    replace(nftables, (&layout(), filter(tag)), rules, (&what, journal))?;
    Ok(())
}

fn marker(tag: &AttachmentId, (address, zone): &Source, verdict: Verdict) -> Rule {
    let comment = Some(format!("{} {zone}", alias::mark_of(tag)));
    Rule { matches: vec![Match::Source(*address)], verdict, comment }
}

/// None where a zone has nothing to do with it.
pub(super) fn verify(firewall: &Firewall, tag: &AttachmentId) -> Result<Option<Comparison>> {
    let backend = firewall.settings.backend;
    if matches!(backend, FirewallBackend::Iptables | FirewallBackend::Nftables) {
        return Ok(None);
    }
    let marked = match Nftables::if_any()? {
        Some(nftables) => !nftables.rules(&layout(), filter(tag))?.is_empty(),
        None => false,
    };
    let zone = &firewall.settings.zone;
    let sure = marked || backend == FirewallBackend::Firewalld;
    let missing = match missing(firewall, if sure { TIMEOUT } else { SHORT }) {
        Ok(Some(missing)) => missing,
        Ok(None) if !sure => return Ok(None),
        Ok(None) => {
            let drifts = vec![format!("firewalld does not run, and has no zone {zone}")];
            return Ok(Some(Comparison { any: marked, drifts, ..Comparison::default() }));
        }
        Err(error) if !sure => {
            log::warn(format_args!("firewalld is not asked: {error}"));
            return Ok(None);
        }
        Err(error) => return Err(told(error)),
    };
    // Somebody else than firewalld was chosen, before it ran.
    let elsewhere = !sure && missing.len() == firewall.addresses.len();
    Ok((!elsewhere).then_some(Comparison { any: marked, drifts: missing, ..Comparison::default() }))
}

/// What is no source of its zone, each a sentence; `None` if firewalld does not run.
fn missing(firewall: &Firewall, patience: Duration) -> std::result::Result<Option<Vec<String>>, Refused> {
    let (zone, Some(mut firewalld)) = (&firewall.settings.zone, running(patience)?) else { return Ok(None) };
    let mut missing = Vec::new();
    for address in &firewall.addresses {
        if !firewalld.query_source(zone, (*address).into())? {
            missing.push(format!("{address} is no source of zone {zone} of firewalld"));
        }
    }
    Ok(Some(missing))
}

/// What the reference made has no marker: of that goes what was recorded of this attachment, and nobody claims.
pub(super) fn release(context: &ReleaseContext) -> Result<()> {
    let nftables = shared_nftables(context.shared())?;
    let own = alias::mark_of(&context.tag);
    let member = |name: &str| context.conf.text(name).unwrap_or_default();
    let of_others = ["iptables", "nftables"].contains(&member("backend"));
    let recorded = context.prev.iter().filter(|_| !of_others).flat_map(|prev| &prev.ips).map(|ip| ip.address.ip());
    let zone = Some(member("firewalldZone")).filter(|zone| !zone.is_empty()).unwrap_or(TRUSTED);
    let recorded = recorded.map(|address| (address, zone.to_owned())).collect();
    let unmark = |nftables: &Nftables| nftables.release(&layout(), filter(&context.tag)).map(drop);
    clear(nftables.as_deref(), |owner| owner == own, (recorded, member("backend") == "firewalld"), unmark)
}

/// Removes what a tag has.
pub(super) fn forget(tag: &AttachmentId) -> Result<()> {
    let (nftables, own) = (Nftables::if_any()?, alias::mark_of(tag));
    let unmark = |nftables: &Nftables| nftables.release(&layout(), filter(tag)).map(drop);
    clear(nftables.as_ref(), |owner| owner == own, (Vec::new(), false), unmark)
}

pub(super) fn sweep(context: &GcContext) -> Result<()> {
    let Some(nftables) = shared_nftables(context.shared())? else { return Ok(()) };
    let (marks, network) = (Marks::of(context), alias::network_mark(&context.network));
    let filter = OwnerFilter::Commented(network);
    let unmark = |nftables: &Nftables| nftables.sweep(&layout(), filter, |found| !marks.is_stale_text(found)).map(drop);
    clear(Some(&nftables), |owner| marks.is_stale_text(owner), (Vec::new(), false), unmark)
}

/// Has no sources be left of these owners, nor of what was recorded. The markers go last, so that what a kill leaves behind is
/// still somebody's. `asked`: firewalld is the configured one.
fn clear(
    nftables: Option<&Nftables>,
    is_going: impl Fn(&str) -> bool,
    (recorded, asked): (Vec<Source>, bool),
    unmark: impl FnOnce(&Nftables) -> std::result::Result<(), cnikit_nftables::Error>,
) -> Result<()> {
    let marked = !markers(nftables, &is_going)?.0.is_empty();
    // Whoever cannot be asked whether it had anything of this attachment had nothing.
    if !marked && (recorded.is_empty() || !asked && !may_run()) {
        return Ok(());
    }
    let _alone = iptables::lock()?;
    let (own, others) = markers(nftables, &is_going)?;
    let (mut going, others) = (claims(&own), claims(&others));
    let sure = asked || !going.is_empty();
    let noted = |address: &IpAddr| own.iter().any(|marker| source(marker) == Some(*address));
    going.extend(recorded.into_iter().filter(|(address, _)| !noted(address)));
    going.retain(|source| !others.contains(source));
    match give_up(&going, if sure { TIMEOUT } else { SHORT }) {
        Err(error) if !sure => log::warn(format_args!("sources may be left in firewalld: {error}")),
        given_up => given_up.map_err(told)?,
    }
    if let Some(nftables) = nftables.filter(|_| !own.is_empty()) {
        unmark(nftables)?;
    }
    Ok(())
}

fn may_run() -> bool {
    match running(SHORT) {
        Ok(found) => found.is_some(),
        Err(error) => {
            log::warn(format_args!("firewalld is not asked for sources of this attachment: {error}"));
            false
        }
    }
}

/// Has those be no sources any more.
fn give_up(going: &[Source], patience: Duration) -> std::result::Result<(), Refused> {
    if going.is_empty() {
        return Ok(());
    }
    // When it begins anew, it knows of no source that was not kept for good.
    let Some(mut firewalld) = running(patience)? else { return Ok(()) };
    let mut first = Ok(());
    for (address, zone) in going {
        match firewalld.remove_source(zone, (*address).into()) {
            Err(error) if error.is_absent() => return first,
            removed => first = first.and(removed),
        }
    }
    first
}

fn remove(zone: &str, address: IpAddr) -> Result<()> {
    let Some(mut firewalld) = running(TIMEOUT).map_err(told)? else { return Ok(()) };
    firewalld.remove_source(zone, address.into()).map_err(told)
}

fn add(zone: &str, address: IpAddr) -> Result<()> {
    let Some(mut firewalld) = running(TIMEOUT).map_err(told)? else { return Ok(()) };
    firewalld.add_source(zone, address.into()).map_err(told)
}

/// The markers of those who are meant, and those of others.
fn markers(
    nftables: Option<&Nftables>,
    is_meant: impl Fn(&str) -> bool,
) -> Result<(Vec<InstalledRule>, Vec<InstalledRule>)> {
    let everybodys = OwnerFilter::Commented(alias::MARK.to_owned());
    let all = nftables.map_or(Ok(Vec::new()), |nftables| nftables.rules(&layout(), everybodys))?;
    Ok(all.into_iter().partition(|found| found.comment().and_then(alias::mark).is_some_and(&is_meant)))
}

/// Which sources markers claim.
fn claims(markers: &[InstalledRule]) -> Vec<Source> {
    let claimed = markers.iter().filter(|found| found.rule().is_some_and(|rule| rule.verdict != OPERATORS));
    let zone = |found: &InstalledRule| found.comment()?.split_once(' ').map(|(_, zone)| zone.to_owned());
    claimed.filter_map(|found| Some((source(found)?, zone(found)?))).collect()
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

/// No packet passes through it.
fn layout() -> TableLayout {
    TableLayout {
        table_comment: Some("Whose sources of zones of firewalld are"),
        chains: vec![Chain { name: OWNERS, comment: None, hook: None }],
        rule_chains: vec![OWNERS],
        ..TableLayout::of(TableFamily::Inet, "cni_firewalld")
    }
}

fn told(error: Refused) -> Error {
    Error::from(error)
}

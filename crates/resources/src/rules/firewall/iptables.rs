//! The firewall in iptables, in the chains that all networks of a host share.
//!
//! Chains, rules and comments are the reference's to the letter, for it finds them by that; its rules for an address name
//! nobody. Whose they are says a marker in a chain that no packet walks: a rule without a target, which matches what the
//! claim is about and bears the tag in its comment. So DEL needs to know no address, and rules go with the last that claims
//! them.

mod claims;
mod edits;

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;

use cnikit_netfilter::iptables::{Chains, Changes, Changing, Error as Refused, IpVersion, Ruleset, Table};
use cnikit_netfilter::{BatchOutcome, Nftables};
use cnikit_plan::{GcContext, ReleaseContext, RestoreBatch, Wanted};
use cnikit_skel::{AttachmentId, Error, Journal, Result};

use super::{Demand, Isolation, rules_of};
use crate::identity::alias::{self, Marks};
use crate::rules::backend::Standing;
use crate::rules::batch_restore;
use crate::rules::iptables::{OURS, OpenedAlone, OpeningAlone, Read, RuleTable};
use crate::rules::lock_netns::NetnsLock;
use claims::{Claim, Claims, Going, is_ours};
use edits::Edits;

/// The rules, and what may be said instead.
pub(super) const PLACE: RuleTable = RuleTable {
    table: "filter",
    what: "firewall rules",
    shared: &["FORWARD", "CNI-FORWARD", "CNI-ISOLATION-STAGE-1", "CNI-ISOLATION-STAGE-2"],
    otherwise: "or say `\"backend\": \"nftables\"`",
};
/// Rules of others matter too: what comes first in a chain.
const ALL_LINES: &str = "";

/// Has read what stands, of all versions at once. Others that change rules here are kept away: of an address that two
/// containers claim, each would see the other's claim, or neither.
pub(super) fn begin_open(demand: &Demand) -> Result<OpeningAlone> {
    PLACE.begin_open_alone(versions(demand), ALL_LINES)
}

/// The versions that it has addresses of: any other needs no program.
fn versions(demand: &Demand) -> impl Iterator<Item = IpVersion> {
    let of = |version: &IpVersion| demand.addresses.iter().any(|address| is_of(address, *version));
    IpVersion::ALL.into_iter().filter(of)
}

fn is_of(address: &IpAddr, version: IpVersion) -> bool {
    address.is_ipv4() == (version == IpVersion::V4)
}

/// Whether there can be rules for this bridge.
pub(super) fn preflight(isolation: Option<&Isolation>) -> Result<()> {
    match isolation.filter(|isolation| isolation.bridge.ends_with('+')) {
        Some(Isolation { bridge, .. }) => {
            let text =
                format!("iptables takes the name of the bridge {bridge:?} for that of every link that begins so");
            Err(Error::config(text).hint("give the bridge a name that does not end with +"))
        }
        None => Ok(()),
    }
}

/// What it claims of one version.
fn wanted(demand: &Demand, version: IpVersion) -> Vec<Claim> {
    let addresses = demand.addresses.iter().filter(|address| is_of(address, version));
    let accepted = addresses.filter(|_| demand.accepts).copied().map(Claim::Address);
    accepted.chain(demand.isolation.cloned().map(Claim::Bridge)).collect()
}

/// The programs for both versions run at once.
pub(super) fn ensure(
    demand: &Demand,
    opened: OpenedAlone,
    (tag, journal): (&AttachmentId, &mut Journal),
) -> Result<()> {
    let (OpenedAlone { read, alone: _alone }, mut begun, mut not_begun) = (opened, Vec::new(), Ok(()));
    for (version, ruleset) in read {
        let change = noted(wanted(demand, version), demand.admin_chain, version, (tag, journal));
        match ruleset.begin(&change(ruleset.table()).changes()) {
            Ok(changing) => begun.push((version, change, changing)),
            Err(error) => {
                not_begun = Err(error);
                break;
            }
        }
    }
    let finish = |(version, change, changing): (IpVersion, _, Option<Changing>)| {
        match changing.map_or(Ok(()), Changing::finish) {
            // Somebody else may have changed what was read before it could be changed.
            Err(Refused::Failed { .. } | Refused::Unread { .. }) => again(version, change),
            told => told,
        }
    };
    // All come to their end under the lock, whichever fails.
    let ended: Vec<Read<()>> = begun.into_iter().map(finish).collect();
    not_begun.and(ended.into_iter().collect()).map_err(explained)
}

/// Gathers what [`ensure`] would make, where CHECK would find any fault.
pub(super) fn enqueue(demand: &Demand, tag: &AttachmentId, batch: &mut RestoreBatch) -> Result<()> {
    preflight(demand.isolation)?;
    for version in versions(demand) {
        let (wanted, owner, admin) = (wanted(demand, version), alias::of(tag), demand.admin_chain.to_owned());
        let changes = move |table: &Table| {
            let claims = Claims::of(table);
            let is_whole = claims.missing(&wanted, &admin).drifts(PLACE.table).is_empty();
            Ok(if is_whole { Changes::default() } else { claims.become_of(&owner, &wanted, &admin, &[]).changes() })
        };
        let wanted = Wanted { changes: Box::new(changes), sole: Vec::new() };
        batch.add_changes(PLACE.what, version, make_all, wanted);
    }
    Ok(())
}

fn make_all(version: IpVersion, all: &[Wanted]) -> Vec<BatchOutcome> {
    batch_restore::make(PLACE, Chains::Like(ALL_LINES, is_ours), version, all)
}

fn again(version: IpVersion, change: impl Fn(&Table) -> Edits) -> Read<()> {
    PLACE.read(version, ALL_LINES)?.change(|table| change(table).changes())
}

/// What has to change so that a tag has what it wants. Its undo is noted: what the tag had may be a running container's, so
/// it is put back, not removed.
fn noted(
    wanted: Vec<Claim>,
    admin: &str,
    version: IpVersion,
    (tag, journal): (&AttachmentId, &mut Journal),
) -> impl Fn(&Table) -> Edits + use<> {
    let (owner, admin) = (alias::of(tag), admin.to_owned());
    let before = Rc::new(RefCell::new(None::<(Vec<Claim>, Vec<Claim>)>));
    let (seen, putting_back) = (Rc::clone(&before), owner.clone());
    let _ = journal.undo(&rules_of(tag), move |_| match before.take() {
        Some((had, stood)) => put_back(version, &putting_back, &had, &stood),
        None => Ok(()),
    });
    move |table| {
        let claims = Claims::of(table);
        let of_tag = Going { is: &|mark| owner.starts_with(mark), also: &[], by_gc: false };
        *seen.borrow_mut() = Some((claims.of_owner(&of_tag), claims.unclaimed(&wanted)));
        claims.become_of(&owner, &wanted, &admin, &[])
    }
}

/// `stood`: what nobody claimed before and had its rules.
fn put_back(version: IpVersion, owner: &str, had: &[Claim], stood: &[Claim]) -> Result<()> {
    let back = |table: &Table| Claims::of(table).put_back(owner, had, stood).changes();
    PLACE.change_alone(version, ALL_LINES, back)
}

/// What CHECK reads, in either half of iptables.
pub(super) fn verify(demand: &Demand) -> Result<Standing> {
    let nftables = Nftables::if_any().map_err(Refused::from).map_err(explained)?;
    let mut standing = Standing::default();
    for version in versions(demand) {
        let (wanted, place) = (wanted(demand, version), format!("table {} of {version}", PLACE.table));
        let meant = Chains::Like(ALL_LINES, is_ours);
        let rulesets = PLACE.standing(nftables.as_ref(), version, meant).map_err(explained)?;
        let tables: Vec<&Table> = rulesets.iter().map(Ruleset::table).collect();
        standing.any |= tables.iter().any(|table| Claims::of(table).has_any(&wanted));
        let differences = |table: &Table| Claims::of(table).missing(&wanted, demand.admin_chain).drifts(&place);
        // Of two halves that have something, the better one is the one that ADD wrote last.
        let drifts = tables.into_iter().map(differences).min_by_key(Vec::len);
        standing.drifts.extend(drifts.unwrap_or_else(|| differences(&Table::default())));
    }
    Ok(standing)
}

/// What the reference made has no marker: of that goes what was recorded of this attachment, and nobody claims.
pub(super) fn release(context: &ReleaseContext) -> Result<()> {
    let mark = alias::mark_of(&context.tag);
    let recorded: Vec<IpAddr> = context.prev.iter().flat_map(|prev| &prev.ips).map(|ip| ip.address.ip()).collect();
    clear(context.nftables()?, &Going { is: &|found| found == mark, also: &recorded, by_gc: false })
}

/// Removes what a tag has.
pub(super) fn forget(tag: &AttachmentId) -> Result<()> {
    let (mark, nftables) = (alias::mark_of(tag), Nftables::if_any().map_err(Refused::from).map_err(explained)?);
    clear(nftables.as_ref(), &Going { is: &|found| found == mark, also: &[], by_gc: false })
}

pub(super) fn sweep(context: &GcContext) -> Result<()> {
    let marks = Marks::of(context);
    clear(context.nftables()?, &Going { is: &|found| marks.is_stale_text(found), also: &[], by_gc: true })
}

/// The programs that change one version are not waited for while the other one is read.
fn clear(nftables: Option<&Nftables>, going: &Going) -> Result<()> {
    let (meant, mut begun) = (Chains::Like(OURS, is_ours), Vec::new());
    let changes = |table: &Table| Claims::of(table).released(going).changes();
    let begin = |ruleset: Ruleset| {
        begun.extend(ruleset.begin(&changes(ruleset.table()))?);
        Ok(())
    };
    let (alone, mut errors) = PLACE.everywhere(nftables, meant, begin);
    let ended: Vec<Read<()>> = begun.into_iter().map(Changing::finish).collect();
    match ended.into_iter().collect::<Read<()>>() {
        // Somebody else may have changed what was read before it could be changed.
        Err(Refused::Failed { .. } | Refused::Unread { .. }) => {
            drop(alone);
            let (_alone, again) = PLACE.everywhere(nftables, meant, |ruleset| ruleset.change(changes));
            errors.note(again.finish());
        }
        told => {
            errors.note(told.map_err(explained));
        }
    }
    errors.finish()
}

/// Keeps others away that change whose an address is.
pub(super) fn alone() -> Result<NetnsLock> {
    PLACE.alone()
}

fn explained(error: Refused) -> Error {
    PLACE.explained(error)
}

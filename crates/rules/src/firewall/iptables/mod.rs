//! The firewall in iptables, in the chains that all networks of a host share.
//!
//! Chains, rules and comments are exactly those of the upstream plugins, which find them by these texts. Upstream's rules for an
//! address have no owner. The owner is in a marker, in a chain without packets: a rule without a target, with the address or bridge
//! as match and the tag in its comment. So DEL needs no address, and rules are removed with the last attachment that claims them.

mod claims;
mod edits;

use claims::{Claim, ClaimFilter, Claims, is_ours};
use cnikit_iptables::{Chains, Changes, IpVersion, Result as IptablesResult, Ruleset, Table};
use cnikit_nftables::Nftables;
use cnikit_plan::{GcContext, ReleaseContext, RestoreBatch};
use cnikit_resources::alias::{self, Marks};
use cnikit_skel::{AttachmentId, Error, Journal, Result};

use super::backend::BACKEND;
use super::demand::{Demand, Isolation};
use crate::addresses::{is_of_version, recorded_addresses};
use crate::backend::Comparison;
use crate::batch_restore::{Wanted, add_iptables};
use crate::iptables::{CNI_CHAIN, Opened, Opening, TableStep};
use crate::nftables::shared_nftables;

/// All lines are read, since rules of other programs decide what comes first in a chain.
const ALL_LINES: &str = "";

/// Starts reading the tables of all versions at once, with other processes of ours locked out: otherwise two containers that claim
/// one address could both see the other's claim, or neither.
pub(super) fn open(demand: &Demand) -> Result<Opening> {
    BACKEND.open(versions(demand), ALL_LINES)
}

/// The versions of the addresses. Any other version needs no program.
fn versions(demand: &Demand) -> impl Iterator<Item = IpVersion> {
    let has_address = |version: &IpVersion| demand.addresses.iter().any(|address| is_of_version(*address, *version));
    IpVersion::ALL.into_iter().filter(has_address)
}

/// Refuses a bridge whose name iptables reads as a prefix of names.
pub(super) fn preflight(isolation: Option<&Isolation>) -> Result<()> {
    let Some(Isolation { bridge, .. }) = isolation else { return Ok(()) };
    if !bridge.ends_with('+') {
        return Ok(());
    }
    let text =
        format!("iptables reads the name of the bridge {bridge:?} as a pattern for all links that begin with it");
    Err(Error::config(text).hint("give the bridge a name that does not end with +"))
}

/// The claims of an attachment in the table of one version.
fn wanted(demand: &Demand, version: IpVersion) -> Vec<Claim> {
    let mut claims = Vec::new();
    if demand.accepts {
        for address in demand.addresses {
            if is_of_version(*address, version) {
                claims.push(Claim::Address(*address));
            }
        }
    }
    if let Some(isolation) = demand.isolation {
        claims.push(Claim::Bridge(isolation.clone()));
    }
    claims
}

/// The rules that an attachment wants in the table of one version.
struct Step {
    /// The text of the attachment's markers.
    owner: String,
    wanted: Vec<Claim>,
    admin_chain: String,
}

/// The claims in a table before a change.
struct Before {
    own: Vec<Claim>,
    /// Wanted claims without a marker whose rules existed already.
    unclaimed: Vec<Claim>,
}

impl Step {
    fn of(demand: &Demand, version: IpVersion, owner: &str) -> Step {
        let admin_chain = demand.admin_chain.to_owned();
        Step { owner: owner.to_owned(), wanted: wanted(demand, version), admin_chain }
    }

    fn changes_if_different(&self, table: &Table) -> Changes {
        let missing = Claims::of(table).missing(&self.wanted, &self.admin_chain);
        if missing.drifts(BACKEND.table).is_empty() {
            return Changes::default();
        }
        self.decide(table).1
    }
}

impl TableStep for Step {
    type Before = Before;

    fn decide(&self, table: &Table) -> (Before, Changes) {
        let claims = Claims::of(table);
        let own = ClaimFilter { is_owner: &|mark| self.owner.starts_with(mark), unmarked: &[], is_gc: false };
        let before = Before { own: claims.of_owner(&own), unclaimed: claims.unclaimed(&self.wanted) };
        (before, claims.edits_for(&self.owner, &self.wanted, &self.admin_chain, &[]).changes())
    }

    fn put_back(&self, table: &Table, before: &Before) -> Changes {
        Claims::of(table).put_back(&self.owner, &before.own, &before.unclaimed).changes()
    }

    fn is_installed(&self, table: &Table) -> bool {
        Claims::of(table).has_any(&self.wanted)
    }

    fn differences(&self, ruleset: &Ruleset, place: &str) -> IptablesResult<Vec<String>> {
        Ok(Claims::of(ruleset.table()).missing(&self.wanted, &self.admin_chain).drifts(place))
    }

    fn differences_without_chains(&self, place: &str) -> Vec<String> {
        Claims::of(&Table::default()).missing(&self.wanted, &self.admin_chain).drifts(place)
    }
}

pub(super) fn ensure(demand: &Demand, opened: Opened, tag: &AttachmentId, journal: &mut Journal) -> Result<()> {
    let owner = alias::of(tag);
    let step = |version| Step::of(demand, version, &owner);
    BACKEND.apply(opened, step, ALL_LINES, tag, journal)
}

/// Adds the changes of [`ensure`] to the batch, if CHECK would find a difference.
pub(super) fn enqueue(demand: &Demand, tag: &AttachmentId, batch: &mut RestoreBatch) -> Result<()> {
    preflight(demand.isolation)?;
    let owner = alias::of(tag);
    for version in versions(demand) {
        let step = Step::of(demand, version, &owner);
        let changes = Box::new(move |table: &Table| Ok(step.changes_if_different(table)));
        let wanted = Wanted { changes, exclusive: Vec::new() };
        add_iptables(batch, BACKEND, Chains::Like(ALL_LINES, is_ours), version, wanted)?;
    }
    Ok(())
}

/// Compares the tables of both variants of the programs.
pub(super) fn verify(demand: &Demand) -> Result<Comparison> {
    // Rules are compared, markers are not.
    let step = |version| Step::of(demand, version, "");
    BACKEND.compare_installed(versions(demand), step, Chains::Like(ALL_LINES, is_ours))
}

/// Removes the rules of an attachment. Upstream's rules have no marker: those are removed whose address the result of ADD records,
/// unless a marker of another attachment claims them.
pub(super) fn release(context: &ReleaseContext) -> Result<()> {
    let mark = alias::mark_of(&context.tag);
    let recorded = recorded_addresses(context);
    let nftables = shared_nftables(context.shared())?;
    let filter = ClaimFilter { is_owner: &|found| found == mark, unmarked: &recorded, is_gc: false };
    clear(nftables.as_deref(), &filter)
}

/// Removes the rules of an attachment that have a marker.
pub(super) fn remove(tag: &AttachmentId) -> Result<()> {
    let mark = alias::mark_of(tag);
    let nftables = Nftables::if_any().map_err(|error| BACKEND.explained(error.into()))?;
    let filter = ClaimFilter { is_owner: &|found| found == mark, unmarked: &[], is_gc: false };
    clear(nftables.as_ref(), &filter)
}

pub(super) fn sweep(context: &GcContext) -> Result<()> {
    let marks = Marks::of(context);
    let nftables = shared_nftables(context.shared())?;
    let filter = ClaimFilter { is_owner: &|found| marks.is_stale_text(found), unmarked: &[], is_gc: true };
    clear(nftables.as_deref(), &filter)
}

/// The programs that change one version run while the table of the other is read.
fn clear(nftables: Option<&Nftables>, filter: &ClaimFilter) -> Result<()> {
    let chains = Chains::Like(CNI_CHAIN, is_ours);
    let clearing = |table: &Table| Ok(Claims::of(table).released(filter).changes());
    BACKEND.begin_clear(nftables, chains, clearing).finish(|| BACKEND.clear(nftables, chains, clearing))
}

#[cfg(test)]
mod tests;

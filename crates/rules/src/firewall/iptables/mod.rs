//! The firewall in iptables, in the chains that all networks of a host share.
//!
//! Chains, rules and comments are the reference's to the letter, for it finds them by that; its rules for an address name
//! nobody. Whose they are says a marker in a chain that no packet walks: a rule without a target, which matches what the
//! claim is about and bears the tag in its comment. So DEL needs to know no address, and rules go with the last that claims
//! them.

mod claims;
mod edits;

use std::net::IpAddr;

use claims::{Claim, Claims, Going, is_ours};
use cnikit_iptables::{Chains, Changes, Error as Refused, IpVersion, Ruleset, Table};
use cnikit_nftables::Nftables;
use cnikit_plan::{GcContext, ReleaseContext, RestoreBatch};
use cnikit_resources::alias::{self, Marks};
use cnikit_resources::lock_netns::NetnsLock;
use cnikit_skel::{AttachmentId, Error, Journal, Result};

use super::{BACKEND, Demand, Isolation, rules_of};
use crate::backend::{Comparison, shared_nftables};
use crate::batch_restore::{Wanted, add_iptables};
use crate::iptables::{OURS, Opened, Opening, TableStep};

/// Rules of others matter too: what comes first in a chain.
const ALL_LINES: &str = "";

/// Starts reading what there is, of all versions at once, with other processes of ours kept away: of an address that two
/// containers claim, each would see the other's claim, or neither.
pub(super) fn open(demand: &Demand) -> Result<Opening> {
    BACKEND.open(versions(demand), ALL_LINES)
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

/// What an attachment is to have in the table of one version.
struct Step {
    /// The text of the attachment's markers.
    owner: String,
    wanted: Vec<Claim>,
    admin_chain: String,
}

/// What an attachment had in a table before.
struct Before {
    had: Vec<Claim>,
    /// Wanted claims of no attachment that had their rules already.
    unclaimed: Vec<Claim>,
}

impl Step {
    fn of(demand: &Demand, version: IpVersion, tag: &AttachmentId) -> Step {
        let admin_chain = demand.admin_chain.to_owned();
        Step { owner: alias::of(tag), wanted: wanted(demand, version), admin_chain }
    }
}

impl TableStep for Step {
    type Before = Before;

    fn decide(&self, table: &Table) -> (Before, Changes) {
        let claims = Claims::of(table);
        let of_tag = Going { is: &|mark| self.owner.starts_with(mark), also: &[], by_gc: false };
        let before = Before { had: claims.of_owner(&of_tag), unclaimed: claims.unclaimed(&self.wanted) };
        (before, claims.become_of(&self.owner, &self.wanted, &self.admin_chain, &[]).changes())
    }

    fn put_back(&self, table: &Table, before: &Before) -> Changes {
        Claims::of(table).put_back(&self.owner, &before.had, &before.unclaimed).changes()
    }
}

pub(super) fn ensure(demand: &Demand, opened: Opened, (tag, journal): (&AttachmentId, &mut Journal)) -> Result<()> {
    let step = |version| Step::of(demand, version, tag);
    BACKEND.apply(opened, step, ALL_LINES, (&rules_of(tag), journal))
}

/// Adds to the batch what [`ensure`] would make, where CHECK would find a difference.
pub(super) fn enqueue(demand: &Demand, tag: &AttachmentId, batch: &mut RestoreBatch) -> Result<()> {
    preflight(demand.isolation)?;
    for version in versions(demand) {
        let step = Step::of(demand, version, tag);
        let changes = move |table: &Table| {
            let missing = Claims::of(table).missing(&step.wanted, &step.admin_chain);
            let is_whole = missing.drifts(BACKEND.table).is_empty();
            Ok(if is_whole { Changes::default() } else { step.decide(table).1 })
        };
        let wanted = Wanted { changes: Box::new(changes), sole: Vec::new() };
        add_iptables(batch, (BACKEND, Chains::Like(ALL_LINES, is_ours)), version, wanted)?;
    }
    Ok(())
}

/// Compares what there is in either variant of the programs.
pub(super) fn verify(demand: &Demand) -> Result<Comparison> {
    let nftables = Nftables::if_any().map_err(Refused::from).map_err(explained)?;
    let mut compared = Comparison::default();
    for version in versions(demand) {
        let wanted = wanted(demand, version);
        let place = format!("table {} of {version}", BACKEND.table);
        let chains = Chains::Like(ALL_LINES, is_ours);
        let rulesets = BACKEND.installed(nftables.as_ref(), version, chains).map_err(explained)?;
        let tables: Vec<&Table> = rulesets.iter().map(Ruleset::table).collect();
        compared.any |= tables.iter().any(|table| Claims::of(table).has_any(&wanted));
        let differences = |table: &Table| Claims::of(table).missing(&wanted, demand.admin_chain).drifts(&place);
        // Where both variants have rules, those with fewer differences are the ones that ADD wrote last.
        let fewest = tables.into_iter().map(differences).min_by_key(Vec::len);
        compared.drifts.extend(fewest.unwrap_or_else(|| differences(&Table::default())));
    }
    Ok(compared)
}

/// What the reference made has no marker: of that goes what was recorded of this attachment, and nobody claims.
pub(super) fn release(context: &ReleaseContext) -> Result<()> {
    let mark = alias::mark_of(&context.tag);
    let recorded: Vec<IpAddr> = context.prev.iter().flat_map(|prev| &prev.ips).map(|ip| ip.address.ip()).collect();
    clear(
        shared_nftables(context.shared())?.as_deref(),
        &Going { is: &|found| found == mark, also: &recorded, by_gc: false },
    )
}

/// Removes what a tag has.
pub(super) fn forget(tag: &AttachmentId) -> Result<()> {
    let mark = alias::mark_of(tag);
    let nftables = Nftables::if_any().map_err(Refused::from).map_err(explained)?;
    clear(nftables.as_ref(), &Going { is: &|found| found == mark, also: &[], by_gc: false })
}

pub(super) fn sweep(context: &GcContext) -> Result<()> {
    let marks = Marks::of(context);
    clear(
        shared_nftables(context.shared())?.as_deref(),
        &Going { is: &|found| marks.is_stale_text(found), also: &[], by_gc: true },
    )
}

/// The programs that change one version are not waited for while the other one is read.
fn clear(nftables: Option<&Nftables>, going: &Going) -> Result<()> {
    let chains = Chains::Like(OURS, is_ours);
    let clearing = |table: &Table| Ok(Claims::of(table).released(going).changes());
    BACKEND.begin_clear(nftables, chains, clearing).finish(|| BACKEND.clear(nftables, chains, clearing))
}

/// Keeps other processes of ours away that change to which attachment an address belongs.
pub(super) fn lock() -> Result<NetnsLock> {
    BACKEND.lock()
}

fn explained(error: Refused) -> Error {
    BACKEND.explained(error)
}

//! Masquerade in iptables: a chain of its own for each container of a network.
//!
//! Chain, jumps and their comments are the reference's to the letter, for it finds them by that. The name of the chain
//! tells network and container but no interface, so in the reference's chain the interfaces of one container share all
//! rules, and lose them together. Ours name the interface in their comment and its address in their match: a rule tells
//! whose it is, and by its address whose the jump is, so that DEL needs to know no address at all.

mod share;

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;

use cnikit_netfilter::iptables::{Chains, Changes, Error as Refused, IpVersion, IptablesRule, Table};
use cnikit_netfilter::{BatchOutcome, Nftables};
use cnikit_plan::{GcContext, ReleaseContext, RestoreBatch, Wanted};
use cnikit_skel::{AttachmentId, Error, Journal, Result};
use ipnetwork::IpNetwork;

use super::{Masquerade, rules_of};
use crate::rules::backend::Standing;
use crate::rules::batch_restore;
use crate::rules::iptables::{OURS, Opened, Opening, RuleTable};
use crate::rules::unclaimed;
use share::{Claim, ENTRY, Names, Share, is_chain};

/// The rules, and what may be said instead.
pub(super) const PLACE: RuleTable = RuleTable {
    table: "nat",
    what: "masquerade rules",
    shared: &[],
    otherwise: "or say `\"ipMasqBackend\": \"nftables\"`",
};

/// Has read what stands, of all versions at once.
pub(super) fn begin_open(masquerade: &Masquerade, tag: &AttachmentId) -> Opening {
    PLACE.begin_open(versions(masquerade), &Names::of(tag).chain)
}

/// The versions that it has addresses of: any other needs no program.
fn versions(masquerade: &Masquerade) -> impl Iterator<Item = IpVersion> + '_ {
    IpVersion::ALL.into_iter().filter(|version| !of_version(&masquerade.addresses, *version).is_empty())
}

pub(super) fn ensure(masquerade: &Masquerade, opened: Opened, tag: &AttachmentId, journal: &mut Journal) -> Result<()> {
    let names = Names::of(tag);
    for (version, ruleset) in opened {
        let addresses = of_version(&masquerade.addresses, version);
        let (own, wanted) = (own(&addresses), names.share(&addresses));
        let before = Rc::new(RefCell::new(None));
        let (seen, undone) = (Rc::clone(&before), (names.clone(), own.clone()));
        // What this tag had may be a running container's: it is put back, not removed.
        let _ = journal.undo(&rules_of(tag), move |_| match before.take() {
            Some(before) => put_back(version, &undone, &before),
            None => Ok(()),
        });
        let change = |table: &Table| {
            let found = names.found(table, |address| own.contains(&address));
            let changes = found.becomes(&wanted, table, &names.chain);
            *seen.borrow_mut() = Some(found);
            changes
        };
        ruleset.change(change).map_err(explained)?;
    }
    Ok(())
}

/// Gathers what [`ensure`] would make, where CHECK would find any fault.
pub(super) fn enqueue(masquerade: &Masquerade, tag: &AttachmentId, batch: &mut RestoreBatch) {
    for version in versions(masquerade) {
        let (names, addresses) = (Names::of(tag), of_version(&masquerade.addresses, version));
        let (own, wanted) = (own(&addresses), names.share(&addresses));
        let changes = move |table: &Table| {
            if names.differences(table, &addresses, PLACE.table).is_empty() {
                return Ok(Changes::default());
            }
            let found = names.found(table, |address| own.contains(&address));
            Ok(found.becomes(&wanted, table, &names.chain))
        };
        // The interfaces of a container share a chain.
        let wanted = Wanted { changes: Box::new(changes), sole: vec![Names::of(tag).chain] };
        batch.add_changes(PLACE.what, version, make_all, wanted);
    }
}

fn make_all(version: IpVersion, all: &[Wanted]) -> Vec<BatchOutcome> {
    batch_restore::make(PLACE, Chains::Like(OURS, is_chain), version, all)
}

fn put_back(version: IpVersion, (names, own): &(Names, Vec<IpAddr>), before: &Share) -> Result<()> {
    let back = |table: &Table| {
        let found = names.found(table, |address| own.contains(&address));
        found.becomes(before, table, &names.chain)
    };
    PLACE.change_alone(version, &names.chain, back)
}

/// What CHECK reads, in either half of iptables: nothing that stands may be missing from it, for what a program could not
/// read is no drift.
pub(super) fn verify(masquerade: &Masquerade, tag: &AttachmentId) -> Result<Standing> {
    let (names, nftables) = (Names::of(tag), Nftables::if_any().map_err(Refused::from).map_err(explained)?);
    let mut standing = Standing::default();
    for version in versions(masquerade) {
        let rulesets = PLACE.standing(nftables.as_ref(), version, Chains::Named(&names.chain)).map_err(explained)?;
        let (addresses, place) =
            (of_version(&masquerade.addresses, version), format!("table {} of {version}", PLACE.table));
        standing.any |= !rulesets.is_empty();
        let drifts = rulesets.iter().map(|ruleset| names.differences(ruleset.table(), &addresses, &place));
        let nothing = || names.differences(&Table::default(), &addresses, &place);
        // Of two halves that have something, the better one is the one that ADD wrote last.
        standing.drifts.extend(drifts.min_by_key(Vec::len).unwrap_or_else(nothing));
    }
    Ok(standing)
}

pub(super) fn release(context: &ReleaseContext) -> Result<()> {
    let names = Names::of(&context.tag);
    let chain = names.chain.clone();
    let clearing = move |context: &ReleaseContext, table: &Table| {
        let going = unclaimed::attribute_unclaimed(context, &names.unclaimed(table))?;
        let found = names.released(table, |address| going.contains(&address));
        Ok(found.becomes(&Share::default(), table, &names.chain))
    };
    PLACE.release(super::KIND.name, context, chain, clearing, || ())
}

pub(super) fn sweep(context: &GcContext) -> Result<()> {
    let valid: Vec<Names> = context.tags().map(|tag| Names::of(&tag)).collect();
    let clear = |table: &Table| {
        let mut changes = Changes::default();
        for chain in table.chains().filter(|chain| is_chain(chain)) {
            if let Some(found) = stale_share(table, chain, &context.network, &valid) {
                changes.extend(found.becomes(&Share::default(), table, chain));
            }
        }
        changes
    };
    let (_alone, errors) =
        PLACE.everywhere(context.nftables()?, Chains::Like(OURS, is_chain), |ruleset| ruleset.change(clear));
    errors.finish()
}

/// What of a chain belongs to this network and to no valid attachment; `None` is nothing.
fn stale_share(table: &Table, chain: &str, network: &str, valid: &[Names]) -> Option<Share> {
    let of_network = |rule: &&IptablesRule| Claim::of(rule).is_some_and(|claim| claim.is_of(network, chain));
    let lives = |rule: &IptablesRule| {
        let of = |names: &Names| [&names.entry, &names.rule].into_iter().any(|comment| rule.comment() == Some(comment));
        valid.iter().any(of)
    };
    let context = table.rules(chain).filter(of_network).filter(|rule| !lives(rule)).cloned();
    let (rules, shared): (Vec<IptablesRule>, Vec<IptablesRule>) =
        context.partition(|rule| Claim::of(rule).is_some_and(|it| it.named));
    let sources: Vec<IpAddr> = rules.iter().filter_map(IptablesRule::source_address).collect();
    let goes =
        |jump: &&IptablesRule| !lives(jump) || jump.source_address().is_some_and(|address| sources.contains(&address));
    let jumps = table.jumps(chain).filter(|(place, _)| *place == ENTRY).map(|(_, jump)| jump);
    let share = Share { jumps: jumps.filter(of_network).filter(goes).cloned().collect(), rules };
    (share != Share::default() || !shared.is_empty()).then_some(share)
}

fn explained(error: Refused) -> Error {
    PLACE.explained(error)
}

fn of_version(addresses: &[IpNetwork], version: IpVersion) -> Vec<IpNetwork> {
    addresses.iter().copied().filter(|address| address.is_ipv4() == (version == IpVersion::V4)).collect()
}

fn own(addresses: &[IpNetwork]) -> Vec<IpAddr> {
    addresses.iter().map(IpNetwork::ip).collect()
}

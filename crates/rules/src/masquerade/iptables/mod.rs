//! Masquerade in iptables: a chain of its own for each container of a network.
//!
//! Chain, jumps and their comments are the reference's to the letter, for it finds them by that. The name of the chain
//! tells network and container but no interface, so in the reference's chain the interfaces of one container share all
//! rules, and lose them together. Ours name the interface in their comment and its address in their match: a rule tells
//! whose it is, and by its address whose the jump is, so that DEL needs to know no address at all.

mod share;

use std::net::IpAddr;

use cnikit_iptables::{Chains, Changes, Error as Refused, IpVersion, IptablesRule, Table};
use cnikit_nftables::Nftables;
use cnikit_plan::{GcContext, ReleaseContext, RestoreBatch};
use cnikit_skel::{AttachmentId, Error, Journal, Result};
use ipnetwork::IpNetwork;
use share::{Claim, ENTRY, Names, Share, is_chain};

use super::{BACKEND, Masquerade, rules_of};
use crate::backend::{Comparison, shared_nftables};
use crate::batch_restore::{Wanted, add_iptables};
use crate::iptables::{OURS, Opened, Opening, TableStep};
use crate::unclaimed;

/// Starts reading what there is, of all versions at once.
pub(super) fn open(masquerade: &Masquerade, tag: &AttachmentId) -> Result<Opening> {
    BACKEND.open(versions(masquerade), &Names::of(tag).chain)
}

/// The versions that it has addresses of: any other needs no program.
fn versions(masquerade: &Masquerade) -> impl Iterator<Item = IpVersion> + '_ {
    IpVersion::ALL.into_iter().filter(|version| !of_version(&masquerade.addresses, *version).is_empty())
}

/// What an attachment is to have in the table of one version.
struct Step {
    names: Names,
    addresses: Vec<IpNetwork>,
    own: Vec<IpAddr>,
    wanted: Share,
}

impl Step {
    fn of(masquerade: &Masquerade, version: IpVersion, tag: &AttachmentId) -> Step {
        let names = Names::of(tag);
        let addresses = of_version(&masquerade.addresses, version);
        let own = addresses.iter().map(IpNetwork::ip).collect();
        let wanted = names.share(&addresses);
        Step { names, addresses, own, wanted }
    }

    fn found(&self, table: &Table) -> Share {
        self.names.found(table, |address| self.own.contains(&address))
    }
}

impl TableStep for Step {
    type Before = Share;

    fn decide(&self, table: &Table) -> (Share, Changes) {
        let found = self.found(table);
        let changes = found.becomes(&self.wanted, table, &self.names.chain);
        (found, changes)
    }

    fn put_back(&self, table: &Table, before: &Share) -> Changes {
        self.found(table).becomes(before, table, &self.names.chain)
    }
}

pub(super) fn ensure(masquerade: &Masquerade, opened: Opened, tag: &AttachmentId, journal: &mut Journal) -> Result<()> {
    let step = |version| Step::of(masquerade, version, tag);
    BACKEND.apply(opened, step, &Names::of(tag).chain, (&rules_of(tag), journal))
}

/// Adds to the batch what [`ensure`] would make, where CHECK would find a difference.
pub(super) fn enqueue(masquerade: &Masquerade, tag: &AttachmentId, batch: &mut RestoreBatch) -> Result<()> {
    for version in versions(masquerade) {
        let step = Step::of(masquerade, version, tag);
        // The interfaces of a container share a chain.
        let sole = vec![step.names.chain.clone()];
        let changes = move |table: &Table| {
            if step.names.differences(table, &step.addresses, BACKEND.table).is_empty() {
                return Ok(Changes::default());
            }
            Ok(step.decide(table).1)
        };
        let wanted = Wanted { changes: Box::new(changes), sole };
        add_iptables(batch, (BACKEND, Chains::Like(OURS, is_chain)), version, wanted)?;
    }
    Ok(())
}

/// Compares what there is in either variant of the programs. Rules that a program could not read are not reported as missing.
pub(super) fn verify(masquerade: &Masquerade, tag: &AttachmentId) -> Result<Comparison> {
    let names = Names::of(tag);
    let nftables = Nftables::if_any().map_err(Refused::from).map_err(explained)?;
    let mut compared = Comparison::default();
    for version in versions(masquerade) {
        let addresses = of_version(&masquerade.addresses, version);
        let place = format!("table {} of {version}", BACKEND.table);
        let rulesets = BACKEND.installed(nftables.as_ref(), version, Chains::Named(&names.chain)).map_err(explained)?;
        compared.any |= !rulesets.is_empty();
        let drifts = rulesets.iter().map(|ruleset| names.differences(ruleset.table(), &addresses, &place));
        // Where both variants have rules, those with fewer differences are the ones that ADD wrote last.
        let fewest = drifts.min_by_key(Vec::len);
        compared.drifts.extend(fewest.unwrap_or_else(|| names.differences(&Table::default(), &addresses, &place)));
    }
    Ok(compared)
}

pub(super) fn release(context: &ReleaseContext) -> Result<()> {
    let names = Names::of(&context.tag);
    let chain = names.chain.clone();
    let clearing = move |context: &ReleaseContext, table: &Table| {
        let going = unclaimed::attribute_unclaimed(context, &names.unclaimed(table))?;
        let found = names.released(table, |address| going.contains(&address));
        Ok(found.becomes(&Share::default(), table, &names.chain))
    };
    BACKEND.release(super::KIND.name, context, chain, clearing, || ())
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
    let nftables = shared_nftables(context.shared())?;
    let chains = Chains::Like(OURS, is_chain);
    let (_lock, errors) = BACKEND.for_each_table(nftables.as_deref(), chains, |ruleset| ruleset.change(clear));
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
    BACKEND.explained(error)
}

fn of_version(addresses: &[IpNetwork], version: IpVersion) -> Vec<IpNetwork> {
    addresses.iter().copied().filter(|address| address.is_ipv4() == (version == IpVersion::V4)).collect()
}

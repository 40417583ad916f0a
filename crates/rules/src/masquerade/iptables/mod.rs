//! Masquerade in iptables: one chain per container and network.
//!
//! Chain, jumps and their comments are exactly those of the upstream plugins, which find them by these texts. The name of the chain
//! is a hash of network and container, without the interface. So in a chain of upstream all interfaces of a container share the
//! rules, and lose them together. Our rules have the interface in their comment and its address in their match, and a jump belongs
//! to the rule with the same address, so DEL needs no address.

mod share;

use std::net::IpAddr;

use cnikit_iptables::{Chains, Changes, IpVersion, Result as IptablesResult, Ruleset, Table};
use cnikit_plan::{GcContext, ReleaseContext, RestoreBatch};
use cnikit_skel::{AttachmentId, Journal, Result};
use ipnetwork::IpNetwork;
use share::{GcFilter, Names, Share, is_chain};

use super::backend::BACKEND;
use crate::addresses::{attribute_unclaimed, is_of_version};
use crate::backend::Comparison;
use crate::batch_restore::{Wanted, add_iptables};
use crate::iptables::{CNI_CHAIN, Opened, Opening, TableStep};
use crate::nftables::shared_nftables;

/// Starts reading the tables of all versions at once.
pub(super) fn open(addresses: &[IpNetwork], tag: &AttachmentId) -> Result<Opening> {
    BACKEND.open(versions(addresses), &Names::of(tag).chain)
}

/// The versions of the addresses. Any other version needs no program.
fn versions(addresses: &[IpNetwork]) -> impl Iterator<Item = IpVersion> + '_ {
    IpVersion::ALL.into_iter().filter(|version| !of_version(addresses, *version).is_empty())
}

fn of_version(addresses: &[IpNetwork], version: IpVersion) -> Vec<IpNetwork> {
    addresses.iter().copied().filter(|address| is_of_version(address.ip(), version)).collect()
}

/// The rules that an attachment wants in the table of one version.
struct Step {
    names: Names,
    addresses: Vec<IpNetwork>,
    own: Vec<IpAddr>,
    wanted: Share,
}

impl Step {
    fn of(addresses: &[IpNetwork], version: IpVersion, names: &Names) -> Step {
        let names = names.clone();
        let addresses = of_version(addresses, version);
        let own = addresses.iter().map(IpNetwork::ip).collect();
        let wanted = names.share(&addresses);
        Step { names, addresses, own, wanted }
    }

    fn installed(&self, table: &Table) -> Share {
        self.names.installed(table, |address| self.own.contains(&address))
    }

    fn changes_if_different(&self, table: &Table) -> Changes {
        if self.names.differences(table, &self.addresses, BACKEND.table).is_empty() {
            return Changes::default();
        }
        self.decide(table).1
    }
}

impl TableStep for Step {
    type Before = Share;

    fn decide(&self, table: &Table) -> (Share, Changes) {
        let installed = self.installed(table);
        let changes = installed.changes_to(&self.wanted, table, &self.names.chain);
        (installed, changes)
    }

    fn put_back(&self, table: &Table, before: &Share) -> Changes {
        self.installed(table).changes_to(before, table, &self.names.chain)
    }

    fn differences(&self, ruleset: &Ruleset, place: &str) -> IptablesResult<Vec<String>> {
        Ok(self.names.differences(ruleset.table(), &self.addresses, place))
    }

    fn differences_without_chains(&self, place: &str) -> Vec<String> {
        self.names.differences(&Table::default(), &self.addresses, place)
    }
}

pub(super) fn ensure(addresses: &[IpNetwork], opened: Opened, tag: &AttachmentId, journal: &mut Journal) -> Result<()> {
    let names = Names::of(tag);
    let step = |version| Step::of(addresses, version, &names);
    BACKEND.apply(opened, step, &names.chain, tag, journal)
}

/// Adds the changes of [`ensure`] to the batch, if CHECK would find a difference.
pub(super) fn enqueue(addresses: &[IpNetwork], tag: &AttachmentId, batch: &mut RestoreBatch) -> Result<()> {
    let names = Names::of(tag);
    for version in versions(addresses) {
        let step = Step::of(addresses, version, &names);
        // The interfaces of a container share a chain.
        let exclusive = vec![step.names.chain.clone()];
        let wanted = Wanted { changes: Box::new(move |table| Ok(step.changes_if_different(table))), exclusive };
        add_iptables(batch, BACKEND, Chains::Like(CNI_CHAIN, is_chain), version, wanted)?;
    }
    Ok(())
}

/// Compares the tables of both variants of the programs.
pub(super) fn verify(addresses: &[IpNetwork], tag: &AttachmentId) -> Result<Comparison> {
    let names = Names::of(tag);
    let step = |version| Step::of(addresses, version, &names);
    BACKEND.compare_installed(versions(addresses), step, Chains::Named(&names.chain))
}

pub(super) fn release(context: &ReleaseContext) -> Result<()> {
    let names = Names::of(&context.tag);
    let chain = names.chain.clone();
    let clearing = move |context: &ReleaseContext, table: &Table| {
        let own = attribute_unclaimed(context, &names.unclaimed(table))?;
        let released = names.released(table, |address| own.contains(&address));
        Ok(released.changes_to(&Share::default(), table, &names.chain))
    };
    BACKEND.release(context, chain, clearing, || ())
}

pub(super) fn sweep(context: &GcContext) -> Result<()> {
    let filter = GcFilter { network: &context.network, valid: context.tags().map(|tag| Names::of(&tag)).collect() };
    let nftables = shared_nftables(context.shared())?;
    let chains = Chains::Like(CNI_CHAIN, is_chain);
    let (_lock, errors) =
        BACKEND.for_each_table(nftables.as_deref(), chains, |ruleset| ruleset.change(|table| filter.changes(table)));
    errors.finish()
}

#[cfg(test)]
mod tests;

//! Port mappings in iptables: one chain per container and network.
//!
//! Chains, rules and comments are exactly those of the upstream plugins, which find them by these texts. The name of a chain is a
//! hash of network and container, without the interface, and its rules have no comment. So the rules of one interface are between
//! two rules without a target whose comment has its mark, a *block*. Rules outside of blocks are upstream's. If a container has
//! several interfaces, their addresses decide to which of them these belong.

mod chain;
mod conditions;
mod conflicts;
mod share;
mod shared;

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;

use cnikit_conntrack::Flows;
use cnikit_iptables::{Chains, Changes, IpVersion, IptablesRule, Result as IptablesResult, Ruleset, Table};
use cnikit_nftables::Nftables;
use cnikit_plan::{GcContext, ReleaseContext, RestoreBatch};
use cnikit_skel::{AttachmentId, Error, Journal, Result};
use share::{Names, Share, is_chain};
use shared::SharedChains;

use super::backend::BACKEND;
use super::flows::forget_removed;
use super::mapping::{Mark, PortMap};
use crate::addresses::attribute_unclaimed;
use crate::backend::{Comparison, Loopback};
use crate::batch_restore::{Wanted, add_iptables};
use crate::iptables::{CNI_CHAIN, Opened, Opening, TableStep};
use crate::nftables::shared_nftables;
pub(super) use conflicts::conflicts;

/// Refuses conditions that cannot be written, before anything is read or made.
pub(super) fn preflight(portmap: &PortMap) -> Result<()> {
    portmap.versions().try_for_each(|version| conditions::check(conditions::of(portmap, version), version))
}

/// Starts reading the tables of all versions at once, with other processes of ours locked out. Without the lock, two processes that
/// want one port would not see each other, and both would add the shared rules that they find missing.
pub(super) fn open(portmap: &PortMap) -> Result<Opening> {
    BACKEND.open(portmap.versions(), CNI_CHAIN)
}

/// The rules that an attachment wants in the table of one version.
struct Step {
    map: PortMap,
    version: IpVersion,
    tag: AttachmentId,
    names: Names,
    shared: SharedChains,
    own: Vec<IpAddr>,
    wanted: Share,
}

impl Step {
    fn of(map: &PortMap, version: IpVersion, tag: &AttachmentId, names: &Names) -> Step {
        let wanted = Share::wanted(map, version, names);
        let shared = SharedChains::of(map);
        let own = map.addresses_of(version);
        Step { map: map.clone(), version, tag: tag.clone(), names: names.clone(), shared, own, wanted }
    }

    fn installed(&self, table: &Table) -> Share {
        self.names.installed(table, |address| self.own.contains(&address))
    }
}

impl TableStep for Step {
    type Before = Share;

    /// Refuses a port that leads to another container, and a chain for marks that does not exist.
    fn preflight(&self, table: &Table) -> Result<()> {
        if let Mark::Chain(chain) = &self.map.mark
            && shared::is_jumped_to(&self.map)
            && !table.has_chain(chain)
        {
            let place = format!("table {} of {}", BACKEND.table, self.version);
            let text = format!("externalSetMarkChain: there is no chain {chain:?} in {place}");
            let hint = "start the program that makes this chain first, or remove externalSetMarkChain";
            return Err(Error::config(text).hint(hint));
        }
        conflicts::refuse_conflicts(&self.map, self.version, &self.tag, table)
    }

    fn decide(&self, table: &Table) -> (Share, Changes) {
        let installed = self.installed(table);
        let mut changes = self.shared.missing(table);
        changes.extend(installed.changes_to(&self.wanted, table, &self.names.chain));
        (installed, changes)
    }

    fn put_back(&self, table: &Table, before: &Share) -> Changes {
        self.installed(table).changes_to(before, table, &self.names.chain)
    }

    fn loopback(&self, table: &Table) -> Option<Loopback> {
        if share::is_upstreams(table, &self.names.chain) { Some(Loopback::Unguarded) } else { None }
    }

    fn differences(&self, ruleset: &Ruleset, place: &str) -> IptablesResult<Vec<String>> {
        let table = ruleset.table();
        let installed = self.installed(table);
        // Conditions may be configured in other words than iptables-save prints.
        let are_in_other_words = !installed.has_same_entries(&self.wanted)
            && !conditions::of(&self.map, self.version).is_empty()
            && installed.entries.len() == self.wanted.entries.len()
            && ruleset.has_all(shared::ENTRIES, &self.wanted.entries)?;
        let mut differences = self.shared.differences(table, place);
        differences.extend(installed.differences(&self.wanted, are_in_other_words, &self.names.chain, place));
        Ok(differences)
    }

    fn differences_without_chains(&self, place: &str) -> Vec<String> {
        vec![format!("chain {} of {place} is missing", self.names.chain)]
    }
}

pub(super) fn ensure(portmap: &PortMap, opened: Opened, tag: &AttachmentId, journal: &mut Journal) -> Result<()> {
    let names = Names::of(tag);
    BACKEND.apply(opened, |version| Step::of(portmap, version, tag, &names), CNI_CHAIN, tag, journal)
}

/// Adds the changes of [`ensure`] to the batch. Returns false if there are conditions, which may be installed in other words than
/// they are configured in.
pub(super) fn enqueue(portmap: &PortMap, tag: &AttachmentId, batch: &mut RestoreBatch) -> Result<bool> {
    if portmap.versions().any(|version| !conditions::of(portmap, version).is_empty()) {
        return Ok(false);
    }
    let names = Names::of(tag);
    for version in portmap.versions() {
        let step = Step::of(portmap, version, tag, &names);
        let mut exclusive = vec![step.names.chain.clone()];
        for mapping in &portmap.mappings {
            exclusive.push(format!("{} {}", mapping.protocol, mapping.host_port));
        }
        let changes = move |table: &Table| {
            step.preflight(table)?;
            Ok(step.decide(table).1)
        };
        let wanted = Wanted { changes: Box::new(changes), exclusive };
        add_iptables(batch, BACKEND, Chains::Like(CNI_CHAIN, is_chain), version, wanted)?;
    }
    Ok(true)
}

/// Compares the tables of both variants of the programs.
pub(super) fn verify(portmap: &PortMap, tag: &AttachmentId) -> Result<Comparison> {
    let names = Names::of(tag);
    let step = |version| Step::of(portmap, version, tag, &names);
    BACKEND.compare_installed(portmap.versions(), step, Chains::Among(&names.chain, CNI_CHAIN))
}

/// Removes the rules of an attachment. The programs are started and not waited for: other kinds are released meanwhile.
pub(super) fn release(context: &ReleaseContext) -> Result<()> {
    let names = Names::of(&context.tag);
    let chain = names.chain.clone();
    let flows = Rc::new(RefCell::new(Vec::new()));
    let removed_flows = Rc::clone(&flows);
    let clearing =
        move |context: &ReleaseContext, table: &Table| removal(&names, context, table, &mut removed_flows.borrow_mut());
    BACKEND.release(context, chain, clearing, move || forget_removed(&flows.take()))
}

/// The changes that remove the rules of an attachment. Their flows are added to `flows`.
fn removal(names: &Names, context: &ReleaseContext, table: &Table, flows: &mut Vec<Flows>) -> Result<Changes> {
    let own = attribute_unclaimed(context, &names.unclaimed(table))?;
    let installed = names.installed(table, |address| own.contains(&address));
    flows.extend(installed.rules().filter_map(flows_of));
    Ok(installed.changes_to(&Share::default(), table, &names.chain))
}

/// The IPv4 addresses that rules of the upstream plugin lead to. Rules in `nf_tables` are read from the kernel, those of the legacy
/// variant by its program.
pub(super) fn upstream_targets(nftables: &Nftables) -> Result<Vec<IpAddr>> {
    let mut targets = conflicts::upstream_targets(nftables)?;
    let legacy = BACKEND
        .installed(None, IpVersion::V4, Chains::Like("CNI-DN-", is_chain))
        .map_err(|error| BACKEND.explained(error))?;
    for ruleset in &legacy {
        let table = ruleset.table();
        for chain in table.chains().filter(|chain| is_chain(chain)) {
            targets.extend(share::upstream_targets(table.rules(chain)));
        }
    }
    Ok(targets)
}

/// The flows that a rule leads to a container.
fn flows_of(rule: &IptablesRule) -> Option<Flows> {
    Some(conflicts::mapping_of(rule)?.flows_to(rule.dnat_target()?))
}

pub(super) fn sweep(context: &GcContext) -> Result<()> {
    let valid: Vec<Names> = context.tags().map(|tag| Names::of(&tag)).collect();
    let mut flows = Vec::new();
    let nftables = shared_nftables(context.shared())?;
    let chains = Chains::Like("CNI-DN-", is_chain);
    let (_lock, errors) = BACKEND.for_each_table(nftables.as_deref(), chains, |ruleset| {
        ruleset.change(|table| stale_changes(table, &context.network, &valid, &mut flows))
    });
    forget_removed(&flows);
    errors.finish()
}

/// The changes that remove the rules of this network that belong to no valid attachment. Their flows are added to `flows`.
fn stale_changes(table: &Table, network: &str, valid: &[Names], flows: &mut Vec<Flows>) -> Changes {
    let mut changes = Changes::default();
    for chain in table.chains().filter(|chain| is_chain(chain)) {
        if let Some(stale) = Share::stale(table, chain, network, valid) {
            flows.extend(stale.rules().filter_map(flows_of));
            changes.extend(stale.changes_to(&Share::default(), table, chain));
        }
    }
    changes
}

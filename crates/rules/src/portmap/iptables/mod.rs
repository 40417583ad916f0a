//! Port mappings in iptables: a chain of its own for each container of a network.
//!
//! Chains, rules and comments are the reference's to the letter, for it finds them by that. The name of the chain tells
//! network and container but no interface, and the rules in it tell nothing: so what is one interface's stands between two
//! rules without a target that bear its mark, a *block*. What stands outside of blocks is the reference's; whose it is, where
//! one container has several interfaces, its addresses tell.

mod chain;
mod conditions;
mod share;
mod shared;
mod taken;

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;

use cnikit_conntrack::Flows;
use cnikit_iptables::{Chains, Changes, Error as Refused, IpVersion, IptablesRule, Ruleset, Table};
use cnikit_nftables::Nftables;
use cnikit_plan::{GcContext, ReleaseContext, RestoreBatch};
use cnikit_skel::{AttachmentId, Error, Journal, Result};
use share::{Names, Share, is_chain};
use shared::Shared;

use super::{BACKEND, Mark, PortMap, forget, rules_of};
use crate::backend::{Comparison, Loopback, shared_nftables};
use crate::batch_restore::{Wanted, add_iptables};
use crate::iptables::{OURS, Opened, Opening, Read, TableStep};
use crate::unclaimed;
pub(super) use taken::standing as elsewhere;

/// Refuses what could not be written, before anything is made or read.
pub(super) fn preflight(portmap: &PortMap) -> Result<()> {
    versions(portmap).try_for_each(|version| conditions::check(conditions::of(portmap, version), version))
}

/// Starts reading what there is, of all versions at once, with other processes of ours kept away: of two that want one port,
/// neither would see the other, and each would make once more what both find missing.
pub(super) fn open(portmap: &PortMap) -> Result<Opening> {
    BACKEND.open(versions(portmap), OURS)
}

/// The versions that there are addresses of: any other needs no program.
fn versions(portmap: &PortMap) -> impl Iterator<Item = IpVersion> + '_ {
    IpVersion::ALL.into_iter().filter(|version| !own(portmap, *version).is_empty())
}

/// What an attachment is to have in the table of one version.
struct Step {
    map: PortMap,
    version: IpVersion,
    tag: AttachmentId,
    names: Names,
    shared: Shared,
    own: Vec<IpAddr>,
    wanted: Share,
}

impl Step {
    fn of(map: &PortMap, version: IpVersion, tag: &AttachmentId) -> Step {
        let names = Names::of(tag);
        let wanted = Share::wanted(map, version, &names);
        let (shared, own) = (Shared::of(map), own(map, version));
        Step { map: map.clone(), version, tag: tag.clone(), names, shared, own, wanted }
    }

    fn found(&self, table: &Table) -> Share {
        self.names.found(table, |address| self.own.contains(&address))
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
            let hint = "have whoever marks packets make it first, or leave externalSetMarkChain out";
            return Err(Error::config(text).hint(hint));
        }
        taken::refuse_taken(&self.map, self.version, &self.tag, table)
    }

    fn decide(&self, table: &Table) -> (Share, Changes) {
        let found = self.found(table);
        let mut changes = self.shared.missing(table);
        changes.extend(found.becomes(&self.wanted, table, &self.names.chain));
        (found, changes)
    }

    fn put_back(&self, table: &Table, before: &Share) -> Changes {
        self.found(table).becomes(before, table, &self.names.chain)
    }
}

pub(super) fn ensure(portmap: &PortMap, opened: Opened, tag: &AttachmentId, journal: &mut Journal) -> Result<()> {
    BACKEND.apply(opened, |version| Step::of(portmap, version, tag), OURS, (&rules_of(tag), journal))
}

/// Adds to the batch what [`ensure`] would make; not where conditions may be installed in other words than they are configured in.
pub(super) fn enqueue(portmap: &PortMap, tag: &AttachmentId, batch: &mut RestoreBatch) -> Result<bool> {
    if versions(portmap).any(|version| !conditions::of(portmap, version).is_empty()) {
        return Ok(false);
    }
    for version in versions(portmap) {
        let step = Step::of(portmap, version, tag);
        let ports = portmap.mappings.iter().map(|mapping| format!("{} {}", mapping.protocol, mapping.host_port));
        let mut sole: Vec<String> = ports.collect();
        sole.push(step.names.chain.clone());
        let changes = move |table: &Table| {
            step.preflight(table)?;
            Ok(step.decide(table).1)
        };
        let wanted = Wanted { changes: Box::new(changes), sole };
        add_iptables(batch, (BACKEND, Chains::Like(OURS, is_chain)), version, wanted)?;
    }
    Ok(true)
}

/// What CHECK reads, in either half of iptables: nothing that stands may be missing from it, for what a program could not
/// read is no drift.
pub(super) fn verify(portmap: &PortMap, tag: &AttachmentId) -> Result<Comparison> {
    let names = Names::of(tag);
    let nftables = Nftables::if_any().map_err(Refused::from).map_err(explained)?;
    let mut compared = Comparison::default();
    for version in versions(portmap) {
        let chains = Chains::Among(&names.chain, OURS);
        let rulesets = BACKEND.installed(nftables.as_ref(), version, chains).map_err(explained)?;
        compared.any |= !rulesets.is_empty();
        if rulesets.iter().any(|ruleset| share::is_upstreams(ruleset.table(), &names.chain)) {
            compared.loopback = Loopback::Unguarded;
        }
        let drifts = rulesets.iter().map(|ruleset| differences(portmap, version, &names, ruleset));
        let drifts = drifts.collect::<Read<Vec<_>>>().map_err(explained)?;
        // Where both variants have rules, those with fewer differences are the ones that ADD wrote last.
        if let Some(fewest) = drifts.into_iter().min_by_key(Vec::len) {
            compared.drifts.extend(fewest);
        } else {
            let missing = format!("chain {} of table {} of {version} is missing", names.chain, BACKEND.table);
            compared.drifts.push(missing);
        }
    }
    Ok(compared)
}

fn differences(portmap: &PortMap, version: IpVersion, names: &Names, ruleset: &Ruleset) -> Read<Vec<String>> {
    let (table, place) = (ruleset.table(), format!("table {} of {version}", BACKEND.table));
    let own = own(portmap, version);
    let (found, wanted) =
        (names.found(table, |address| own.contains(&address)), Share::wanted(portmap, version, names));
    // Conditions may be said in other words than iptables-save's.
    let otherwise = !found.entries_are(&wanted)
        && !conditions::of(portmap, version).is_empty()
        && found.entries.len() == wanted.entries.len()
        && ruleset.has_all(shared::ENTRIES, &wanted.entries)?;
    let shared = Shared::of(portmap).differences(table, &place);
    let own = found.differences(&wanted, otherwise, &names.chain, &place);
    Ok(shared.into_iter().chain(own).collect())
}

/// The programs are started and not waited for: other kinds are released meanwhile.
pub(super) fn release(context: &ReleaseContext) -> Result<()> {
    let names = Names::of(&context.tag);
    let (chain, flows) = (names.chain.clone(), Rc::new(RefCell::new(Vec::new())));
    let led = Rc::clone(&flows);
    let clearing = move |context: &ReleaseContext, table: &Table| {
        let going = unclaimed::attribute_unclaimed(context, &names.unclaimed(table))?;
        let found = names.found(table, |address| going.contains(&address));
        led.borrow_mut().extend(found.rules().filter_map(flows_of));
        Ok(found.becomes(&Share::default(), table, &names.chain))
    };
    BACKEND.release(super::KIND.name, context, chain, clearing, move || forget(&flows.take(), false))
}

/// Where rules lead that the upstream plugin made, for IPv4. Of `nf_tables` the kernel is asked, of the legacy half its program.
pub(super) fn upstream_targets(nftables: &Nftables) -> Result<Vec<IpAddr>> {
    let mut targets = taken::upstream_targets(nftables)?;
    let legacy = BACKEND.installed(None, IpVersion::V4, Chains::Like("CNI-DN-", is_chain)).map_err(explained)?;
    for ruleset in &legacy {
        let table = ruleset.table();
        for chain in table.chains().filter(|chain| is_chain(chain)) {
            targets.extend(share::upstream_targets(table.rules(chain)));
        }
    }
    Ok(targets)
}

/// The flows that a rule has led to a container.
fn flows_of(rule: &IptablesRule) -> Option<Flows> {
    Some(taken::said(rule)?.flows_to(rule.dnat_target()?))
}

pub(super) fn sweep(context: &GcContext) -> Result<()> {
    let valid: Vec<Names> = context.tags().map(|tag| Names::of(&tag)).collect();
    let mut flows = Vec::new();
    let mut clear = |table: &Table| {
        let mut changes = Changes::default();
        for chain in table.chains().filter(|chain| is_chain(chain)) {
            if let Some(gone) = Share::context(table, chain, &context.network, &valid) {
                flows.extend(gone.rules().filter_map(flows_of));
                changes.extend(gone.becomes(&Share::default(), table, chain));
            }
        }
        changes
    };
    let nftables = shared_nftables(context.shared())?;
    let chains = Chains::Like("CNI-DN-", is_chain);
    let (_lock, errors) = BACKEND.for_each_table(nftables.as_deref(), chains, |ruleset| ruleset.change(&mut clear));
    forget(&flows, false);
    errors.finish()
}

fn explained(error: Refused) -> Error {
    BACKEND.explained(error)
}

/// The container's addresses of a version.
fn own(portmap: &PortMap, version: IpVersion) -> Vec<IpAddr> {
    let addresses = portmap.addresses.iter().map(ipnetwork::IpNetwork::ip);
    addresses.filter(|address| address.is_ipv4() == (version == IpVersion::V4)).collect()
}

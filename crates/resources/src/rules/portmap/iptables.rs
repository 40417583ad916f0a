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

use cnikit_netfilter::iptables::{
    Chains, Changes, Changing, Error as Refused, IpVersion, IptablesRule, Ruleset, Table,
};
use cnikit_netfilter::{BatchOutcome, Flows, Nftables};
use cnikit_plan::{GcContext, ReleaseContext, RestoreBatch, Wanted};
use cnikit_skel::{AttachmentId, Error, Journal, Result};

use super::{Mark, PortMap, forget, rules_of};
use crate::rules::backend::{Loopback, Standing};
use crate::rules::batch_restore;
use crate::rules::iptables::{OURS, OpenedAlone, OpeningAlone, Read, RuleTable};
use crate::rules::unclaimed;
pub(super) use taken::standing as elsewhere;

use share::{Names, Share, is_chain};
use shared::Shared;

/// The rules, and what may be said instead.
pub(super) const PLACE: RuleTable = RuleTable {
    table: "nat",
    what: "port mappings",
    shared: &["PREROUTING", "OUTPUT", "POSTROUTING", "CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-MASQ", "CNI-HOSTPORT-SETMARK"],
    otherwise: "or say `\"backend\": \"nftables\"`",
};

/// Refuses what could not be written, before anything is made or read.
pub(super) fn preflight(portmap: &PortMap) -> Result<()> {
    versions(portmap).try_for_each(|version| conditions::check(conditions::of(portmap, version), version))
}

/// Has read what stands, of all versions at once. Others that change rules here are kept away: of two that want one port,
/// neither would see the other, and each would put right once more what both find missing.
pub(super) fn begin_open(portmap: &PortMap) -> Result<OpeningAlone> {
    PLACE.begin_open_alone(versions(portmap), OURS)
}

/// The versions that there are addresses of: any other needs no program.
fn versions(portmap: &PortMap) -> impl Iterator<Item = IpVersion> + '_ {
    IpVersion::ALL.into_iter().filter(|version| !own(portmap, *version).is_empty())
}

/// The programs for both versions run at once, and none before both are judged.
pub(super) fn ensure(portmap: &PortMap, opened: OpenedAlone, tag: &AttachmentId, journal: &mut Journal) -> Result<()> {
    let OpenedAlone { read, alone: _alone } = opened;
    for (version, ruleset) in &read {
        in_the_way(portmap, *version, tag, ruleset.table())?;
    }
    let mut begun = Vec::new();
    for (version, ruleset) in read {
        let change = noted(portmap, version, tag, journal);
        let changing = ruleset.begin(&change(ruleset.table())).map_err(explained)?;
        begun.push((version, change, changing));
    }
    let ended: Vec<Result<()>> = begun
        .into_iter()
        .map(|(version, change, changing)| {
            match changing.map_or(Ok(()), Changing::finish) {
                // Somebody else may have changed what was read before it could be changed.
                Err(Refused::Failed { .. } | Refused::Unread { .. }) => again(portmap, version, tag, change),
                told => told.map_err(explained),
            }
        })
        .collect();
    ended.into_iter().collect()
}

/// What is changed is judged as it is by then.
fn again(portmap: &PortMap, version: IpVersion, tag: &AttachmentId, change: impl Fn(&Table) -> Changes) -> Result<()> {
    let mut judged = Ok(());
    let decide = |table: &Table| {
        judged = in_the_way(portmap, version, tag, table);
        if judged.is_ok() { change(table) } else { Changes::default() }
    };
    let changed = PLACE.read(version, OURS).and_then(|ruleset| ruleset.change(decide));
    judged.and_then(|()| changed.map_err(explained))
}

/// Gathers what [`ensure`] would make; not where conditions may stand in other words than they were said in.
pub(super) fn enqueue(portmap: &PortMap, tag: &AttachmentId, batch: &mut RestoreBatch) -> bool {
    if versions(portmap).any(|version| !conditions::of(portmap, version).is_empty()) {
        return false;
    }
    for version in versions(portmap) {
        let (names, change) = (Names::of(tag), changes(portmap, version, tag));
        let sole = portmap.mappings.iter().map(|mapping| format!("{} {}", mapping.protocol, mapping.host_port));
        let sole = sole.chain([names.chain]).collect();
        let (map, tag) = (portmap.clone(), tag.clone());
        let changes = move |table: &Table| in_the_way(&map, version, &tag, table).map(|()| change(table).1);
        batch.add_changes(PLACE.what, version, make_all, Wanted { changes: Box::new(changes), sole });
    }
    true
}

fn make_all(version: IpVersion, all: &[Wanted]) -> Vec<BatchOutcome> {
    batch_restore::make(PLACE, Chains::Like(OURS, is_chain), version, all)
}

/// Refuses what another container has, and a chain that is not there.
fn in_the_way(portmap: &PortMap, version: IpVersion, tag: &AttachmentId, table: &Table) -> Result<()> {
    if let Mark::Chain(chain) = &portmap.mark
        && shared::is_jumped_to(portmap)
        && !table.has_chain(chain)
    {
        let text = format!("externalSetMarkChain: there is no chain {chain:?} in table {} of {version}", PLACE.table);
        let hint = "have whoever marks packets make it first, or leave externalSetMarkChain out";
        return Err(Error::config(text).hint(hint));
    }
    taken::refuse_taken(portmap, version, tag, table)
}

/// What has to change so that a tag has what it wants. Its undo is noted: what the tag had may be a running container's, so
/// it is put back, not removed.
fn noted(
    portmap: &PortMap,
    version: IpVersion,
    tag: &AttachmentId,
    journal: &mut Journal,
) -> impl Fn(&Table) -> Changes + use<> {
    let (undone, change) = ((Names::of(tag), own(portmap, version)), changes(portmap, version, tag));
    let before = Rc::new(RefCell::new(None));
    let seen = Rc::clone(&before);
    let _ = journal.undo(&rules_of(tag), move |_| match before.take() {
        Some(before) => put_back(version, &undone, &before),
        None => Ok(()),
    });
    move |table| {
        let (found, changes) = change(table);
        *seen.borrow_mut() = Some(found);
        changes
    }
}

/// What a tag has in a table, and what has to change so that it has what it wants.
fn changes(portmap: &PortMap, version: IpVersion, tag: &AttachmentId) -> impl Fn(&Table) -> (Share, Changes) + use<> {
    let (names, shared) = (Names::of(tag), Shared::of(portmap));
    let (own, wanted) = (own(portmap, version), Share::wanted(portmap, version, &names));
    move |table| {
        let found = names.found(table, |address| own.contains(&address));
        let mut changes = shared.missing(table);
        changes.extend(found.becomes(&wanted, table, &names.chain));
        (found, changes)
    }
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
pub(super) fn verify(portmap: &PortMap, tag: &AttachmentId) -> Result<Standing> {
    let (names, nftables) = (Names::of(tag), Nftables::if_any().map_err(Refused::from).map_err(explained)?);
    let mut standing = Standing::default();
    for version in versions(portmap) {
        let meant = Chains::Among(&names.chain, OURS);
        let rulesets = PLACE.standing(nftables.as_ref(), version, meant).map_err(explained)?;
        standing.any |= !rulesets.is_empty();
        if rulesets.iter().any(|ruleset| share::is_upstreams(ruleset.table(), &names.chain)) {
            standing.loopback = Loopback::Unguarded;
        }
        let drifts = rulesets.iter().map(|ruleset| differences(portmap, version, &names, ruleset));
        let drifts = drifts.collect::<Read<Vec<_>>>().map_err(explained)?;
        // Of two halves that have something, the better one is the one that ADD wrote last.
        let nothing = || format!("chain {} of table {} of {version} is missing", names.chain, PLACE.table);
        standing.drifts.extend(drifts.into_iter().min_by_key(Vec::len).unwrap_or_else(|| vec![nothing()]));
    }
    Ok(standing)
}

fn differences(portmap: &PortMap, version: IpVersion, names: &Names, ruleset: &Ruleset) -> Read<Vec<String>> {
    let (table, place) = (ruleset.table(), format!("table {} of {version}", PLACE.table));
    let own = own(portmap, version);
    let (found, wanted) =
        (names.found(table, |address| own.contains(&address)), Share::wanted(portmap, version, names));
    // Conditions may be said in other words than iptables-save's.
    let otherwise = !found.entries_are(&wanted)
        && !conditions::of(portmap, version).is_empty()
        && found.entries.len() == wanted.entries.len()
        && ruleset.holds(shared::ENTRIES, &wanted.entries)?;
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
    PLACE.release(super::KIND.name, context, chain, clearing, move || forget(&flows.take(), false))
}

/// Where rules lead that the upstream plugin made, for IPv4. Of `nf_tables` the kernel is asked, of the legacy half its program.
pub(super) fn upstream_targets(nftables: &Nftables) -> Result<Vec<IpAddr>> {
    let mut targets = taken::upstream_targets(nftables)?;
    let legacy = PLACE.standing(None, IpVersion::V4, Chains::Like("CNI-DN-", is_chain)).map_err(explained)?;
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
    Some(taken::said(rule)?.flows_to(rule.leads_to()?))
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
    let (_alone, errors) =
        PLACE.everywhere(context.nftables()?, Chains::Like("CNI-DN-", is_chain), |ruleset| ruleset.change(&mut clear));
    forget(&flows, false);
    errors.finish()
}

fn explained(error: Refused) -> Error {
    PLACE.explained(error)
}

/// The container's addresses of a version.
fn own(portmap: &PortMap, version: IpVersion) -> Vec<IpAddr> {
    let addresses = portmap.addresses.iter().map(ipnetwork::IpNetwork::ip);
    addresses.filter(|address| address.is_ipv4() == (version == IpVersion::V4)).collect()
}

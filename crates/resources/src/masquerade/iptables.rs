//! Masquerade in iptables: a chain of its own for each container of a network.
//!
//! Chain, jumps and their comments are the reference's to the letter, for it finds them by that. The name of the chain
//! tells network and container but no interface, so in the reference's chain the interfaces of one container share all
//! rules, and lose them together. Ours name the interface in their comment and its address in their match: a rule tells
//! whose it is, and by its address whose the jump is, so that DEL needs to know no address at all.

mod share;

use std::cell::RefCell;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::Duration;

use cnikit_netfilter::Nftables;
use cnikit_netfilter::iptables::{
    Chains, Changes, Changing, Error as Refused, IpVersion, Opening as Reading, Programs, Rule, Ruleset, Table, Traces,
};
use cnikit_netns::Netns;
use cnikit_plan::{Remains, Stale};
use cnikit_skel::{Error, Errors, Journal, Result, Tag, log};
use cnikit_store::Lock;
use cnikit_types::code;
use ipnetwork::IpNetwork;

use super::{Masquerade, Standing, rules_of};
use share::{Claim, ENTRY, Names, Share, is_chain};

const NAT: &str = "nat";
/// How long another DEL is waited for.
const PATIENCE: Duration = Duration::from_mins(1);

/// What iptables told, in its own words if it did not.
type Read<T> = std::result::Result<T, Refused>;

/// What an ADD reads first: one table a version of IP that it has addresses of.
pub(super) type Opened = Vec<(IpVersion, Ruleset)>;

/// The same while programs are reading it, or why they are not.
pub(super) struct Opening(Read<Vec<(IpVersion, Reading)>>);

/// Has read what stands, of all versions at once.
pub(super) fn begin_open(masquerade: &Masquerade, tag: &Tag) -> Opening {
    let chain = Names::of(tag).chain;
    let begun = |version| Ok((version, Ruleset::begin_open(Programs::find(version)?, NAT, &chain)?));
    Opening(versions(masquerade).map(begun).collect())
}

impl Opening {
    /// What stands.
    pub(super) fn finish(self) -> Result<Opened> {
        self.finish_if_usable()?.map_err(explained)
    }

    /// What stands, unless iptables cannot be used here: `Ok(Err(why))`.
    pub(super) fn finish_if_usable(self) -> Result<Read<Opened>> {
        let finished = |(version, reading): (IpVersion, Reading)| Ok((version, reading.finish()?));
        unless_lasting(self.0.and_then(|begun| begun.into_iter().map(finished).collect()))
    }
}

/// The versions that it has addresses of: any other needs no program.
fn versions(masquerade: &Masquerade) -> impl Iterator<Item = IpVersion> + '_ {
    IpVersion::ALL.into_iter().filter(|version| !of_version(&masquerade.addresses, *version).is_empty())
}

fn unless_lasting<T>(tried: Read<T>) -> Result<Read<T>> {
    match tried {
        Err(mishap) if !mishap.is_lasting() => Err(explained(mishap)),
        told => Ok(told),
    }
}

pub(super) fn ensure(masquerade: &Masquerade, opened: Opened, tag: &Tag, journal: &mut Journal) -> Result<()> {
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

fn put_back(version: IpVersion, (names, own): &(Names, Vec<IpAddr>), before: &Share) -> Result<()> {
    let back = |table: &Table| {
        let found = names.found(table, |address| own.contains(&address));
        found.becomes(before, table, &names.chain)
    };
    let _alone = alone()?;
    read(version, &names.chain).and_then(|ruleset| ruleset.change(back)).map_err(explained)
}

/// What CHECK reads, in either half of iptables: nothing that stands may be missing from it, for what a program could not
/// read is no drift.
pub(super) fn verify(masquerade: &Masquerade, tag: &Tag) -> Result<Standing> {
    let (names, nftables) = (Names::of(tag), Nftables::if_any().map_err(Refused::from).map_err(explained)?);
    let mut standing = Standing { any: false, drifts: Vec::new() };
    for version in versions(masquerade) {
        let tables = standing_tables(nftables.as_ref(), version, &names.chain).map_err(explained)?;
        let (addresses, place) = (of_version(&masquerade.addresses, version), format!("table {NAT} of {version}"));
        standing.any |= !tables.is_empty();
        let drifts = tables.iter().map(|table| names.differences(table, &addresses, &place));
        let nothing = || names.differences(&Table::default(), &addresses, &place);
        // Of two halves that have something, the better one is the one that ADD wrote last.
        standing.drifts.extend(drifts.min_by_key(Vec::len).unwrap_or_else(nothing));
    }
    Ok(standing)
}

/// The tables that have this chain. A half whose programs are missing is of no matter where the other one has it.
fn standing_tables(nftables: Option<&Nftables>, version: IpVersion, chain: &str) -> Read<Vec<Table>> {
    let (mut tables, mut missing) = (Vec::new(), None);
    for (programs, traces) in Programs::reaching(nftables, version, NAT, Chains::Named(chain))? {
        match Ruleset::open_whole(programs, traces, NAT, chain) {
            Ok(ruleset) => tables.extend(Some(ruleset.table().clone()).filter(|table| table.has_chain(chain))),
            Err(error @ Refused::Missing { .. }) => missing = Some(error),
            Err(error) => return Err(error),
        }
    }
    missing.filter(|_| tables.is_empty()).map_or(Ok(tables), Err)
}

/// The programs are started and not waited for: the removal of the link takes as long as they do. Where others wait for
/// the lock, they would wait for that removal too, so there the programs come to their end first.
pub(super) fn release(remains: &Remains) -> Result<()> {
    let (names, mut begun, mut unknown) = (Names::of(&remains.tag), Vec::new(), Errors::default());
    let begin = |ruleset: Ruleset| {
        let changes = clearing(remains, &names, ruleset.table(), &mut unknown);
        begun.extend(ruleset.begin(&changes)?);
        Ok(())
    };
    let (alone, mut errors) = everywhere(remains.nftables()?, Chains::Named(&names.chain), begin);
    if !begun.is_empty() {
        let contended = alone.as_ref().is_some_and(Lock::waited);
        let finish = move |remains: &Remains| {
            let ended: Vec<Read<()>> = begun.into_iter().map(Changing::finish).collect();
            drop(alone);
            match ended.into_iter().collect() {
                // Somebody else may have changed what was read before it could be changed.
                Err(Refused::Failed { .. } | Refused::Unread { .. }) => release_at_once(remains),
                told => told.map_err(explained),
            }
        };
        if contended {
            errors.note(finish(remains));
        } else {
            remains.later(super::KIND.name, finish);
        }
    }
    Errors::from_iter([unknown.finish(), errors.finish()]).finish()
}

fn release_at_once(remains: &Remains) -> Result<()> {
    let (names, mut unknown) = (Names::of(&remains.tag), Errors::default());
    let change = |ruleset: Ruleset| ruleset.change(|table| clearing(remains, &names, table, &mut unknown));
    let (_alone, errors) = everywhere(remains.nftables()?, Chains::Named(&names.chain), change);
    Errors::from_iter([unknown.finish(), errors.finish()]).finish()
}

/// What takes this attachment's rules away; nothing where it cannot be told which they are.
fn clearing(remains: &Remains, names: &Names, table: &Table, unknown: &mut Errors) -> Changes {
    match leaving(remains, &names.unclaimed(table)) {
        Ok(going) => {
            let found = names.released(table, |address| going.contains(&address));
            found.becomes(&Share::default(), table, &names.chain)
        }
        Err(error) => {
            unknown.note(Err(error));
            Changes::default()
        }
    }
}

/// Of the addresses that jumps of the reference's are for, those of this attachment: what it was given, where that is
/// recorded; else what its link has; else all but what other links of the container have.
fn leaving(remains: &Remains, unclaimed: &[IpAddr]) -> Result<Vec<IpAddr>> {
    if unclaimed.is_empty() {
        return Ok(Vec::new());
    }
    let among = |wanted: &dyn Fn(&IpAddr) -> bool| unclaimed.iter().copied().filter(wanted).collect::<Vec<_>>();
    let recorded: Vec<IpAddr> = remains.prev.iter().flat_map(|prev| &prev.ips).map(|ip| ip.address.ip()).collect();
    if !recorded.is_empty() {
        return Ok(among(&|address| recorded.contains(address)));
    }
    let (own, others) = on_links(remains)?;
    let going = among(&|address| own.contains(address));
    Ok(if going.is_empty() { among(&|address| !others.contains(address)) } else { going })
}

/// The addresses of the attachment's link in the container, and those of all other links there.
fn on_links(remains: &Remains) -> Result<(Vec<IpAddr>, Vec<IpAddr>)> {
    let Some(container) = remains.container()? else { return Ok(Default::default()) };
    let (mut own, mut others) = (Vec::new(), Vec::new());
    for link in container.links()? {
        let addresses = container.addresses(link.index)?.into_iter().map(|address| address.address.ip());
        if link.name == remains.tag.ifname { &mut own } else { &mut others }.extend(addresses);
    }
    Ok((own, others))
}

pub(super) fn sweep(stale: &Stale) -> Result<()> {
    let valid: Vec<Names> = stale.tags().map(|tag| Names::of(&tag)).collect();
    let clear = |table: &Table| {
        let mut changes = Changes::default();
        for chain in table.chains().filter(|chain| is_chain(chain)) {
            if let Some(found) = stale_share(table, chain, &stale.network, &valid) {
                changes.extend(found.becomes(&Share::default(), table, chain));
            }
        }
        changes
    };
    let (_alone, errors) =
        everywhere(stale.nftables()?, Chains::Like("CNI-", is_chain), |ruleset| ruleset.change(clear));
    errors.finish()
}

/// What of a chain belongs to this network and to no valid attachment; `None` is nothing.
fn stale_share(table: &Table, chain: &str, network: &str, valid: &[Names]) -> Option<Share> {
    let of_network = |rule: &&Rule| Claim::of(rule).is_some_and(|claim| claim.is_of(network, chain));
    let lives = |rule: &Rule| {
        let of = |names: &Names| [&names.entry, &names.rule].into_iter().any(|comment| rule.comment() == Some(comment));
        valid.iter().any(of)
    };
    let stale = table.rules(chain).filter(of_network).filter(|rule| !lives(rule)).cloned();
    let (rules, shared): (Vec<Rule>, Vec<Rule>) = stale.partition(|rule| Claim::of(rule).is_some_and(|it| it.named));
    let sources: Vec<IpAddr> = rules.iter().filter_map(Rule::source_address).collect();
    let goes = |jump: &&Rule| !lives(jump) || jump.source_address().is_some_and(|address| sources.contains(&address));
    let jumps = table.jumps(chain).filter(|(place, _)| *place == ENTRY).map(|(_, jump)| jump);
    let share = Share { jumps: jumps.filter(of_network).filter(goes).cloned().collect(), rules };
    (share != Share::default() || !shared.is_empty()).then_some(share)
}

/// Reads whatever stands in either half of iptables, of both versions, and hands it over to be changed; with it the lock
/// that was taken, if anything stands. Where nothing does, no program is started.
fn everywhere(
    nftables: Option<&Nftables>,
    meant: Chains,
    mut change: impl FnMut(Ruleset) -> Read<()>,
) -> (Option<Lock>, Errors) {
    let (mut lock, mut errors) = (None, Errors::default());
    for version in IpVersion::ALL {
        let reached = Programs::reaching(nftables, version, NAT, meant).map_err(explained);
        let found = reached.unwrap_or_else(|error| {
            errors.note(Err(error));
            Vec::new()
        });
        if !found.is_empty() && lock.is_none() {
            match alone() {
                Ok(alone) => lock = Some(alone),
                Err(error) => {
                    errors.note(Err(error));
                    break;
                }
            }
        }
        for (programs, traces) in found {
            errors.note(within(programs, traces, meant.mention(), &mut change).map_err(explained));
        }
    }
    (lock, errors)
}

/// Changes what stands in one half, if it can be read.
fn within(programs: Programs, traces: Traces, mention: &str, mut change: impl FnMut(Ruleset) -> Read<()>) -> Read<()> {
    match Ruleset::open_whole(programs, traces, NAT, mention) {
        Ok(ruleset) => change(ruleset),
        // Without its programs nobody can remove them; a DEL that fails for ever would help nobody.
        Err(error @ Refused::Missing { .. }) => {
            log::warn(format_args!("masquerade rules may stay behind: {error}"));
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Keeps others that remove rules here away: of two interfaces of one container, which share a chain, each would find the
/// other's rules, remove its own, and leave the chain to the other.
fn alone() -> Result<Lock> {
    let locked = |error: &dyn std::fmt::Display| {
        let text =
            format!("this network namespace could not be locked against others that remove masquerade rules: {error}");
        Error::new(code::TRY_AGAIN, text).remedy("try again")
    };
    let own = Netns::own()?.as_fd().try_clone_to_owned().map_err(|error| locked(&error))?;
    Lock::on(own, PATIENCE).map_err(|error| locked(&error))
}

/// Whether the programs are there and work. IPv6 may not be wanted.
pub(super) fn available() -> Result<()> {
    usable()?.map_err(explained)
}

/// Whether they could be chosen: `Ok(Err(why))` if not.
pub(super) fn usable() -> Result<Read<()>> {
    unless_lasting(read(IpVersion::V4, "CNI-").map(drop))
}

fn read(version: IpVersion, mention: &str) -> Read<Ruleset> {
    Programs::find(version).and_then(|programs| Ruleset::open(programs, NAT, mention))
}

fn explained(error: Refused) -> Error {
    const OTHERWISE: &str = "or say `\"ipMasqBackend\": \"nftables\"`";
    let remedy = match &error {
        Refused::Missing { .. } => Some(format!("install the package iptables, {OTHERWISE}")),
        Refused::Failed { .. } | Refused::Process(_) => {
            Some(format!("see on the node what `iptables -t {NAT} -S` says, {OTHERWISE}"))
        }
        Refused::Incompatible { .. } => {
            Some(format!("have whoever wrote into table {NAT} with nft use a table of its own, {OTHERWISE}"))
        }
        Refused::Hidden { .. } | Refused::Unread { .. } => Some("try again".to_owned()),
        Refused::Netlink(_) => None,
    };
    let told = Error::from(error);
    remedy.into_iter().fold(told, Error::remedy)
}

fn of_version(addresses: &[IpNetwork], version: IpVersion) -> Vec<IpNetwork> {
    addresses.iter().copied().filter(|address| address.is_ipv4() == (version == IpVersion::V4)).collect()
}

fn own(addresses: &[IpNetwork]) -> Vec<IpAddr> {
    addresses.iter().map(IpNetwork::ip).collect()
}

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

use cnikit_netfilter::iptables::{Changes, Error as Refused, IpVersion, Programs, Rule, Ruleset, Table};
use cnikit_plan::{Remains, Stale};
use cnikit_skel::{Error, Errors, Journal, Result, Tag, log};
use ipnetwork::IpNetwork;

use super::{Label, Masquerade, Standing};
use share::{Claim, ENTRY, Names, Share, is_chain};

const NAT: &str = "nat";

/// What an ADD reads first: one table a version of IP that it has addresses of.
pub(super) type Opened = Vec<(IpVersion, Ruleset)>;

/// Reads what stands, which tells too whether iptables can be used here. A version without addresses needs no program.
pub(super) fn open(masquerade: &Masquerade, tag: &Tag) -> Result<Opened> {
    let needed = |version: &IpVersion| !of_version(&masquerade.addresses, *version).is_empty();
    let versions = IpVersion::ALL.into_iter().filter(needed);
    versions.map(|version| Ok((version, read(version, &Names::of(tag).chain)?))).collect()
}

pub(super) fn ensure(masquerade: &Masquerade, opened: Opened, tag: &Tag, journal: &mut Journal) -> Result<()> {
    let names = Names::of(tag);
    for (version, ruleset) in opened {
        let addresses = of_version(&masquerade.addresses, version);
        let (own, wanted) = (own(&addresses), names.share(&addresses));
        let before = Rc::new(RefCell::new(None));
        let (seen, undone) = (Rc::clone(&before), (names.clone(), own.clone()));
        // What this tag had may be a running container's: it is put back, not removed.
        let _ = journal.undo(&Label(tag.clone()), move |_| match before.take() {
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
    read(version, &names.chain)?.change(back).map_err(explained)
}

pub(super) fn verify(masquerade: &Masquerade, tag: &Tag) -> Result<Standing> {
    let names = Names::of(tag);
    let mut standing = Standing { any: false, drifts: Vec::new() };
    for (version, ruleset) in open(masquerade, tag)? {
        let (addresses, table) = (of_version(&masquerade.addresses, version), ruleset.table());
        standing.any |= table.has_chain(&names.chain);
        standing.drifts.extend(names.differences(table, &addresses, &format!("table {NAT} of {version}")));
    }
    Ok(standing)
}

pub(super) fn release(remains: &Remains) -> Result<()> {
    let names = Names::of(&remains.tag);
    let clear = |table: &Table| {
        let unclaimed = names.unclaimed(table);
        let found = if unclaimed.is_empty() {
            names.found(table, |_| false)
        } else {
            let going = leaving(remains, &unclaimed);
            names.found(table, |address| going.contains(&address))
        };
        found.becomes(&Share::default(), table, &names.chain)
    };
    everywhere(Some(&names.chain), clear)
}

/// Of the addresses that jumps of the reference's are for, those of this attachment: what it was given, where that is
/// recorded; else what its link has; else all but what other links of the container have.
fn leaving(remains: &Remains, unclaimed: &[IpAddr]) -> Vec<IpAddr> {
    let among = |wanted: &dyn Fn(&IpAddr) -> bool| unclaimed.iter().copied().filter(wanted).collect::<Vec<_>>();
    let recorded: Vec<IpAddr> = remains.prev.iter().flat_map(|prev| &prev.ips).map(|ip| ip.address.ip()).collect();
    if !recorded.is_empty() {
        return among(&|address| recorded.contains(address));
    }
    let (own, others) = on_links(remains).unwrap_or_default();
    let going = among(&|address| own.contains(address));
    if going.is_empty() { among(&|address| !others.contains(address)) } else { going }
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
    everywhere(None, clear)
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

/// Changes whatever stands in either half of iptables, of both versions. Where nothing stands, no program is started.
fn everywhere(chain: Option<&str>, mut change: impl FnMut(&Table) -> Changes) -> Result<()> {
    let mut errors = Errors::default();
    for version in IpVersion::ALL {
        match Programs::reaching(version, NAT, chain) {
            Ok(found) => found.into_iter().for_each(|(programs, surely)| {
                match Ruleset::open(programs, NAT, chain.unwrap_or("CNI-")) {
                    Ok(ruleset) => drop(errors.note(ruleset.change(&mut change).map_err(explained))),
                    Err(error) if surely => drop(errors.note(Err(explained(error)))),
                    // A table of somebody's that has the same name: there need not be anything of ours.
                    Err(error) => log::info(format_args!("iptables was not looked at: {error}")),
                }
            }),
            // Without its programs nobody can remove them; a DEL that fails for ever would help nobody.
            Err(error @ Refused::Missing { .. }) => log::warn(format_args!("masquerade rules stay behind: {error}")),
            Err(error) => drop(errors.note(Err(explained(error)))),
        }
    }
    errors.finish()
}

/// Whether the programs are there and work. IPv6 may not be wanted.
pub(super) fn available() -> Result<()> {
    read(IpVersion::V4, "CNI-").map(drop)
}

fn read(version: IpVersion, mention: &str) -> Result<Ruleset> {
    Programs::find(version).and_then(|programs| Ruleset::open(programs, NAT, mention)).map_err(explained)
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

//! A port of the host that another container has already.

use std::collections::HashMap;
use std::net::IpAddr;

use cnikit_iptables::{IpVersion, IptablesRule, Table, rules_in_nf_tables};
use cnikit_nftables::{Nftables, TableFamily, TableLayout};
use cnikit_skel::{AttachmentId, Result};

use super::super::{BACKEND, Held, L4Protocol, Mapping, PortMap, by_port, taken};
use super::share::{is_chain, leads_to, named, upstream_targets as upstream_targets_in};
use super::shared::ENTRIES;
use super::{conditions, own};

/// Refuses mappings whose port leads elsewhere, or says that it goes on leading there.
pub(super) fn refuse_taken(portmap: &PortMap, version: IpVersion, tag: &AttachmentId, table: &Table) -> Result<()> {
    let (before, behind) = conditions::as_saved(conditions::of(portmap, version));
    let conditions: Vec<String> = before.into_iter().chain(behind).collect();
    let rules = |chain: &str| Ok(table.rules(chain).cloned().collect());
    let held = elsewhere(portmap, version, tag, (&conditions, rules))?;
    held.iter().try_for_each(|(mapping, holder)| taken(portmap, mapping, holder))
}

/// What leads to other containers by rules that iptables' programs have in `nf_tables`, for whoever writes others: only the
/// kernel is asked. What the legacy half has it tells nobody but its own programs.
pub(in super::super) fn standing(portmap: &PortMap, tag: &AttachmentId) -> Result<Vec<Held>> {
    let Some(nftables) = Nftables::if_any()? else { return Ok(Vec::new()) };
    let mut held = Vec::new();
    for version in super::versions(portmap) {
        let family = match version {
            IpVersion::V4 => TableFamily::Ip,
            IpVersion::V6 => TableFamily::Ip6,
        };
        let table = TableLayout::of(family, BACKEND.table);
        let rules = |chain: &str| Ok(rules_in_nf_tables(&nftables, &table, chain)?);
        held.extend(elsewhere(portmap, version, tag, (conditions::of(portmap, version), rules))?);
    }
    Ok(held)
}

/// Where rules lead that the upstream plugin made by iptables' programs in `nf_tables`, for IPv4.
pub(in super::super) fn upstream_targets(nftables: &Nftables) -> Result<Vec<IpAddr>> {
    let table = TableLayout::of(TableFamily::Ip, BACKEND.table);
    let mut targets = Vec::new();
    let mut chains = Vec::new();
    for entry in rules_in_nf_tables(nftables, &table, ENTRIES)? {
        let Some(chain) = entry.target().filter(|chain| is_chain(chain)) else { continue };
        if !chains.iter().any(|other| other == chain) {
            chains.push(chain.to_owned());
            targets.extend(upstream_targets_in(&rules_in_nf_tables(nftables, &table, chain)?));
        }
    }
    Ok(targets)
}

/// By other containers. Entries under different conditions are for different connections, and a container that is in two
/// networks, or twice in one, is the same one behind either.
fn elsewhere(
    portmap: &PortMap,
    version: IpVersion,
    tag: &AttachmentId,
    (conditions, rules_of): (&[String], impl Fn(&str) -> Result<Vec<IptablesRule>>),
) -> Result<Vec<Held>> {
    let Some(target) = own(portmap, version).first().copied() else { return Ok(Vec::new()) };
    let wanted = by_port(portmap.mappings.iter().filter(|one| one.leads_to(target).is_some()));
    let (mut held, mut chains) = (Vec::new(), HashMap::new());
    for entry in rules_of(ENTRIES)?.iter().filter(|entry| !leads_to(entry, tag) && may_meet(entry, conditions)) {
        let Some(protocol) = entry.protocol_name().and_then(L4Protocol::named) else { continue };
        let listed = entry.ports().unwrap_or_default();
        let listed = listed.into_iter().filter_map(|port| wanted.get(&(protocol, port)));
        let listed: Vec<&Mapping> = listed.flatten().copied().collect();
        if listed.is_empty() {
            continue;
        }
        // Many entries lead to one chain.
        let chain = entry.target().unwrap_or_default();
        if !chains.contains_key(chain) {
            chains.insert(chain.to_owned(), leads(&rules_of(chain)?));
        }
        let leads = &chains[chain];
        let is_met =
            |one: &&&Mapping| leads.get(&one.port()).is_some_and(|near| near.iter().any(|other| one.meets(other)));
        let met = listed.iter().filter(is_met);
        let holder = named(entry).map_or_else(
            || format!("chain {chain} ({version})"),
            |(network, container)| format!("container {container:?} of network {network:?} ({version})"),
        );
        held.extend(met.map(|&one| (one.clone(), holder.clone())));
    }
    Ok(held)
}

/// What the rules of a chain map, by port of the host.
fn leads(rules: &[IptablesRule]) -> HashMap<(L4Protocol, u16), Vec<Mapping>> {
    let mut leads: HashMap<_, Vec<Mapping>> = HashMap::new();
    rules.iter().filter_map(said).for_each(|mapping| leads.entry(mapping.port()).or_default().push(mapping));
    leads
}

fn may_meet(entry: &IptablesRule, conditions: &[String]) -> bool {
    let (Some(protocol), Some(ports)) = (entry.protocol_name(), entry.ports()) else { return true };
    let plain =
        IptablesRule::any().protocol(protocol).commented(entry.comment().unwrap_or_default()).destination_ports(&ports);
    let theirs = entry.words_beyond(&plain.jump(entry.target().unwrap_or_default())).unwrap_or_default();
    theirs.is_empty() || conditions.is_empty() || theirs == conditions
}

/// What a rule maps, if it does.
pub(super) fn said(rule: &IptablesRule) -> Option<Mapping> {
    Some(Mapping {
        host_port: rule.port()?,
        container_port: rule.dnat_target()?.port(),
        protocol: L4Protocol::named(rule.protocol_name()?)?,
        host_address: rule.destination_address(),
    })
}

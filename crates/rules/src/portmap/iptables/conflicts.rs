//! Host ports that another container has already by rules of iptables.

use std::collections::HashMap;
use std::net::IpAddr;

use cnikit_iptables::{IpVersion, IptablesRule, Table, rules_in_nf_tables};
use cnikit_nftables::{L4Protocol, Nftables, TableFamily, TableLayout};
use cnikit_skel::{AttachmentId, Result};

use super::super::backend::BACKEND;
use super::super::conflict::{Conflict, refuse_or_log};
use super::super::mapping::{Mapping, PortMap, by_port};
use super::conditions;
use super::share::{is_chain, jumps_to_container, names_in_comment, upstream_targets as upstream_targets_in};
use super::shared::ENTRIES;

/// Refuses mappings whose port leads to another container, or logs that it stays with that container, as configured.
pub(super) fn refuse_conflicts(portmap: &PortMap, version: IpVersion, tag: &AttachmentId, table: &Table) -> Result<()> {
    let (before, behind) = conditions::as_saved(conditions::of(portmap, version));
    let conditions: Vec<String> = before.into_iter().chain(behind).collect();
    let rules = |chain: &str| Ok(table.rules(chain).cloned().collect());
    refuse_or_log(portmap, &find(portmap, version, tag, &conditions, rules)?)
}

/// The conflicts with rules that the programs of iptables wrote into `nf_tables`, for an ADD with nftables. No program is started.
/// Rules of the legacy variant can be read by its own programs alone.
pub(in super::super) fn conflicts(portmap: &PortMap, tag: &AttachmentId) -> Result<Vec<Conflict>> {
    let Some(nftables) = Nftables::if_any()? else { return Ok(Vec::new()) };
    let mut conflicts = Vec::new();
    for version in portmap.versions() {
        let family = match version {
            IpVersion::V4 => TableFamily::Ip,
            IpVersion::V6 => TableFamily::Ip6,
        };
        let table = TableLayout::of(family, BACKEND.table);
        let rules = |chain: &str| Ok(rules_in_nf_tables(&nftables, &table, chain)?);
        conflicts.extend(find(portmap, version, tag, conditions::of(portmap, version), rules)?);
    }
    Ok(conflicts)
}

/// The IPv4 addresses that rules of the upstream plugin lead to, which iptables' programs wrote into `nf_tables`.
pub(super) fn upstream_targets(nftables: &Nftables) -> Result<Vec<IpAddr>> {
    let table = TableLayout::of(TableFamily::Ip, BACKEND.table);
    let mut targets = Vec::new();
    let mut chains = Vec::new();
    for entry in rules_in_nf_tables(nftables, &table, ENTRIES)? {
        let Some(chain) = entry.target() else { continue };
        if is_chain(chain) && !chains.iter().any(|other| other == chain) {
            chains.push(chain.to_owned());
            targets.extend(upstream_targets_in(&rules_in_nf_tables(nftables, &table, chain)?));
        }
    }
    Ok(targets)
}

/// The conflicts with other containers. Entries with different conditions apply to different connections, and a container that is
/// in two networks, or twice in one, is not in conflict with itself. `rules_of` reads a chain.
fn find(
    portmap: &PortMap,
    version: IpVersion,
    tag: &AttachmentId,
    conditions: &[String],
    rules_of: impl Fn(&str) -> Result<Vec<IptablesRule>>,
) -> Result<Vec<Conflict>> {
    let Some(target) = portmap.addresses_of(version).first().copied() else { return Ok(Vec::new()) };
    let wanted = by_port(portmap.mappings_to(target));
    let mut conflicts = Vec::new();
    let mut mappings_by_chain: HashMap<String, HashMap<(L4Protocol, u16), Vec<Mapping>>> = HashMap::new();
    for entry in &rules_of(ENTRIES)? {
        if jumps_to_container(entry, tag) || !may_overlap(entry, conditions) {
            continue;
        }
        let Some(protocol) = entry.protocol_name().and_then(L4Protocol::named) else { continue };
        let mut same_port: Vec<&Mapping> = Vec::new();
        for port in entry.ports().unwrap_or_default() {
            if let Some(mappings) = wanted.get(&(protocol, port)) {
                same_port.extend(mappings);
            }
        }
        if same_port.is_empty() {
            continue;
        }
        // Many entries jump to one chain, which is read once.
        let chain = entry.target().unwrap_or_default();
        if !mappings_by_chain.contains_key(chain) {
            mappings_by_chain.insert(chain.to_owned(), mappings_of(&rules_of(chain)?));
        }
        let others = &mappings_by_chain[chain];
        let holder = match names_in_comment(entry) {
            Some((network, container)) => format!("container {container:?} of network {network:?} ({version})"),
            None => format!("chain {chain} ({version})"),
        };
        for mapping in same_port {
            let is_met =
                others.get(&mapping.port()).is_some_and(|near| near.iter().any(|other| mapping.overlaps(other)));
            if is_met {
                conflicts.push(Conflict { mapping: mapping.clone(), holder: holder.clone() });
            }
        }
    }
    Ok(conflicts)
}

/// The mappings of a chain's rules, by protocol and host port.
fn mappings_of(rules: &[IptablesRule]) -> HashMap<(L4Protocol, u16), Vec<Mapping>> {
    let mut mappings: HashMap<_, Vec<Mapping>> = HashMap::new();
    for mapping in rules.iter().filter_map(mapping_of) {
        mappings.entry(mapping.port()).or_default().push(mapping);
    }
    mappings
}

/// Whether an entry may apply to connections that also meet these conditions.
fn may_overlap(entry: &IptablesRule, conditions: &[String]) -> bool {
    let Some(protocol) = entry.protocol_name() else { return true };
    let Some(ports) = entry.ports() else { return true };
    let comment = entry.comment().unwrap_or_default();
    let plain = IptablesRule::any().protocol(protocol).commented(comment).destination_ports(&ports);
    let own_conditions = entry.words_beyond(&plain.jump(entry.target().unwrap_or_default())).unwrap_or_default();
    own_conditions.is_empty() || conditions.is_empty() || own_conditions == conditions
}

/// The mapping of a DNAT rule.
pub(super) fn mapping_of(rule: &IptablesRule) -> Option<Mapping> {
    Some(Mapping {
        host_port: rule.port()?,
        container_port: rule.dnat_target()?.port(),
        protocol: L4Protocol::named(rule.protocol_name()?)?,
        host_address: rule.destination_address(),
    })
}

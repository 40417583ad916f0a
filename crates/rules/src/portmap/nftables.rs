//! Port mappings in nftables: upstream's tables and chains, one table each for IPv4 and IPv6.
//!
//! Rules are in upstream's chains with upstream's comment, so that either plugin removes the rules of the other. The owner of a
//! rule is in its user data. A packet to the host is first looked up in a set of all published ports: packets to other ports pass
//! after one lookup, and an ADD finds out by one lookup that its port is free. Upstream does not know the set. After its ADD
//! packets pass through all rules again, until our next ADD fills the set with all ports.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use cnikit_conntrack::Flows;
use cnikit_nftables::{
    Chain, Field, Hook, HookKind, HookPoint, Index, IndexBy, InstalledRule, JumpCondition, Key, KeyType, KeyValue,
    LONGEST_COMMENT, Match, Nftables, OwnerFilter, Rule, Rules, Set, Side, Snapshot, TableFamily, TableLayout, Verdict,
};
use cnikit_plan::{GcContext, ReleaseContext, RestoreBatch};
use cnikit_resources::alias;
use cnikit_skel::{AttachmentId, Error, Journal, Result, log};
use ipnetwork::IpNetwork;

use super::backend::BACKEND;
use super::conflict::{Conflict, refuse_or_log};
use super::flows::forget_removed;
use super::mapping::{Mapping, Masquerades, PortMap, by_port};
use crate::addresses::attribute_unclaimed;
use crate::backend::{Comparison, Loopback};
use crate::batch_restore::add_nftables;
use crate::nftables::{commit, replace, shared_nftables, unnamed};

/// The rules that lead to containers.
const PORTS: &str = "hostports";
/// The chain in which older versions of upstream have rules for one address of the host.
const OLD_PORTS: &str = "hostip_hostports";
/// The chain that every packet to the host passes through.
const ALL: &str = "hostports_all";
const MASQUERADING: &str = "masquerading";
/// The set of ports that have rules.
const IN_USE: &str = "hostports_in_use";
/// The set of owners that have rules.
const OWNERS: &str = "hostports_owners";

/// The hint for conditions that are refused.
const CONDITIONS_HINT: &str = "use known expressions that can match packets to these ports, or set `\"backend\": \"iptables\"` \
                      with conditions in its syntax";

const FAMILIES: [TableFamily; 2] = [TableFamily::Ip, TableFamily::Ip6];

/// Refuses mappings that cannot be written, before anything is made. One port of each protocol and host address is tried.
pub(super) fn preflight(map: &PortMap) -> Result<()> {
    let mut seen = HashSet::new();
    let is_new = |mapping: &&Mapping| seen.insert((mapping.protocol, mapping.host_address));
    let mappings = map.mappings.iter().filter(is_new).cloned().collect();
    let map = &PortMap { mappings, ..map.clone() };
    for (family, address) in targets(map) {
        for rule in rules(map, address, "")?.0.iter().flatten() {
            // Only the conditions of the configuration can be invalid.
            let (key, _) = configured_conditions(map, address);
            rule.validate(family).map_err(|error| Error::config(format!("{key}: {error}")).hint(CONDITIONS_HINT))?;
        }
    }
    Ok(())
}

pub(super) fn ensure(map: &PortMap, tag: &AttachmentId, journal: &mut Journal) -> Result<()> {
    let nftables = Nftables::here()?;
    let undo_name = BACKEND.undo_name(tag);
    for (family, address) in targets(map) {
        let layout = layout(family);
        let wanted = rules(map, address, &comment(tag))?;
        let mut replacement = nftables.begin_replace(&layout, filter(tag, vec![address]), wanted)?;
        while !replacement.is_done() {
            let snapshot = replacement.read()?;
            if let Err(refused) = refuse_conflicts(map, address, tag, &snapshot) {
                replacement.abandon();
                return Err(refused);
            }
            commit(&mut replacement, snapshot, &undo_name, journal)
                .map_err(|error| BACKEND.explained_nftables(error))?;
        }
    }
    for (layout, filter) in unwanted(map, tag) {
        if nftables.may_have_rules(&layout, &filter)? && !nftables.rules(&layout, filter.clone())?.is_empty() {
            replace(&nftables, &layout, filter, Rules::default(), &undo_name, journal)?;
        }
    }
    Ok(())
}

/// Refuses ports that lead to another container already, or lets it keep them, as configured.
fn refuse_conflicts(map: &PortMap, address: IpAddr, tag: &AttachmentId, snapshot: &Snapshot<'_>) -> Result<()> {
    let conflicting = snapshot.conflicting_rules(IN_USE)?;
    let own = conditions(map, address)?;
    let are_disjoint = |other: &[Match]| !own.is_empty() && !other.is_empty() && own != other;
    refuse_or_log(map, &conflicts_with(map, address, tag, &conflicting, are_disjoint))
}

/// Adds the rules of [`ensure`] to the batch. If another attachment has or wants one of the ports, this one is restored alone.
pub(super) fn enqueue(map: &PortMap, tag: &AttachmentId, batch: &mut RestoreBatch) -> Result<bool> {
    for (family, address) in targets(map) {
        let rules = rules(map, address, &comment(tag))?;
        add_nftables(batch, layout(family), filter(tag, vec![address]), rules, Some(IN_USE))?;
    }
    Ok(true)
}

/// Whether there are rules of an attachment.
pub(super) fn has_any(map: &PortMap, tag: &AttachmentId) -> Result<bool> {
    let nftables = Nftables::here()?;
    for (family, address) in targets(map) {
        if !nftables.rules(&layout(family), filter(tag, vec![address]))?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

pub(super) fn verify(map: &PortMap, tag: &AttachmentId) -> Result<Comparison> {
    let nftables = Nftables::here()?;
    let mut compared = Comparison::default();
    for (family, address) in targets(map) {
        let mut layout = layout(family);
        let filter = filter(tag, vec![address]);
        let found = nftables.rules(&layout, filter.clone())?;
        let mut wanted = rules(map, address, &comment(tag))?;
        let mut drifts = nftables.verify(&layout, filter.clone(), wanted.clone())?;
        compared.any |= !found.is_empty();
        let by_upstream = !found.is_empty() && found.iter().all(|found| found.owner().is_none());
        if by_upstream {
            compared.loopback = Loopback::Unguarded;
        }
        if !drifts.is_empty() && by_upstream {
            // Upstream may have made the rules. It omits a chain without rules. Our rules have no owner either after `nft` has
            // saved and loaded them.
            wanted.0[1] = upstream_masquerade_rules(map, address, &comment(tag));
            if map.masquerades == Masquerades::Nothing {
                layout.chains.retain(|chain| chain.name != MASQUERADING);
            }
            let drifts_from_upstream = nftables.verify(&layout, filter, wanted)?;
            if drifts_from_upstream.len() < drifts.len() {
                drifts = drifts_from_upstream;
            }
        }
        compared.drifts.extend(drifts);
    }
    for (layout, filter) in unwanted(map, tag) {
        if !nftables.rules(&layout, filter.clone())?.is_empty() {
            compared.any = true;
            compared.drifts.extend(nftables.verify(&layout, filter, Rules::default())?);
        }
    }
    Ok(compared)
}

/// The address of each family that connections lead to.
fn targets(map: &PortMap) -> impl Iterator<Item = (TableFamily, IpAddr)> + '_ {
    FAMILIES.into_iter().filter_map(|family| Some((family, map.target(family == TableFamily::Ip)?)))
}

/// The table and the owner of families without a mapping. An earlier ADD may have had one.
fn unwanted(map: &PortMap, tag: &AttachmentId) -> Vec<(TableLayout, OwnerFilter)> {
    let mut unwanted = Vec::new();
    for family in FAMILIES {
        let is_ipv4 = family == TableFamily::Ip;
        if map.target(is_ipv4).is_none() {
            let address = map.addresses.iter().map(IpNetwork::ip).find(|address| address.is_ipv4() == is_ipv4);
            unwanted.push((layout(family), filter(tag, address.into_iter().collect())));
        }
    }
    unwanted
}

/// The conflicts with rules of nftables, for an ADD with iptables. No program is started.
pub(super) fn conflicts(map: &PortMap, tag: &AttachmentId) -> Result<Vec<Conflict>> {
    let Some(nftables) = Nftables::if_any()? else { return Ok(Vec::new()) };
    let mut conflicts = Vec::new();
    for (family, address) in targets(map) {
        let ports: Vec<Key> = map.mappings_to(address).map(key).collect();
        let found = nftables.rules_with_keys(&layout(family), IN_USE, &ports)?;
        // Our conditions are in words of iptables, so whether both are equal is not known.
        let are_disjoint = |other: &[Match]| !other.is_empty() && !configured_conditions(map, address).1.is_empty();
        for Conflict { mapping, holder } in conflicts_with(map, address, tag, &found, are_disjoint) {
            conflicts.push(Conflict { mapping, holder: format!("{holder} (nftables)") });
        }
    }
    Ok(conflicts)
}

/// The IPv4 addresses that rules of the upstream plugin lead to. Such rules have no owner.
pub(super) fn upstream_targets(nftables: &Nftables) -> Result<Vec<IpAddr>> {
    let found = nftables.rules(&layout(TableFamily::Ip), OwnerFilter::Commented(String::new()))?;
    let mut targets = Vec::new();
    for installed in found {
        if installed.owner().is_none()
            && let Some((_, to)) = installed.rule().and_then(mapping_of)
        {
            targets.push(to.ip());
        }
    }
    Ok(targets)
}

/// The conflicts with installed rules. Rules with disjoint conditions apply to different connections, and a container in two
/// networks is not in conflict with itself.
fn conflicts_with(
    map: &PortMap,
    address: IpAddr,
    tag: &AttachmentId,
    installed: &[InstalledRule],
    are_disjoint: impl Fn(&[Match]) -> bool,
) -> Vec<Conflict> {
    let own = comment(tag);
    let wanted = by_port(map.mappings_to(address));
    let mut conflicts = Vec::new();
    for found in installed {
        let Some(rule) = found.rule() else { continue };
        if found.comment() == Some(&own) || are_disjoint(&conditions_of(rule)) {
            continue;
        }
        let Some((other, _)) = mapping_of(rule) else { continue };
        let Some(same_port) = wanted.get(&other.port()) else { continue };
        let holder = match found.comment() {
            Some(container) => format!("container {container:?}"),
            None => format!("`{found}`"),
        };
        for mapping in same_port {
            if mapping.overlaps(&other) {
                conflicts.push(Conflict { mapping: (*mapping).clone(), holder: holder.clone() });
            }
        }
    }
    conflicts
}

/// The mapping of a DNAT rule, and the address and port that it leads to.
fn mapping_of(rule: &Rule) -> Option<(Mapping, SocketAddr)> {
    let Verdict::Dnat(to) = &rule.verdict else { return None };
    let host_address = host_address(rule);
    match port(rule)?[..] {
        [KeyValue::Protocol(protocol), KeyValue::Port(host_port)] => {
            Some((Mapping { host_port, container_port: to.port(), protocol, host_address }, *to))
        }
        _ => None,
    }
}

/// The host address that a rule matches.
fn host_address(rule: &Rule) -> Option<IpAddr> {
    for one in rule.matches.iter().rev() {
        if let Match::DestinationIn(network) = one
            && *network == IpNetwork::from(network.ip())
        {
            return Some(network.ip());
        }
    }
    None
}

/// The matches of a rule without those of host address and port.
fn conditions_of(rule: &Rule) -> Vec<Match> {
    let host = host_address(rule).map(Match::to);
    let is_condition = |one: &&Match| !matches!(one, Match::Port { .. }) && Some(*one) != host.as_ref();
    rule.matches.iter().filter(is_condition).cloned().collect()
}

/// The rules of a container: those of DNAT, and those of masquerade, by which replies are routed by the host.
fn rules(map: &PortMap, address: IpAddr, comment: &str) -> Result<Rules> {
    let conditions = conditions(map, address)?;
    let mut dnat = Vec::new();
    for mapping in &map.mappings {
        let Some(to) = mapping.dnat_target(address) else { continue };
        let mut matches = conditions.clone();
        if let Some(host) = mapping.single_host_address() {
            matches.push(Match::to(host));
        }
        matches.push(Match::to_port(mapping.protocol, mapping.host_port));
        dnat.push(Rule { matches, verdict: Verdict::Dnat(to), comment: Some(comment.to_owned()) });
    }
    let mut masquerade = Vec::new();
    if !dnat.is_empty() {
        for from in masqueraded_sources(map, address) {
            masquerade.push(masquerade_rule(from, address, comment));
        }
    }
    Ok(Rules(vec![dnat, masquerade]))
}

/// Masquerades connections from these sources to the container.
fn masquerade_rule(from: Vec<Match>, address: IpAddr, comment: &str) -> Rule {
    let matches = [from, vec![Match::to(address)]].concat();
    Rule { matches, verdict: Verdict::Masquerade, comment: Some(comment.to_owned()) }
}

/// The sources whose connections are masqueraded: the container itself and the host's loopback, as in upstream's rules; and of
/// connections to a published port its neighbours, as in upstream's rules of iptables, or all. Replies to neighbours would not be
/// routed by the host. Neighbours are in the networks of all its addresses, and so is the container with its other addresses.
/// Connections by rules of another program, such as of a service, are not masqueraded.
fn masqueraded_sources(map: &PortMap, address: IpAddr) -> Vec<Vec<Match>> {
    let from: Vec<Option<Match>> = match map.masquerades {
        Masquerades::Nothing => return Vec::new(),
        Masquerades::All => vec![None],
        Masquerades::Hairpin => {
            map.networks(address.is_ipv4()).into_iter().map(|network| Some(Match::SourceIn(network))).collect()
        }
    };
    let mut sources = container_and_loopback(address);
    let mut seen = HashSet::new();
    for mapping in map.mappings_to(address) {
        if !seen.insert(mapping.port()) {
            continue;
        }
        let port = [Match::CtStatusDnat, Match::Protocol(mapping.protocol), Match::OriginalDport(mapping.host_port)];
        for network in &from {
            sources.push(port.iter().chain(network).cloned().collect());
        }
    }
    sources
}

/// The container, and the host's 127.0.0.1. The kernel sends no packets from `::1` to other hosts.
fn container_and_loopback(address: IpAddr) -> Vec<Vec<Match>> {
    let mut sources = vec![vec![Match::Source(address)]];
    if address.is_ipv4() {
        sources.push(vec![Match::Source(Ipv4Addr::LOCALHOST.into())]);
    }
    sources
}

/// Upstream's rules of masquerade, which do not include neighbours.
fn upstream_masquerade_rules(map: &PortMap, address: IpAddr, comment: &str) -> Vec<Rule> {
    let sources = match map.masquerades {
        Masquerades::Nothing => Vec::new(),
        Masquerades::All => vec![IpNetwork::new(address, 0).map(Match::SourceIn).into_iter().collect()],
        Masquerades::Hairpin => container_and_loopback(address),
    };
    sources.into_iter().map(|from| masquerade_rule(from, address, comment)).collect()
}

/// The conditions of the configuration, parsed.
fn conditions(map: &PortMap, address: IpAddr) -> Result<Vec<Match>> {
    let (key, words) = configured_conditions(map, address);
    Match::read(words).map_err(|why| Error::config(format!("{key}: {why}")).hint(CONDITIONS_HINT))
}

/// The conditions of the configuration, with their key.
fn configured_conditions(map: &PortMap, address: IpAddr) -> (&'static str, &[String]) {
    if address.is_ipv4() { ("conditionsV4", &map.conditions_v4) } else { ("conditionsV6", &map.conditions_v6) }
}

fn key(mapping: &Mapping) -> Key {
    vec![KeyValue::Protocol(mapping.protocol), KeyValue::Port(mapping.host_port)]
}

/// The protocol and host port that a rule matches.
fn port(rule: &Rule) -> Option<Key> {
    for one in rule.matches.iter().rev() {
        if let Match::Port { protocol, side: Side::Destination, is: true, port } = one {
            return Some(vec![KeyValue::Protocol(*protocol), KeyValue::Port(*port)]);
        }
    }
    None
}

/// The table that all port mappings of a family share.
fn layout(family: TableFamily) -> TableLayout {
    let rule = |matches, to: &str| Rule { matches, verdict: Verdict::Jump(to.to_owned()), comment: None };
    let chain = |name, hook| Chain { name, comment: None, hook };
    let nat = |hook, priority| Some(Hook { kind: HookKind::Nat, hook, priority });
    let fields = vec![Field::Protocol, Field::Port(Side::Destination)];
    let used = Match::InSet { fields, is: true, set: IN_USE.to_owned() };
    let to_host = || vec![rule(vec![Match::LocalDestination], ALL)];
    // The kernel sends no packets from ::1 to other hosts, so connections to ::1 reach the programs that listen there.
    let not_loopback = Match::DestinationNotIn(IpAddr::from(Ipv6Addr::LOCALHOST).into());
    let mut accepted_prologues = Vec::new();
    let mut from_host = vec![Match::LocalDestination];
    if family == TableFamily::Ip6 {
        from_host.insert(0, not_loopback);
        accepted_prologues.push(("output", to_host()));
    }
    accepted_prologues.push((ALL, vec![rule(vec![], OLD_PORTS), rule(vec![], PORTS)]));
    let chains = vec![PORTS, OLD_PORTS];
    let ports = Set { name: IN_USE, key: vec![KeyType::Protocol, KeyType::Port], comment: None };
    let owners = Set { name: OWNERS, key: vec![KeyType::Mark, KeyType::Mark], comment: None };
    TableLayout {
        table_comment: Some("CNI portmap plugin"),
        chains: vec![
            chain(PORTS, None),
            chain(OLD_PORTS, None),
            chain(ALL, None),
            chain("prerouting", nat(HookPoint::Prerouting, -100)),
            chain("output", nat(HookPoint::Output, -100)),
            chain(MASQUERADING, nat(HookPoint::Postrouting, 100)),
        ],
        prologue: vec![
            (ALL, vec![rule(vec![], OLD_PORTS), rule(vec![used], PORTS)]),
            ("prerouting", to_host()),
            ("output", vec![rule(from_host, ALL)]),
        ],
        accepted_prologues,
        // Rules of older versions of upstream also change forwarded packets (CVE-2025-67499).
        jump_conditions: vec![JumpCondition {
            from: vec!["prerouting", "output"],
            to: vec![PORTS, OLD_PORTS, ALL],
            required: Match::LocalDestination,
        }],
        rule_chains: vec![PORTS, MASQUERADING, OLD_PORTS],
        indexes: vec![
            Index { set: ports, chains: chains.clone(), by: IndexBy::Rule(port) },
            Index { set: owners, chains, by: IndexBy::Owner },
        ],
        ..TableLayout::of(family, "cni_hostport")
    }
}

/// The rules of an attachment: those with its tag, and upstream's, whose comment has the container alone, with its addresses.
fn filter(tag: &AttachmentId, addresses: Vec<IpAddr>) -> OwnerFilter {
    OwnerFilter::Attached { owner: alias::mark_of(tag), comment: comment(tag), addresses }
}

/// Upstream's comment.
fn comment(tag: &AttachmentId) -> String {
    alias::cut(tag.container.clone(), LONGEST_COMMENT)
}

pub(super) fn release(context: &ReleaseContext) -> Result<()> {
    let Some(nftables) = shared_nftables(context.shared())? else { return Ok(()) };
    let tag = &context.tag;
    let mut flows = Vec::new();
    for family in FAMILIES {
        let layout = layout(family);
        let named = OwnerFilter::Owned { owner: alias::mark_of(tag), comment: Some(comment(tag)) };
        let found = nftables.rules(&layout, named)?;
        if found.is_empty() {
            continue;
        }
        let unclaimed: Vec<IpAddr> = found.iter().filter(|rule| rule.owner().is_none()).filter_map(target).collect();
        let own = attribute_unclaimed(context, &unclaimed)?;
        for rule in &found {
            let is_own = rule.owner().is_some() || target(rule).is_some_and(|to| own.contains(&to));
            if is_own && let Some(led) = flows_of(rule) {
                flows.push(led);
            }
        }
        log_removed(nftables.release(&layout, filter(tag, own))?);
    }
    forget_removed(&flows);
    Ok(())
}

/// The container's address in one of its rules.
fn target(found: &InstalledRule) -> Option<IpAddr> {
    let rule = found.rule()?;
    match &rule.verdict {
        Verdict::Dnat(to) => Some(to.ip()),
        _ => host_address(rule),
    }
}

/// The flows that a rule leads to a container.
fn flows_of(found: &InstalledRule) -> Option<Flows> {
    mapping_of(found.rule()?).map(|(mapping, target)| mapping.flows_to(target))
}

/// Removes the rules of this network that belong to no valid attachment. Rules without a network stay: they may be of a running
/// container that upstream attached.
pub(super) fn sweep(context: &GcContext) -> Result<()> {
    let Some(nftables) = shared_nftables(context.shared())? else { return Ok(()) };
    let network = OwnerFilter::Owned { owner: alias::network_mark(&context.network), comment: None };
    let valid: HashSet<String> = context.tags().map(|tag| alias::mark_of(&tag)).collect();
    let mut flows = Vec::new();
    let swept =
        FAMILIES.into_iter().try_for_each(|family| sweep_family(&nftables, family, &network, &valid, &mut flows));
    forget_removed(&flows);
    swept
}

/// Removes the rules of one family, and adds their flows to `flows`.
fn sweep_family(
    nftables: &Nftables,
    family: TableFamily,
    network: &OwnerFilter,
    valid: &HashSet<String>,
    flows: &mut Vec<Flows>,
) -> Result<()> {
    let keep = |owner: &str| valid.contains(owner);
    let found = nftables.rules(&layout(family), network.clone())?;
    let stale = found.iter().filter(|rule| rule.owner().is_some_and(|owner| !keep(owner)));
    flows.extend(stale.filter_map(flows_of));
    log_removed(nftables.sweep(&layout(family), network.clone(), keep)?);
    Ok(())
}

fn log_removed(count: usize) {
    if count > 0 {
        log::info(format_args!("removed {count} rules of port mappings"));
    }
}

/// Checks for STATUS that the kernel supports these rules, by trying those of an attachment without a name.
pub(super) fn available() -> Result<()> {
    let nftables = Nftables::here()?;
    let unnamed = unnamed();
    let to: IpAddr = Ipv4Addr::LOCALHOST.into();
    let map = PortMap::tried(to);
    nftables
        .rehearse(&layout(TableFamily::Ip), filter(&unnamed, vec![to]), rules(&map, to, "")?)
        .map_err(|error| BACKEND.explained_nftables(error))
}

#[cfg(test)]
mod tests;

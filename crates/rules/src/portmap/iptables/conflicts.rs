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

#[cfg(test)]
mod tests {
    use super::super::share::Share;
    use super::super::share::tests::{made, names, portmap, table};
    use super::*;
    use crate::portmap::OnPortConflict;

    const VERSION: IpVersion = IpVersion::V4;

    /// The rules of container `c1` of network `n-1` for these mappings, as iptables-save prints them.
    fn lines(of: &PortMap) -> Vec<String> {
        let names = names("n-1", "c1", "eth0");
        made(&Share::wanted(of, VERSION, &names), &names)
    }

    /// Why an ADD of a container is refused, or nothing.
    fn refused(of: &PortMap, network: &str, container: &str, table: &Table) -> String {
        let tag = AttachmentId { network: network.into(), container: container.into(), ifname: "eth0".into() };
        refuse_conflicts(of, VERSION, &tag, table).map_or_else(|error| error.to_string(), |()| String::new())
    }

    /// A container at another address that wants one of the ports of `portmap()`, with changes.
    fn second(at: usize, change: impl Fn(&mut Mapping)) -> PortMap {
        let mut mapping = portmap().mappings.swap_remove(at);
        change(&mut mapping);
        PortMap { mappings: vec![mapping], addresses: vec!["10.1.0.3/24".parse().unwrap()], ..portmap() }
    }

    #[test]
    fn a_port_of_another_container_is_refused_with_its_name_and_one_of_its_own_is_not() {
        let table = table(&lines(&portmap()));
        let same = second(0, |_| {});
        let found = refused(&same, "n-2", "c2", &table);
        let holder = r#"tcp 8080 of the host leads to container "c1" of network "n-1" (iptables) already"#;
        assert!(found.contains(holder), "{found}");
        for network in ["n-1", "n-2"] {
            assert_eq!(refused(&same, network, "c1", &table), "", "in another network it is the same container");
        }
        let first = PortMap { on_conflict: OnPortConflict::KeepFirst, ..second(0, |_| {}) };
        assert_eq!(refused(&first, "n-2", "c2", &table), "");
        let without = PortMap { addresses: vec!["fd00:1::3/64".parse().unwrap()], ..second(0, |_| {}) };
        assert_eq!(refused(&without, "n-2", "c2", &table), "", "it has no address that the rules could lead to");
    }

    #[test]
    fn another_port_protocol_or_host_address_is_no_conflict() {
        let table = table(&lines(&portmap()));
        let is_refused =
            |at: usize, change: &dyn Fn(&mut Mapping)| !refused(&second(at, change), "n-1", "c2", &table).is_empty();
        assert!(!is_refused(0, &|one| one.host_port = 8090));
        assert!(!is_refused(0, &|one| one.protocol = L4Protocol::Udp));
        let host = |text: &str| Some(text.parse().unwrap());
        assert!(is_refused(2, &|_| {}), "of 127.0.0.2");
        assert!(is_refused(2, &|one| one.host_address = None), "every address of the host is that one too");
        assert!(!is_refused(2, &|one| one.host_address = host("127.0.0.3")));
        assert!(!is_refused(3, &|_| {}), "an IPv6 address of the host leads nowhere by IPv4");
    }

    #[test]
    fn entries_with_other_conditions_are_for_other_connections() {
        let unconditional = PortMap { conditions_v4: Vec::new(), ..portmap() };
        let [with, without] = [&portmap(), &unconditional].map(|of| table(&lines(of)));
        let mut other = second(0, |_| {});
        assert!(!refused(&other, "n-1", "c2", &without).is_empty(), "one without conditions is for all connections");
        other.conditions_v4 = ["-s", "10.8.0.0/16"].map(str::to_owned).to_vec();
        assert_eq!(refused(&other, "n-1", "c2", &with), "");
        other.conditions_v4.clear();
        assert!(!refused(&other, "n-1", "c2", &with).is_empty());
    }

    #[test]
    fn rules_without_names_or_ports_are_told_by_their_chain_or_passed_over() {
        let comment = r#"-m comment --comment "dnat name: \"n-1\" id: \"c1\"" "#;
        let mut nameless: Vec<String> = lines(&portmap()).iter().map(|line| line.replace(comment, "")).collect();
        assert!(nameless.iter().all(|line| !line.contains("dnat name")), "{nameless:?}");
        nameless.insert(0, "-A CNI-HOSTPORT-DNAT -j ACCEPT".into());
        nameless.insert(1, "-A CNI-HOSTPORT-DNAT -p icmp -j ACCEPT".into());
        let found = refused(&second(0, |_| {}), "n-1", "c2", &table(&nameless));
        assert!(
            found.contains("tcp 8080 of the host leads to chain CNI-DN-6ac8013f2d24e893d59dd (iptables)"),
            "{found}"
        );
    }
}

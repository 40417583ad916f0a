//! Port mappings in nftables: the reference's tables and chains, one of each for IPv4 and IPv6.
//!
//! Rules stand where the reference has them, under its comment, so that either removes what the other made; whose they are
//! says a field beside the comment. A packet to the host meets a set of all ports first: what goes to no published port
//! passes on after one look, and an ADD learns by one that its port is free. The reference does not know the set: its ADD
//! has packets walk all rules again, which serves too, until our next one fills the set with the ports of all.

use std::cell::RefCell;
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use cnikit_conntrack::Flows;
use cnikit_nftables::{
    Chain, Field, Hook, HookKind, HookPoint, Index, IndexBy, InstalledRule, JumpCondition, Key, KeyType,
    LONGEST_COMMENT, Match, Nftables, OwnerFilter, Rule, Rules, Set, Side, Snapshot, TableFamily, TableLayout, Value,
    Verdict,
};
use cnikit_plan::{GcContext, ReleaseContext, RestoreBatch};
use cnikit_resources::alias;
use cnikit_skel::{AttachmentId, Error, Journal, Result, log};
use ipnetwork::IpNetwork;

use super::{Held, Mapping, Masquerades, PortMap, by_port, forget, rules_of, taken};
use crate::backend::{Comparison, Loopback, commit, replace, shared_nftables};
use crate::batch_restore::add_nftables;
use crate::unclaimed;

/// The rules that lead to containers.
const PORTS: &str = "hostports";
/// Where older versions of the reference have rules for one address of the host.
const OLD_PORTS: &str = "hostip_hostports";
/// What every packet to the host walks through.
const ALL: &str = "hostports_all";
const MASQUERADING: &str = "masquerading";
/// The ports that rules are for.
const IN_USE: &str = "hostports_in_use";
/// Whose rules there are.
const OWNERS: &str = "hostports_owners";

/// What can be done about conditions that are refused.
const REMEDY: &str = "say what is known and what packets to these ports can be like, or say `\"backend\": \"iptables\"` \
                      with conditions in its words";

const FAMILIES: [TableFamily; 2] = [TableFamily::Ip, TableFamily::Ip6];

/// Refuses what could not be written, before anything is made. Of all ports of one protocol and address one tells of all.
pub(super) fn preflight(map: &PortMap) -> Result<()> {
    let mut seen = HashSet::new();
    let is_new = |mapping: &&Mapping| seen.insert((mapping.protocol, mapping.host_address));
    let mappings = map.mappings.iter().filter(is_new).cloned().collect();
    let map = &PortMap { mappings, ..map.clone() };
    targets(map).try_for_each(|(family, address)| {
        let (key, _) = asked(map, address);
        // All that could be wrong with them is what the configuration adds.
        let refused = |error| Error::config(format!("{key}: {error}")).hint(REMEDY);
        rules(map, address, "")?.0.iter().flatten().try_for_each(|rule| rule.validate(family).map_err(refused))
    })
}

pub(super) fn ensure(map: &PortMap, tag: &AttachmentId, journal: &mut Journal) -> Result<()> {
    let nftables = Nftables::here()?;
    let what = rules_of(tag);
    for (family, address) in targets(map) {
        let layout = layout(family);
        let wanted = rules(map, address, &comment(tag))?;
        let mut replacement = nftables.begin_replace(&layout, filter(tag, vec![address]), wanted)?;
        while !replacement.is_done() {
            let snapshot = replacement.read()?;
            if let Err(refused) = refuse_taken(map, address, tag, &snapshot) {
                replacement.abandon();
                return Err(refused);
            }
            commit(&mut replacement, snapshot, (&what, journal))?;
        }
    }
    for (layout, filter) in unwanted(map, tag) {
        if nftables.may_have_rules(&layout, &filter)? && !nftables.rules(&layout, filter.clone())?.is_empty() {
            replace(&nftables, (&layout, filter), Rules::default(), (&what, journal))?;
        }
    }
    Ok(())
}

/// Refuses ports that lead to another container already, or lets it keep them, as configured.
fn refuse_taken(map: &PortMap, address: IpAddr, tag: &AttachmentId, snapshot: &Snapshot<'_>) -> Result<()> {
    let conflicting = snapshot.conflicting_rules(IN_USE)?;
    let own = conditions(map, address)?;
    let are_apart = |theirs: &[Match]| !own.is_empty() && !theirs.is_empty() && own != theirs;
    for (mapping, holder) in held((map, address), tag, &conflicting, are_apart) {
        taken(map, mapping, &holder)?;
    }
    Ok(())
}

/// Gathers what [`ensure`] would make. A port that anybody else has or wants is judged by itself.
pub(super) fn enqueue(map: &PortMap, tag: &AttachmentId, batch: &mut RestoreBatch) -> Result<bool> {
    for (family, address) in targets(map) {
        let (filter, rules) = (filter(tag, vec![address]), rules(map, address, &comment(tag))?);
        add_nftables(batch, layout(family), filter, rules, Some(IN_USE))?;
    }
    Ok(true)
}

/// Whether a tag has anything here.
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
        let (mut layout, filter) = (layout(family), filter(tag, vec![address]));
        let (found, mut wanted) = (nftables.rules(&layout, filter.clone())?, rules(map, address, &comment(tag))?);
        let mut drifts = nftables.verify(&layout, filter.clone(), wanted.clone())?;
        compared.any |= !found.is_empty();
        let by_upstream = !found.is_empty() && found.iter().all(|found| found.owner().is_none());
        if by_upstream {
            compared.loopback = Loopback::Unguarded;
        }
        if !drifts.is_empty() && by_upstream {
            // The reference may have made them, which leaves out the chain where it has nothing to say in it. Ours that were
            // saved and loaded name nobody either.
            wanted.0[1] = theirs(map, address, &comment(tag));
            if map.masquerades == Masquerades::Nothing {
                layout.chains.retain(|chain| chain.name != MASQUERADING);
            }
            let as_theirs = nftables.verify(&layout, filter, wanted)?;
            drifts = if as_theirs.len() < drifts.len() { as_theirs } else { drifts };
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

/// By family, the address that connections are sent to.
fn targets(map: &PortMap) -> impl Iterator<Item = (TableFamily, IpAddr)> + '_ {
    let of = |family| map.target(family == TableFamily::Ip).map(|address| (family, address));
    FAMILIES.into_iter().filter_map(of)
}

/// Where no mapping leads, an earlier ADD may have had one.
fn unwanted(map: &PortMap, tag: &AttachmentId) -> impl Iterator<Item = (TableLayout, OwnerFilter)> {
    let addresses = |family| {
        map.addresses.iter().map(IpNetwork::ip).filter(move |one| one.is_ipv4() == (family == TableFamily::Ip))
    };
    let without = FAMILIES.into_iter().filter(|family| targets(map).all(|(other, _)| other != *family));
    without.map(move |family| (layout(family), filter(tag, addresses(family).take(1).collect())))
}

/// What leads to other containers by rules that stand here, for whoever writes others: only the kernel is asked.
pub(super) fn elsewhere(map: &PortMap, tag: &AttachmentId) -> Result<Vec<Held>> {
    let Some(nftables) = Nftables::if_any()? else { return Ok(Vec::new()) };
    let mut elsewhere = Vec::new();
    for (family, address) in targets(map) {
        let led = map.mappings.iter().filter(|mapping| mapping.leads_to(address).is_some());
        let found = nftables.rules_with_keys(&layout(family), IN_USE, &led.map(key).collect::<Vec<_>>())?;
        // Nobody can tell whether conditions in words of iptables are the same.
        let are_apart = |theirs: &[Match]| !theirs.is_empty() && !asked(map, address).1.is_empty();
        let held = held((map, address), tag, &found, are_apart);
        elsewhere.extend(held.into_iter().map(|(mapping, holder)| (mapping.clone(), format!("{holder} (nftables)"))));
    }
    Ok(elsewhere)
}

/// Where rules lead that the upstream plugin made, for IPv4: they name no owner.
pub(super) fn upstream_targets(nftables: &Nftables) -> Result<Vec<IpAddr>> {
    let found = nftables.rules(&layout(TableFamily::Ip), OwnerFilter::Commented(String::new()))?;
    let leading = found.iter().filter(|found| found.owner().is_none()).filter_map(|found| said(found.rule()?));
    Ok(leading.map(|(_, to)| to.ip()).collect())
}

/// Mappings whose port leads to another container, and to which. Rules under different conditions are for different
/// connections, and a container that is in two networks is the same one behind either.
fn held<'a>(
    (map, address): (&'a PortMap, IpAddr),
    tag: &AttachmentId,
    installed: &[InstalledRule],
    are_apart: impl Fn(&[Match]) -> bool,
) -> Vec<(&'a Mapping, String)> {
    let own = comment(tag);
    let led = by_port(map.mappings.iter().filter(|mapping| mapping.leads_to(address).is_some()));
    let mut held = Vec::new();
    for installed in installed {
        let Some(rule) = installed.rule() else { continue };
        if installed.comment() == Some(&own) || are_apart(&conditions_of(rule)) {
            continue;
        }
        let Some((theirs, _)) = said(rule) else { continue };
        let holder = match installed.comment() {
            Some(container) => format!("container {container:?}"),
            None => format!("`{installed}`"),
        };
        for mapping in led.get(&theirs.port()).into_iter().flatten() {
            if mapping.meets(&theirs) {
                held.push((*mapping, holder.clone()));
            }
        }
    }
    held
}

/// What a rule maps, and where it leads, if it does.
fn said(rule: &Rule) -> Option<(Mapping, SocketAddr)> {
    let (Verdict::Dnat(to), host_address) = (&rule.verdict, host_address(rule)) else { return None };
    match port(rule)?[..] {
        [Value::Protocol(protocol), Value::Port(host_port)] => {
            Some((Mapping { host_port, container_port: to.port(), protocol, host_address }, *to))
        }
        _ => None,
    }
}

/// The address of the host that a rule is for.
fn host_address(rule: &Rule) -> Option<IpAddr> {
    rule.matches.iter().rev().find_map(|one| match one {
        Match::DestinationIn(to) if *to == IpNetwork::from(to.ip()) => Some(to.ip()),
        _ => None,
    })
}

/// What a rule looks at beside the address and the port of the host.
fn conditions_of(rule: &Rule) -> Vec<Match> {
    let host = host_address(rule).map(Match::to);
    let beside = |one: &&Match| !matches!(one, Match::Port { .. }) && Some(*one) != host.as_ref();
    rule.matches.iter().filter(beside).cloned().collect()
}

/// The rules of a container: those that lead to it, and those that have the answers come back by the host.
fn rules(map: &PortMap, address: IpAddr, comment: &str) -> Result<Rules> {
    let rule = |matches, verdict| Rule { matches, verdict, comment: Some(comment.to_owned()) };
    let conditions = conditions(map, address)?;
    let lead = |mapping: &Mapping| {
        let host = mapping.host_address.filter(|host| !host.is_unspecified()).map(Match::to);
        let port = Match::to_port(mapping.protocol, mapping.host_port);
        let matches = conditions.iter().cloned().chain(host).chain([port]).collect();
        mapping.leads_to(address).map(|to| rule(matches, Verdict::Dnat(to)))
    };
    let led: Vec<Rule> = map.mappings.iter().filter_map(lead).collect();
    let back = |from: Vec<Match>| back(from, address, comment);
    let masqueraded = if led.is_empty() { Vec::new() } else { sources(map, address) };
    let masquerading = masqueraded.into_iter().map(back).collect();
    Ok(Rules(vec![led, masquerading]))
}

/// Has the answers to connections from there come back by the host.
fn back(from: Vec<Match>, address: IpAddr, comment: &str) -> Rule {
    let matches = [from, vec![Match::to(address)]].concat();
    Rule { matches, verdict: Verdict::Masquerade, comment: Some(comment.to_owned()) }
}

/// Who reaches the container under the host's address: by the reference's rules it itself and the host's loopback; and who
/// came by a published port, as with the reference's in iptables its neighbours, whom it would answer by a way of its own, or
/// everybody. Neighbours are in the networks of all its addresses, and so is it itself when it asks from another one. Who came
/// by another's rule, as that of a service, is none of ours.
fn sources(map: &PortMap, address: IpAddr) -> Vec<Vec<Match>> {
    let from: Vec<Option<Match>> = match map.masquerades {
        Masquerades::Nothing => return Vec::new(),
        Masquerades::All => vec![None],
        Masquerades::Hairpin => {
            map.networks(address.is_ipv4()).into_iter().map(|network| Some(Match::SourceIn(network))).collect()
        }
    };
    let (mut sources, mut seen) = (itself(address), HashSet::new());
    for mapping in map.mappings.iter().filter(|mapping| mapping.leads_to(address).is_some()) {
        if seen.insert((mapping.protocol, mapping.host_port)) {
            let port =
                [Match::CtStatusDnat, Match::Protocol(mapping.protocol), Match::OriginalDport(mapping.host_port)];
            sources.extend(from.iter().map(|network| port.iter().chain(network).cloned().collect()));
        }
    }
    sources
}

/// The container, and the host's loopback; the kernel lets nothing from `::1` leave the host.
fn itself(address: IpAddr) -> Vec<Vec<Match>> {
    let loopback = Match::Source(Ipv4Addr::LOCALHOST.into());
    let loopback = address.is_ipv4().then_some(vec![loopback]);
    [vec![Match::Source(address)]].into_iter().chain(loopback).collect()
}

/// What the reference has of that, which leaves out neighbours.
fn theirs(map: &PortMap, address: IpAddr, comment: &str) -> Vec<Rule> {
    let sources = match map.masquerades {
        Masquerades::Nothing => Vec::new(),
        Masquerades::All => vec![IpNetwork::new(address, 0).map(Match::SourceIn).into_iter().collect()],
        Masquerades::Hairpin => itself(address),
    };
    sources.into_iter().map(|from| back(from, address, comment)).collect()
}

/// What the configuration asks of packets beside their port.
fn conditions(map: &PortMap, address: IpAddr) -> Result<Vec<Match>> {
    let (key, words) = asked(map, address);
    Match::read(words).map_err(|why| Error::config(format!("{key}: {why}")).hint(REMEDY))
}

/// Key and words of it.
fn asked(map: &PortMap, address: IpAddr) -> (&'static str, &[String]) {
    if address.is_ipv4() { ("conditionsV4", &map.conditions_v4) } else { ("conditionsV6", &map.conditions_v6) }
}

fn key(mapping: &Mapping) -> Key {
    vec![Value::Protocol(mapping.protocol), Value::Port(mapping.host_port)]
}

/// The port of the host that a rule is for.
fn port(rule: &Rule) -> Option<Key> {
    rule.matches.iter().rev().find_map(|one| match one {
        Match::Port { protocol, side: Side::Destination, is: true, port } => {
            Some(vec![Value::Protocol(*protocol), Value::Port(*port)])
        }
        _ => None,
    })
}

/// The table that all port mappings of a family share.
fn layout(family: TableFamily) -> TableLayout {
    let rule = |matches, to: &str| Rule { matches, verdict: Verdict::Jump(to.to_owned()), comment: None };
    let chain = |name, hook| Chain { name, comment: None, hook };
    let nat = |hook, priority| Some(Hook { kind: HookKind::Nat, hook, priority });
    let fields = vec![Field::Protocol, Field::Port(Side::Destination)];
    let used = Match::InSet { fields, is: true, set: IN_USE.to_owned() };
    let to_host = || vec![rule(vec![Match::LocalDestination], ALL)];
    // The kernel lets nothing from ::1 leave the host: whoever listens there is reached.
    let loopback =
        (family == TableFamily::Ip6).then_some(Match::DestinationNotIn(IpAddr::from(Ipv6Addr::LOCALHOST).into()));
    let from_host = vec![rule(loopback.iter().cloned().chain([Match::LocalDestination]).collect(), ALL)];
    let instead = loopback.map(|_| ("output", to_host()));
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
            ("output", from_host),
        ],
        accepted_prologues: instead
            .into_iter()
            .chain([(ALL, vec![rule(vec![], OLD_PORTS), rule(vec![], PORTS)])])
            .collect(),
        // Older versions of the reference had packets that are merely forwarded led to containers (CVE-2025-67499).
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

/// The rules of a tag: those that name it, and those of the reference, which name only the container, for its addresses.
fn filter(tag: &AttachmentId, addresses: Vec<IpAddr>) -> OwnerFilter {
    OwnerFilter::Attached { owner: alias::mark_of(tag), comment: comment(tag), addresses }
}

/// The reference's comment.
fn comment(tag: &AttachmentId) -> String {
    alias::cut(tag.container.clone(), LONGEST_COMMENT)
}

pub(super) fn release(context: &ReleaseContext) -> Result<()> {
    let Some(nftables) = shared_nftables(context.shared())? else { return Ok(()) };
    let (tag, flows) = (&context.tag, RefCell::new(Vec::new()));
    for family in FAMILIES {
        let (layout, named) =
            (layout(family), OwnerFilter::Owned { owner: alias::mark_of(tag), comment: Some(comment(tag)) });
        let found = nftables.rules(&layout, named)?;
        if found.is_empty() {
            continue;
        }
        let nobodys = found.iter().filter(|found| found.owner().is_none()).filter_map(target).collect::<Vec<_>>();
        let going = unclaimed::attribute_unclaimed(context, &nobodys)?;
        let leads =
            |found: &&InstalledRule| found.owner().is_some() || target(found).is_some_and(|to| going.contains(&to));
        flows.borrow_mut().extend(found.iter().filter(leads).filter_map(flows_of));
        removed(nftables.release(&layout, filter(tag, going))?);
    }
    forget(&flows.take(), false);
    Ok(())
}

/// The container's address in a rule of its own.
fn target(found: &InstalledRule) -> Option<IpAddr> {
    let rule = found.rule()?;
    match &rule.verdict {
        Verdict::Dnat(to) => Some(to.ip()),
        _ => host_address(rule),
    }
}

/// The flows that a rule has led to a container.
fn flows_of(found: &InstalledRule) -> Option<Flows> {
    said(found.rule()?).map(|(mapping, target)| mapping.flows_to(target))
}

/// Rules that name no network may be a running container's, whom the reference attached: they stay.
pub(super) fn sweep(context: &GcContext) -> Result<()> {
    let Some(nftables) = shared_nftables(context.shared())? else { return Ok(()) };
    let network = || OwnerFilter::Owned { owner: alias::network_mark(&context.network), comment: None };
    let valid: HashSet<String> = context.tags().map(|tag| alias::mark_of(&tag)).collect();
    let keep = |owner: &str| valid.contains(owner);
    let mut flows = Vec::new();
    let swept = FAMILIES.into_iter().try_for_each(|family| {
        let found = nftables.rules(&layout(family), network())?;
        let context = found.iter().filter(|found| found.owner().is_some_and(|owner| !keep(owner)));
        flows.extend(context.filter_map(flows_of));
        removed(nftables.sweep(&layout(family), network(), keep)?);
        Ok(())
    });
    forget(&flows, false);
    swept
}

fn removed(count: usize) {
    if count > 0 {
        log::info(format_args!("removed {count} rules of port mappings"));
    }
}

/// Whether the kernel has what it takes: with rules like those of an attachment, of which none will ever be.
pub(super) fn available() -> Result<()> {
    let nftables = Nftables::here()?;
    let nobody = AttachmentId { network: String::new(), container: String::new(), ifname: String::new() };
    let to: IpAddr = Ipv4Addr::LOCALHOST.into();
    let map = PortMap::tried(to);
    Ok(nftables.rehearse(&layout(TableFamily::Ip), filter(&nobody, vec![to]), rules(&map, to, "")?)?)
}

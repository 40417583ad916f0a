//! Which rules of the shared chains belong to which attachment.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use cnikit_iptables::{IptablesRule, Table};
use cnikit_resources::alias;
use cnikit_skel::log;
use ipnetwork::IpNetwork;

use super::super::demand::Isolation;
use super::edits::Edits;

/// The base chain of forwarded packets.
const ENTRY: &str = "FORWARD";
/// The chain with the rules of addresses.
const FORWARD: &str = "CNI-FORWARD";
/// The chain for packets from isolated bridges.
const STAGE_1: &str = "CNI-ISOLATION-STAGE-1";
/// The chain that drops packets to isolated bridges.
const STAGE_2: &str = "CNI-ISOLATION-STAGE-2";
/// The chain of the markers. No packet passes through it.
const OWNERS: &str = "CNI-FORWARD-OWNERS";

const RULES: &str = "CNI firewall plugin rules";
const OVERRIDES: &str = "CNI firewall plugin admin overrides";
const ISOLATION: &str = "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)";

/// Whether a chain may have rules or markers of claims.
pub(super) fn is_ours(chain: &str) -> bool {
    [FORWARD, STAGE_1, STAGE_2, OWNERS].contains(&chain)
}

/// An address or bridge that an attachment wants rules for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// Accept packets from this address and replies to them.
    Address(IpAddr),
    /// Isolate this bridge.
    Bridge(Isolation),
}

impl Claim {
    /// The rules of the claim, and their chains.
    fn rules(&self) -> Vec<(&'static str, IptablesRule)> {
        match self {
            Claim::Address(address) => {
                let answers = IptablesRule::any().destination(IpNetwork::from(*address)).established().jump("ACCEPT");
                vec![(FORWARD, answers), (FORWARD, IptablesRule::any().source(*address).jump("ACCEPT"))]
            }
            Claim::Bridge(isolation) => {
                let mut rules = Vec::new();
                for rule in isolation.stage_1() {
                    rules.push((STAGE_1, rule));
                }
                rules.push((STAGE_2, isolation.stage_2()));
                rules
            }
        }
    }

    /// The marker, which has the owner in its comment.
    fn marker(&self, owner: &str) -> IptablesRule {
        let matches = match self {
            Claim::Address(address) => IptablesRule::any().source(*address),
            Claim::Bridge(Isolation { bridge, within: false }) => IptablesRule::any().from(bridge),
            Claim::Bridge(Isolation { bridge, within: true }) => IptablesRule::any().from(bridge).to(bridge),
        };
        matches.commented(owner)
    }

    /// The claim of a marker.
    fn of(marker: &IptablesRule) -> Option<Claim> {
        if let Some(address) = marker.source_address() {
            return Some(Claim::Address(address));
        }
        let bridge = marker.from_interface()?.to_owned();
        Some(Claim::Bridge(Isolation { bridge, within: marker.to_interface().is_some() }))
    }

    /// The address or bridge. Claims with different subjects share no rules.
    fn subject(&self) -> Subject<'_> {
        match self {
            Claim::Address(address) => Subject::Address(*address),
            Claim::Bridge(Isolation { bridge, .. }) => Subject::Bridge(bridge),
        }
    }
}

#[derive(PartialEq, Eq, Hash)]
enum Subject<'a> {
    Address(IpAddr),
    Bridge(&'a str),
}

impl Isolation {
    fn stage_1(&self) -> Vec<IptablesRule> {
        let policy = if self.within { "isolated" } else { "same-bridge" };
        let from = IptablesRule::any().from(&self.bridge);
        let comment = format!("{RULES} (ingressPolicy: {policy})");
        let mut rules = Vec::new();
        if self.within {
            rules.push(from.clone().to(&self.bridge).commented(&comment).jump("DROP"));
        }
        rules.push(from.not_to(&self.bridge).commented(&comment).jump(STAGE_2));
        rules
    }

    fn stage_2(&self) -> IptablesRule {
        IptablesRule::any().to(&self.bridge).commented(ISOLATION).jump("DROP")
    }
}

/// Which claims are removed.
pub(super) struct ClaimFilter<'a> {
    /// Whether claims with this mark are removed.
    pub(super) is_owner: &'a dyn Fn(&str) -> bool,
    /// Addresses whose rules are removed although they have no marker.
    pub(super) unmarked: &'a [IpAddr],
    /// In a GC no attachment is named, and rules that may be another container's by now stay.
    pub(super) is_gc: bool,
}

/// One table, and the claims of its markers.
pub(super) struct Claims<'a> {
    table: &'a Table,
    markers: Vec<Marker<'a>>,
}

struct Marker<'a> {
    rule: &'a IptablesRule,
    mark: &'a str,
    claim: Claim,
}

impl<'a> Claims<'a> {
    pub(super) fn of(table: &'a Table) -> Claims<'a> {
        let read = |rule: &'a IptablesRule| {
            let mark = alias::mark(rule.comment()?)?;
            Some(Marker { rule, mark, claim: Claim::of(rule)? })
        };
        Claims { table, markers: table.rules(OWNERS).filter_map(read).collect() }
    }

    /// The claims of some owners.
    pub(super) fn of_owner(&self, filter: &ClaimFilter) -> Vec<Claim> {
        let own = self.markers.iter().filter(|marker| (filter.is_owner)(marker.mark));
        own.map(|marker| marker.claim.clone()).collect()
    }

    /// The claims whose rules all exist without a marker: upstream's.
    pub(super) fn unclaimed(&self, among: &[Claim]) -> Vec<Claim> {
        let claimed = |claim: &Claim| self.markers.iter().any(|marker| marker.claim == *claim);
        among.iter().filter(|claim| !claimed(claim) && self.has_all(claim)).cloned().collect()
    }

    /// Whether any rule of these claims exists.
    pub(super) fn has_any(&self, wanted: &[Claim]) -> bool {
        wanted.iter().flat_map(Claim::rules).any(|(chain, rule)| self.has(chain, &rule))
    }

    fn has(&self, chain: &str, rule: &IptablesRule) -> bool {
        self.table.rules(chain).any(|found| found == rule)
    }

    fn has_all(&self, claim: &Claim) -> bool {
        claim.rules().iter().all(|(chain, rule)| self.has(chain, rule))
    }

    /// Whether another program has removed all rules of an address. Then its marker is stale.
    fn is_without_rules(&self, claim: &Claim) -> bool {
        matches!(claim, Claim::Address(_)) && claim.rules().iter().all(|(chain, rule)| !self.has(chain, rule))
    }

    /// The edits after which an owner has the wanted claims and no others. The rules of `upstream` stay.
    pub(super) fn edits_for(&self, owner: &str, wanted: &[Claim], admin: &str, upstream: &[Claim]) -> Edits {
        let mut edits = self.missing(wanted, admin);
        self.replace_markers(owner, wanted, upstream, &mut edits);
        edits
    }

    /// The same without the chains and jumps that all share.
    pub(super) fn put_back(&self, owner: &str, wanted: &[Claim], upstream: &[Claim]) -> Edits {
        let mut edits = Edits::default();
        wanted.iter().for_each(|claim| self.rules_of(claim, &mut edits));
        self.replace_markers(owner, wanted, upstream, &mut edits);
        edits
    }

    /// Writes the markers of an owner's wanted claims, and removes its other claims.
    fn replace_markers(&self, owner: &str, wanted: &[Claim], upstream: &[Claim], edits: &mut Edits) {
        let own = |mark: &str| owner.starts_with(mark);
        self.remove(&ClaimFilter { is_owner: &own, unmarked: &[], is_gc: false }, wanted, upstream, edits);
        let bridges = |claim: &&Claim| matches!(claim, Claim::Bridge(_));
        // A bridge that upstream isolated gets no marker: it may have containers without a marker.
        let by_upstream: Vec<Claim> = self.unclaimed(wanted).iter().filter(bridges).cloned().collect();
        for claim in wanted.iter().filter(|claim| !by_upstream.contains(claim)) {
            if !self.markers.iter().any(|marker| own(marker.mark) && marker.claim == *claim) {
                edits.chain(self.table, OWNERS);
                edits.last(self.table, OWNERS, claim.marker(owner));
            }
        }
        edits.chain_gone_if_empty(self.table, OWNERS);
    }

    /// The edits that remove the claims of these owners.
    pub(super) fn released(&self, filter: &ClaimFilter) -> Edits {
        let mut edits = Edits::default();
        let staying = if filter.is_gc { self.possibly_upstreams(filter) } else { Vec::new() };
        self.log_staying(&staying);
        self.remove(filter, &[], &staying, &mut edits);
        edits.chain_gone_if_empty(self.table, OWNERS);
        edits
    }

    /// The addresses of these owners whose rules upstream may have made since, for another container.
    ///
    /// Upstream removes the rules of an address without its marker, and makes rules without one. So a marker may exist whose rules
    /// are of a container that upstream attached later. There are two signs of that:
    ///
    /// 1. Any address has rules and no marker: upstream is in use on this host, so each address may be concerned.
    /// 2. The rules of an address come after those of an address that was marked later. Rules are added in the order of their
    ///    markers, so these rules were removed and made again.
    fn possibly_upstreams(&self, filter: &ClaimFilter) -> Vec<Claim> {
        let marked = self.marked_addresses();
        let accepted = self.accepted_addresses();
        let is_upstream_in_use = accepted.iter().any(|address| !marked.contains_key(address));
        let made_again = made_again(&accepted, &marked);
        let mut claims = Vec::new();
        for claim in self.of_owner(filter) {
            let Claim::Address(address) = claim else { continue };
            if is_upstream_in_use || made_again.contains(&address) {
                claims.push(claim);
            }
        }
        claims
    }

    /// By address: the position of its first marker.
    fn marked_addresses(&self) -> HashMap<IpAddr, usize> {
        let mut marked = HashMap::new();
        for (position, marker) in self.markers.iter().enumerate() {
            if let Claim::Address(address) = marker.claim {
                marked.entry(address).or_insert(position);
            }
        }
        marked
    }

    /// The addresses whose packets are accepted, in the order of the rules.
    fn accepted_addresses(&self) -> Vec<IpAddr> {
        let mut addresses = Vec::new();
        for rule in self.table.rules(FORWARD) {
            if rule.target() == Some("ACCEPT") && rule.comment().is_none() {
                addresses.extend(rule.source_address());
            }
        }
        addresses
    }

    /// Logs the claims of [`Claims::possibly_upstreams`] that have rules.
    fn log_staying(&self, claims: &[Claim]) {
        for claim in claims {
            let Claim::Address(address) = claim else { continue };
            if self.has_all(claim) {
                let why = "the upstream plugins may have made them for another container";
                log::warn(format_args!("the rules that accept {address} stay: {why}; its DEL removes them"));
            }
        }
    }

    /// Removes claims except the wanted ones. A rule is removed unless a claim that stays has it too.
    fn remove(&self, filter: &ClaimFilter, wanted: &[Claim], upstream: &[Claim], edits: &mut Edits) {
        let is_ending = |marker: &Marker| (filter.is_owner)(marker.mark) && !wanted.contains(&marker.claim);
        let mut ending = Vec::new();
        for marker in self.markers.iter().filter(|marker| is_ending(marker)) {
            ending.push(marker.claim.clone());
        }
        ending.extend(filter.unmarked.iter().copied().map(Claim::Address));
        ending.dedup();
        let subjects: HashSet<Subject> = ending.iter().chain(wanted).map(Claim::subject).collect();
        let is_affected = |claim: &Claim| subjects.contains(&claim.subject());
        let mut without_rules = Vec::new();
        let mut others = Vec::new();
        // There may be many other markers, so each is inspected once.
        for marker in &self.markers {
            if (filter.is_owner)(marker.mark) || !is_affected(&marker.claim) {
                continue;
            }
            if self.is_without_rules(&marker.claim) {
                without_rules.push(marker);
            } else {
                others.push(marker);
            }
        }
        // Where a script has loaded the rules again, a marker is there twice. One call removes both.
        let mut gone = HashSet::new();
        for marker in self.markers.iter().filter(|marker| is_ending(marker)).chain(without_rules) {
            if gone.insert(marker.rule) {
                edits.gone(self.table, OWNERS, marker.rule);
            }
        }
        let by_upstream = self.unclaimed(&ending.iter().flat_map(Claim::sharing).collect::<Vec<_>>());
        let staying = others.iter().map(|marker| &marker.claim).chain(wanted).chain(upstream).chain(&by_upstream);
        // Rules that stay, then also rules that are removed already.
        let mut handled: HashSet<(&str, IptablesRule)> =
            staying.filter(|claim| is_affected(claim)).flat_map(Claim::rules).collect();
        for (chain, rule) in ending.iter().flat_map(Claim::rules) {
            if handled.insert((chain, rule.clone())) {
                edits.gone(self.table, chain, &rule);
            }
        }
    }

    /// The edits that these claims need, with the chains and jumps that all share.
    pub(super) fn missing(&self, wanted: &[Claim], admin: &str) -> Edits {
        let mut edits = Edits::default();
        let table = self.table;
        let isolates = wanted.iter().any(|claim| matches!(claim, Claim::Bridge(_)));
        edits.chain(table, FORWARD);
        edits.admin_chain(table, admin);
        if isolates {
            edits.chain(table, STAGE_1);
            edits.chain(table, STAGE_2);
        }
        self.entry(isolates, &mut edits);
        let overrides = IptablesRule::any().commented(OVERRIDES).jump(admin);
        edits.first(table, FORWARD, vec![overrides], |rule| rule.comment() != Some(OVERRIDES));
        wanted.iter().for_each(|claim| self.rules_of(claim, &mut edits));
        if isolates {
            edits.last(table, STAGE_1, returning());
            edits.last(table, STAGE_2, returning());
        }
        edits
    }

    /// The jumps for isolation come before those that accept, and both before rules of other programs. Other releases of upstream
    /// have another comment.
    fn entry(&self, isolates: bool, edits: &mut Edits) {
        let stage_1 = IptablesRule::any().commented(ISOLATION).jump(STAGE_1);
        let forward = IptablesRule::any().commented(RULES).jump(FORWARD);
        let jumps_to = |to| self.table.rules(ENTRY).filter(move |rule| rule.target() == Some(to)).cloned();
        let mut rules: Vec<IptablesRule> = Vec::new();
        let stages = jumps_to(STAGE_1).chain(isolates.then_some(stage_1));
        for rule in stages.chain(jumps_to(FORWARD)).chain([forward]) {
            if !rules.contains(&rule) {
                rules.push(rule);
            }
        }
        edits.first(self.table, ENTRY, rules, |_| true);
    }

    fn rules_of(&self, claim: &Claim, edits: &mut Edits) {
        match claim {
            Claim::Address(_) => {
                claim.rules().into_iter().for_each(|(chain, rule)| edits.last(self.table, chain, rule));
            }
            Claim::Bridge(isolation) => {
                edits.first(self.table, STAGE_1, isolation.stage_1(), ends_stage);
                edits.first(self.table, STAGE_2, vec![isolation.stage_2()], ends_stage);
            }
        }
    }
}

impl Claim {
    /// The claims that may share rules with this one.
    fn sharing(&self) -> Vec<Claim> {
        match self {
            Claim::Address(_) => Vec::new(),
            Claim::Bridge(Isolation { bridge, .. }) => {
                let with = |within| Claim::Bridge(Isolation { bridge: bridge.clone(), within });
                [false, true].map(with).to_vec()
            }
        }
    }
}

/// The addresses whose rules come after those of an address that was marked later.
fn made_again(accepted: &[IpAddr], marked: &HashMap<IpAddr, usize>) -> HashSet<IpAddr> {
    let mut made_again = HashSet::new();
    let mut last_marked = 0;
    for address in accepted {
        let Some(position) = marked.get(address).copied() else { continue };
        if position < last_marked {
            made_again.insert(*address);
        }
        last_marked = last_marked.max(position);
    }
    made_again
}

fn returning() -> IptablesRule {
    IptablesRule::any().commented(ISOLATION).jump("RETURN")
}

/// Whether packets that the rule matches pass no rule behind it.
fn ends_stage(rule: &IptablesRule) -> bool {
    matches!(rule.target(), Some("RETURN" | "ACCEPT"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cnikit_testkit::own_process::processor_time;

    use super::*;

    /// The number of edits of a GC for which owner n is stale, with these rules: `+n` accepts address n, `mn` is its marker.
    fn swept(lines: &[&str], n: u32) -> usize {
        let line = |what: &&str| match what.split_at(1) {
            ("+", n) => format!(
                "-A {FORWARD} -d 10.77.0.{n}/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n\
                 -A {FORWARD} -s 10.77.0.{n}/32 -j ACCEPT\n"
            ),
            ("#", n) => format!("-A {FORWARD} -s 10.77.0.{n}/32 -m comment --comment theirs -j ACCEPT\n"),
            (_, n) => format!("-A {OWNERS} -s 10.77.0.{n}/32 -m comment --comment cnikit:{:016x}:{n:0>32}\n", 1),
        };
        let rules: String = lines.iter().map(line).collect();
        let said = format!("*filter\n:{FORWARD} - [0:0]\n:{OWNERS} - [0:0]\n{rules}COMMIT\n");
        let table = Table::read(&said, "filter", "").unwrap();
        let context = format!("cnikit:{:016x}:{n:0>32}", 1);
        let going = ClaimFilter { is_owner: &|mark| mark == context, unmarked: &[], is_gc: true };
        Claims::of(&table).released(&going).drifts("filter").len()
    }

    #[test]
    fn a_gc_leaves_rules_that_upstream_may_have_made_for_another_container() {
        const ALL: usize = 3;
        const MARKER: usize = 1;
        assert_eq!(swept(&["+1", "+2", "+3", "m1", "m2", "m3"], 2), ALL);
        assert_eq!(swept(&["+1", "+3", "+2", "m1", "m2", "m3"], 2), MARKER, "made again since");
        assert_eq!(swept(&["+1", "+3", "+2", "m1", "m2", "m3"], 3), ALL);
        assert_eq!(swept(&["+1", "+2", "+9", "m1", "m2"], 2), MARKER, "the reference writes here");
        assert_eq!(swept(&["+1", "+2", "#9", "m1", "m2"], 2), ALL, "a rule of an operator, with a comment");
    }

    /// Each marker compared with each rule, this takes minutes.
    #[test]
    fn a_removal_compares_its_markers_with_all_rules_once() {
        let rules = |n: u32| {
            let address = format!("10.77.{}.{}/32", n / 250, n % 250);
            format!(
                "-A {FORWARD} -d {address} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n\
                 -A {FORWARD} -s {address} -j ACCEPT\n\
                 -A {OWNERS} -s {address} -m comment --comment cnikit:{:016x}:{n:032x}\n",
                1
            )
        };
        let all: String = (0..10_000).map(rules).collect();
        let said = format!("*filter\n:{FORWARD} - [0:0]\n:{OWNERS} - [0:0]\n{all}COMMIT\n");
        let table = Table::read(&said, "filter", "").unwrap();
        let own = format!("cnikit:{:016x}:{:032x}", 1, 5);
        let begun = processor_time();
        let edits =
            Claims::of(&table).released(&ClaimFilter { is_owner: &|mark| mark == own, unmarked: &[], is_gc: false });
        assert_eq!(edits.drifts("filter").len(), 3, "{edits:?}");
        let took = processor_time().saturating_sub(begun);
        assert!(took < Duration::from_secs(10), "{took:?}");
    }
}

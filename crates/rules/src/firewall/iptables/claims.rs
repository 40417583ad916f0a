//! What of the shared chains belongs to whom.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use cnikit_iptables::{IptablesRule, Table};
use cnikit_resources::alias;
use cnikit_skel::log;
use ipnetwork::IpNetwork;

use super::super::demand::Isolation;
use super::edits::Edits;

/// The kernel's chain for what passes through.
const ENTRY: &str = "FORWARD";
/// The rules of addresses.
const FORWARD: &str = "CNI-FORWARD";
/// What isolated bridges send.
const STAGE_1: &str = "CNI-ISOLATION-STAGE-1";
/// Where it may not go.
const STAGE_2: &str = "CNI-ISOLATION-STAGE-2";
/// The markers. No packet walks it.
const OWNERS: &str = "CNI-FORWARD-OWNERS";

const RULES: &str = "CNI firewall plugin rules";
const OVERRIDES: &str = "CNI firewall plugin admin overrides";
const ISOLATION: &str = "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)";

/// Whether a chain is one of those that claims are about.
pub(super) fn is_ours(chain: &str) -> bool {
    [FORWARD, STAGE_1, STAGE_2, OWNERS].contains(&chain)
}

/// What somebody wants rules for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// What this address sends, and what answers it.
    Address(IpAddr),
    /// A bridge that is cut off.
    Bridge(Isolation),
}

impl Claim {
    /// The rules that it takes, and their chains.
    fn rules(&self) -> Vec<(&'static str, IptablesRule)> {
        match self {
            Claim::Address(address) => {
                let answers = IptablesRule::any().destination(IpNetwork::from(*address)).established().jump("ACCEPT");
                vec![(FORWARD, answers), (FORWARD, IptablesRule::any().source(*address).jump("ACCEPT"))]
            }
            Claim::Bridge(isolation) => {
                let stage_1 = isolation.stage_1().into_iter().map(|rule| (STAGE_1, rule));
                stage_1.chain([(STAGE_2, isolation.stage_2())]).collect()
            }
        }
    }

    /// What says whose it is.
    fn marker(&self, owner: &str) -> IptablesRule {
        let matches = match self {
            Claim::Address(address) => IptablesRule::any().source(*address),
            Claim::Bridge(Isolation { bridge, within: false }) => IptablesRule::any().from(bridge),
            Claim::Bridge(Isolation { bridge, within: true }) => IptablesRule::any().from(bridge).to(bridge),
        };
        matches.commented(owner)
    }

    /// What a marker is about.
    fn of(marker: &IptablesRule) -> Option<Claim> {
        let of_bridge = |bridge: &str| {
            Claim::Bridge(Isolation { bridge: bridge.to_owned(), within: marker.to_interface().is_some() })
        };
        marker.source_address().map(Claim::Address).or_else(|| marker.from_interface().map(of_bridge))
    }

    /// Only claims that are about the same may share rules.
    fn about(&self) -> About<'_> {
        match self {
            Claim::Address(address) => About::Address(*address),
            Claim::Bridge(Isolation { bridge, .. }) => About::Bridge(bridge),
        }
    }
}

#[derive(PartialEq, Eq, Hash)]
enum About<'a> {
    Address(IpAddr),
    Bridge(&'a str),
}

impl Isolation {
    fn stage_1(&self) -> Vec<IptablesRule> {
        let policy = if self.within { "isolated" } else { "same-bridge" };
        let (from, comment) = (IptablesRule::any().from(&self.bridge), format!("{RULES} (ingressPolicy: {policy})"));
        let within = self.within.then(|| from.clone().to(&self.bridge).commented(&comment).jump("DROP"));
        within.into_iter().chain([from.not_to(&self.bridge).commented(&comment).jump(STAGE_2)]).collect()
    }

    fn stage_2(&self) -> IptablesRule {
        IptablesRule::any().to(&self.bridge).commented(ISOLATION).jump("DROP")
    }
}

/// Whose claims end: those whose marks are so, and of nobody's those for these addresses.
pub(super) struct ClaimFilter<'a> {
    pub(super) is_owner: &'a dyn Fn(&str) -> bool,
    pub(super) unmarked: &'a [IpAddr],
    /// Nobody says that they are to end, but that they are not among those that live: what may be another's by now stays.
    pub(super) is_gc: bool,
}

/// One table, and what its markers say.
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
            let (mark, claim) = (alias::mark(rule.comment()?)?, Claim::of(rule)?);
            Some(Marker { rule, mark, claim })
        };
        Claims { table, markers: table.rules(OWNERS).filter_map(read).collect() }
    }

    /// What some owner claims.
    pub(super) fn of_owner(&self, filter: &ClaimFilter) -> Vec<Claim> {
        let own = self.markers.iter().filter(|marker| (filter.is_owner)(marker.mark));
        own.map(|marker| marker.claim.clone()).collect()
    }

    /// Those of which all rules stand, and no marker says whose they are: the reference's.
    pub(super) fn unclaimed(&self, among: &[Claim]) -> Vec<Claim> {
        let claimed = |claim: &Claim| self.markers.iter().any(|marker| marker.claim == *claim);
        among.iter().filter(|claim| !claimed(claim) && self.stands(claim)).cloned().collect()
    }

    /// Whether a rule stands that one of these takes.
    pub(super) fn has_any(&self, wanted: &[Claim]) -> bool {
        wanted.iter().flat_map(Claim::rules).any(|(chain, rule)| self.has(chain, &rule))
    }

    fn has(&self, chain: &str, rule: &IptablesRule) -> bool {
        self.table.rules(chain).any(|found| found == rule)
    }

    fn stands(&self, claim: &Claim) -> bool {
        claim.rules().iter().all(|(chain, rule)| self.has(chain, rule))
    }

    /// Somebody else has removed the rules of an address whole: whatever marker is left of them speaks for nobody.
    fn is_void(&self, claim: &Claim) -> bool {
        matches!(claim, Claim::Address(_)) && claim.rules().iter().all(|(chain, rule)| !self.has(chain, rule))
    }

    /// What has to change so that an owner has this, and nothing else of his own.
    pub(super) fn edits_for(&self, owner: &str, wanted: &[Claim], admin: &str, stood: &[Claim]) -> Edits {
        let mut edits = self.missing(wanted, admin);
        self.hand_over(owner, wanted, stood, &mut edits);
        edits
    }

    /// The same without the frame that all share.
    pub(super) fn put_back(&self, owner: &str, wanted: &[Claim], stood: &[Claim]) -> Edits {
        let mut edits = Edits::default();
        wanted.iter().for_each(|claim| self.rules_of(claim, &mut edits));
        self.hand_over(owner, wanted, stood, &mut edits);
        edits
    }

    /// Markers of this owner for what he wants, and what he had besides goes.
    fn hand_over(&self, owner: &str, wanted: &[Claim], stood: &[Claim], edits: &mut Edits) {
        let own = |mark: &str| owner.starts_with(mark);
        self.end(&ClaimFilter { is_owner: &own, unmarked: &[], is_gc: false }, wanted, stood, edits);
        let bridges = |claim: &&Claim| matches!(claim, Claim::Bridge(_));
        // A bridge that the reference isolated is the reference's: it may have more containers than have markers.
        let theirs: Vec<Claim> = self.unclaimed(wanted).iter().filter(bridges).cloned().collect();
        for claim in wanted.iter().filter(|claim| !theirs.contains(claim)) {
            if !self.markers.iter().any(|marker| own(marker.mark) && marker.claim == *claim) {
                edits.chain(self.table, OWNERS);
                edits.last(self.table, OWNERS, claim.marker(owner));
            }
        }
        edits.chain_gone_if_empty(self.table, OWNERS);
    }

    /// What has to change so that the claims of these owners end.
    pub(super) fn released(&self, filter: &ClaimFilter) -> Edits {
        let mut edits = Edits::default();
        let doubtful = if filter.is_gc { self.doubtful(filter) } else { Vec::new() };
        self.end(filter, &[], &doubtful, &mut edits);
        edits.chain_gone_if_empty(self.table, OWNERS);
        edits
    }

    /// Addresses whose rules may have been removed and made again since they were marked, by the reference, which marks nothing:
    /// it writes here, or they stand behind those that were marked later.
    fn doubtful(&self, filter: &ClaimFilter) -> Vec<Claim> {
        let mut marked = HashMap::new();
        self.markers.iter().enumerate().for_each(|(place, marker)| {
            marked.entry(marker.claim.about()).or_insert(place);
        });
        let accepts = |rule: &&IptablesRule| rule.target() == Some("ACCEPT") && rule.comment().is_none();
        let standing = self.table.rules(FORWARD).filter(accepts).filter_map(IptablesRule::source_address);
        let places: Vec<Option<usize>> =
            standing.map(|address| marked.get(&About::Address(address)).copied()).collect();
        let theirs = places.contains(&None);
        let (mut last, mut late) = (0, HashSet::new());
        for place in places.into_iter().flatten() {
            if place < last {
                late.insert(place);
            }
            last = last.max(place);
        }
        let is_doubtful =
            |claim: &Claim| theirs || marked.get(&claim.about()).is_some_and(|place| late.contains(place));
        let addresses = |claim: &Claim| matches!(claim, Claim::Address(_));
        let doubtful: Vec<Claim> =
            self.of_owner(filter).into_iter().filter(addresses).filter(|claim| is_doubtful(claim)).collect();
        for claim in doubtful.iter().filter(|claim| self.stands(claim)) {
            let Claim::Address(address) = claim else { continue };
            let why = "the reference may have made them for another container";
            log::warn(format_args!("the rules that accept {address} stay, for {why}: its DEL removes them"));
        }
        doubtful
    }

    /// Ends claims but for those that are still wanted: rules go unless they serve a claim that stays.
    fn end(&self, filter: &ClaimFilter, wanted: &[Claim], stood: &[Claim], edits: &mut Edits) {
        let ends = |marker: &Marker| (filter.is_owner)(marker.mark) && !wanted.contains(&marker.claim);
        let also = filter.unmarked.iter().copied().map(Claim::Address);
        let of_mark = self.markers.iter().filter(|marker| ends(marker)).map(|marker| marker.claim.clone());
        let mut ending: Vec<Claim> = of_mark.chain(also).collect();
        ending.dedup();
        let meant: HashSet<About> = ending.iter().chain(wanted).map(Claim::about).collect();
        let about = |claim: &Claim| meant.contains(&claim.about());
        // Whatever else stands is not looked at more than once: there may be much of it.
        let foreign = self.markers.iter().filter(|marker| !(filter.is_owner)(marker.mark) && about(&marker.claim));
        let (void, others): (Vec<&Marker>, Vec<&Marker>) = foreign.partition(|marker| self.is_void(&marker.claim));
        for marker in self.markers.iter().filter(|marker| ends(marker)).chain(void) {
            edits.gone(self.table, OWNERS, marker.rule);
        }
        let theirs = self.unclaimed(&ending.iter().flat_map(Claim::likes).collect::<Vec<_>>());
        let staying = others.iter().map(|marker| &marker.claim).chain(wanted).chain(stood).chain(&theirs);
        // Rules that stay, and those that have been removed: neither is removed for a claim.
        let mut done: HashSet<(&str, IptablesRule)> =
            staying.filter(|claim| about(claim)).flat_map(Claim::rules).collect();
        for (chain, rule) in ending.iter().flat_map(Claim::rules) {
            if done.insert((chain, rule.clone())) {
                edits.gone(self.table, chain, &rule);
            }
        }
    }

    /// What is not as these claims need it, with the frame that all share.
    pub(super) fn missing(&self, wanted: &[Claim], admin: &str) -> Edits {
        let (mut edits, table) = (Edits::default(), self.table);
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

    /// What isolates comes before what accepts, and both before what others put there. Other releases of the reference have
    /// another comment.
    fn entry(&self, isolates: bool, edits: &mut Edits) {
        let stage_1 = IptablesRule::any().commented(ISOLATION).jump(STAGE_1);
        let forward = IptablesRule::any().commented(RULES).jump(FORWARD);
        let standing = |to| self.table.rules(ENTRY).filter(move |rule| rule.target() == Some(to)).cloned();
        let mut rules: Vec<IptablesRule> = Vec::new();
        let stages = standing(STAGE_1).chain(isolates.then_some(stage_1));
        for rule in stages.chain(standing(FORWARD)).chain([forward]) {
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
    /// Claims that may share rules with this one.
    fn likes(&self) -> Vec<Claim> {
        match self {
            Claim::Address(_) => Vec::new(),
            Claim::Bridge(Isolation { bridge, .. }) => {
                let with = |within| Claim::Bridge(Isolation { bridge: bridge.clone(), within });
                [false, true].map(with).to_vec()
            }
        }
    }
}

fn returning() -> IptablesRule {
    IptablesRule::any().commented(ISOLATION).jump("RETURN")
}

/// What it matches comes to no rule behind it.
fn ends_stage(rule: &IptablesRule) -> bool {
    matches!(rule.target(), Some("RETURN" | "ACCEPT"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cnikit_testkit::alone::processor_time;

    use super::*;

    /// How many edits a GC makes to which owner n is stale, where these rules stand: `+n` accepts address n, `mn` marks it his.
    fn swept(standing: &[&str], n: u32) -> usize {
        let line = |what: &&str| match what.split_at(1) {
            ("+", n) => format!(
                "-A {FORWARD} -d 10.77.0.{n}/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n\
                 -A {FORWARD} -s 10.77.0.{n}/32 -j ACCEPT\n"
            ),
            (_, n) => format!("-A {OWNERS} -s 10.77.0.{n}/32 -m comment --comment cnikit:{:016x}:{n:0>32}\n", 1),
        };
        let lines: String = standing.iter().map(line).collect();
        let said = format!("*filter\n:{FORWARD} - [0:0]\n:{OWNERS} - [0:0]\n{lines}COMMIT\n");
        let (table, context) = (Table::read(&said, "filter", "").unwrap(), format!("cnikit:{:016x}:{n:0>32}", 1));
        let going = ClaimFilter { is_owner: &|mark| mark == context, unmarked: &[], is_gc: true };
        Claims::of(&table).released(&going).drifts("filter").len()
    }

    #[test]
    fn a_gc_leaves_rules_that_the_reference_may_have_made_for_another_container() {
        const ALL: usize = 3;
        const MARKER: usize = 1;
        assert_eq!(swept(&["+1", "+2", "+3", "m1", "m2", "m3"], 2), ALL);
        assert_eq!(swept(&["+1", "+3", "+2", "m1", "m2", "m3"], 2), MARKER, "made again since");
        assert_eq!(swept(&["+1", "+3", "+2", "m1", "m2", "m3"], 3), ALL);
        assert_eq!(swept(&["+1", "+2", "+9", "m1", "m2"], 2), MARKER, "the reference writes here");
    }

    /// Each marker compared with each rule, this takes minutes.
    #[test]
    fn an_end_costs_no_more_than_one_look_at_what_others_have() {
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

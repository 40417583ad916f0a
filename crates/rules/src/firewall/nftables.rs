//! The firewall in nftables, in a table of its own for all networks of a host.
//!
//! A packet meets a handful of rules that look it up in sets, however many containers there are. What is in the sets follows
//! from the rules in a chain that no packet walks, one for each address and bridge of each owner: so each owner has his own,
//! and an element goes with the last rule that it follows from.
//!
//! What crosses a bridge from port to port is seen by the family bridge alone, unless `br_netfilter` is there: of a bridge
//! that is isolated within, a table of that family has the same.

use cnikit_nftables::{
    Chain, Direction, Error as Refused, Field, Hook, HookKind, HookPoint, Index, IndexBy, Key, KeyType,
    LONGEST_COMMENT, Match, Nftables, OwnerFilter, Rule, Set, Side, TableFamily, TableLayout, Value, Verdict,
};
use cnikit_plan::{GcContext, ReleaseContext, RestoreBatch};
use cnikit_resources::alias::{self, Marks, cut};
use cnikit_skel::{AttachmentId, Error, Journal, Result, log};

use super::{Demand, Isolation, rules_of};
use crate::backend::{Comparison, replace, shared_nftables};
use crate::batch_restore::add_nftables;

const TABLE: &str = "cni_firewall";
const FORWARD: &str = "forward";
const ADMINS: &str = "admins";
const OWNERS: &str = "owners";

/// The sets: addresses, bridges that are cut off, and the ways through one of them, of which some are closed.
const IPV4: &str = "ipv4";
const IPV6: &str = "ipv6";
const BRIDGES: &str = "bridges";
const LOOPS: &str = "loops";
const ISOLATED: &str = "isolated";

pub(super) fn ensure(demand: &Demand, (tag, journal): (&AttachmentId, &mut Journal)) -> Result<()> {
    let nftables = Nftables::here()?;
    let what = rules_of(tag);
    let (admins, operators) = admin(demand.admin_chain.to_owned());
    nftables.replace(&admins, operators.0, &operators.1).map_err(with_hint)?;
    let rules = rules(demand, tag);
    replace(&nftables, (&forward(), filter(tag)), &rules, (&what, journal)).map_err(with_hint)?;
    let Some(within) = within(demand.isolation, tag) else {
        return give_up(&nftables, crossing, (tag, journal));
    };
    match replace(&nftables, (&crossing(), filter(tag)), &within, (&what, journal)) {
        Err(error) if is_lacking(&error) => {
            log::warn(format_args!("containers of one bridge are isolated by br_netfilter alone: {error}"));
            Ok(())
        }
        made => made.map_err(with_hint),
    }
}

/// Gathers what [`ensure`] would make; not where what is to go stands in the way.
pub(super) fn enqueue(demand: &Demand, tag: &AttachmentId, batch: &mut RestoreBatch) -> Result<bool> {
    let within = within(demand.isolation, tag);
    if within.is_none() && !Nftables::here()?.rules(&crossing(), filter(tag))?.is_empty() {
        return Ok(false);
    }
    let (admins, (operator, jump)) = admin(demand.admin_chain.to_owned());
    add_nftables(batch, admins, operator, &jump, None)?;
    add_nftables(batch, forward(), filter(tag), &rules(demand, tag), None)?;
    if let Some(within) = within {
        add_nftables(batch, crossing(), filter(tag), &within, None)?;
    }
    Ok(true)
}

pub(super) fn verify(demand: &Demand, tag: &AttachmentId) -> Result<Comparison> {
    let (nftables, (admins, operators)) = (Nftables::here()?, admin(demand.admin_chain.to_owned()));
    let any = !nftables.rules(&forward(), filter(tag))?.is_empty();
    let mut drifts = nftables.verify(&forward(), filter(tag), &rules(demand, tag))?;
    drifts.extend(nftables.verify(&admins, operators.0, &operators.1)?);
    if let Some(within) = within(demand.isolation, tag) {
        match nftables.rehearse(&crossing(), filter(tag), &within) {
            Err(error) if is_lacking(&error) => {}
            _ => drifts.extend(nftables.verify(&crossing(), filter(tag), &within)?),
        }
    }
    drifts.dedup();
    Ok(Comparison { any, drifts, ..Comparison::default() })
}

pub(super) fn release(context: &ReleaseContext) -> Result<()> {
    match shared_nftables(context.shared())? {
        Some(nftables) => clear(&nftables, &context.tag),
        None => Ok(()),
    }
}

/// Removes what a tag has; the roll-back puts it back, for it may be a running container's.
pub(super) fn forget((tag, journal): (&AttachmentId, &mut Journal)) -> Result<()> {
    let Some(nftables) = Nftables::if_any()? else { return Ok(()) };
    [crossing, forward].into_iter().try_for_each(|layout| give_up(&nftables, layout, (tag, journal)))
}

fn give_up(
    nftables: &Nftables,
    layout: fn() -> TableLayout,
    (tag, journal): (&AttachmentId, &mut Journal),
) -> Result<()> {
    let (place, owner) = (layout(), filter(tag));
    let before = nftables.rules(&place, owner.clone())?;
    if before.is_empty() {
        return Ok(());
    }
    let _ = journal.undo(&rules_of(tag), move |_| Nftables::here()?.put_back(&layout(), owner, &before));
    nftables.release(&place, filter(tag)).map(drop).map_err(with_hint)
}

fn clear(nftables: &Nftables, tag: &AttachmentId) -> Result<()> {
    Ok([crossing(), forward()].iter().try_for_each(|layout| nftables.release(layout, filter(tag)).map(drop))?)
}

pub(super) fn sweep(context: &GcContext) -> Result<()> {
    let Some(nftables) = shared_nftables(context.shared())? else { return Ok(()) };
    let (marks, network) = (Marks::of(context), OwnerFilter::Commented(alias::network_mark(&context.network)));
    let keep = |comment: &str| !marks.is_stale_text(comment);
    [crossing(), forward()].iter().try_for_each(|layout| nftables.sweep(layout, network.clone(), keep).map(drop))?;
    Ok(())
}

/// Whether the kernel has what it takes, tried with rules like those of an attachment, of which none will ever be.
pub(super) fn available() -> Result<()> {
    let nobody = AttachmentId { network: String::new(), container: String::new(), ifname: String::new() };
    let rules = [rule(vec![Match::Source([127, 0, 0, 1].into())], Verdict::Accept)];
    Nftables::here().and_then(|here| here.rehearse(&forward(), filter(&nobody), &rules)).map_err(with_hint)
}

/// By the comment too: the owner is lost where somebody loads what `nft list ruleset` printed.
fn filter(tag: &AttachmentId) -> OwnerFilter {
    OwnerFilter::Owned { owner: alias::mark_of(tag), comment: Some(words(tag)) }
}

/// What an attachment has in the chain of owners.
fn rules(demand: &Demand, tag: &AttachmentId) -> Vec<Rule> {
    let addresses = demand
        .addresses
        .iter()
        .filter(|_| demand.accepts)
        .map(|address| (vec![Match::Source(*address)], Verdict::Accept));
    let bridge =
        demand.isolation.map(|isolation| (through(isolation, [Direction::In, Direction::Out]), verdict(isolation)));
    let owned = |(matches, verdict)| Rule { matches, verdict, comment: Some(words(tag)) };
    addresses.chain(bridge).map(owned).collect()
}

/// The same for what crosses a bridge.
fn within(isolation: Option<&Isolation>, tag: &AttachmentId) -> Option<Vec<Rule>> {
    let isolation = isolation.filter(|isolation| isolation.within)?;
    let matches = through(isolation, [Direction::InBridge, Direction::OutBridge]);
    Some(vec![Rule { matches, verdict: Verdict::Drop, comment: Some(words(tag)) }])
}

fn through(isolation: &Isolation, ways: [Direction; 2]) -> Vec<Match> {
    ways.map(|way| Match::Interface { way, is: true, name: isolation.bridge.clone() }).to_vec()
}

/// Of what goes from the bridge to itself.
fn verdict(isolation: &Isolation) -> Verdict {
    if isolation.within { Verdict::Drop } else { Verdict::Return }
}

/// The mark, and what people read.
fn words(tag: &AttachmentId) -> String {
    cut(alias::of(tag).replace('"', ""), LONGEST_COMMENT)
}

fn rule(matches: Vec<Match>, verdict: Verdict) -> Rule {
    Rule { matches, verdict, comment: None }
}

fn listed(fields: &[Field], is: bool, set: &str) -> Match {
    Match::InSet { fields: fields.to_vec(), is, set: set.to_owned() }
}

/// The table through which packets pass.
fn forward() -> TableLayout {
    let ways = [Field::Interface(Direction::In), Field::Interface(Direction::Out)];
    let ends = [
        Field::Ipv4(Side::Source),
        Field::Ipv4(Side::Destination),
        Field::Ipv6(Side::Source),
        Field::Ipv6(Side::Destination),
    ];
    let between =
        vec![listed(&ways[..1], true, BRIDGES), listed(&ways[1..], true, BRIDGES), listed(&ways, false, LOOPS)];
    let accept = |field: usize, set, more: Option<Match>| {
        let matches = std::iter::once(listed(&ends[field..=field], true, set)).chain(more);
        rule(matches.collect(), Verdict::Accept)
    };
    let fixed = vec![
        rule(vec![listed(&ways, true, ISOLATED)], Verdict::Drop),
        rule(between, Verdict::Drop),
        rule(Vec::new(), Verdict::Jump(ADMINS.into())),
        accept(1, IPV4, Some(Match::Established)),
        accept(0, IPV4, None),
        accept(3, IPV6, Some(Match::Established)),
        accept(2, IPV6, None),
    ];
    let way = vec![KeyType::Interface, KeyType::Interface];
    TableLayout {
        table_comment: Some("What containers send and what answers them, and what is isolated"),
        chains: vec![chain(OWNERS, None), chain(ADMINS, None), chain(FORWARD, Some(0))],
        prologue: vec![(FORWARD, fixed)],
        rule_chains: vec![OWNERS],
        indexes: vec![
            index(IPV4, vec![KeyType::Ipv4], IndexBy::Rule(ipv4)),
            index(IPV6, vec![KeyType::Ipv6], IndexBy::Rule(ipv6)),
            index(BRIDGES, vec![KeyType::Interface], IndexBy::Rule(bridge)),
            index(LOOPS, way.clone(), IndexBy::Rule(way_through)),
            index(ISOLATED, way, IndexBy::Rule(closed_way)),
            index(OWNERS, vec![KeyType::Mark, KeyType::Mark], IndexBy::Owner),
        ],
        ..TableLayout::of(TableFamily::Inet, TABLE)
    }
}

/// The table of what crosses a bridge.
fn crossing() -> TableLayout {
    let ways = [Field::Interface(Direction::InBridge), Field::Interface(Direction::OutBridge)];
    let closed = rule(vec![listed(&ways, true, ISOLATED)], Verdict::Drop);
    TableLayout {
        table_comment: Some("Bridges filter containers are isolated from each other"),
        chains: vec![chain(OWNERS, None), chain(FORWARD, Some(-200))],
        prologue: vec![(FORWARD, vec![closed])],
        rule_chains: vec![OWNERS],
        indexes: vec![
            index(ISOLATED, vec![KeyType::Interface, KeyType::Interface], IndexBy::Rule(closed_way)),
            index(OWNERS, vec![KeyType::Mark, KeyType::Mark], IndexBy::Owner),
        ],
        ..TableLayout::of(TableFamily::Bridge, TABLE)
    }
}

/// The operator's chain, and the jump there, which is all networks' that name it.
fn admin(name: String) -> (TableLayout, (OwnerFilter, [Rule; 1])) {
    let owner = format!("operator:{name}");
    let jump = Rule { comment: Some(owner.clone()), ..rule(Vec::new(), Verdict::Jump(name.clone())) };
    let layout = TableLayout {
        chains: vec![chain(ADMINS, None), chain(name.leak(), None)], // one an attachment
        rule_chains: vec![ADMINS],
        ..TableLayout::of(TableFamily::Inet, TABLE)
    };
    (layout, (OwnerFilter::Owned { comment: Some(owner.clone()), owner }, [jump]))
}

fn chain(name: &'static str, priority: Option<i32>) -> Chain {
    let hook = priority.map(|priority| Hook { kind: HookKind::Filter, hook: HookPoint::Forward, priority });
    Chain { name, comment: None, hook }
}

fn index(name: &'static str, key: Vec<KeyType>, by: IndexBy) -> Index {
    Index { set: Set { name, key, comment: None }, chains: vec![OWNERS], by }
}

fn ipv4(rule: &Rule) -> Option<Key> {
    address(rule, true)
}

fn ipv6(rule: &Rule) -> Option<Key> {
    address(rule, false)
}

fn address(rule: &Rule, is_ipv4: bool) -> Option<Key> {
    match rule.matches[..] {
        [Match::Source(address)] if address.is_ipv4() == is_ipv4 => Some(vec![Value::Address(address)]),
        _ => None,
    }
}

fn bridge(rule: &Rule) -> Option<Key> {
    match &rule.matches[..] {
        [Match::Interface { name, is: true, .. }, _] => Some(vec![Value::Interface(name.clone())]),
        _ => None,
    }
}

fn way_through(rule: &Rule) -> Option<Key> {
    bridge(rule).map(|bridge| [bridge.clone(), bridge].concat())
}

fn closed_way(rule: &Rule) -> Option<Key> {
    way_through(rule).filter(|_| rule.verdict == Verdict::Drop)
}

fn is_lacking(error: &Refused) -> bool {
    error.unsupported() || error.is_absent()
}

fn with_hint(error: Refused) -> Error {
    let hint = "load nf_tables, nft_ct and nf_conntrack (CONFIG_NF_TABLES_INET, CONFIG_NFT_CT), or say `\"backend\": \"iptables\"`";
    if is_lacking(&error) { Error::from(error).hint(hint) } else { error.into() }
}

//! The firewall in nftables, in a table of its own for all networks of a host.
//!
//! A packet passes a few rules with lookups in sets, however many containers there are. The elements of the sets are derived from
//! the rules in a chain without packets, one rule per address and bridge of each owner. So each owner has rules of its own, and an
//! element is deleted with the last rule that it is derived from.
//!
//! Packets between ports of a bridge pass only through tables of the family bridge, unless `br_netfilter` is loaded. If containers
//! of one bridge are isolated from each other, a table of that family has the same rules.

use std::sync::OnceLock;

use cnikit_nftables::{
    Chain, Direction, Field, Hook, HookKind, HookPoint, Index, IndexBy, Key, KeyType, KeyValue, LONGEST_COMMENT, Match,
    Nftables, OwnerFilter, Rule, Set, Side, TableFamily, TableLayout, Verdict,
};
use cnikit_plan::{GcContext, ReleaseContext, RestoreBatch};
use cnikit_resources::alias::{self, Marks, cut};
use cnikit_skel::{AttachmentId, Journal, Result, log};

use super::backend::BACKEND;
use super::demand::{Demand, Isolation};
use crate::backend::Comparison;
use crate::batch_restore::add_nftables;
use crate::nftables::{lacks_feature, replace, shared_nftables, unnamed};

const TABLE: &str = "cni_firewall";
const FORWARD: &str = "forward";
const ADMINS: &str = "admins";
const OWNERS: &str = "owners";

/// The sets: addresses, isolated bridges, and pairs of interfaces that are the same bridge, of which some are isolated within.
const IPV4: &str = "ipv4";
const IPV6: &str = "ipv6";
const BRIDGES: &str = "bridges";
const LOOPS: &str = "loops";
const ISOLATED: &str = "isolated";

pub(super) fn ensure(demand: &Demand, tag: &AttachmentId, journal: &mut Journal) -> Result<()> {
    let nftables = Nftables::here()?;
    let undo_name = BACKEND.undo_name(tag);
    let admin = admin_jump(demand.admin_chain.to_owned());
    nftables.replace(&admin.layout, admin.filter, &admin.rules).map_err(|error| BACKEND.explained_nftables(error))?;
    let rules = rules(demand, tag);
    replace(&nftables, &forward(), filter(tag), &rules, &undo_name, journal)
        .map_err(|error| BACKEND.explained_nftables(error))?;
    let Some(within) = within(demand.isolation, tag) else {
        return release_table(&nftables, bridged, tag, journal);
    };
    match replace(&nftables, &bridged(), filter(tag), &within, &undo_name, journal) {
        Ok(()) => Ok(()),
        Err(error) if lacks_feature(&error) => {
            log::warn(format_args!("containers of one bridge are isolated by br_netfilter alone: {error}"));
            Ok(())
        }
        Err(error) => Err(BACKEND.explained_nftables(error)),
    }
}

/// Adds the rules of [`ensure`] to the batch. Returns false if rules have to be removed too.
pub(super) fn enqueue(demand: &Demand, tag: &AttachmentId, batch: &mut RestoreBatch) -> Result<bool> {
    let within = within(demand.isolation, tag);
    if within.is_none() && !Nftables::here()?.rules(&bridged(), filter(tag))?.is_empty() {
        return Ok(false);
    }
    let admin = admin_jump(demand.admin_chain.to_owned());
    add_nftables(batch, admin.layout, admin.filter, &admin.rules, None)?;
    add_nftables(batch, forward(), filter(tag), &rules(demand, tag), None)?;
    if let Some(within) = within
        && has_bridge_rules(tag, &within)?
    {
        add_nftables(batch, bridged(), filter(tag), &within, None)?;
    }
    Ok(true)
}

/// Whether the kernel has what rules of bridges need, of which ADD has warned otherwise. A process asks it once, with rules of any
/// attachment.
fn has_bridge_rules(tag: &AttachmentId, within: &[Rule]) -> Result<bool> {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    if let Some(known) = KNOWN.get() {
        return Ok(*known);
    }
    let rehearsed = Nftables::here()?.rehearse(&bridged(), filter(tag), within);
    Ok(*KNOWN.get_or_init(|| !rehearsed.is_err_and(|error| lacks_feature(&error))))
}

pub(super) fn verify(demand: &Demand, tag: &AttachmentId) -> Result<Comparison> {
    let nftables = Nftables::here()?;
    let admin = admin_jump(demand.admin_chain.to_owned());
    let any = !nftables.rules(&forward(), filter(tag))?.is_empty();
    let mut drifts = nftables.verify(&forward(), filter(tag), &rules(demand, tag))?;
    drifts.extend(nftables.verify(&admin.layout, admin.filter, &admin.rules)?);
    if let Some(within) = within(demand.isolation, tag) {
        match nftables.rehearse(&bridged(), filter(tag), &within) {
            Err(error) if lacks_feature(&error) => {}
            _ => drifts.extend(nftables.verify(&bridged(), filter(tag), &within)?),
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

/// Removes the rules of an attachment. The roll-back puts them back, since the container may run.
pub(super) fn remove(tag: &AttachmentId, journal: &mut Journal) -> Result<()> {
    let Some(nftables) = Nftables::if_any()? else { return Ok(()) };
    [bridged, forward].into_iter().try_for_each(|layout| release_table(&nftables, layout, tag, journal))
}

fn release_table(
    nftables: &Nftables,
    layout: fn() -> TableLayout,
    tag: &AttachmentId,
    journal: &mut Journal,
) -> Result<()> {
    let table = layout();
    let owner = filter(tag);
    let before = nftables.rules(&table, owner.clone())?;
    if before.is_empty() {
        return Ok(());
    }
    let _ = journal.undo(&BACKEND.undo_name(tag), move |_| Nftables::here()?.put_back(&layout(), owner, &before));
    nftables.release(&table, filter(tag)).map(drop).map_err(|error| BACKEND.explained_nftables(error))
}

fn clear(nftables: &Nftables, tag: &AttachmentId) -> Result<()> {
    Ok([bridged(), forward()].iter().try_for_each(|layout| nftables.release(layout, filter(tag)).map(drop))?)
}

pub(super) fn sweep(context: &GcContext) -> Result<()> {
    let Some(nftables) = shared_nftables(context.shared())? else { return Ok(()) };
    let marks = Marks::of(context);
    let network = OwnerFilter::Commented(alias::network_mark(&context.network));
    let keep = |comment: &str| !marks.is_stale_text(comment);
    [bridged(), forward()].iter().try_for_each(|layout| nftables.sweep(layout, network.clone(), keep).map(drop))?;
    Ok(())
}

/// Checks for STATUS that the kernel supports these rules, by trying those of an attachment without a name.
pub(super) fn available() -> Result<()> {
    let unnamed = unnamed();
    let rules = [rule(vec![Match::Source([127, 0, 0, 1].into())], Verdict::Accept)];
    Nftables::here()
        .and_then(|here| here.rehearse(&forward(), filter(&unnamed), &rules))
        .map_err(|error| BACKEND.explained_nftables(error))
}

/// The rules of an attachment, by owner or comment: the owner is lost if the output of `nft list ruleset` is loaded.
fn filter(tag: &AttachmentId) -> OwnerFilter {
    OwnerFilter::Owned { owner: alias::mark_of(tag), comment: Some(comment(tag)) }
}

/// The rules of an attachment in the chain of owners.
fn rules(demand: &Demand, tag: &AttachmentId) -> Vec<Rule> {
    let mut rules = Vec::new();
    if demand.accepts {
        for address in demand.addresses {
            rules.push(rule(vec![Match::Source(*address)], Verdict::Accept));
        }
    }
    if let Some(isolation) = demand.isolation {
        rules.push(rule(through(isolation, [Direction::In, Direction::Out]), verdict(isolation)));
    }
    let comment = comment(tag);
    for rule in &mut rules {
        rule.comment = Some(comment.clone());
    }
    rules
}

/// The same for packets between ports of a bridge.
fn within(isolation: Option<&Isolation>, tag: &AttachmentId) -> Option<Vec<Rule>> {
    let isolation = isolation?;
    if !isolation.within {
        return None;
    }
    let matches = through(isolation, [Direction::InBridge, Direction::OutBridge]);
    Some(vec![Rule { matches, verdict: Verdict::Drop, comment: Some(comment(tag)) }])
}

fn through(isolation: &Isolation, ways: [Direction; 2]) -> Vec<Match> {
    ways.map(|way| Match::Interface { way, is: true, name: isolation.bridge.clone() }).to_vec()
}

/// The verdict on packets from the bridge to itself.
fn verdict(isolation: &Isolation) -> Verdict {
    if isolation.within { Verdict::Drop } else { Verdict::Return }
}

/// The mark, and the names of the attachment.
fn comment(tag: &AttachmentId) -> String {
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
    let accept = |field: usize, set| rule(vec![listed(&ends[field..=field], true, set)], Verdict::Accept);
    let accept_replies =
        |field: usize, set| rule(vec![listed(&ends[field..=field], true, set), Match::Established], Verdict::Accept);
    let prologue = vec![
        rule(vec![listed(&ways, true, ISOLATED)], Verdict::Drop),
        rule(between, Verdict::Drop),
        rule(Vec::new(), Verdict::Jump(ADMINS.into())),
        accept_replies(1, IPV4),
        accept(0, IPV4),
        accept_replies(3, IPV6),
        accept(2, IPV6),
    ];
    let way = vec![KeyType::Interface, KeyType::Interface];
    TableLayout {
        table_comment: Some("What containers send and what answers them, and what is isolated"),
        chains: vec![chain(OWNERS, None), chain(ADMINS, None), chain(FORWARD, Some(0))],
        prologue: vec![(FORWARD, prologue)],
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

/// The table for packets between ports of a bridge.
fn bridged() -> TableLayout {
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

/// The jump to the operator's chain, which all networks with this chain share.
struct AdminJump {
    layout: TableLayout,
    filter: OwnerFilter,
    rules: [Rule; 1],
}

fn admin_jump(name: String) -> AdminJump {
    let owner = format!("operator:{name}");
    let jump = Rule { comment: Some(owner.clone()), ..rule(Vec::new(), Verdict::Jump(name.clone())) };
    let layout = TableLayout {
        chains: vec![chain(ADMINS, None), chain(name.leak(), None)], // one per attachment
        rule_chains: vec![ADMINS],
        ..TableLayout::of(TableFamily::Inet, TABLE)
    };
    let filter = OwnerFilter::Owned { comment: Some(owner.clone()), owner };
    AdminJump { layout, filter, rules: [jump] }
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
        [Match::Source(address)] if address.is_ipv4() == is_ipv4 => Some(vec![KeyValue::Address(address)]),
        _ => None,
    }
}

fn bridge(rule: &Rule) -> Option<Key> {
    match &rule.matches[..] {
        [Match::Interface { name, is: true, .. }, _] => Some(vec![KeyValue::Interface(name.clone())]),
        _ => None,
    }
}

fn way_through(rule: &Rule) -> Option<Key> {
    bridge(rule).map(|bridge| [bridge.clone(), bridge].concat())
}

fn closed_way(rule: &Rule) -> Option<Key> {
    if rule.verdict == Verdict::Drop { way_through(rule) } else { None }
}

#[cfg(test)]
mod tests;

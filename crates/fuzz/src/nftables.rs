//! Fuzz targets: tables, chains and rules of `nf_tables`.

use std::net::SocketAddr;

use arbitrary::{Result, Unstructured};
use cnikit_nftables::{
    Direction, Field, InstalledRule, KeyType, L4Protocol, Layer, Mac, Match, Rule, Set, Side, TableFamily, TableLayout,
    Verdict, testing,
};
use ipnetwork::IpNetwork;

use crate::values::{ip, network, repeat};

const FAMILIES: [TableFamily; 4] = [TableFamily::Inet, TableFamily::Ip, TableFamily::Ip6, TableFamily::Bridge];

const WAYS: [Direction; 4] = [Direction::In, Direction::Out, Direction::InBridge, Direction::OutBridge];
const SIDES: [Side; 2] = [Side::Source, Side::Destination];

/// The chain of table `t` whose rules are listed.
const CHAIN: &str = "c";
/// The least length of the headers in a message with a rule: comment and owner are shorter than the message by at least that.
const HEADERS: usize = 20;

fn layout(family: TableFamily) -> TableLayout {
    TableLayout { rule_chains: vec![CHAIN], ..TableLayout::of(family, "t") }
}

/// Parses a message as the kernel might send it, as every type.
pub(crate) fn replies(message: &[u8]) {
    let set = Set { name: "s", key: vec![KeyType::Protocol, KeyType::Port], comment: None };
    testing::is_set(message, &set);
    if let Some((hook, _)) = testing::chain(message) {
        assert!(hook.is_none_or(|hook| hook.contains("hook")));
    }
    testing::is_working(message);
    for family in FAMILIES {
        let layout = layout(family);
        if let Some(found) = testing::rule(message, &layout, CHAIN) {
            rule(&found, &layout, message.len());
            let _ = cnikit_iptables::iptables_rule(&found, family);
        }
    }
}

/// Checks a rule that any program may have made: it can be printed, and if we have a [`Rule`] for it, that is sent as the same
/// rule.
fn rule(found: &InstalledRule, layout: &TableLayout, length: usize) {
    assert_eq!(found.chain(), CHAIN);
    assert!(!found.to_string().is_empty());
    // Each byte that is not UTF-8 becomes three bytes (U+FFFD).
    let text = [found.comment(), found.owner()].into_iter().flatten().map(str::len).sum::<usize>();
    assert!(text <= 3 * length.saturating_sub(HEADERS));
    let Some(meant) = found.rule() else { return };
    assert_eq!(meant.comment.as_deref(), found.comment());
    let Ok(message) = testing::dumped_rule(meant, layout, CHAIN, found.owner(), found.handle()) else {
        let valid_comment = found.comment().is_none_or(is_valid_comment);
        let valid_owner = found.owner().is_none_or(|owner| owner.len() <= 123);
        assert!(!valid_comment || !valid_owner, "{found} can be written");
        return;
    };
    let again = testing::rule(&message, layout, CHAIN).expect("what we write is a rule");
    assert_eq!((again.rule(), again.comment(), again.owner()), (Some(meant), found.comment(), found.owner()));
    assert_eq!((again.handle(), again.to_string()), (found.handle(), found.to_string()));
}

fn is_valid_comment(text: &str) -> bool {
    text.len() <= 128 && !text.contains(|letter: char| letter == '"' || letter.is_control())
}

/// Makes random rules, and checks that the kernel's listing of each is parsed as the same rule of the same owner.
pub(crate) fn sent(data: &[u8]) {
    repeat(data, sent_once);
}

fn sent_once(bytes: &mut Unstructured<'_>) -> Result<()> {
    let layout = layout(*bytes.choose(&FAMILIES)?);
    let rule = a_rule(bytes)?;
    let handle = bytes.arbitrary()?;
    let owner: Option<String> = bytes.arbitrary()?;
    let Ok(message) = testing::dumped_rule(&rule, &layout, CHAIN, owner.as_deref(), handle) else { return Ok(()) };
    let found = testing::rule(&message, &layout, CHAIN).expect("what we write is a rule");
    assert_eq!((found.handle(), found.comment(), found.owner()), (handle, rule.comment.as_deref(), owner.as_deref()));
    assert_eq!(testing::is_same(&found, &rule, &layout, owner.as_deref()).ok(), Some(true), "{rule}");
    assert_eq!(found.rule(), Some(&as_listed(&rule)), "{rule}");
    assert_eq!(found.to_string(), as_listed(&rule).to_string());
    let other = testing::rule(&message, &layout, "d");
    assert!(other.is_none(), "a rule of one chain is none of another");
    assert_eq!(
        testing::is_same(&found, &rule, &layout, Some("other")).ok(),
        Some(owner.as_deref() == Some("other")),
        "{rule}"
    );
    Ok(())
}

/// Returns the rule as the kernel lists it: networks without host bits, a network of one address as that address, and no match of
/// the protocol if a match of a port implies it.
fn as_listed(rule: &Rule) -> Rule {
    let mut matches = Vec::new();
    let mut checked = None;
    for (index, found) in rule.matches.iter().enumerate() {
        let next = rule.matches[index + 1..].iter().find(|next| !repeats_protocol(next, found));
        match found {
            Match::Protocol(protocol) if checked.replace(*protocol).is_some() => {}
            Match::Protocol(_) if matches!(next, Some(Match::Port { .. })) => {}
            Match::Port { protocol, .. } => {
                checked = Some(*protocol);
                matches.push(found.clone());
            }
            other => matches.push(without_host_bits(other)),
        }
    }
    Rule { matches, ..rule.clone() }
}

/// Returns the match as the kernel lists it: networks without host bits, a network of one address as that address.
fn without_host_bits(found: &Match) -> Match {
    let network = |network: &IpNetwork| IpNetwork::new(network.network(), network.prefix()).expect("as long as it was");
    match found {
        Match::SourceIn(from) if *from == IpNetwork::from(from.ip()) => Match::Source(from.ip()),
        Match::SourceIn(from) => Match::SourceIn(network(from)),
        Match::SourceNotIn(from) => Match::SourceNotIn(network(from)),
        Match::DestinationIn(to) => Match::DestinationIn(network(to)),
        Match::DestinationNotIn(to) => Match::DestinationNotIn(network(to)),
        other => other.clone(),
    }
}

/// Whether both are matches of the same protocol.
fn repeats_protocol(one: &Match, before: &Match) -> bool {
    matches!((one, before), (Match::Protocol(one), Match::Protocol(before)) if one == before)
}

fn a_rule(bytes: &mut Unstructured<'_>) -> Result<Rule> {
    let count = bytes.int_in_range(0..=4)?;
    let matches = (0..count).map(|_| a_match(bytes)).collect::<Result<_>>()?;
    let verdict = match bytes.int_in_range(0..=6)? {
        0 => Verdict::Masquerade,
        1 => Verdict::Return,
        2 => Verdict::Jump(text(bytes)?),
        3 => Verdict::Goto(text(bytes)?),
        4 => Verdict::Accept,
        5 => Verdict::Dnat(SocketAddr::new(ip(bytes)?, bytes.arbitrary()?)),
        _ => Verdict::Drop,
    };
    Ok(Rule { matches, verdict, comment: bytes.arbitrary()? })
}

fn a_match(bytes: &mut Unstructured<'_>) -> Result<Match> {
    let is = bytes.arbitrary()?;
    Ok(match bytes.int_in_range(0..=14)? {
        0 => Match::Interface { way: *bytes.choose(&WAYS)?, is, name: text(bytes)? },
        1 => Match::SourceMac(Mac(bytes.arbitrary()?)),
        2 => Match::Source(ip(bytes)?),
        3 => Match::SourceIn(network(bytes)?),
        4 => Match::SourceNotIn(network(bytes)?),
        5 => Match::DestinationIn(network(bytes)?),
        6 => Match::DestinationNotIn(network(bytes)?),
        7 => Match::Protocol(*bytes.choose(&L4Protocol::ALL)?),
        8 => {
            let protocol = *bytes.choose(&L4Protocol::ALL)?;
            let side = *bytes.choose(&SIDES)?;
            Match::Port { protocol, side, is, port: bytes.arbitrary()? }
        }
        9 => bytes
            .choose(&[Match::LocalDestination, Match::Established, Match::CtStatusDnat, Match::OriginalDport(80)])?
            .clone(),
        12 => Match::Arp,
        13 => Match::Transport { is, number: bytes.arbitrary()? },
        14 => {
            let layer = *bytes.choose(&[Layer::Network, Layer::Transport])?;
            Match::Bytes { layer, offset: bytes.int_in_range(0..=64)?, bytes: bytes.arbitrary()? }
        }
        10 => Match::Mark { mask: bytes.arbitrary()?, is, value: bytes.arbitrary()? },
        _ => {
            let count = bytes.int_in_range(1..=3)?;
            let fields = (0..count).map(|_| a_field(bytes)).collect::<Result<_>>()?;
            Match::InSet { fields, is, set: text(bytes)? }
        }
    })
}

fn a_field(bytes: &mut Unstructured<'_>) -> Result<Field> {
    let side = *bytes.choose(&SIDES)?;
    let way = *bytes.choose(&WAYS)?;
    let all =
        [Field::Protocol, Field::Port(side), Field::Ipv4(side), Field::Ipv6(side), Field::Interface(way), Field::Mark];
    Ok(*bytes.choose(&all)?)
}

fn text(bytes: &mut Unstructured<'_>) -> Result<String> {
    Ok(bytes.arbitrary::<String>()?.replace('\0', ""))
}

//! Tables, chains and rules of `nf_tables`.

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

/// The chain that is asked for, of table `t`.
const CHAIN: &str = "c";
/// A rule's user data are no longer; what is read of them is less.
const HEADERS: usize = 20;

fn layout(family: TableFamily) -> TableLayout {
    TableLayout { rule_chains: vec![CHAIN], ..TableLayout::of(family, "t") }
}

/// A message as the kernel might send it, read as everything that it could be.
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

/// A rule that somebody wrote: it can be shown, and where there are words for it, they mean the same rule.
fn rule(found: &InstalledRule, layout: &TableLayout, length: usize) {
    assert_eq!(found.chain(), CHAIN);
    assert!(!found.to_string().is_empty());
    // What is not UTF-8 is replaced, by three bytes each.
    let text = [found.comment(), found.owner()].into_iter().flatten().map(str::len).sum::<usize>();
    assert!(text <= 3 * length.saturating_sub(HEADERS));
    let Some(meant) = found.rule() else { return };
    assert_eq!(meant.comment.as_deref(), found.comment());
    let Ok(message) = testing::dumped_rule(meant, layout, CHAIN, found.owner(), found.handle()) else {
        let quiet =
            |text: &str| text.len() <= 128 && !text.contains(|letter: char| letter == '"' || letter.is_control());
        let short = |text: &str| text.len() <= 123;
        assert!(!found.comment().is_none_or(quiet) || !found.owner().is_none_or(short), "{found} can be written");
        return;
    };
    let again = testing::rule(&message, layout, CHAIN).expect("what we write is a rule");
    assert_eq!((again.rule(), again.comment(), again.owner()), (Some(meant), found.comment(), found.owner()));
    assert_eq!((again.handle(), again.to_string()), (found.handle(), found.to_string()));
}

/// A rule at random: as the kernel sends it back, it is the rule that was meant, and whose it is.
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

/// As it comes back: networks without the host part, one whole address as such, and no protocol that the port behind it
/// says too.
fn as_listed(rule: &Rule) -> Rule {
    let network = |network: &IpNetwork| IpNetwork::new(network.network(), network.prefix()).expect("as long as it was");
    let one = |one: &Match| match one {
        Match::SourceIn(from) if *from == IpNetwork::from(from.ip()) => Match::Source(from.ip()),
        Match::SourceIn(from) => Match::SourceIn(network(from)),
        Match::SourceNotIn(from) => Match::SourceNotIn(network(from)),
        Match::DestinationIn(to) => Match::DestinationIn(network(to)),
        Match::DestinationNotIn(to) => Match::DestinationNotIn(network(to)),
        other => other.clone(),
    };
    let mut matches = Vec::new();
    let mut checked = None;
    for (place, found) in rule.matches.iter().enumerate() {
        let next = rule.matches[place + 1..].iter().find(|next| !repeats_protocol(next, found));
        match found {
            Match::Protocol(protocol) if checked.replace(*protocol).is_some() => {}
            Match::Protocol(_) if matches!(next, Some(Match::Port { .. })) => {}
            Match::Port { protocol, .. } => {
                checked = Some(*protocol);
                matches.push(found.clone());
            }
            other => matches.push(one(other)),
        }
    }
    Rule { matches, ..rule.clone() }
}

/// Whether it says no more than the protocol that was said before.
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

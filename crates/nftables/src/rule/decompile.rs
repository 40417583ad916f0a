//! From expressions back to the rule that compiles to them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use cnikit_netlink::Mac;
use ipnetwork::IpNetwork;

use crate::rule::compile::{ARP, compile, joined};
use crate::rule::key::port;
use crate::rule::types::{Direction, Field, L4Protocol, Layer, Match, Rule, Side, TableFamily, Verdict};
use crate::wire::expression::{
    self, ASKED_PORT, ETHER_TYPE, Expression, FAMILY, Header, Load, MARK, PROTOCOL, REGISTER, STATE, STATUS,
    TYPE_OF_DESTINATION,
};

/// The rule that compiles to these expressions, if there is one.
pub(crate) fn decompile(expressions: &[Expression], comment: Option<String>, family: TableFamily) -> Option<Rule> {
    let (mut matches, mut rest, mut protocol) = (Vec::new(), expressions, None);
    let mut of_arp = false;
    let verdict = loop {
        if let Some(verdict) = read_verdict(rest) {
            break verdict;
        }
        if let Some((one, after)) = read_arp(rest, of_arp) {
            of_arp = true;
            matches.push(one);
            rest = after;
            continue;
        }
        let (one, after) = read_match(rest, &mut protocol)?;
        matches.extend(one);
        rest = after;
    };
    let rule = Rule { matches, verdict, comment };
    // The way back may have been generous (about the check of the family, say); what it gives must be the same rule.
    (compile(&rule, family).ok()? == expressions).then_some(rule)
}

/// A match of ARP: that a packet is one, and then what its header has, at offsets where IP has addresses.
fn read_arp(rest: &[Expression], of_arp: bool) -> Option<(Match, &[Expression])> {
    match rest {
        [Expression::Load(Load::Meta(ETHER_TYPE), REGISTER), Expression::Equal(kind), after @ ..] if *kind == ARP => {
            Some((Match::Arp, after))
        }
        [
            Expression::Load(Load::Payload { header: Header::Network, offset, .. }, REGISTER),
            Expression::Equal(bytes),
            after @ ..,
        ] if of_arp => Some((Match::Bytes { layer: Layer::Network, offset: *offset, bytes: bytes.clone() }, after)),
        _ => None,
    }
}

/// The verdict that these expressions are, if they are nothing else.
pub fn read_verdict(expressions: &[Expression]) -> Option<Verdict> {
    match expressions {
        [Expression::Masquerade] => Some(Verdict::Masquerade),
        [Expression::Value(_, address), Expression::Value(_, port), Expression::Destination(_)] => {
            let address = match address.len() {
                4 => IpAddr::V4(Ipv4Addr::from(padded::<4>(address)?)),
                _ => IpAddr::V6(Ipv6Addr::from(padded::<16>(address)?)),
            };
            Some(Verdict::Dnat(SocketAddr::new(address, u16::from_be_bytes(port.as_slice().try_into().ok()?))))
        }
        [Expression::Verdict { code, chain }] => match *code {
            expression::RETURN => Some(Verdict::Return),
            expression::ACCEPT => Some(Verdict::Accept),
            expression::DROP => Some(Verdict::Drop),
            expression::JUMP => Some(Verdict::Jump(chain.clone()?)),
            expression::GOTO => Some(Verdict::Goto(chain.clone()?)),
            _ => None,
        },
        _ => None,
    }
}

/// The match that these expressions begin with, and those behind it. The check of a family is not a match: the addresses behind
/// it imply it, as ports imply the check of their protocol. `protocol` is the last protocol that was checked.
pub fn read_match<'a>(
    rest: &'a [Expression],
    protocol: &mut Option<L4Protocol>,
) -> Option<(Option<Match>, &'a [Expression])> {
    if let [Expression::Load(Load::Meta(PROTOCOL), REGISTER), Expression::Equal(number), after @ ..] = rest
        && let Some(checked) = L4Protocol::numbered(*number.first()?)
    {
        *protocol = Some(checked);
        let of_port = matches!(after, [load, next, ..] if port_of(load).is_some() && compared(next).is_some());
        return Some(((!of_port).then_some(Match::Protocol(checked)), after));
    }
    match rest {
        [Expression::Load(Load::Meta(FAMILY | ETHER_TYPE), _), Expression::Equal(_), after @ ..] => Some((None, after)),
        [Expression::Load(from, _), Expression::Mask(mask), compare, after @ ..] => {
            Some((Some(masked(*from, mask, compare)?), after))
        }
        [load @ Expression::Load(from, _), compare @ (Expression::Equal(_) | Expression::NotEqual(_)), after @ ..] => {
            let one = match port_of(load) {
                Some(side) => {
                    let (bytes, is) = compared(compare)?;
                    let port = u16::from_be_bytes(bytes.try_into().ok()?);
                    Match::Port { protocol: (*protocol)?, side, is, port }
                }
                None => plain(*from, compare)?,
            };
            Some((Some(one), after))
        }
        [Expression::Load(..), ..] => listed(rest).map(|(one, after)| (Some(one), after)),
        _ => None,
    }
}

/// Which port it loads.
fn port_of(expression: &Expression) -> Option<Side> {
    let Expression::Load(from, _) = expression else { return None };
    [Side::Source, Side::Destination].into_iter().find(|side| port(*side) == *from)
}

fn compared(compare: &Expression) -> Option<(&[u8], bool)> {
    match compare {
        Expression::Equal(bytes) => Some((bytes, true)),
        Expression::NotEqual(bytes) => Some((bytes, false)),
        _ => None,
    }
}

/// What is loaded and compared as it is.
fn plain(from: Load, compare: &Expression) -> Option<Match> {
    let (bytes, is) = compared(compare)?;
    let way = [Direction::In, Direction::Out, Direction::InBridge, Direction::OutBridge]
        .into_iter()
        .find(|way| Field::from(*way).load() == from);
    match from {
        _ if way.is_some() => Some(Match::Interface { way: way?, is, name: read_name(bytes)? }),
        Load::Meta(MARK) => Some(Match::Mark { mask: u32::MAX, is, value: number(bytes)? }),
        Load::Asked(ASKED_PORT) => Some(Match::OriginalDport(u16::from_be_bytes(bytes.try_into().ok()?))),
        TYPE_OF_DESTINATION => Some(Match::LocalDestination),
        Load::Meta(PROTOCOL) => Some(Match::Transport { is, number: *bytes.first()? }),
        Load::Payload { header: Header::Link, .. } => Some(Match::SourceMac(Mac(bytes.try_into().ok()?))),
        Load::Payload { header: Header::Transport, offset, .. } if is => {
            Some(Match::Bytes { layer: Layer::Transport, offset, bytes: bytes.to_vec() })
        }
        Load::Payload { offset, length, .. } => {
            let bits = u8::try_from(length).ok()?.checked_mul(8)?;
            let bytes_there = || Match::Bytes { layer: Layer::Network, offset, bytes: bytes.to_vec() };
            address(offset, length, bits, bytes, is).or_else(|| is.then(bytes_there))
        }
        _ => None,
    }
}

/// What is loaded and compared under a mask.
fn masked(from: Load, mask: &[u8], compare: &Expression) -> Option<Match> {
    let (bytes, is) = compared(compare)?;
    match from {
        Load::Connection(STATE) => Some(Match::Established),
        Load::Connection(STATUS) => Some(Match::CtStatusDnat),
        Load::Meta(MARK) => Some(Match::Mark { mask: number(mask)?, is, value: number(bytes)? }),
        Load::Payload { offset, length, .. } => address(offset, length, prefix(mask)?, bytes, is),
        _ => None,
    }
}

/// Fields that are loaded one behind the other and looked up in a set.
fn listed(rest: &[Expression]) -> Option<(Match, &[Expression])> {
    let mut fields = Vec::new();
    for (place, one) in rest.iter().enumerate() {
        match one {
            Expression::Load(from, _) => fields.push(Field::ALL.into_iter().find(|field| field.load() == *from)?),
            Expression::Lookup { set, inside } => {
                let same = joined(&fields).eq(rest[..place].iter().cloned());
                let one = Match::InSet { fields, is: *inside, set: set.clone() };
                return same.then_some((one, &rest[place + 1..]));
            }
            _ => return None,
        }
    }
    None
}

/// The name without the zeros behind it. One that is compared in part only does not come back as the same rule.
fn read_name(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8(bytes[..end].to_vec()).ok()
}

/// A number in the order of the host.
fn number(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

/// The length of the prefix that a mask keeps. A mask that is no prefix does not come back as the same rule.
fn prefix(mask: &[u8]) -> Option<u8> {
    u8::try_from(mask.iter().map(|byte| byte.leading_ones()).sum::<u32>()).ok()
}

fn address(offset: u32, length: u32, prefix: u8, bytes: &[u8], is: bool) -> Option<Match> {
    // The offsets of the two families differ, and IPv6 has what IPv4 has not: 8 and 24.
    let (address, side) = match offset {
        12 if length <= 4 => (IpAddr::V4(Ipv4Addr::from(padded::<4>(bytes)?)), Side::Source),
        16 if length <= 4 => (IpAddr::V4(Ipv4Addr::from(padded::<4>(bytes)?)), Side::Destination),
        8 => (IpAddr::V6(Ipv6Addr::from(padded::<16>(bytes)?)), Side::Source),
        24 => (IpAddr::V6(Ipv6Addr::from(padded::<16>(bytes)?)), Side::Destination),
        _ => return None,
    };
    let network = IpNetwork::new(address, prefix).ok()?;
    Some(match (side, is) {
        (Side::Source, true) if network == IpNetwork::from(address) => Match::Source(address),
        (Side::Source, true) => Match::SourceIn(network),
        (Side::Source, false) => Match::SourceNotIn(network),
        (Side::Destination, true) => Match::DestinationIn(network),
        (Side::Destination, false) => Match::DestinationNotIn(network),
    })
}

/// The bytes compared, and zeros for those that were not.
fn padded<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    let mut padded = [0; N];
    padded.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(padded)
}

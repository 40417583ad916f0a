//! Decompiles expressions to the rule that compiles to them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use cnikit_netlink::Mac;
use ipnetwork::IpNetwork;

use crate::rule::compile::{ARP, compile, load_fields};
use crate::rule::key::port;
use crate::rule::types::{Direction, Field, L4Protocol, Layer, Match, Rule, Side, TableFamily, Verdict};
use crate::wire::expression::{
    self, DESTINATION_TYPE, ETHER_TYPE, Expression, FAMILY, Header, Load, MARK, ORIGINAL_DPORT, PROTOCOL, REGISTER,
    STATE, STATUS,
};

/// The rule that compiles to these expressions; `None` if there is no such rule.
pub(crate) fn decompile(expressions: &[Expression], comment: Option<String>, family: TableFamily) -> Option<Rule> {
    let mut matches = Vec::new();
    let mut rest = expressions;
    let mut protocol = None;
    let mut is_arp = false;
    let verdict = loop {
        if let Some(verdict) = read_verdict(rest) {
            break verdict;
        }
        if let Some((one, after)) = read_arp(rest, is_arp) {
            is_arp = true;
            matches.push(one);
            rest = after;
            continue;
        }
        let (one, after) = read_match(rest, &mut protocol)?;
        if let Some(one) = one {
            matches.push(one);
        }
        rest = after;
    };
    let rule = Rule { matches, verdict, comment };
    // Reading is lenient, for instance about the check of the family, so the result is compiled again and compared.
    (compile(&rule, family).ok()? == expressions).then_some(rule)
}

/// A match of ARP packets, or of bytes in their header, which may be at the offsets of IP addresses.
fn read_arp(rest: &[Expression], is_arp: bool) -> Option<(Match, &[Expression])> {
    match rest {
        [Expression::Load(Load::Meta(ETHER_TYPE), REGISTER), Expression::Equal(kind), after @ ..] if *kind == ARP => {
            Some((Match::Arp, after))
        }
        [
            Expression::Load(Load::Payload { header: Header::Network, offset, .. }, REGISTER),
            Expression::Equal(bytes),
            after @ ..,
        ] if is_arp => Some((Match::Bytes { layer: Layer::Network, offset: *offset, bytes: bytes.clone() }, after)),
        _ => None,
    }
}

/// The verdict that these expressions are; `None` if they are anything else.
pub fn read_verdict(expressions: &[Expression]) -> Option<Verdict> {
    match expressions {
        [Expression::Masquerade] => Some(Verdict::Masquerade),
        [Expression::Immediate(_, address), Expression::Immediate(_, port), Expression::Dnat(_)] => {
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

/// The match that these expressions begin with, and the expressions after it. The check of a family is not a match: the addresses
/// after it imply it, as ports imply the check of their protocol. `protocol` is the last protocol that was checked.
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
        [Expression::Load(source, _), Expression::Bitwise(mask), compare, after @ ..] => {
            Some((Some(masked(*source, mask, compare)?), after))
        }
        [
            load @ Expression::Load(source, _),
            compare @ (Expression::Equal(_) | Expression::NotEqual(_)),
            after @ ..,
        ] => {
            let one = match port_of(load) {
                Some(side) => {
                    let (bytes, is) = compared(compare)?;
                    let port = u16::from_be_bytes(bytes.try_into().ok()?);
                    Match::Port { protocol: (*protocol)?, side, is, port }
                }
                None => plain(*source, compare)?,
            };
            Some((Some(one), after))
        }
        [Expression::Load(..), ..] => {
            let (one, after) = read_lookup(rest)?;
            Some((Some(one), after))
        }
        _ => None,
    }
}

/// The port that an expression loads; `None` if it loads anything else.
fn port_of(expression: &Expression) -> Option<Side> {
    let Expression::Load(source, _) = expression else { return None };
    [Side::Source, Side::Destination].into_iter().find(|side| port(*side) == *source)
}

fn compared(compare: &Expression) -> Option<(&[u8], bool)> {
    match compare {
        Expression::Equal(bytes) => Some((bytes, true)),
        Expression::NotEqual(bytes) => Some((bytes, false)),
        _ => None,
    }
}

/// A value that is loaded and compared.
fn plain(source: Load, compare: &Expression) -> Option<Match> {
    let (bytes, is) = compared(compare)?;
    for way in [Direction::In, Direction::Out, Direction::InBridge, Direction::OutBridge] {
        if Field::from(way).load() == source {
            return Some(Match::Interface { way, is, name: read_name(bytes)? });
        }
    }
    match source {
        Load::Meta(MARK) => Some(Match::Mark { mask: u32::MAX, is, value: number(bytes)? }),
        Load::CtOriginal(ORIGINAL_DPORT) => Some(Match::OriginalDport(u16::from_be_bytes(bytes.try_into().ok()?))),
        DESTINATION_TYPE => Some(Match::LocalDestination),
        Load::Meta(PROTOCOL) => Some(Match::Transport { is, number: *bytes.first()? }),
        Load::Payload { header: Header::Link, .. } => Some(Match::SourceMac(Mac(bytes.try_into().ok()?))),
        Load::Payload { header: Header::Transport, offset, .. } if is => {
            Some(Match::Bytes { layer: Layer::Transport, offset, bytes: bytes.to_vec() })
        }
        Load::Payload { offset, length, .. } => {
            let bits = u8::try_from(length).ok()?.checked_mul(8)?;
            match address(offset, length, bits, bytes, is) {
                None if is => Some(Match::Bytes { layer: Layer::Network, offset, bytes: bytes.to_vec() }),
                address => address,
            }
        }
        _ => None,
    }
}

/// A value that is loaded and compared under a mask.
fn masked(source: Load, mask: &[u8], compare: &Expression) -> Option<Match> {
    let (bytes, is) = compared(compare)?;
    match source {
        Load::Ct(STATE) => Some(Match::Established),
        Load::Ct(STATUS) => Some(Match::CtStatusDnat),
        Load::Meta(MARK) => Some(Match::Mark { mask: number(mask)?, is, value: number(bytes)? }),
        Load::Payload { offset, length, .. } => address(offset, length, prefix(mask)?, bytes, is),
        _ => None,
    }
}

/// A lookup of a concatenation of fields in a set.
fn read_lookup(rest: &[Expression]) -> Option<(Match, &[Expression])> {
    let mut fields = Vec::new();
    for (position, expression) in rest.iter().enumerate() {
        match expression {
            Expression::Load(source, _) => fields.push(Field::ALL.into_iter().find(|field| field.load() == *source)?),
            Expression::Lookup { .. } if load_fields(&fields) != rest[..position] => return None,
            Expression::Lookup { set, inside } => {
                let one = Match::InSet { fields, is: *inside, set: set.clone() };
                return Some((one, &rest[position + 1..]));
            }
            _ => return None,
        }
    }
    None
}

/// The name of an interface without its padding. The prefix of a name, which nft(8) writes as `eth*`, is not compiled to the same
/// expressions.
fn read_name(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8(bytes[..end].to_vec()).ok()
}

/// A number in host byte order.
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

/// The compared bytes, padded with zeros.
fn padded<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    let mut padded = [0; N];
    padded.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(padded)
}

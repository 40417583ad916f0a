//! From a rule to expressions, the very ones that nft(8) would have written, and back.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cnikit_netlink::Mac;
use ipnetwork::IpNetwork;

use crate::expression::{self, ETHER_TYPE, Expression, FAMILY, FROM, Header};
use crate::frame::Family;
use crate::rule::{Match, Rule, Verdict};
use crate::{Error, Result};

/// Which of the two addresses of a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Source,
    Destination,
}

/// How many bytes the kernel compares of the name of an interface, its terminating zero included.
#[doc(alias = "IFNAMSIZ")]
const NAME: usize = 16;
/// Where the source stands in an Ethernet frame, and how long it is.
const SOURCE_MAC: (u32, u32) = (6, 6);

/// The expressions of a rule in a table of this family.
///
/// # Errors
/// Matches of two families in one rule, or of another family than the table's: such a rule could never match. A MAC
/// outside a table of bridges, where a packet need not have one; a name that no interface can have.
pub(crate) fn compile(rule: &Rule, family: Family) -> Result<Vec<Expression>> {
    let refused = |why: &str| Err(Error::ours("add rule", format!("`{rule}`"), why));
    let mut expressions = Vec::new();
    let mut checked = None;
    for one in &rule.matches {
        match one {
            Match::From(name) if name.is_empty() || name.len() >= NAME => {
                return refused("no interface can have this name");
            }
            Match::SourceMac(_) if family != Family::Bridge => {
                return refused("a table of family bridge alone sees the MAC of every packet");
            }
            _ => {}
        }
        if let Some(needed) = one.family() {
            if checked.is_some_and(|seen| seen != needed) || !possible(family, needed) {
                return refused("it mixes families and would never match");
            }
            if checked.replace(needed).is_none() {
                expressions.extend(family_check(family, needed));
            }
        }
        expressions.extend(look(one));
    }
    expressions.push(verdict(&rule.verdict));
    Ok(expressions)
}

impl Match {
    /// IPv4 or IPv6; `None`: it looks at nothing that only one of them has.
    fn family(&self) -> Option<Family> {
        let address = match self {
            Match::From(_) | Match::SourceMac(_) => return None,
            Match::Source(address) => *address,
            Match::DestinationIn(network) | Match::DestinationNotIn(network) => network.ip(),
        };
        Some(if address.is_ipv4() { Family::Ip } else { Family::Ip6 })
    }
}

/// Whether a packet of this family comes by a table of that one.
fn possible(table: Family, packet: Family) -> bool {
    table == packet || matches!(table, Family::Inet | Family::Bridge)
}

/// What a table of several families needs before an address means anything.
fn family_check(table: Family, packet: Family) -> Vec<Expression> {
    match table {
        Family::Inet => vec![Expression::Meta(FAMILY), Expression::Equal(vec![packet.number()])],
        Family::Bridge => vec![Expression::Meta(ETHER_TYPE), Expression::Equal(ether_type(packet).to_vec())],
        Family::Ip | Family::Ip6 => Vec::new(),
    }
}

fn ether_type(packet: Family) -> [u8; 2] {
    if packet == Family::Ip { [0x08, 0x00] } else { [0x86, 0xdd] }
}

fn look(one: &Match) -> Vec<Expression> {
    match one {
        Match::From(name) => vec![Expression::Meta(FROM), Expression::Equal(filled_up(name))],
        Match::SourceMac(mac) => {
            let (offset, length) = SOURCE_MAC;
            vec![Expression::Payload { header: Header::Link, offset, length }, Expression::Equal(mac.0.to_vec())]
        }
        Match::Source(address) => load(Side::Source, IpNetwork::from(*address), Expression::Equal),
        Match::DestinationIn(network) => load(Side::Destination, *network, Expression::Equal),
        Match::DestinationNotIn(network) => load(Side::Destination, *network, Expression::NotEqual),
    }
}

/// The name of an interface as the kernel compares it.
fn filled_up(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize(NAME, 0);
    bytes
}

/// Loads an address and compares it: whole, or as many bytes as the prefix fills, or whole under a mask.
fn load(side: Side, network: IpNetwork, compare: fn(Vec<u8>) -> Expression) -> Vec<Expression> {
    let (address, mask) = (octets(network.network()), octets(network.mask()));
    let (header, offset) = (Header::Network, offset(network.is_ipv4(), side));
    let bytes = usize::from(network.prefix() / 8);
    if network.prefix().is_multiple_of(8) && bytes > 0 {
        let length = u32::from(network.prefix() / 8);
        return vec![Expression::Payload { header, offset, length }, compare(address[..bytes].to_vec())];
    }
    let length = if network.is_ipv4() { 4 } else { 16 };
    vec![Expression::Payload { header, offset, length }, Expression::Mask(mask), compare(address)]
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Where an address stands in the header: RFC 791 section 3.1, RFC 8200 section 3.
fn offset(ipv4: bool, side: Side) -> u32 {
    match (ipv4, side) {
        (true, Side::Source) => 12,
        (true, Side::Destination) => 16,
        (false, Side::Source) => 8,
        (false, Side::Destination) => 24,
    }
}

fn verdict(verdict: &Verdict) -> Expression {
    let (code, chain) = match verdict {
        Verdict::Masquerade => return Expression::Masquerade,
        Verdict::Return => (expression::RETURN, None),
        Verdict::Jump(chain) => (expression::JUMP, Some(chain.clone())),
        Verdict::Goto(chain) => (expression::GOTO, Some(chain.clone())),
        Verdict::Accept => (expression::ACCEPT, None),
        Verdict::Drop => (expression::DROP, None),
    };
    Expression::Verdict { code, chain }
}

/// The rule that compiles to these expressions, if there is one.
pub(crate) fn decompile(expressions: &[Expression], comment: Option<String>, family: Family) -> Option<Rule> {
    let mut matches = Vec::new();
    let mut rest = expressions;
    let verdict = loop {
        let (one, after) = match rest {
            [last] => break read_verdict(last)?,
            [Expression::Meta(FROM), Expression::Equal(name), after @ ..] => {
                (Some(Match::From(read_name(name)?)), after)
            }
            // The check of the family, which the addresses behind it bring with them.
            [Expression::Meta(_), Expression::Equal(_), after @ ..] => (None, after),
            [Expression::Payload { header: Header::Link, .. }, Expression::Equal(mac), after @ ..] => {
                (Some(Match::SourceMac(Mac(mac.as_slice().try_into().ok()?))), after)
            }
            [Expression::Payload { offset, length, .. }, Expression::Mask(mask), compare, after @ ..] => {
                (Some(read_match(*offset, *length, prefix(mask)?, compare)?), after)
            }
            [Expression::Payload { offset, length, .. }, compare, after @ ..] => {
                (Some(read_match(*offset, *length, u8::try_from(*length).ok()?.checked_mul(8)?, compare)?), after)
            }
            _ => return None,
        };
        matches.extend(one);
        rest = after;
    };
    let rule = Rule { matches, verdict, comment };
    // The way back may have been generous (about the check of the family, say); what it gives must be the same rule.
    (compile(&rule, family).ok()? == expressions).then_some(rule)
}

fn read_verdict(expression: &Expression) -> Option<Verdict> {
    match expression {
        Expression::Masquerade => Some(Verdict::Masquerade),
        Expression::Verdict { code, chain } => match *code {
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

/// The name without the zeros behind it. One that is compared in part only does not come back as the same rule.
fn read_name(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8(bytes[..end].to_vec()).ok()
}

/// The length of the prefix that a mask keeps. A mask that is no prefix does not come back as the same rule.
fn prefix(mask: &[u8]) -> Option<u8> {
    u8::try_from(mask.iter().map(|byte| byte.leading_ones()).sum::<u32>()).ok()
}

fn read_match(offset: u32, length: u32, prefix: u8, compare: &Expression) -> Option<Match> {
    let (bytes, inside) = match compare {
        Expression::Equal(bytes) => (bytes, true),
        Expression::NotEqual(bytes) => (bytes, false),
        _ => return None,
    };
    // The offsets of the two families differ, and IPv6 has what IPv4 has not: 8 and 24.
    let (address, side) = match offset {
        12 if length <= 4 => (IpAddr::V4(Ipv4Addr::from(padded::<4>(bytes)?)), Side::Source),
        16 if length <= 4 => (IpAddr::V4(Ipv4Addr::from(padded::<4>(bytes)?)), Side::Destination),
        8 => (IpAddr::V6(Ipv6Addr::from(padded::<16>(bytes)?)), Side::Source),
        24 => (IpAddr::V6(Ipv6Addr::from(padded::<16>(bytes)?)), Side::Destination),
        _ => return None,
    };
    let network = IpNetwork::new(address, prefix).ok()?;
    match (side, inside) {
        (Side::Source, true) => (network == IpNetwork::from(address)).then_some(Match::Source(address)),
        (Side::Source, false) => None,
        (Side::Destination, true) => Some(Match::DestinationIn(network)),
        (Side::Destination, false) => Some(Match::DestinationNotIn(network)),
    }
}

/// The bytes compared, and zeros for those that were not.
fn padded<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    let mut padded = [0; N];
    padded.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(padded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(matches: Vec<Match>, verdict: Verdict) -> Rule {
        Rule { matches, verdict, comment: None }
    }

    #[track_caller]
    fn assert_comes_back(rule: &Rule, family: Family) {
        let expressions = compile(rule, family).unwrap();
        assert_eq!(decompile(&expressions, None, family).as_ref(), Some(rule));
    }

    #[test]
    fn a_rule_comes_back_from_its_expressions() {
        for (address, longest) in [("10.1.2.3", 32), ("fd00:1:2:3:4:5:6:7", 128)] {
            let address: IpAddr = address.parse().unwrap();
            for prefix in 0..=longest {
                let network = IpNetwork::new(IpNetwork::new(address, prefix).unwrap().network(), prefix).unwrap();
                let matches = vec![Match::Source(address), Match::DestinationNotIn(network)];
                for family in [Family::Inet, Family::Bridge, matches[0].family().unwrap()] {
                    assert_comes_back(&rule(matches.clone(), Verdict::Masquerade), family);
                    assert_comes_back(
                        &rule(vec![Match::DestinationIn(network)], Verdict::Goto("there".into())),
                        family,
                    );
                }
            }
        }
    }

    #[test]
    fn a_port_and_a_mac_come_back_beside_addresses_too() {
        let (port, mac) = (Match::From("vethfifteen0123".into()), Match::SourceMac(Mac([2, 0, 0, 1, 2, 3])));
        let source = Match::Source("10.0.0.2".parse().unwrap());
        for matches in [vec![port.clone()], vec![mac.clone()], vec![port, mac, source.clone()]] {
            assert_comes_back(&rule(matches, Verdict::Jump("there".into())), Family::Bridge);
        }
        assert_comes_back(&rule(vec![Match::From("eth0".into()), source], Verdict::Accept), Family::Inet);
    }

    #[test]
    fn half_a_name_and_other_bytes_of_a_frame_do_not_come_back() {
        let accept = Expression::Verdict { code: expression::ACCEPT, chain: None };
        let wildcard = [Expression::Meta(FROM), Expression::Equal(b"veth".to_vec()), accept.clone()];
        assert_eq!(decompile(&wildcard, None, Family::Bridge), None);
        let destination = Expression::Payload { header: Header::Link, offset: 0, length: 6 };
        assert_eq!(decompile(&[destination, Expression::Equal(vec![2; 6]), accept], None, Family::Bridge), None);
    }

    #[test]
    fn a_mac_outside_of_bridges_and_a_name_too_long_are_refused() {
        let mac = rule(vec![Match::SourceMac(Mac([2; 6]))], Verdict::Drop);
        assert!(compile(&mac, Family::Bridge).is_ok());
        assert!(compile(&mac, Family::Inet).unwrap_err().to_string().contains("family bridge alone"));
        for name in ["", "vethsixteen01234"] {
            let from = rule(vec![Match::From(name.into())], Verdict::Drop);
            assert!(compile(&from, Family::Bridge).unwrap_err().to_string().contains("no interface"));
        }
    }

    #[test]
    fn an_address_without_the_check_of_its_family_does_not_come_back() {
        let source = rule(vec![Match::Source("10.0.0.2".parse().unwrap())], Verdict::Accept);
        let expressions = compile(&source, Family::Inet).unwrap();
        assert_eq!(decompile(&expressions[2..], None, Family::Inet), None);
        let other_check = [&[expressions[0].clone(), Expression::Equal(vec![10])], &expressions[2..]].concat();
        assert_eq!(decompile(&other_check, None, Family::Inet), None);
    }

    #[test]
    fn a_mask_that_is_no_prefix_does_not_come_back() {
        let network = rule(vec![Match::DestinationIn("10.0.0.0/12".parse().unwrap())], Verdict::Accept);
        let mut expressions = compile(&network, Family::Ip).unwrap();
        expressions[1] = Expression::Mask(vec![255, 15, 240, 0]);
        assert_eq!(decompile(&expressions, None, Family::Ip), None);
    }

    #[test]
    fn a_family_that_the_table_never_sees_is_refused() {
        let source = rule(vec![Match::Source("fd00::2".parse().unwrap())], Verdict::Accept);
        assert!(compile(&source, Family::Ip).is_err());
        assert!(compile(&source, Family::Ip6).is_ok());
    }
}

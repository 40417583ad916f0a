//! From a rule to expressions, the very ones that nft(8) would have written, and back.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;

use crate::expression::{self, ETHER_TYPE, Expression, FAMILY};
use crate::frame::{Family, Frame};
use crate::rule::{Match, Rule, Verdict};
use crate::{Error, Result};

/// Which of the two addresses of a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Source,
    Destination,
}

/// The expressions of a rule in a table of this family.
///
/// # Errors
/// Matches of two families in one rule, or of another family than the table's: such a rule could never match.
pub(crate) fn compile(rule: &Rule, family: Family) -> Result<Vec<Expression>> {
    let mut expressions = Vec::new();
    let mut checked = None;
    for one in &rule.matches {
        let needed = one.family();
        match *checked.get_or_insert_with(|| {
            expressions.extend(family_check(family, needed));
            needed
        }) {
            seen if seen == needed && possible(family, needed) => expressions.extend(look(one)),
            _ => return Err(Error::ours("add rule", format!("`{rule}`"), "it mixes families and would never match")),
        }
    }
    expressions.push(verdict(rule.verdict));
    Ok(expressions)
}

impl Match {
    /// IPv4 or IPv6.
    fn family(&self) -> Family {
        let address = match self {
            Match::Source(address) => *address,
            Match::DestinationIn(network) | Match::DestinationNotIn(network) => network.ip(),
        };
        if address.is_ipv4() { Family::Ip } else { Family::Ip6 }
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
        Match::Source(address) => load(Side::Source, IpNetwork::from(*address), Expression::Equal),
        Match::DestinationIn(network) => load(Side::Destination, *network, Expression::Equal),
        Match::DestinationNotIn(network) => load(Side::Destination, *network, Expression::NotEqual),
    }
}

/// Loads an address and compares it: whole, or as many bytes as the prefix fills, or whole under a mask.
fn load(side: Side, network: IpNetwork, compare: fn(Vec<u8>) -> Expression) -> Vec<Expression> {
    let (address, mask) = (octets(network.network()), octets(network.mask()));
    let offset = offset(network.is_ipv4(), side);
    let bytes = usize::from(network.prefix() / 8);
    if network.prefix().is_multiple_of(8) && bytes > 0 {
        let length = u32::from(network.prefix() / 8);
        return vec![Expression::Payload { offset, length }, compare(address[..bytes].to_vec())];
    }
    let length = if network.is_ipv4() { 4 } else { 16 };
    vec![Expression::Payload { offset, length }, Expression::Mask(mask), compare(address)]
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

fn verdict(verdict: Verdict) -> Expression {
    let (code, chain) = match verdict {
        Verdict::Masquerade => return Expression::Masquerade,
        Verdict::Return => (expression::RETURN, None),
        Verdict::Jump(chain) => (expression::JUMP, Some(chain.to_owned())),
        Verdict::Goto(chain) => (expression::GOTO, Some(chain.to_owned())),
        Verdict::Accept => (expression::ACCEPT, None),
        Verdict::Drop => (expression::DROP, None),
    };
    Expression::Verdict { code, chain }
}

/// The rule that compiles to these expressions, if there is one. Jumps are known to the chains of the frame only.
pub(crate) fn decompile(expressions: &[Expression], comment: Option<String>, frame: &Frame) -> Option<Rule> {
    let mut rest = match (frame.family, expressions) {
        (Family::Inet | Family::Bridge, [Expression::Meta(_), Expression::Equal(_), rest @ ..]) => rest,
        (_, expressions) => expressions,
    };
    let mut matches = Vec::new();
    let verdict = loop {
        let (one, after) = match rest {
            [last] => break read_verdict(last, frame)?,
            [Expression::Payload { offset, length }, Expression::Mask(mask), compare, after @ ..] => {
                (read_match(*offset, *length, prefix(mask)?, compare)?, after)
            }
            [Expression::Payload { offset, length }, compare, after @ ..] => {
                (read_match(*offset, *length, u8::try_from(*length).ok()?.checked_mul(8)?, compare)?, after)
            }
            _ => return None,
        };
        matches.push(one);
        rest = after;
    };
    let rule = Rule { matches, verdict, comment };
    // The way back may have been generous (about the check of the family, say); what it gives must be the same rule.
    (compile(&rule, frame.family).ok()? == expressions).then_some(rule)
}

fn read_verdict(expression: &Expression, frame: &Frame) -> Option<Verdict> {
    let known = |name: &String| frame.chains.iter().map(|chain| chain.name).find(|chain| chain == name);
    match expression {
        Expression::Masquerade => Some(Verdict::Masquerade),
        Expression::Verdict { code, chain } => match *code {
            expression::RETURN => Some(Verdict::Return),
            expression::ACCEPT => Some(Verdict::Accept),
            expression::DROP => Some(Verdict::Drop),
            expression::JUMP => Some(Verdict::Jump(known(chain.as_ref()?)?)),
            expression::GOTO => Some(Verdict::Goto(known(chain.as_ref()?)?)),
            _ => None,
        },
        _ => None,
    }
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
    use crate::frame::Chain;

    fn frame(family: Family) -> Frame {
        let chains = vec![Chain { name: "there", comment: None, hook: None }];
        Frame { family, table: "t", table_comment: None, chains, fixed: vec![], holds: "there" }
    }

    fn rule(matches: Vec<Match>, verdict: Verdict) -> Rule {
        Rule { matches, verdict, comment: None }
    }

    #[track_caller]
    fn assert_comes_back(rule: &Rule, family: Family) {
        let expressions = compile(rule, family).unwrap();
        assert_eq!(decompile(&expressions, None, &frame(family)).as_ref(), Some(rule));
    }

    #[test]
    fn a_rule_comes_back_from_its_expressions() {
        for (address, longest) in [("10.1.2.3", 32), ("fd00:1:2:3:4:5:6:7", 128)] {
            let address: IpAddr = address.parse().unwrap();
            for prefix in 0..=longest {
                let network = IpNetwork::new(IpNetwork::new(address, prefix).unwrap().network(), prefix).unwrap();
                let matches = vec![Match::Source(address), Match::DestinationNotIn(network)];
                for family in [Family::Inet, Family::Bridge, matches[0].family()] {
                    assert_comes_back(&rule(matches.clone(), Verdict::Masquerade), family);
                    assert_comes_back(&rule(vec![Match::DestinationIn(network)], Verdict::Goto("there")), family);
                }
            }
        }
    }

    #[test]
    fn a_jump_out_of_the_frame_does_not_come_back() {
        let expressions = compile(&rule(vec![], Verdict::Jump("elsewhere")), Family::Inet).unwrap();
        assert_eq!(decompile(&expressions, None, &frame(Family::Inet)), None);
    }

    #[test]
    fn an_address_without_the_check_of_its_family_does_not_come_back() {
        let source = rule(vec![Match::Source("10.0.0.2".parse().unwrap())], Verdict::Accept);
        let expressions = compile(&source, Family::Inet).unwrap();
        assert_eq!(decompile(&expressions[2..], None, &frame(Family::Inet)), None);
        let other_check = [&[expressions[0].clone(), Expression::Equal(vec![10])], &expressions[2..]].concat();
        assert_eq!(decompile(&other_check, None, &frame(Family::Inet)), None);
    }

    #[test]
    fn a_mask_that_is_no_prefix_does_not_come_back() {
        let network = rule(vec![Match::DestinationIn("10.0.0.0/12".parse().unwrap())], Verdict::Accept);
        let mut expressions = compile(&network, Family::Ip).unwrap();
        expressions[1] = Expression::Mask(vec![255, 15, 240, 0]);
        assert_eq!(decompile(&expressions, None, &frame(Family::Ip)), None);
    }

    #[test]
    fn a_family_that_the_table_never_sees_is_refused() {
        let source = rule(vec![Match::Source("fd00::2".parse().unwrap())], Verdict::Accept);
        assert!(compile(&source, Family::Ip).is_err());
        assert!(compile(&source, Family::Ip6).is_ok());
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::expression::FROM;

    fn rule(matches: Vec<Match>, verdict: Verdict) -> Rule {
        Rule { matches, verdict, comment: None }
    }

    #[track_caller]
    fn assert_comes_back(rule: &Rule, family: TableFamily) {
        let expressions = compile(rule, family).unwrap();
        assert_eq!(decompile(&expressions, None, family).as_ref(), Some(rule));
    }

    #[test]
    fn a_rule_comes_back_from_its_expressions() {
        for (address, longest, own) in
            [("10.1.2.3", 32, TableFamily::Ip), ("fd00:1:2:3:4:5:6:7", 128, TableFamily::Ip6)]
        {
            let address: IpAddr = address.parse().unwrap();
            for prefix in 0..=longest {
                let network = IpNetwork::new(IpNetwork::new(address, prefix).unwrap().network(), prefix).unwrap();
                let matches = vec![Match::Source(address), Match::DestinationNotIn(network)];
                for family in [TableFamily::Inet, TableFamily::Bridge, own] {
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
        let port = Match::from("vethfifteen0123");
        let mac = Match::SourceMac(Mac([2, 0, 0, 1, 2, 3]));
        let source = Match::Source("10.0.0.2".parse().unwrap());
        for matches in [vec![port.clone()], vec![mac.clone()], vec![port, mac, source.clone()]] {
            assert_comes_back(&rule(matches, Verdict::Jump("there".into())), TableFamily::Bridge);
        }
        assert_comes_back(&rule(vec![Match::from("eth0"), source], Verdict::Accept), TableFamily::Inet);
    }

    #[test]
    fn half_a_name_and_other_bytes_of_a_frame_do_not_come_back() {
        let accept = Expression::Verdict { code: expression::ACCEPT, chain: None };
        let wildcard =
            [Expression::Load(Load::Meta(FROM), REGISTER), Expression::Equal(b"veth".to_vec()), accept.clone()];
        assert_eq!(decompile(&wildcard, None, TableFamily::Bridge), None);
        let destination = Expression::Load(Load::Payload { header: Header::Link, offset: 0, length: 6 }, REGISTER);
        assert_eq!(decompile(&[destination, Expression::Equal(vec![2; 6]), accept], None, TableFamily::Bridge), None);
    }

    #[test]
    fn raw_bytes_of_arp_and_transport_headers_are_decompiled() {
        let network = |offset, bytes: &[u8]| Match::Bytes { layer: Layer::Network, offset, bytes: bytes.to_vec() };
        let transport = |offset, bytes: &[u8]| Match::Bytes { layer: Layer::Transport, offset, bytes: bytes.to_vec() };
        let source = Match::Source("fd00::2".parse().unwrap());
        let not_255 = Match::Transport { is: false, number: 255 };
        for matches in [
            vec![Match::Arp, network(0, &[0, 1, 8, 0, 6, 4]), network(8, &[2; 10]), network(24, &[10, 0, 0, 2])],
            vec![network(4, &[0, 24, 58, 255]), transport(0, &[135]), transport(8, &[7; 16])],
            vec![source.clone(), Match::Transport { is: true, number: 58 }, transport(24, &[1, 1])],
            vec![Match::Transport { is: false, number: 6 }],
            vec![source.clone(), not_255],
        ] {
            assert_comes_back(&rule(matches, Verdict::Accept), TableFamily::Bridge);
        }
        for (matches, why) in [
            (vec![network(8, &[2; 6])], "has a match of its own"),
            (vec![network(4, &[]), source.clone()], "has a match of its own"),
            (vec![transport(2, &[0, 53])], "has a match of its own"),
            (vec![Match::Transport { is: true, number: 6 }], "has a match of its own"),
            (vec![source.clone(), Match::Arp], "mixes families"),
            (vec![Match::Arp, source], "mixes families"),
        ] {
            let error = compile(&rule(matches, Verdict::Drop), TableFamily::Bridge).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
        }
        let shown = rule(vec![Match::Arp, network(8, &[2, 0, 0xff])], Verdict::Drop).to_string();
        assert_eq!(shown, "meta protocol arp @nh,64,24 0x0200ff drop");
    }

    #[test]
    fn an_address_without_the_check_of_its_family_does_not_come_back() {
        let source = rule(vec![Match::Source("10.0.0.2".parse().unwrap())], Verdict::Accept);
        let expressions = compile(&source, TableFamily::Inet).unwrap();
        assert_eq!(decompile(&expressions[2..], None, TableFamily::Inet), None);
        let other_check = [&[expressions[0].clone(), Expression::Equal(vec![10])], &expressions[2..]].concat();
        assert_eq!(decompile(&other_check, None, TableFamily::Inet), None);
    }

    #[test]
    fn a_mask_that_is_not_a_prefix_is_not_decompiled() {
        let network = rule(vec![Match::DestinationIn("10.0.0.0/12".parse().unwrap())], Verdict::Accept);
        let mut expressions = compile(&network, TableFamily::Ip).unwrap();
        expressions[1] = Expression::Bitwise(vec![255, 15, 240, 0]);
        assert_eq!(decompile(&expressions, None, TableFamily::Ip), None);
    }

    /// What nft 1.0.6 has for `meta ibrname "br0" meta obrname != "br0" drop`: the kernel of a test may not know it.
    #[test]
    fn bridges_compile_as_nft_compiles_them() {
        let bridge = |way, is| Match::Interface { way, is, name: "br0".into() };
        let within = rule(vec![bridge(Direction::InBridge, true), bridge(Direction::OutBridge, false)], Verdict::Drop);
        assert_eq!(within.to_string(), r#"meta ibrname "br0" meta obrname != "br0" drop"#);
        let name = b"br0\0\0\0\0\0\0\0\0\0\0\0\0\0".to_vec();
        let expected = [
            Expression::Load(Load::Meta(17), REGISTER),
            Expression::Equal(name.clone()),
            Expression::Load(Load::Meta(18), REGISTER),
            Expression::NotEqual(name),
            Expression::Verdict { code: expression::DROP, chain: None },
        ];
        assert_eq!(compile(&within, TableFamily::Bridge).unwrap(), expected);
        assert_comes_back(&within, TableFamily::Bridge);
        let fields = vec![Field::Interface(Direction::InBridge), Field::Interface(Direction::OutBridge)];
        let pair = rule(vec![Match::InSet { fields, is: true, set: "s".into() }], Verdict::Drop);
        assert_eq!(pair.to_string(), "meta ibrname . meta obrname @s drop");
        assert_comes_back(&pair, TableFamily::Bridge);
        for one in [within, pair] {
            assert!(
                compile(&one, TableFamily::Inet).unwrap_err().to_string().contains("only a table of family bridge")
            );
        }
    }
}

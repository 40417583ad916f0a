//! Rules of iptables in `nf_tables`, read from the kernel as values of this crate. No program is started.
//!
//! Where `nf_tables` has no suitable expression, the programs of iptables store a match or target of xtables: its name, and a
//! structure of the kernel as bytes. Each release stores more rules in that way. Only the expressions that decide which ports lead
//! where are converted here. For any other expression the rule gets words that iptables-save never prints, so that a comparison
//! shows that there is more.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use cnikit_netlink::attribute::{number, text, value};
use cnikit_nftables::expression::{DATA, Expression, Header, Load, read_match, read_verdict};
use cnikit_nftables::{InstalledRule, L4Protocol, Match, Nftables, Side, TableFamily, TableLayout, Verdict};

use crate::rule::IptablesRule;

/// Attributes of a match or target of xtables.
#[doc(alias = "NFTA_MATCH_REV")]
const REVISION: u16 = 2;
#[doc(alias = "NFTA_MATCH_INFO")]
const INFO: u16 = 3;
#[doc(alias = "NFTA_MATCH_NAME")]
const NAME: u16 = 1;

/// The offset of the protocol in the header of IPv4 and IPv6. Programs before 1.8.3 compare the protocol there.
#[doc(alias = "ip6_hdrctl")]
const PROTOCOL_OFFSETS: [u32; 2] = [9, 6];

/// Matches of one protocol, each with the offset of the first and last destination port in its structure.
#[doc(alias = "xt_tcp")]
const PORTS: [(&str, usize); 3] = [("tcp", 4), ("udp", 4), ("sctp", 0)];

/// The most ports of one match. They follow two bytes: whether they are source or destination ports, and how many there are.
#[doc(alias = "xt_multiport_v1")]
const MOST_PORTS: usize = 15;
const DESTINATIONS: u8 = 1;

/// The words for an expression that is not converted.
const NOT_CONVERTED: [&str; 2] = ["-m", "nf_tables"];

/// Reads the rules of a chain that the programs of iptables wrote into `nf_tables`, as far as they decide which ports lead where.
/// There are none if there is no such chain or table. Rules of the legacy variant cannot be read in this way.
///
/// # Errors
/// The kernel's.
pub fn rules_in_nf_tables(
    nftables: &Nftables,
    table: &TableLayout,
    chain: &str,
) -> cnikit_netlink::Result<Vec<IptablesRule>> {
    let found = nftables.chain_rules(table, chain)?;
    Ok(found.iter().map(|found| iptables_rule(found, table.family)).collect())
}

/// Converts a rule of the kernel into words of iptables.
pub fn iptables_rule(found: &InstalledRule, family: TableFamily) -> IptablesRule {
    let rule = match found.comment() {
        Some(comment) => IptablesRule::any().commented(comment),
        None => IptablesRule::any(),
    };
    converted(rule, found.expressions(), family)
}

fn converted(mut rule: IptablesRule, mut rest: &[Expression], family: TableFamily) -> IptablesRule {
    let mut protocol = None;
    while let [first, after_first @ ..] = rest {
        if let Some(verdict) = read_verdict(rest) {
            return with_verdict(rule, verdict);
        }
        let longer;
        if let Some(compared) = protocol_of_header(rest) {
            protocol = Some(compared);
            longer = Some(rule.clone().protocol(&compared.to_string()));
            rest = &rest[2..];
        } else if let Some((found, after_match)) = read_match(rest, &mut protocol) {
            longer = match found {
                Some(found) => with_match(rule.clone(), &found),
                None => Some(rule.clone()),
            };
            rest = after_match;
        } else {
            longer = with_xtables(rule.clone(), first, family);
            rest = after_first;
        }
        rule = longer.unwrap_or_else(|| not_converted(rule));
    }
    rule
}

fn protocol_of_header(expressions: &[Expression]) -> Option<L4Protocol> {
    match expressions {
        [
            Expression::Load(Load::Payload { header: Header::Network, offset, length: 1 }, _),
            Expression::Equal(is),
            ..,
        ] if PROTOCOL_OFFSETS.contains(offset) => L4Protocol::numbered(*is.first()?),
        _ => None,
    }
}

fn with_match(rule: IptablesRule, found: &Match) -> Option<IptablesRule> {
    Some(match found {
        Match::Protocol(protocol) => rule.protocol(&protocol.to_string()),
        Match::Port { protocol, side: Side::Destination, is: true, port } => {
            rule.destination_port(&protocol.to_string(), *port)
        }
        Match::Source(address) => rule.source(*address),
        Match::SourceIn(network) => rule.source_in(*network),
        Match::DestinationIn(network) => rule.destination(*network),
        _ => return None,
    })
}

/// The rule with the words for a part that has no form in iptables.
fn not_converted(rule: IptablesRule) -> IptablesRule {
    rule.words(&NOT_CONVERTED.map(str::to_owned))
}

fn with_verdict(rule: IptablesRule, verdict: Verdict) -> IptablesRule {
    match verdict {
        Verdict::Dnat(to) => rule.dnat_to(to),
        Verdict::Jump(chain) | Verdict::Goto(chain) => rule.jump(&chain),
        Verdict::Masquerade => rule.jump("MASQUERADE"),
        Verdict::Accept => rule.jump("ACCEPT"),
        Verdict::Drop => rule.jump("DROP"),
        Verdict::Return => rule.jump("RETURN"),
        _ => not_converted(rule),
    }
}

/// Adds a match or target of xtables to a rule.
fn with_xtables(rule: IptablesRule, expression: &Expression, family: TableFamily) -> Option<IptablesRule> {
    let Expression::Foreign { name, element } = expression else { return None };
    if name == "counter" {
        return Some(rule);
    }
    let data = value(element, DATA)?;
    let extension = text(data, NAME)?;
    let info = value(data, INFO)?;
    match (name.as_str(), extension) {
        ("match", "comment") => Some(rule.commented(&comment(info))),
        ("match", "multiport") => Some(rule.destination_ports(&ports(info)?)),
        ("match", protocol) => {
            let offset = PORTS.iter().find(|(name, _)| *name == protocol)?.1;
            let first = u16_at(info, offset)?;
            let last = u16_at(info, offset + 2)?;
            if first == last { Some(rule.destination_port(protocol, first)) } else { None }
        }
        ("target", "DNAT") => Some(rule.dnat_to(destination(info, number(data, REVISION)?, family)?)),
        ("target", target) => Some(rule.jump(target)),
        _ => None,
    }
}

fn comment(info: &[u8]) -> String {
    let end = info.iter().position(|byte| *byte == 0).unwrap_or(info.len());
    String::from_utf8_lossy(&info[..end]).into_owned()
}

/// The destination ports of the match `multiport`, if it has no ranges and is not negated.
fn ports(info: &[u8]) -> Option<Vec<u16>> {
    let [DESTINATIONS, count, ..] = *info else { return None };
    let count = usize::from(count);
    if count > MOST_PORTS {
        return None;
    }
    let range_flags_and_negation = info.get(2 + 2 * MOST_PORTS..3 * (MOST_PORTS + 1))?;
    if range_flags_and_negation.iter().any(|byte| *byte != 0) {
        return None;
    }
    (0..count).map(|index| u16_at(info, 2 + 2 * index)).collect()
}

/// The new destination of the target `DNAT`: the first address and the first port of its ranges. In the first revision a count of
/// ranges is before them.
#[doc(alias = "nf_nat_range2")]
#[doc(alias = "nf_nat_ipv4_multi_range_compat")]
fn destination(info: &[u8], revision: u32, family: TableFamily) -> Option<SocketAddr> {
    let (address_offset, port_offset) = match (family, revision) {
        (TableFamily::Ip, 0) => (8, 16),
        _ => (4, 36),
    };
    let address = match family {
        TableFamily::Ip6 => IpAddr::V6(Ipv6Addr::from(*info.get(address_offset..)?.first_chunk::<16>()?)),
        _ => IpAddr::V4(Ipv4Addr::from(*info.get(address_offset..)?.first_chunk::<4>()?)),
    };
    Some(SocketAddr::new(address, u16::from_be_bytes(*info.get(port_offset..)?.first_chunk()?)))
}

/// A number of two bytes in the byte order of the host.
fn u16_at(info: &[u8], offset: usize) -> Option<u16> {
    info.get(offset..)?.first_chunk().map(|bytes| u16::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cnikit_netlink::attribute::Attributes;
    use cnikit_nftables::expression::REGISTER;
    use cnikit_nftables::expression::decode;

    /// A match or a target as the kernel reports it.
    fn reported(kind: &str, name: &str, revision: u32, info: &[u8]) -> Expression {
        let data = Attributes::new().text(NAME, name).number(REVISION, revision).bytes(INFO, info);
        let element = Attributes::new().text(1, kind).nested(DATA, &data);
        decode(Attributes::new().nested(1, &element).as_bytes()).remove(0)
    }

    fn convert(expressions: &[Expression], family: TableFamily) -> IptablesRule {
        converted(IptablesRule::any(), expressions, family)
    }

    fn halves(numbers: &[u16]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
    }

    #[test]
    fn programs_of_before_have_more_of_their_own_matches_and_are_read_all_the_same() {
        let header = Load::Payload { header: Header::Network, offset: 9, length: 1 };
        let protocol = [Expression::Load(header, REGISTER), Expression::Equal(vec![6])];
        let tcp = |last| reported("match", "tcp", 0, &[halves(&[0, u16::MAX, 8080, last]), vec![0; 4]].concat());
        let to = [&[1, 0, 0, 0, 3, 0, 0, 0][..], &[10, 0, 0, 2, 10, 0, 0, 2, 0, 80, 0, 80]].concat();
        let rule =
            convert(&[&protocol[..], &[tcp(8080), reported("target", "DNAT", 0, &to)]].concat(), TableFamily::Ip);
        assert_eq!((rule.protocol_name(), rule.port()), (Some("tcp"), Some(8080)));
        assert_eq!(rule.dnat_target(), Some("10.0.0.2:80".parse().unwrap()));
        assert_eq!(convert(&[tcp(8081)], TableFamily::Ip).port(), None, "a range is no port");
        let to = [&[3, 0, 0, 0][..], &Ipv6Addr::LOCALHOST.octets().repeat(2), &[0, 80, 0, 80]].concat();
        let leads = |revision| convert(&[reported("target", "DNAT", revision, &to)], TableFamily::Ip6).dnat_target();
        assert_eq!([leads(1), leads(2)], [Some("[::1]:80".parse().unwrap()); 2]);
    }

    #[test]
    fn ports_are_those_that_are_listed_one_by_one() {
        let listed = |flags, count, ranges: u8, invert| {
            let ports = halves(&[53, 54, 55].into_iter().chain([0; 12]).collect::<Vec<_>>());
            let info = [&[flags, count], &ports[..], &[ranges], &[0; 14], &[invert]].concat();
            convert(&[reported("match", "multiport", 1, &info)], TableFamily::Ip).ports()
        };
        assert_eq!(listed(1, 2, 0, 0), Some(vec![53, 54]));
        let others = [listed(0, 2, 0, 0), listed(1, 2, 1, 0), listed(1, 2, 0, 1), listed(1, 16, 0, 0)];
        assert_eq!(others, [None, None, None, None]);
    }

    #[test]
    fn truncated_extensions_are_not_converted() {
        let more = IptablesRule::any().words(&NOT_CONVERTED.map(str::to_owned));
        for (kind, name) in [("match", "tcp"), ("match", "multiport"), ("target", "DNAT"), ("match", "owner")] {
            assert_eq!(convert(&[reported(kind, name, 0, &[1])], TableFamily::Ip), more, "{name}");
        }
    }
}

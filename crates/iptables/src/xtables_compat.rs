//! What iptables' programs wrote into `nf_tables`, in their own words: no program is started for it.
//!
//! They have it run their own matches and targets, each a name and a structure of the kernel's that stands as bytes in the rule,
//! where `nf_tables` has no expression that serves; more of them with each release. Only what tells which ports lead where has
//! words here. For anything else stands a word that nobody else has: whoever compares finds that there is more.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use cnikit_netlink::attribute::{number, text, value};
use cnikit_nftables::expression::{DATA, Expression, Header, Load, read_match, read_verdict};
use cnikit_nftables::{InstalledRule, L4Protocol, Match, Nftables, Side, TableFamily, TableLayout, Verdict};

use crate::rule::IptablesRule;

/// Attributes of a match or a target of iptables.
#[doc(alias = "NFTA_MATCH_REV")]
const REVISION: u16 = 2;
#[doc(alias = "NFTA_MATCH_INFO")]
const INFO: u16 = 3;
#[doc(alias = "NFTA_MATCH_NAME")]
const NAME: u16 = 1;

/// Where the protocol stands in the header, of either family: programs before 1.8.3 compare that.
#[doc(alias = "ip6_hdrctl")]
const PROTOCOL_PLACES: [u32; 2] = [9, 6];

/// Matches of one protocol, and where in their structure the first and the last destination port stand.
#[doc(alias = "xt_tcp")]
const PORTS: [(&str, usize); 3] = [("tcp", 4), ("udp", 4), ("sctp", 0)];

/// The most ports that one match lists, behind two bytes that say which are meant and how many.
#[doc(alias = "xt_multiport_v1")]
const MOST_PORTS: usize = 15;
const DESTINATIONS: u8 = 1;

/// The word for what has none.
const MORE: [&str; 2] = ["-m", "nf_tables"];

/// The rules of a chain that iptables' programs wrote into `nf_tables`, as far as they tell which ports lead where; none if there
/// is no such chain, or `nf_tables` was not used for it. No program is started. Only its own programs know the rules of the legacy
/// variant.
///
/// # Errors
/// The kernel's refusals.
pub fn rules_in_nf_tables(
    nftables: &Nftables,
    table: &TableLayout,
    chain: &str,
) -> cnikit_netlink::Result<Vec<IptablesRule>> {
    let found = nftables.chain_rules(table, chain)?;
    Ok(found.iter().map(|found| iptables_rule(found, table.family)).collect())
}

/// A rule of the kernel in the words of iptables.
pub fn iptables_rule(found: &InstalledRule, family: TableFamily) -> IptablesRule {
    let rule = found.comment().map_or_else(IptablesRule::any, |comment| IptablesRule::any().commented(comment));
    in_words(rule, found.expressions(), family)
}

fn in_words(mut rule: IptablesRule, mut rest: &[Expression], family: TableFamily) -> IptablesRule {
    let mut protocol = None;
    while let [first, after @ ..] = rest {
        if let Some(verdict) = read_verdict(rest) {
            return ended(rule, verdict);
        }
        let (told, left) = match (of_header(rest), read_match(rest, &mut protocol)) {
            (Some(of), _) => {
                protocol = Some(of);
                (Some(rule.clone().protocol(&of.to_string())), &rest[2..])
            }
            (None, Some((one, left))) => (one.map_or(Some(rule.clone()), |one| matching(rule.clone(), &one)), left),
            (None, None) => (foreign(rule.clone(), first, family), after),
        };
        rule = told.unwrap_or_else(|| rule.words(&MORE.map(str::to_owned)));
        rest = left;
    }
    rule
}

fn of_header(expressions: &[Expression]) -> Option<L4Protocol> {
    match expressions {
        [
            Expression::Load(Load::Payload { header: Header::Network, offset, length: 1 }, _),
            Expression::Equal(is),
            ..,
        ] if PROTOCOL_PLACES.contains(offset) => L4Protocol::numbered(*is.first()?),
        _ => None,
    }
}

fn matching(rule: IptablesRule, one: &Match) -> Option<IptablesRule> {
    Some(match one {
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

fn ended(rule: IptablesRule, verdict: Verdict) -> IptablesRule {
    match verdict {
        Verdict::Dnat(to) => rule.lead_to(to),
        Verdict::Jump(chain) | Verdict::Goto(chain) => rule.jump(&chain),
        Verdict::Masquerade => rule.jump("MASQUERADE"),
        Verdict::Accept => rule.jump("ACCEPT"),
        Verdict::Drop => rule.jump("DROP"),
        Verdict::Return => rule.jump("RETURN"),
    }
}

/// What only iptables' programs write.
fn foreign(rule: IptablesRule, expression: &Expression, family: TableFamily) -> Option<IptablesRule> {
    let Expression::Foreign { name, element } = expression else { return None };
    if name == "counter" {
        return Some(rule);
    }
    let data = value(element, DATA)?;
    let (own, info) = (text(data, NAME)?, value(data, INFO)?);
    match (name.as_str(), own) {
        ("match", "comment") => Some(rule.commented(&comment(info))),
        ("match", "multiport") => Some(rule.destination_ports(&ports(info)?)),
        ("match", _) => {
            let place = PORTS.iter().find(|(name, _)| *name == own)?.1;
            let range = (half(info, place)?, half(info, place + 2)?);
            (range.0 == range.1).then(|| rule.destination_port(own, range.0))
        }
        ("target", "DNAT") => Some(rule.lead_to(destination(info, number(data, REVISION)?, family)?)),
        ("target", _) => Some(rule.jump(own)),
        _ => None,
    }
}

fn comment(info: &[u8]) -> String {
    let end = info.iter().position(|byte| *byte == 0).unwrap_or(info.len());
    String::from_utf8_lossy(&info[..end]).into_owned()
}

/// Ports that are meant one by one: none of them begins a range, and no other ones are meant instead.
fn ports(info: &[u8]) -> Option<Vec<u16>> {
    let [DESTINATIONS, count, ..] = *info else { return None };
    let count = Some(usize::from(count)).filter(|count| *count <= MOST_PORTS)?;
    let plain = info.get(2 + 2 * MOST_PORTS..3 * (MOST_PORTS + 1))?.iter().all(|byte| *byte == 0);
    (0..count).map(|place| half(info, 2 + 2 * place)).collect::<Option<_>>().filter(|_| plain)
}

/// Where a packet goes instead: the first address and the first port of ranges of them, which the first revision counts before.
#[doc(alias = "nf_nat_range2")]
#[doc(alias = "nf_nat_ipv4_multi_range_compat")]
fn destination(info: &[u8], revision: u32, family: TableFamily) -> Option<SocketAddr> {
    let (address, port) = match (family, revision) {
        (TableFamily::Ip, 0) => (8, 16),
        _ => (4, 36),
    };
    let address = match family {
        TableFamily::Ip6 => IpAddr::V6(Ipv6Addr::from(*info.get(address..)?.first_chunk::<16>()?)),
        _ => IpAddr::V4(Ipv4Addr::from(*info.get(address..)?.first_chunk::<4>()?)),
    };
    Some(SocketAddr::new(address, u16::from_be_bytes(*info.get(port..)?.first_chunk()?)))
}

/// A number of two bytes in the order of the host.
fn half(info: &[u8], place: usize) -> Option<u16> {
    info.get(place..)?.first_chunk().map(|bytes| u16::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cnikit_netlink::attribute::Attributes;
    use cnikit_nftables::expression::REGISTER;
    use cnikit_nftables::expression::decode;

    /// A match or a target as the kernel tells it.
    fn told(kind: &str, name: &str, revision: u32, info: &[u8]) -> Expression {
        let data = Attributes::new().text(NAME, name).number(REVISION, revision).bytes(INFO, info);
        let element = Attributes::new().text(1, kind).nested(DATA, &data);
        decode(Attributes::new().nested(1, &element).as_bytes()).remove(0)
    }

    fn said(expressions: &[Expression], family: TableFamily) -> IptablesRule {
        in_words(IptablesRule::any(), expressions, family)
    }

    fn halves(numbers: &[u16]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
    }

    #[test]
    fn programs_of_before_have_more_of_their_own_matches_and_are_read_all_the_same() {
        let header = Load::Payload { header: Header::Network, offset: 9, length: 1 };
        let protocol = [Expression::Load(header, REGISTER), Expression::Equal(vec![6])];
        let tcp = |last| told("match", "tcp", 0, &[halves(&[0, u16::MAX, 8080, last]), vec![0; 4]].concat());
        let to = [&[1, 0, 0, 0, 3, 0, 0, 0][..], &[10, 0, 0, 2, 10, 0, 0, 2, 0, 80, 0, 80]].concat();
        let rule = said(&[&protocol[..], &[tcp(8080), told("target", "DNAT", 0, &to)]].concat(), TableFamily::Ip);
        assert_eq!((rule.protocol_name(), rule.port()), (Some("tcp"), Some(8080)));
        assert_eq!(rule.leads_to(), Some("10.0.0.2:80".parse().unwrap()));
        assert_eq!(said(&[tcp(8081)], TableFamily::Ip).port(), None, "a range is no port");
        let to = [&[3, 0, 0, 0][..], &Ipv6Addr::LOCALHOST.octets().repeat(2), &[0, 80, 0, 80]].concat();
        let leads = |revision| said(&[told("target", "DNAT", revision, &to)], TableFamily::Ip6).leads_to();
        assert_eq!([leads(1), leads(2)], [Some("[::1]:80".parse().unwrap()); 2]);
    }

    #[test]
    fn ports_are_those_that_are_listed_one_by_one() {
        let listed = |flags, count, ranges: u8, invert| {
            let ports = halves(&[53, 54, 55].into_iter().chain([0; 12]).collect::<Vec<_>>());
            let info = [&[flags, count], &ports[..], &[ranges], &[0; 14], &[invert]].concat();
            said(&[told("match", "multiport", 1, &info)], TableFamily::Ip).ports()
        };
        assert_eq!(listed(1, 2, 0, 0), Some(vec![53, 54]));
        let others = [listed(0, 2, 0, 0), listed(1, 2, 1, 0), listed(1, 2, 0, 1), listed(1, 16, 0, 0)];
        assert_eq!(others, [None, None, None, None]);
    }

    #[test]
    fn what_is_cut_off_has_no_words_of_its_own() {
        let more = IptablesRule::any().words(&MORE.map(str::to_owned));
        for (kind, name) in [("match", "tcp"), ("match", "multiport"), ("target", "DNAT"), ("match", "owner")] {
            assert_eq!(said(&[told(kind, name, 0, &[1])], TableFamily::Ip), more, "{name}");
        }
    }
}

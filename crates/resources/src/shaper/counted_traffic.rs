//! The part of the traffic that a limit counts.

use std::fmt;

use cnikit_netlink::{FilterRule, PacketMatch};
use cnikit_types::parse_cidr;
use ipnetwork::IpNetwork;

/// The class of a limit, below the handle `1:`.
pub(crate) const LIMITED: u16 = 1;
/// The class of packets that are not limited. It does not exist, so the kernel sends them at once; the number marks the objects
/// that have it as those of a limit.
pub(crate) const UNLIMITED: u16 = 0xc17;
/// How many subnets a limit has at most: every packet is compared with them one after the other.
const MOST: usize = 256;
/// The preferences of filters. All filters of a preference have one protocol.
const IPV4: u16 = 1;
const IPV6: u16 = 2;
const OTHERS: u16 = 3;

/// The traffic that a limit counts, by the address of the other side: the source of what the container receives, and the
/// destination of what it sends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CountedTraffic {
    /// Everything.
    #[default]
    All,
    /// IP packets from and to these subnets.
    Only(Vec<IpNetwork>),
    /// Everything except IP packets from and to these subnets.
    Except(Vec<IpNetwork>),
}

impl CountedTraffic {
    /// The traffic of two lists of subnets, of which one at most may have any.
    ///
    /// # Errors
    /// Both lists have subnets, one has too many, or a text is not a subnet.
    pub fn checked(shaped: &[String], unshaped: &[String]) -> Result<CountedTraffic, String> {
        let only = subnets("shapedSubnets", shaped)?;
        let except = subnets("unshapedSubnets", unshaped)?;
        match (only.is_empty(), except.is_empty()) {
            (false, false) => {
                Err("shapedSubnets and unshapedSubnets exclude each other; hint: remove one of them".to_owned())
            }
            (false, true) => Ok(CountedTraffic::Only(only)),
            (true, false) => Ok(CountedTraffic::Except(except)),
            (true, true) => Ok(CountedTraffic::All),
        }
    }

    /// The filters of what the container receives, at the root of the host end; none if everything counts.
    pub(crate) fn of_ingress(&self) -> Vec<FilterRule> {
        self.rules(PacketMatch::From, None)
    }

    /// The filters of what the container sends, where the host end receives it: what counts is redirected to this link.
    pub(crate) fn of_egress(&self, ifb: u32) -> Vec<FilterRule> {
        if *self == CountedTraffic::All {
            // As upstream writes it.
            let rule = FilterRule { preference: 1, packets: PacketMatch::All, class: LIMITED, redirects_to: Some(ifb) };
            return vec![rule];
        }
        self.rules(PacketMatch::To, Some(ifb))
    }

    fn rules(&self, packets: fn(IpNetwork) -> PacketMatch, redirects_to: Option<u32>) -> Vec<FilterRule> {
        let (subnets, class) = match self {
            CountedTraffic::All => return Vec::new(),
            CountedTraffic::Only(subnets) => (subnets, LIMITED),
            CountedTraffic::Except(subnets) => (subnets, UNLIMITED),
        };
        let redirects_subnet = if class == LIMITED { redirects_to } else { None };
        let mut rules = Vec::new();
        for subnet in subnets {
            let preference = if subnet.is_ipv4() { IPV4 } else { IPV6 };
            rules.push(FilterRule { preference, packets: packets(*subnet), class, redirects_to: redirects_subnet });
        }
        // The kernel reports filters in the order of their preferences.
        rules.sort_by_key(|rule| rule.preference);
        // Packets that no filter takes are not limited.
        if class == UNLIMITED {
            rules.push(FilterRule { preference: OTHERS, packets: PacketMatch::All, class: LIMITED, redirects_to });
        }
        rules
    }
}

/// The subnets without host bits, as the kernel compares them.
fn subnets(key: &str, texts: &[String]) -> Result<Vec<IpNetwork>, String> {
    if texts.len() > MOST {
        return Err(format!("{key}: {} subnets are too many, at most {MOST} are possible", texts.len()));
    }
    let mut subnets = Vec::with_capacity(texts.len());
    for text in texts {
        let subnet = parse_cidr(text).map_err(|why| format!("{key}: {why}"))?;
        subnets.push(IpNetwork::new(subnet.network(), subnet.prefix()).unwrap_or(subnet));
    }
    Ok(subnets)
}

impl fmt::Display for CountedTraffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (text, subnets) = match self {
            CountedTraffic::All => return Ok(()),
            CountedTraffic::Only(subnets) => (", only", subnets),
            CountedTraffic::Except(subnets) => (", except", subnets),
        };
        let subnets: Vec<String> = subnets.iter().map(IpNetwork::to_string).collect();
        write!(f, "{text} {}", subnets.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(subnets: &[&str]) -> Vec<String> {
        subnets.iter().map(|&subnet| subnet.to_owned()).collect()
    }

    #[test]
    fn one_list_at_most_has_subnets_and_not_too_many() {
        let some = texts(&["10.1.2.3/8"]);
        assert_eq!(CountedTraffic::checked(&[], &[]), Ok(CountedTraffic::All));
        assert!(CountedTraffic::checked(&some, &some).unwrap_err().contains("exclude each other"));
        let many = vec![some[0].clone(); MOST + 1];
        assert!(CountedTraffic::checked(&many, &[]).unwrap_err().contains("257 subnets are too many"));
        let none = CountedTraffic::checked(&[], &texts(&["10.0.0.0"])).unwrap_err();
        assert!(none.contains("unshapedSubnets: \"10.0.0.0\" is not an address with a prefix length"), "{none}");
        let only = CountedTraffic::checked(&some, &[]).unwrap();
        assert_eq!(only, CountedTraffic::Only(vec!["10.0.0.0/8".parse().unwrap()]), "without host bits");
    }

    #[test]
    fn a_dry_run_names_the_subnets() {
        let subnets = vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
        assert_eq!(CountedTraffic::Only(subnets.clone()).to_string(), ", only 10.0.0.0/8, fd00::/8");
        assert_eq!(CountedTraffic::Except(subnets).to_string(), ", except 10.0.0.0/8, fd00::/8");
        assert_eq!(CountedTraffic::All.to_string(), "");
    }

    #[test]
    fn the_rest_is_not_limited_where_subnets_are_and_limited_where_they_are_not() {
        let subnets = texts(&["fd00::/8", "10.0.0.0/8"]);
        let rules = CountedTraffic::checked(&subnets, &[]).unwrap().of_egress(7);
        let classes: Vec<_> = rules.iter().map(|rule| (rule.preference, rule.class, rule.redirects_to)).collect();
        assert_eq!(classes, [(1, LIMITED, Some(7)), (2, LIMITED, Some(7))]);
        let rules = CountedTraffic::checked(&[], &subnets).unwrap().of_egress(7);
        let classes: Vec<_> = rules.iter().map(|rule| (rule.preference, rule.class, rule.redirects_to)).collect();
        assert_eq!(classes, [(1, UNLIMITED, None), (2, UNLIMITED, None), (3, LIMITED, Some(7))]);
        assert_eq!(CountedTraffic::All.of_ingress(), []);
    }
}

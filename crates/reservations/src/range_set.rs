//! Sets of ranges. An attachment gets one address of each set.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use crate::error::Error;
use crate::range::{Range, RangeConfig, address, number};

/// Ranges of one family that do not overlap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeSet {
    ranges: Vec<Range>,
}

/// `A-B,C-D`.
impl fmt::Display for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.ranges.iter().map(ToString::to_string).collect();
        f.write_str(&texts.join(","))
    }
}

impl TryFrom<&[RangeConfig]> for RangeSet {
    type Error = Error;

    fn try_from(written: &[RangeConfig]) -> Result<RangeSet, Error> {
        if written.is_empty() {
            return Err(Error::value("empty range set").hint("remove the empty list, or put a range into it"));
        }
        let ranges = written.iter().map(Range::try_from).collect::<Result<Vec<Range>, Error>>()?;
        if ranges.iter().any(|range| range.is_ipv4() != ranges[0].is_ipv4()) {
            return Err(Error::value("mixed address families")
                .hint("a set gives one address: put IPv4 and IPv6 ranges into sets of their own"));
        }
        match overlapping(ranges.iter()) {
            None => Ok(RangeSet { ranges }),
            Some((one, other)) => {
                let one = &ranges[one];
                let other = &ranges[other];
                Err(Error::value(format!("subnets {one} and {other} overlap"))
                    .hint("an address may be in one range only: make one of them smaller, or remove it"))
            }
        }
    }
}

/// The indexes of two ranges that overlap. If any two ranges overlap, so do two that are adjacent when sorted by their first
/// address.
fn overlapping<'a>(ranges: impl Iterator<Item = &'a Range>) -> Option<(usize, usize)> {
    let mut sorted: Vec<(usize, &Range)> = ranges.enumerate().collect();
    sorted.sort_by_key(|(_, range)| (range.is_ipv4(), *range.numbers().start()));
    let pair = sorted.windows(2).find(|pair| pair[0].1.overlaps(pair[1].1))?;
    let one = pair[0].0;
    let other = pair[1].0;
    Some((one.min(other), one.max(other)))
}

impl RangeSet {
    /// The range that contains the address.
    pub fn range_of(&self, address: IpAddr) -> Option<&Range> {
        self.ranges.iter().find(|range| range.contains(address))
    }

    /// Whether one of the ranges contains the address.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.range_of(address).is_some()
    }

    /// Whether its addresses are IPv4.
    pub fn is_ipv4(&self) -> bool {
        self.ranges[0].is_ipv4()
    }

    /// The indexes of two sets that have an address in common, the lower index first.
    pub fn overlap(sets: &[RangeSet]) -> Option<(usize, usize)> {
        let (one, other) = overlapping(sets.iter().flat_map(|set| &set.ranges))?;
        let mut set_of_range = Vec::new();
        for (n, set) in sets.iter().enumerate() {
            set_of_range.extend(set.ranges.iter().map(|_| n));
        }
        Some((*set_of_range.get(one)?, *set_of_range.get(other)?))
    }

    /// The gateways of its ranges.
    pub fn gateways(&self) -> impl Iterator<Item = IpAddr> {
        self.ranges.iter().map(Range::gateway)
    }

    /// Its ranges, in the order in which they are tried.
    pub fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// The number of addresses that can be allocated.
    pub fn size(&self, gateways: &[IpAddr]) -> u128 {
        self.ranges.iter().map(|range| range.size(gateways)).fold(0, u128::saturating_add)
    }

    /// Every address once, in the order in which they are tried: from the one after the last allocated address to the end, then
    /// from the start up to that address. It starts at the first address if none was allocated, or the last one is not in this set.
    pub(crate) fn round(&self, last: Option<IpAddr>) -> impl Iterator<Item = IpAddr> {
        let like = self.ranges[0].start();
        self.stretches(last).into_iter().flatten().map(move |number| address(number, like))
    }

    fn stretches(&self, last: Option<IpAddr>) -> Vec<RangeInclusive<u128>> {
        let Some(last) = last else { return self.ranges.iter().map(Range::numbers).collect() };
        let Some(at) = self.ranges.iter().position(|range| range.contains(last)) else {
            return self.ranges.iter().map(Range::numbers).collect();
        };
        let own = self.ranges[at].numbers();
        let last = number(last);
        let mut stretches = Vec::with_capacity(self.ranges.len() + 1);
        // The highest address of the family has no next one.
        if let Some(next) = last.checked_add(1) {
            stretches.push(next..=*own.end());
        }
        stretches.extend(self.ranges[at + 1..].iter().chain(&self.ranges[..at]).map(Range::numbers));
        stretches.push(*own.start()..=last);
        stretches
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(subnet: &str, start: &str, end: &str) -> RangeConfig {
        let ip = |text: &str| (!text.is_empty()).then(|| text.parse().unwrap());
        RangeConfig { subnet: Some(subnet.parse().unwrap()), start: ip(start), end: ip(end), gateway: None }
    }

    fn set() -> RangeSet {
        let ranges = [written("10.0.0.0/30", "", ""), written("10.0.1.0/24", "10.0.1.5", "10.0.1.7")];
        RangeSet::try_from(&ranges[..]).unwrap()
    }

    fn round(last: &str) -> String {
        let texts: Vec<String> = set().round(last.parse().ok()).map(|ip| ip.to_string().replace("10.0.", "")).collect();
        texts.join(" ")
    }

    #[test]
    fn a_round_starts_after_the_last_address_and_ends_with_it() {
        assert_eq!(round(""), "0.1 0.2 1.5 1.6 1.7");
        assert_eq!(round("10.0.0.1"), "0.2 1.5 1.6 1.7 0.1");
        assert_eq!(round("10.0.1.6"), "1.7 0.1 0.2 1.5 1.6");
        assert_eq!(round("10.0.1.7"), "0.1 0.2 1.5 1.6 1.7");
        assert_eq!(round("192.0.2.1"), "0.1 0.2 1.5 1.6 1.7", "of another set: from the beginning");
        assert_eq!(round("2001:db8::1"), "0.1 0.2 1.5 1.6 1.7", "of another family: from the beginning");
    }

    #[test]
    fn a_set_has_its_ranges_in_their_order_and_one_family() {
        let starts: Vec<String> = set().ranges().iter().map(|range| range.gateway().to_string()).collect();
        assert_eq!(starts, ["10.0.0.1", "10.0.1.1"]);
        assert!(set().is_ipv4());
        assert!(!RangeSet::try_from(&[written("2001:db8::/64", "", "")][..]).unwrap().is_ipv4());
    }

    #[test]
    fn the_last_address_of_all_is_no_overflow() {
        let all = RangeSet::try_from(&[written("::/0", "", "")][..]).unwrap();
        let last = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff".parse().ok();
        assert_eq!(all.round(last).next().unwrap().to_string(), "::1");
        assert_eq!(all.size(&[]), u128::MAX);
    }

    #[test]
    fn invalid_range_sets_are_refused() {
        let refused = |ranges: &[RangeConfig]| RangeSet::try_from(ranges).unwrap_err().text;
        assert_eq!(refused(&[]), "empty range set");
        assert_eq!(
            refused(&[written("10.0.0.0/24", "", ""), written("2001:db8::/64", "", "")]),
            "mixed address families"
        );
        let twice = [written("10.0.0.0/24", "", "10.0.0.9"), written("10.0.0.0/24", "10.0.0.9", "")];
        assert_eq!(refused(&twice), "subnets 10.0.0.1-10.0.0.9 and 10.0.0.9-10.0.0.254 overlap");
        let contained =
            [written("10.0.0.0/16", "", ""), written("10.1.0.0/24", "", ""), written("10.0.9.0/24", "", "")];
        assert_eq!(refused(&contained), "subnets 10.0.0.1-10.0.255.254 and 10.0.9.1-10.0.9.254 overlap");
        assert!(RangeSet::try_from(&contained[..]).unwrap_err().hint.is_some());
        let apart = [written("10.0.0.0/24", "", "10.0.0.9"), written("10.0.0.0/24", "10.0.0.10", "")];
        assert!(RangeSet::try_from(&apart[..]).is_ok(), "one subnet twice, its ranges apart");
    }

    #[test]
    fn sets_that_share_an_address_are_found_in_whatever_order_and_family() {
        let set = |subnet: &str| RangeSet::try_from(&[written(subnet, "", "")][..]).unwrap();
        let sets = ["10.9.0.0/24", "::a00:0/120", "2001:db8::/64", "10.0.0.0/24", "10.0.0.0/8"].map(set);
        assert_eq!(RangeSet::overlap(&sets[..4]), None, "an IPv6 address is none of IPv4, whatever its number");
        assert_eq!(RangeSet::overlap(&sets), Some((3, 4)));
        assert_eq!(RangeSet::overlap(&[sets[4].clone(), sets[2].clone(), sets[0].clone()]), Some((0, 2)));
    }

    /// A comparison of each pair took minutes.
    #[test]
    fn a_hundred_thousand_ranges_are_compared_at_once() {
        let subnet = |n: u32| RangeConfig {
            subnet: format!("{}/30", std::net::Ipv4Addr::from(n << 2)).parse().ok(),
            ..RangeConfig::default()
        };
        let many: Vec<RangeConfig> = (0..100_000).map(subnet).collect();
        let began = std::time::Instant::now();
        assert!(RangeSet::try_from(&many[..]).is_ok());
        assert!(began.elapsed() < std::time::Duration::from_secs(10), "{:?}", began.elapsed());
    }

    #[test]
    fn the_size_excludes_every_gateway_in_the_set() {
        let gateways: Vec<IpAddr> =
            ["10.0.0.1", "10.0.1.6", "10.0.1.6", "10.0.9.1"].map(|ip| ip.parse().unwrap()).into();
        assert_eq!(set().size(&gateways), 3);
    }
}

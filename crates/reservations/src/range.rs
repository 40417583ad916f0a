//! Ranges of addresses, validated when they are constructed.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use ipnetwork::IpNetwork;

use crate::error::Error;

/// The configuration of a range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeConfig {
    /// The subnet, which is required.
    pub subnet: Option<IpNetwork>,
    /// The first address; default: the one after the network address.
    pub start: Option<IpAddr>,
    /// The last address; default: the one before the broadcast address, or the last one of an IPv6 subnet.
    pub end: Option<IpAddr>,
    /// The gateway; default: the address after the network address, even if `start` is another one.
    pub gateway: Option<IpAddr>,
}

/// Consecutive addresses of one subnet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    subnet: IpNetwork,
    /// The first and the last address, as numbers.
    first: u128,
    last: u128,
    gateway: IpAddr,
}

/// An address as a number. Numbers are comparable within one family only.
pub(crate) fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u32::from(v4).into(),
        IpAddr::V6(v6) => v6.into(),
    }
}

/// The address with this number, in the family of the address `like`.
pub(crate) fn address(number: u128, like: IpAddr) -> IpAddr {
    match (like, u32::try_from(number)) {
        (IpAddr::V4(_), Ok(number)) => Ipv4Addr::from(number).into(),
        _ => Ipv6Addr::from(number).into(),
    }
}

impl Range {
    /// The subnet of the addresses.
    pub fn subnet(&self) -> IpNetwork {
        self.subnet
    }

    /// The gateway, which is never allocated.
    pub fn gateway(&self) -> IpAddr {
        self.gateway
    }

    /// The first address.
    pub fn start(&self) -> IpAddr {
        address(self.first, self.subnet.ip())
    }

    /// The last address.
    pub fn end(&self) -> IpAddr {
        address(self.last, self.subnet.ip())
    }

    /// Whether the address is between start and end, both included.
    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.is_ipv4() && self.numbers().contains(&number(address))
    }

    /// The number of addresses that can be allocated: all except those of `gateways`.
    pub fn size(&self, gateways: &[IpAddr]) -> u128 {
        let all = (self.last - self.first).saturating_add(1);
        let mut reserved: Vec<&IpAddr> = gateways.iter().filter(|gateway| self.contains(**gateway)).collect();
        reserved.sort();
        reserved.dedup();
        all - reserved.len() as u128
    }

    /// Whether the two ranges have an address in common.
    pub fn overlaps(&self, other: &Range) -> bool {
        self.is_ipv4() == other.is_ipv4() && self.first <= other.last && other.first <= self.last
    }

    pub(crate) fn is_ipv4(&self) -> bool {
        self.subnet.is_ipv4()
    }

    /// Its addresses, as numbers.
    pub(crate) fn numbers(&self) -> RangeInclusive<u128> {
        self.first..=self.last
    }
}

/// `START-END`.
impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.start(), self.end())
    }
}

impl TryFrom<&RangeConfig> for Range {
    type Error = Error;

    fn try_from(config: &RangeConfig) -> Result<Range, Error> {
        let subnet = valid_subnet(config.subnet)?;
        if let Some(start) = config.start
            && !is_in(subnet, start)
        {
            return Err(outside("RangeStart", start, subnet));
        }
        if let Some(end) = config.end
            && !is_in(subnet, end)
        {
            return Err(outside("RangeEnd", end, subnet));
        }
        let network = number(subnet.network());
        let broadcast = number(subnet.broadcast());
        let first = config.start.map_or(network + 1, number);
        let last = match config.end {
            Some(end) => number(end),
            None if subnet.is_ipv4() => broadcast - 1,
            None => broadcast,
        };
        if first > last {
            return Err(reversed(config, first, last, subnet));
        }
        let gateway = config.gateway.unwrap_or_else(|| address(network + 1, subnet.ip()));
        Ok(Range { subnet, first, last, gateway })
    }
}

/// Whether the address is in the subnet, network and broadcast address included.
fn is_in(subnet: IpNetwork, ip: IpAddr) -> bool {
    ip.is_ipv4() == subnet.is_ipv4() && (number(subnet.network())..=number(subnet.broadcast())).contains(&number(ip))
}

/// The error of a first or last address that is not in the subnet, in upstream's words.
fn outside(key: &str, given: IpAddr, subnet: IpNetwork) -> Error {
    Error::value(format!("{key} {given} not in network {subnet}"))
        .hint(format!("rangeStart and rangeEnd are addresses of {subnet}, the start first"))
}

/// The error of a range whose last address is before its first one. Upstream names the address that was configured, or the first
/// one if both were.
fn reversed(config: &RangeConfig, first: u128, last: u128, subnet: IpNetwork) -> Error {
    match (config.start, config.end) {
        (Some(start), Some(_)) => outside("RangeStart", start, subnet),
        (None, Some(end)) => outside("RangeEnd", end, subnet),
        (_, None) => {
            let start = address(first, subnet.ip());
            let end = address(last, subnet.ip());
            Error::value(format!("RangeStart {start} is after the end of the range, {end}"))
                .hint("choose a smaller rangeStart, or state a rangeEnd")
        }
    }
}

/// The subnet, if it is stated and addresses can be allocated from it.
fn valid_subnet(subnet: Option<IpNetwork>) -> Result<IpNetwork, Error> {
    let subnet = subnet
        .ok_or_else(|| Error::value("IP <nil> not v4 nor v6").hint("give every range a `subnet` like 10.1.2.0/24"))?;
    let longest = if subnet.is_ipv4() { 30 } else { 126 };
    if subnet.prefix() > longest {
        return Err(Error::value(format!("Network {subnet} too small to allocate from"))
            .hint(format!("use a prefix of at most /{longest}")));
    }
    if matches!(subnet.ip(), IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some()) {
        return Err(Error::value("IPNet IP and Mask version mismatch")
            .hint(format!("write the IPv4 subnet {subnet} in IPv4's form")));
    }
    if subnet.ip() != subnet.network() {
        return Err(Error::value(format!(
            "Network has host bits set. For a subnet mask of length {} the network address is {}",
            subnet.prefix(),
            subnet.network()
        ))
        .hint(format!("write {}/{}", subnet.network(), subnet.prefix())));
    }
    Ok(subnet)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn written(subnet: &str, start: &str, end: &str, gateway: &str) -> RangeConfig {
        let ip = |text: &str| (!text.is_empty()).then(|| text.parse().unwrap());
        RangeConfig { subnet: Some(subnet.parse().unwrap()), start: ip(start), end: ip(end), gateway: ip(gateway) }
    }

    fn range(subnet: &str, start: &str, end: &str) -> Result<Range, Error> {
        Range::try_from(&written(subnet, start, end, ""))
    }

    fn refused(subnet: &str, start: &str, end: &str) -> String {
        range(subnet, start, end).unwrap_err().text
    }

    #[test]
    fn defaults_omit_network_and_broadcast_but_not_the_last_ipv6_address() {
        assert_eq!(range("10.1.2.0/24", "", "").unwrap().to_string(), "10.1.2.1-10.1.2.254");
        assert_eq!(range("10.1.2.0/30", "", "").unwrap().to_string(), "10.1.2.1-10.1.2.2");
        assert_eq!(range("2001:db8::/64", "", "").unwrap().to_string(), "2001:db8::1-2001:db8::ffff:ffff:ffff:ffff");
        assert_eq!(range("::/0", "", "").unwrap().numbers(), 1..=u128::MAX);
        assert_eq!(range("0.0.0.0/0", "", "").unwrap().end().to_string(), "255.255.255.254");
        assert_eq!(range("10.1.2.0/24", "10.1.2.9", "").unwrap().gateway().to_string(), "10.1.2.1");
        assert_eq!(range("10.1.2.0/24", "10.1.2.0", "10.1.2.255").unwrap().to_string(), "10.1.2.0-10.1.2.255");
    }

    #[test]
    fn a_range_outside_its_subnet_or_backwards_is_refused_as_upstream() {
        assert_eq!(refused("10.1.2.0/24", "10.1.3.1", ""), "RangeStart 10.1.3.1 not in network 10.1.2.0/24");
        assert_eq!(refused("10.1.2.0/24", "2001:db8::1", ""), "RangeStart 2001:db8::1 not in network 10.1.2.0/24");
        assert_eq!(refused("10.1.2.0/24", "10.1.2.9", "10.1.2.8"), "RangeStart 10.1.2.9 not in network 10.1.2.0/24");
        assert_eq!(refused("10.1.2.0/24", "", "10.1.2.0"), "RangeEnd 10.1.2.0 not in network 10.1.2.0/24");
        assert_eq!(refused("10.1.2.0/24", "", "10.1.3.1"), "RangeEnd 10.1.3.1 not in network 10.1.2.0/24");
        let past = "RangeStart 10.1.2.255 is after the end of the range, 10.1.2.254";
        assert_eq!(refused("10.1.2.0/24", "10.1.2.255", ""), past);
    }

    #[test]
    fn invalid_subnets_are_refused() {
        assert_eq!(refused("10.1.2.1/31", "", ""), "Network 10.1.2.1/31 too small to allocate from");
        assert_eq!(refused("2001:db8::/127", "", ""), "Network 2001:db8::/127 too small to allocate from");
        assert_eq!(refused("::ffff:10.1.2.0/120", "", ""), "IPNet IP and Mask version mismatch");
        assert_eq!(
            refused("10.1.2.3/24", "", ""),
            "Network has host bits set. For a subnet mask of length 24 the network address is 10.1.2.0"
        );
        assert_eq!(Range::try_from(&RangeConfig::default()).unwrap_err().text, "IP <nil> not v4 nor v6");
    }

    #[test]
    fn a_number_and_an_address_are_the_same_thing() {
        for text in
            ["0.0.0.0", "255.255.255.255", "::", "::1", "2001:db8::ff", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"]
        {
            let ip: IpAddr = text.parse().unwrap();
            assert_eq!(address(number(ip), ip), ip);
        }
    }

    #[test]
    fn an_address_is_in_a_range_of_its_own_family_from_start_to_end() {
        let four = range("10.1.2.0/24", "10.1.2.5", "10.1.2.7").unwrap();
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let addresses = ["10.1.2.4", "10.1.2.5", "10.1.2.7", "10.1.2.8"];
        assert_eq!(addresses.map(|address| four.contains(ip(address))), [false, true, true, false]);
        // The same numbers, in the other family.
        let six = range("::a01:200/120", "::a01:205", "::a01:207").unwrap();
        assert!(six.contains(ip("::a01:206")) && !six.contains(ip("10.1.2.6")) && !four.contains(ip("::a01:206")));
        assert!(!four.overlaps(&six) && !six.overlaps(&four));
        let single = range("10.1.2.0/24", "10.1.2.7", "10.1.2.7").unwrap();
        assert!(four.overlaps(&single) && single.overlaps(&four) && single.contains(ip("10.1.2.7")));
        let behind = range("10.1.2.0/24", "10.1.2.8", "").unwrap();
        assert!(!four.overlaps(&behind) && !behind.overlaps(&four));
    }

    #[test]
    fn the_size_of_a_range_leaves_out_each_gateway_in_it_once() {
        let gateways = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpAddr>>();
        let small = range("10.1.2.0/24", "10.1.2.5", "10.1.2.9").unwrap();
        assert_eq!(small.size(&[]), 5);
        assert_eq!(small.size(&gateways(&["10.1.2.5", "10.1.2.9", "10.1.2.5"])), 3);
        assert_eq!(small.size(&gateways(&["10.1.2.4", "::a01:205"])), 5);
        assert_eq!(range("::/0", "::", "").unwrap().size(&[]), u128::MAX, "one more than fits");
    }
}

//! Ranges of addresses, checked: one that is wrong cannot exist.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use ipnetwork::IpNetwork;

use crate::error::Error;

/// A range as it was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeConfig {
    /// The subnet. It has to be there.
    pub subnet: Option<IpNetwork>,
    /// The first address; default: the one after the network's.
    pub start: Option<IpAddr>,
    /// The last address; default: the one before the broadcast address, or the very last of an IPv6 subnet.
    pub end: Option<IpAddr>,
    /// The gateway; default: the address after the network's, wherever the range starts.
    pub gateway: Option<IpAddr>,
}

/// Consecutive addresses of one subnet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    subnet: IpNetwork,
    numbers: (u128, u128),
    gateway: IpAddr,
}

/// An address as a number; comparable within one family only.
pub(crate) fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u32::from(v4).into(),
        IpAddr::V6(v6) => v6.into(),
    }
}

/// The address of this number, in the family of another.
pub(crate) fn address(number: u128, like: IpAddr) -> IpAddr {
    match (like, u32::try_from(number)) {
        (IpAddr::V4(_), Ok(number)) => Ipv4Addr::from(number).into(),
        _ => Ipv6Addr::from(number).into(),
    }
}

impl Range {
    /// The subnet that the addresses are of.
    pub fn subnet(&self) -> IpNetwork {
        self.subnet
    }

    /// The gateway, which is never allocated.
    pub fn gateway(&self) -> IpAddr {
        self.gateway
    }

    /// The first address.
    pub fn start(&self) -> IpAddr {
        address(self.numbers.0, self.subnet.ip())
    }

    /// The last address.
    pub fn end(&self) -> IpAddr {
        address(self.numbers.1, self.subnet.ip())
    }

    /// Whether the address is between start and end, both included.
    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.is_ipv4() && self.numbers().contains(&number(address))
    }

    /// The number of addresses that can be allocated: all except these gateways.
    pub fn size(&self, gateways: &[IpAddr]) -> u128 {
        let all = (self.numbers.1 - self.numbers.0).saturating_add(1);
        let mut reserved: Vec<&IpAddr> = gateways.iter().filter(|gateway| self.contains(**gateway)).collect();
        reserved.sort();
        reserved.dedup();
        all - reserved.len() as u128
    }

    /// Whether both have an address in common.
    pub fn overlaps(&self, other: &Range) -> bool {
        self.is_ipv4() == other.is_ipv4() && self.numbers.0 <= other.numbers.1 && other.numbers.0 <= self.numbers.1
    }

    pub(crate) fn is_ipv4(&self) -> bool {
        self.subnet.is_ipv4()
    }

    pub(crate) fn numbers(&self) -> RangeInclusive<u128> {
        self.numbers.0..=self.numbers.1
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

    fn try_from(written: &RangeConfig) -> Result<Range, Error> {
        let subnet = checked(written.subnet)?;
        let network = number(subnet.network());
        let last = number(subnet.broadcast());
        let inside = |given: IpAddr| given.is_ipv4() == subnet.is_ipv4() && (network..=last).contains(&number(given));
        let outside = |what, given| {
            Error::value(format!("{what} {given} not in network {subnet}"))
                .hint(format!("rangeStart and rangeEnd are addresses of {subnet}, the start first"))
        };
        let start = match written.start {
            Some(start) if !inside(start) => return Err(outside("RangeStart", start)),
            Some(start) if written.end.is_some_and(|end| inside(end) && number(end) < number(start)) => {
                return Err(outside("RangeStart", start));
            }
            given => given.map_or(network + 1, number),
        };
        let end = match written.end {
            Some(end) if !inside(end) || number(end) < start => return Err(outside("RangeEnd", end)),
            Some(end) => number(end),
            None if subnet.is_ipv4() => last - 1,
            None => last,
        };
        if start > end {
            let start = address(start, subnet.ip());
            let end = address(end, subnet.ip());
            return Err(Error::value(format!("RangeStart {start} is after the end of the range, {end}"))
                .hint("choose a smaller rangeStart, or state a rangeEnd"));
        }
        let gateway = written.gateway.unwrap_or_else(|| address(network + 1, subnet.ip()));
        Ok(Range { subnet, numbers: (start, end), gateway })
    }
}

fn checked(subnet: Option<IpNetwork>) -> Result<IpNetwork, Error> {
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
    fn defaults_leave_out_network_and_broadcast_and_keep_the_last_address_of_ipv6() {
        assert_eq!(range("10.1.2.0/24", "", "").unwrap().to_string(), "10.1.2.1-10.1.2.254");
        assert_eq!(range("10.1.2.0/30", "", "").unwrap().to_string(), "10.1.2.1-10.1.2.2");
        assert_eq!(range("2001:db8::/64", "", "").unwrap().to_string(), "2001:db8::1-2001:db8::ffff:ffff:ffff:ffff");
        assert_eq!(range("::/0", "", "").unwrap().numbers(), 1..=u128::MAX);
        assert_eq!(range("0.0.0.0/0", "", "").unwrap().end().to_string(), "255.255.255.254");
        assert_eq!(range("10.1.2.0/24", "10.1.2.9", "").unwrap().gateway().to_string(), "10.1.2.1");
        assert_eq!(range("10.1.2.0/24", "10.1.2.0", "10.1.2.255").unwrap().to_string(), "10.1.2.0-10.1.2.255");
    }

    #[test]
    fn what_is_outside_or_backwards_is_refused_in_the_words_people_search_for() {
        assert_eq!(refused("10.1.2.0/24", "10.1.3.1", ""), "RangeStart 10.1.3.1 not in network 10.1.2.0/24");
        assert_eq!(refused("10.1.2.0/24", "2001:db8::1", ""), "RangeStart 2001:db8::1 not in network 10.1.2.0/24");
        assert_eq!(refused("10.1.2.0/24", "10.1.2.9", "10.1.2.8"), "RangeStart 10.1.2.9 not in network 10.1.2.0/24");
        assert_eq!(refused("10.1.2.0/24", "", "10.1.2.0"), "RangeEnd 10.1.2.0 not in network 10.1.2.0/24");
        assert_eq!(refused("10.1.2.0/24", "", "10.1.3.1"), "RangeEnd 10.1.3.1 not in network 10.1.2.0/24");
        let past = "RangeStart 10.1.2.255 is after the end of the range, 10.1.2.254";
        assert_eq!(refused("10.1.2.0/24", "10.1.2.255", ""), past);
    }

    #[test]
    fn subnets_that_are_none_are_refused() {
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
}

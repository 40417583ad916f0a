//! The addresses that networks assign, and their overlaps with each other and with routes of the host.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cnikit_types::{NetConf, Value, parse_cidr, parse_ip};
use ipnetwork::IpNetwork;

/// A route of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutedSubnet {
    /// Its destination.
    pub network: IpNetwork,
    /// The name of its link.
    pub device: String,
}

/// Addresses that a network assigns.
#[derive(Clone, Debug)]
pub(crate) struct Range {
    /// Its key in the plugin's object.
    pub(crate) key: String,
    pub(crate) subnet: IpNetwork,
    first: Number,
    last: Number,
}

/// An address as a number, IPv4 before IPv6.
type Number = (bool, u128);

fn number(address: IpAddr) -> Number {
    match address {
        IpAddr::V4(address) => (false, u32::from(address).into()),
        IpAddr::V6(address) => (true, address.into()),
    }
}

impl Range {
    /// The range of an object with `subnet`, `rangeStart` and `rangeEnd`; `None` if the subnet is invalid, which the plugin will
    /// report.
    fn of(conf: &NetConf, key: String) -> Option<Range> {
        let subnet = parse_cidr(conf.text("subnet")?).ok()?;
        let address = |key: &str| parse_ip(conf.text(key)?).ok();
        Some(Range {
            key,
            subnet,
            first: number(address("rangeStart").unwrap_or(subnet.network())),
            last: number(address("rangeEnd").unwrap_or(subnet.broadcast())),
        })
    }

    /// Whether the whole subnet and the route's destination have an address in common.
    fn overlaps(&self, route: &RoutedSubnet) -> bool {
        let subnet = &self.subnet;
        let destination = &route.network;
        number(subnet.network()) <= number(destination.broadcast())
            && number(destination.network()) <= number(subnet.broadcast())
    }
}

/// The ranges in the `ipam` of a plugin: host-local's, and the addresses of static.
pub(crate) fn ranges(plugin: &NetConf) -> Vec<Range> {
    let Some(Value::Object(ipam)) = plugin.get("ipam") else { return Vec::new() };
    let ipam = NetConf(ipam.clone());
    let mut found: Vec<Range> = Vec::new();
    if let Some(range) = Range::of(&ipam, "ipam.subnet".to_owned()) {
        found.push(range);
    }
    for (outer, set) in list(&ipam, "ranges").iter().enumerate() {
        for (inner, range) in set.as_array().into_iter().flatten().enumerate() {
            let key = format!("ipam.ranges[{outer}][{inner}].subnet");
            if let Value::Object(members) = range
                && let Some(range) = Range::of(&NetConf(members.clone()), key)
            {
                found.push(range);
            }
        }
    }
    for (index, entry) in list(&ipam, "addresses").iter().enumerate() {
        if let Value::Object(entry) = entry
            && let Some(text) = NetConf(entry.clone()).text("address")
            && let Ok(subnet) = parse_cidr(text)
        {
            let address = number(subnet.ip());
            found.push(Range {
                key: format!("ipam.addresses[{index}].address"),
                subnet,
                first: address,
                last: address,
            });
        }
    }
    found
}

fn list<'c>(conf: &'c NetConf, key: &str) -> &'c [Value] {
    conf.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// The links of a network's own routes: its bridge, its master.
pub(crate) fn own_links(plugin: &NetConf) -> Vec<String> {
    let mut links = Vec::new();
    match plugin.text("bridge") {
        Some(name) if !name.is_empty() => links.push(name.to_owned()),
        _ if plugin.plugin_type() == Some("bridge") => links.push("cni0".to_owned()),
        _ => {}
    }
    if let Some(master) = plugin.text("master") {
        links.push(master.to_owned());
    }
    links
}

/// The first route that overlaps the range and is not on one of the networks' `own` links. Default routes and routes to a single
/// address do not count.
pub(crate) fn overlapping_route<'r>(
    range: &Range,
    routes: &'r [RoutedSubnet],
    own: &BTreeSet<String>,
) -> Option<&'r RoutedSubnet> {
    routes.iter().find(|route| {
        let single = if route.network.is_ipv4() { 32 } else { 128 };
        let prefix = route.network.prefix();
        !own.contains(&route.device) && prefix > 0 && prefix != single && range.overlaps(route)
    })
}

/// Pairs of ranges of different networks that overlap: for each range, the index of one that begins at the same address or
/// earlier.
///
/// Each range comes with the number of its network.
pub(crate) fn overlaps(ranges: &[(usize, &Range)]) -> Vec<(usize, usize)> {
    let mut order: Vec<usize> = (0..ranges.len()).collect();
    order.sort_by_key(|index| ranges[*index].1.first);
    let network = |index: usize| ranges[index].0;
    let last = |index: usize| ranges[index].1.last;
    // The range with the highest last address so far, and the one among all networks except the network of that range.
    let mut farthest: Option<usize> = None;
    let mut farthest_other: Option<usize> = None;
    let mut found = Vec::new();
    for index in order {
        let is_same_network = farthest.is_some_and(|farthest| network(farthest) == network(index));
        let rival = if is_same_network { farthest_other } else { farthest };
        if let Some(rival) = rival
            && last(rival) >= ranges[index].1.first
        {
            found.push((index, rival));
        }
        if farthest.is_none_or(|farthest| last(index) > last(farthest)) {
            if !is_same_network {
                farthest_other = farthest;
            }
            farthest = Some(index);
        } else if !is_same_network && farthest_other.is_none_or(|other| last(index) > last(other)) {
            farthest_other = Some(index);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ipam: &str) -> Vec<Range> {
        ranges(&NetConf::parse(format!(r#"{{"type": "bridge", "ipam": {ipam}}}"#).as_bytes()).unwrap())
    }

    fn subnet(text: &str) -> Range {
        of(&format!(r#"{{"subnet": "{text}"}}"#)).remove(0)
    }

    #[test]
    fn the_ranges_of_host_local_and_static_are_read() {
        let text = r#"{"subnet": "10.0.0.0/24", "ranges": [[{"subnet": "10.1.0.0/24"}, {"Subnet": "fd00::/64"}], [{}]],
            "addresses": [{"address": "10.2.0.7/24"}, {"address": "x"}]}"#;
        let keys: Vec<String> = of(text).into_iter().map(|range| range.key).collect();
        let expected = ["subnet", "ranges[0][0].subnet", "ranges[0][1].subnet", "addresses[0].address"];
        assert_eq!(keys, expected.map(|key| format!("ipam.{key}")));
        for text in ["1", "{}", r#"{"subnet": "usePodCidr", "ranges": {}}"#, r#"{"ranges": [1, [1]]}"#] {
            assert!(of(text).is_empty(), "{text}");
        }
    }

    #[test]
    fn ranges_of_two_networks_overlap_where_one_address_is_in_both() {
        let pairs = |ranges: &[(usize, Range)]| {
            let ranges: Vec<(usize, &Range)> = ranges.iter().map(|(network, range)| (*network, range)).collect();
            overlaps(&ranges)
        };
        let [wide, narrow, far, six] = ["10.0.0.0/8", "10.3.0.0/16", "11.0.0.0/8", "::/0"].map(subnet);
        assert_eq!(pairs(&[(0, wide.clone()), (1, narrow.clone()), (2, far.clone()), (3, six)]), [(1, 0)]);
        // A wider range of its own network does not hide that of the other.
        let own = [(0, subnet("10.0.0.0/9")), (1, wide.clone()), (1, narrow.clone()), (1, far)];
        assert_eq!(pairs(&own).into_iter().collect::<BTreeSet<_>>(), BTreeSet::from([(1, 0), (2, 0)]));
        assert_eq!(pairs(&[(0, wide), (0, narrow)]), []);
        let half = |start: u8, end: u8| {
            let text =
                format!(r#"{{"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.{start}", "rangeEnd": "10.0.0.{end}"}}"#);
            of(&text).remove(0)
        };
        assert_eq!(pairs(&[(0, half(1, 99)), (1, half(100, 200))]), []);
        assert_eq!(pairs(&[(0, half(1, 100)), (1, half(100, 200))]), [(1, 0)]);
    }

    #[test]
    fn a_range_has_a_rival_if_one_of_another_network_that_begins_no_later_overlaps_it() {
        let mut seed = 7_u64;
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for case in 0..2000 {
            let mut ranges = Vec::new();
            for _ in 0..next(8) {
                let network = usize::try_from(next(3)).unwrap();
                let first = u128::from(next(20));
                let last = first + u128::from(next(8));
                ranges.push((network, Range { first: (false, first), last: (false, last), ..subnet("10.0.0.0/24") }));
            }
            ranges.sort_by_key(|(_, range)| range.first);
            let found = overlaps(&ranges.iter().map(|(network, range)| (*network, range)).collect::<Vec<_>>());
            for (index, (network, range)) in ranges.iter().enumerate() {
                let is_rival = |(other, earlier): &(usize, Range)| other != network && earlier.last >= range.first;
                let rivals: Vec<usize> =
                    found.iter().filter(|(one, _)| *one == index).map(|(_, rival)| *rival).collect();
                assert_eq!(
                    rivals.len(),
                    usize::from(ranges[..index].iter().any(is_rival)),
                    "{case}: {index} of {ranges:?}"
                );
                assert!(
                    rivals.iter().all(|rival| *rival < index && is_rival(&ranges[*rival])),
                    "{case}: {index} of {ranges:?}"
                );
            }
        }
    }

    #[test]
    fn the_links_of_a_network_are_its_bridge_and_its_master() {
        for (conf, links) in [
            (r#"{"type": "bridge", "bridge": "br0"}"#, &["br0"][..]),
            (r#"{"type": "bridge", "bridge": ""}"#, &["cni0"]),
            (r#"{"type": "bridge"}"#, &["cni0"]),
            (r#"{"type": "macvlan", "master": "eth1"}"#, &["eth1"]),
            (r#"{"type": "ptp"}"#, &[]),
            (r#"{"type": "other", "bridge": "br1", "master": "eth1"}"#, &["br1", "eth1"]),
        ] {
            assert_eq!(own_links(&NetConf::parse(conf.as_bytes()).unwrap()), links, "{conf}");
        }
    }

    #[test]
    fn another_route_overlaps_and_the_networks_own_does_not() {
        let route =
            |network: &str, device: &str| RoutedSubnet { network: network.parse().unwrap(), device: device.into() };
        let own = BTreeSet::from(["cni0".to_owned()]);
        let range = subnet("10.88.0.0/16");
        for (routes, found) in [
            (vec![route("10.88.4.0/24", "tun0")], Some("tun0")),
            (vec![route("10.0.0.0/8", "tun0")], Some("tun0")),
            (vec![route("10.88.0.0/16", "cni0"), route("0.0.0.0/0", "eth0"), route("10.88.0.7/32", "veth1")], None),
            (vec![route("10.89.0.0/16", "tun0"), route("::/1", "tun0")], None),
        ] {
            assert_eq!(
                overlapping_route(&range, &routes, &own).map(|route| route.device.as_str()),
                found,
                "{routes:?}"
            );
        }
    }
}

//! Which addresses the networks give, and where two could give the same.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cnikit_types::{NetConf, Value, parse_cidr, parse_ip};
use ipnetwork::IpNetwork;

/// A route of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutedSubnet {
    /// Where it leads to.
    pub network: IpNetwork,
    /// The name of the link over which it leads.
    pub device: String,
}

/// Addresses that a network gives.
#[derive(Clone, Debug)]
pub(crate) struct Range {
    /// Where it is written, from the plugin's object.
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
    /// One of an object with `subnet`, `rangeStart` and `rangeEnd`; what cannot be read is for the plugin to refuse.
    fn of(conf: &NetConf, key: String) -> Option<Range> {
        let subnet = parse_cidr(conf.text("subnet")?).ok()?;
        let end =
            |key: &str, else_: IpAddr| number(conf.text(key).and_then(|text| parse_ip(text).ok()).unwrap_or(else_));
        let (first, last) = (end("rangeStart", subnet.network()), end("rangeEnd", subnet.broadcast()));
        Some(Range { key, subnet, first, last })
    }

    /// Whether the subnet, all of it, and what the route leads to have an address in common.
    fn meets(&self, route: &RoutedSubnet) -> bool {
        let (first, last) = (number(self.subnet.network()), number(self.subnet.broadcast()));
        first <= number(route.network.broadcast()) && number(route.network.network()) <= last
    }
}

/// The ranges in the `ipam` of a plugin: host-local's, and the addresses of static.
pub(crate) fn ranges(plugin: &NetConf) -> Vec<Range> {
    let Some(Value::Object(ipam)) = plugin.get("ipam") else { return Vec::new() };
    let ipam = NetConf(ipam.clone());
    let mut found: Vec<Range> = Range::of(&ipam, "ipam.subnet".to_owned()).into_iter().collect();
    let list = |key: &str| ipam.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    for (outer, set) in list("ranges").iter().enumerate() {
        for (inner, range) in set.as_array().into_iter().flatten().enumerate() {
            let Value::Object(range) = range else { continue };
            found.extend(Range::of(&NetConf(range.clone()), format!("ipam.ranges[{outer}][{inner}].subnet")));
        }
    }
    for (index, address) in list("addresses").iter().enumerate() {
        let Value::Object(address) = address else { continue };
        let Some(subnet) = NetConf(address.clone()).text("address").and_then(|text| parse_cidr(text).ok()) else {
            continue;
        };
        let (first, key) = (number(subnet.ip()), format!("ipam.addresses[{index}].address"));
        found.push(Range { key, subnet, first, last: first });
    }
    found
}

/// The links over which a network's own routes lead: its bridge, its master.
pub(crate) fn own_links(plugin: &NetConf) -> Vec<String> {
    let default = (plugin.plugin_type() == Some("bridge")).then_some("cni0");
    let bridge = plugin.text("bridge").filter(|name| !name.is_empty()).or(default);
    bridge.into_iter().chain(plugin.text("master")).map(str::to_owned).collect()
}

/// The first route of somebody else that has an address of the range. Routes to everything, and to one container, are
/// none.
pub(crate) fn met<'r>(range: &Range, routes: &'r [RoutedSubnet], own: &BTreeSet<String>) -> Option<&'r RoutedSubnet> {
    let is_single = |network: &IpNetwork| network.prefix() == if network.is_ipv4() { 32 } else { 128 };
    let mut others = routes.iter().filter(|route| !own.contains(&route.device));
    others.find(|route| route.network.prefix() > 0 && !is_single(&route.network) && range.meets(route))
}

/// Pairs of ranges of different networks that could give one address: to each, the index of one that begins no later.
///
/// Each range comes with the number of its network.
pub(crate) fn overlaps(ranges: &[(usize, &Range)]) -> Vec<(usize, usize)> {
    let mut order: Vec<usize> = (0..ranges.len()).collect();
    order.sort_by_key(|index| ranges[*index].1.first);
    // The range that reaches farthest of all, and the one that does of all other networks'.
    let (mut far, mut other): (Option<usize>, Option<usize>) = (None, None);
    let mut found = Vec::new();
    let network = |index: usize| ranges[index].0;
    let reaches = |one: usize, two: Option<usize>| two.is_none_or(|two| ranges[one].1.last > ranges[two].1.last);
    for index in order {
        let rival = if far.is_some_and(|far| network(far) != network(index)) { far } else { other };
        if let Some(rival) = rival.filter(|rival| ranges[*rival].1.last >= ranges[index].1.first) {
            found.push((index, rival));
        }
        if reaches(index, far) {
            if far.is_some_and(|far| network(far) != network(index)) {
                other = far;
            }
            far = Some(index);
        } else if far.is_some_and(|far| network(far) != network(index)) && reaches(index, other) {
            other = Some(index);
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
    fn ranges_are_read_where_host_local_and_static_have_them() {
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
        // Its own wider range does not hide the other's.
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
    fn a_route_of_somebody_else_is_met_and_none_of_the_networks_own() {
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
            assert_eq!(met(&range, &routes, &own).map(|route| route.device.as_str()), found, "{routes:?}");
        }
    }
}

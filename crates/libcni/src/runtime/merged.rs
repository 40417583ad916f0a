//! Merges the results of several networks.

use cnikit_types::{CniResult, Dns, Interface, Ip, Route, Version};
use serde_json::Value;

/// The interfaces, addresses, routes and DNS settings of a container after its ADDs.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Merged {
    /// Its interfaces, and those on the host, in the order of the networks.
    pub interfaces: Vec<MergedInterface>,
    /// The routes of all networks.
    pub routes: Vec<Route>,
    /// The DNS settings of each network that has any.
    pub dns: Vec<(String, Dns)>,
    /// Each network's own result as its last plugin returned it.
    pub results: Vec<(String, Value)>,
}

/// One interface of one network, with its addresses.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct MergedInterface {
    /// The network.
    pub network: String,
    /// The interface, as in the result; `sandbox` is empty on the host.
    pub interface: Interface,
    /// Its addresses.
    pub ips: Vec<Ip>,
}

impl Merged {
    /// The interface with this name in the container.
    pub fn interface(&self, name: &str) -> Option<&MergedInterface> {
        self.interfaces.iter().find(|one| one.interface.name == name && !one.interface.sandbox.is_empty())
    }

    /// Adds a network's result. An address without an interface, or with an index that does not exist, is added to the network's
    /// own interface in the container: it was assigned, whatever the index is.
    pub(crate) fn join(&mut self, network: &str, ifname: &str, netns: &str, result: Value) {
        let parsed = CniResult::read(&result, Version::NEWEST).map(|(_, parsed)| parsed).unwrap_or_default();
        let mut joined = Vec::new();
        for interface in parsed.interfaces {
            joined.push(MergedInterface { network: network.to_owned(), interface, ips: Vec::new() });
        }
        for ip in parsed.ips {
            let at = match ip.interface.and_then(|index| usize::try_from(index).ok()) {
                Some(index) if index < joined.len() => index,
                _ => own_interface(&mut joined, network, ifname, netns),
            };
            joined[at].ips.push(ip);
        }
        self.interfaces.extend(joined);
        self.routes.extend(parsed.routes);
        if parsed.dns != Dns::default() {
            self.dns.push((network.to_owned(), parsed.dns));
        }
        self.results.push((network.to_owned(), result));
    }
}

/// The index of the network's own interface in the container, which is added if the result does not have it.
fn own_interface(joined: &mut Vec<MergedInterface>, network: &str, ifname: &str, netns: &str) -> usize {
    let is_own = |one: &MergedInterface| one.interface.name == ifname && !one.interface.sandbox.is_empty();
    if let Some(index) = joined.iter().position(is_own) {
        return index;
    }
    let interface = Interface { name: ifname.to_owned(), sandbox: netns.to_owned(), ..Interface::default() };
    joined.push(MergedInterface { network: network.to_owned(), interface, ips: Vec::new() });
    joined.len() - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn networks_with_the_same_names_stay_separate_and_any_index_is_accepted() {
        let result = |last: i64| {
            json!({"cniVersion": "1.0.0",
                "interfaces": [{"name": "cni0"}, {"name": "eth0", "sandbox": "/ns", "mac": "02:00:00:00:00:01"}],
                "ips": [{"address": "10.0.0.2/8", "interface": 1}, {"address": "10.0.0.3/8", "interface": last}],
                "routes": [{"dst": "0.0.0.0/0"}], "dns": {"nameservers": ["10.0.0.53"]}})
        };
        for last in [-1, 1, 2, i64::MAX] {
            let mut merged = Merged::default();
            merged.join("a", "eth0", "/ns", result(last));
            merged.join("b", "eth1", "/ns", json!({"cniVersion": "0.2.0", "ip4": {"ip": "10.9.0.2/8"}}));
            let names: Vec<_> = merged.interfaces.iter().map(|one| (&*one.network, &*one.interface.name)).collect();
            assert_eq!(names, [("a", "cni0"), ("a", "eth0"), ("b", "eth1")]);
            assert_eq!(merged.interface("eth0").unwrap().ips.len(), 2, "{last}");
            assert_eq!(merged.interface("eth1").unwrap().ips[0].address.to_string(), "10.9.0.2/8");
            assert_eq!(merged.interface("cni0"), None);
            assert_eq!((merged.routes.len(), merged.dns.len(), merged.results.len()), (1, 1, 2));
            assert_eq!((&*merged.dns[0].0, &*merged.dns[0].1.nameservers), ("a", &["10.0.0.53".to_owned()][..]));
        }
    }

    #[test]
    fn an_address_is_that_of_the_interface_with_its_index() {
        let interfaces = json!([{"name": "net1", "sandbox": "/ns"}, {"name": "eth0", "sandbox": "/ns"}]);
        let ips = json!([{"address": "10.0.0.2/8", "interface": 0}, {"address": "10.0.0.3/8", "interface": 1}]);
        let mut merged = Merged::default();
        merged.join("a", "eth0", "/ns", json!({"cniVersion": "1.0.0", "interfaces": interfaces, "ips": ips}));
        let counts: Vec<usize> = merged.interfaces.iter().map(|one| one.ips.len()).collect();
        assert_eq!(counts, [1, 1]);
    }

    #[test]
    fn an_address_without_an_index_is_that_of_the_networks_own_interface() {
        let interfaces =
            json!([{"name": "eth0"}, {"name": "tap0", "sandbox": "/ns"}, {"name": "eth0", "sandbox": "/ns"}]);
        let result = json!({"cniVersion": "1.0.0", "interfaces": interfaces, "ips": [{"address": "10.0.0.2/8"}]});
        let mut merged = Merged::default();
        merged.join("a", "eth0", "/ns", result);
        let counts: Vec<usize> = merged.interfaces.iter().map(|one| one.ips.len()).collect();
        assert_eq!(counts, [0, 0, 1]);
    }
}

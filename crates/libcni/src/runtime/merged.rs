//! One result out of those of several networks.

use cnikit_types::{CniResult, Dns, Interface, Ip, Route, Version};
use serde_json::Value;

/// What a container has after its networks were set up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Merged {
    /// Its interfaces and those beside them on the host, in the order of the networks.
    pub interfaces: Vec<MergedInterface>,
    /// The routes of all networks.
    pub routes: Vec<Route>,
    /// How names are resolved, network by network, where one says so.
    pub dns: Vec<(String, Dns)>,
    /// Each network's own result as its last plugin gave it.
    pub results: Vec<(String, Value)>,
}

/// One interface of one network, with its addresses.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MergedInterface {
    /// The network.
    pub network: String,
    /// The interface, as the result has it; `sandbox` is empty on the host.
    pub interface: Interface,
    /// Its addresses.
    pub ips: Vec<Ip>,
}

impl Merged {
    /// The interface of this name in the container.
    pub fn interface(&self, name: &str) -> Option<&MergedInterface> {
        self.interfaces.iter().find(|one| one.interface.name == name && !one.interface.sandbox.is_empty())
    }

    /// Adds a network's result. An address that names no interface is the network's own in the container, also where its
    /// index leads nowhere: it was assigned, whatever the index says.
    pub(crate) fn join(&mut self, network: &str, ifname: &str, netns: &str, result: Value) {
        let answer = CniResult::read(&result, Version::NEWEST).map(|(_, answer)| answer).unwrap_or_default();
        let named = |interface| MergedInterface { network: network.to_owned(), interface, ips: Vec::new() };
        let mut joined: Vec<MergedInterface> = answer.interfaces.into_iter().map(named).collect();
        let is_own = |one: &MergedInterface| one.interface.name == ifname && !one.interface.sandbox.is_empty();
        for ip in answer.ips {
            let index = ip.interface.and_then(|index| usize::try_from(index).ok()).filter(|at| *at < joined.len());
            let at = index.or_else(|| joined.iter().position(is_own)).unwrap_or_else(|| {
                let (name, sandbox) = (ifname.to_owned(), netns.to_owned());
                joined.push(named(Interface { name, sandbox, ..Interface::default() }));
                joined.len() - 1
            });
            joined[at].ips.push(ip);
        }
        self.interfaces.extend(joined);
        self.routes.extend(answer.routes);
        if answer.dns != Dns::default() {
            self.dns.push((network.to_owned(), answer.dns));
        }
        self.results.push((network.to_owned(), result));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn two_networks_with_the_same_names_keep_what_is_theirs_and_no_index_is_too_odd() {
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
        }
    }
}

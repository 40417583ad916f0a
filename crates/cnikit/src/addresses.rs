//! The addresses, routes and DNS of one attachment.

use std::net::IpAddr;

use cnikit_types::{CniResult, Dns, Interface, Ip, Route};
use ipnetwork::IpNetwork;

/// Addresses, routes and DNS of one interface, from an IPAM plugin or a prevResult.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Addresses {
    /// Addresses with their gateways.
    pub ips: Vec<Ip>,
    /// Routes, as they will be in the result.
    pub routes: Vec<Route>,
    /// DNS, as it will be in the result.
    pub dns: Dns,
}

impl Addresses {
    /// Whether there are no addresses.
    pub fn is_empty(&self) -> bool {
        self.ips.is_empty()
    }

    /// The addresses with their prefixes.
    pub fn networks(&self) -> Vec<IpNetwork> {
        self.ips.iter().map(|ip| ip.address).collect()
    }

    /// The addresses and routes of one interface of the container in the result of a chain: addresses of this interface or of
    /// none, and the routes that can be its own.
    pub fn recorded(record: &CniResult, is_ours: impl Fn(&Interface) -> bool) -> Addresses {
        let mut ips = Vec::new();
        let mut has_others = false;
        for ip in &record.ips {
            if ip.interface.is_none() || interface_of(record, ip).is_some_and(&is_ours) {
                ips.push(ip.clone());
            } else {
                has_others = true;
            }
        }
        let mut routes = record.routes.clone();
        if has_others {
            routes.retain(|route| route.gw.is_some_and(|gateway| reaches(&ips, gateway)));
        }
        Addresses { ips, routes, dns: record.dns.clone() }
    }
}

fn interface_of<'a>(record: &'a CniResult, ip: &Ip) -> Option<&'a Interface> {
    record.interfaces.get(usize::try_from(ip.interface?).ok()?)
}

/// Whether an interface with these addresses can reach the gateway.
fn reaches(ips: &[Ip], gateway: IpAddr) -> bool {
    ips.iter().any(|ip| ip.gateway == Some(gateway) || ip.address.contains(gateway))
}

impl From<CniResult> for Addresses {
    fn from(result: CniResult) -> Addresses {
        Addresses { ips: result.ips, routes: result.routes, dns: result.dns }
    }
}

impl From<Addresses> for CniResult {
    fn from(addresses: Addresses) -> CniResult {
        CniResult { ips: addresses.ips, routes: addresses.routes, dns: addresses.dns, ..CniResult::default() }
    }
}

#[cfg(test)]
mod tests {
    use cnikit_types::{Value, Version};
    use serde_json::json;

    use super::*;

    fn result(json: &Value) -> CniResult {
        CniResult::read(json, Version::NEWEST).unwrap().1
    }

    /// The addresses and the destinations of routes that belong to eth0.
    fn of_eth0(record: &CniResult) -> (Vec<String>, Vec<String>) {
        let found = Addresses::recorded(record, |interface| interface.name == "eth0");
        let networks = found.networks().iter().map(ToString::to_string).collect();
        (networks, found.routes.iter().map(|route| route.dst.to_string()).collect())
    }

    #[test]
    fn addresses_and_results_are_converted_without_a_loss() {
        let record = result(&json!({
            "ips": [{"address": "10.1.0.2/24", "gateway": "10.1.0.1"}],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dns": {"nameservers": ["10.0.0.53"]},
        }));
        let addresses = Addresses::from(record.clone());
        assert_eq!((&addresses.ips, &addresses.routes, &addresses.dns), (&record.ips, &record.routes, &record.dns));
        assert_eq!(CniResult::from(addresses.clone()), record);
        assert!(!addresses.is_empty() && Addresses::default().is_empty());
    }

    #[test]
    fn routes_of_a_chain_belong_to_the_interface_that_reaches_their_gateway() {
        let interfaces = json!([{"name": "eth0", "sandbox": "/n"}, {"name": "eth1", "sandbox": "/n"}]);
        let routes = json!([
            {"dst": "10.9.0.0/16"},
            {"dst": "10.10.0.0/16", "gw": "10.1.0.7"},
            {"dst": "10.11.0.0/16", "gw": "10.2.0.1"},
            {"dst": "10.12.0.0/16", "gw": "169.254.0.1"},
        ]);
        let own = json!([
            {"address": "10.1.0.2/24", "gateway": "169.254.0.1", "interface": 0},
            {"address": "10.3.0.2/24"},
        ]);
        let mut record = result(&json!({"interfaces": interfaces, "routes": routes, "ips": own}));
        let every = ["10.9.0.0/16", "10.10.0.0/16", "10.11.0.0/16", "10.12.0.0/16"].map(str::to_owned);
        let addresses = ["10.1.0.2/24", "10.3.0.2/24"].map(str::to_owned);
        assert_eq!(of_eth0(&record), (addresses.to_vec(), every.to_vec()), "no other interface has addresses");
        record.ips.extend(result(&json!({"ips": [{"address": "10.2.0.2/24", "interface": 1}]})).ips);
        assert_eq!(of_eth0(&record), (addresses.to_vec(), vec![every[1].clone(), every[3].clone()]));
    }
}

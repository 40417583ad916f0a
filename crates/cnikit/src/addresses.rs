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

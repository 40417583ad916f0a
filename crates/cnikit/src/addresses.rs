//! The layer 3 of one attachment.

use std::net::IpAddr;

use cnikit_types::{CniResult, Dns, Interface, Ip, Route};
use ipnetwork::IpNetwork;

/// What an IPAM plugin gave, or a record says, about one interface: addresses, routes, DNS.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Addresses {
    /// Addresses with their gateways.
    pub ips: Vec<Ip>,
    /// Routes, as they will stand in the answer.
    pub routes: Vec<Route>,
    /// DNS, as it will stand in the answer.
    pub dns: Dns,
}

impl Addresses {
    /// No layer 3.
    pub fn is_empty(&self) -> bool {
        self.ips.is_empty()
    }

    /// Just the addresses, with their prefixes.
    pub fn networks(&self) -> Vec<IpNetwork> {
        self.ips.iter().map(|ip| ip.address).collect()
    }

    /// What the record of a chain says about one interface of the container: the addresses tied to it or to none, and the
    /// routes that can be its own.
    pub fn recorded(record: &CniResult, is_ours: impl Fn(&Interface) -> bool) -> Addresses {
        let owner = |ip: &Ip| ip.interface.and_then(|index| record.interfaces.get(usize::try_from(index).ok()?));
        let (ips, others): (Vec<Ip>, Vec<Ip>) =
            record.ips.iter().cloned().partition(|ip| ip.interface.is_none() || owner(ip).is_some_and(&is_ours));
        let reaches =
            |gateway: IpAddr| ips.iter().any(|ip| ip.gateway == Some(gateway) || ip.address.contains(gateway));
        let own = |route: &&Route| others.is_empty() || route.gw.is_some_and(reaches);
        let routes = record.routes.iter().filter(own).cloned().collect();
        Addresses { ips, routes, dns: record.dns.clone() }
    }
}

impl From<CniResult> for Addresses {
    fn from(answer: CniResult) -> Addresses {
        Addresses { ips: answer.ips, routes: answer.routes, dns: answer.dns }
    }
}

impl From<Addresses> for CniResult {
    fn from(addresses: Addresses) -> CniResult {
        CniResult { ips: addresses.ips, routes: addresses.routes, dns: addresses.dns, ..CniResult::default() }
    }
}

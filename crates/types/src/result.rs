//! The result of an ADD, in the shape of the newest version.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{Dns, ReadError, Route, address, limit, route};

/// The result of an ADD, which is also the `prevResult` of later calls (specification, section 5).
///
/// It always has the shape of the newest version; [`CniResult::read`] and [`CniResult::write`] convert. Here and in every part,
/// `extra` has the members that are not in the specification, so that those of other plugins are passed on in a chain.
#[derive(Clone, Debug, Default, PartialEq)]
#[doc(alias = "Result")]
pub struct CniResult {
    /// The interfaces that were created or used, on the host and in the container.
    pub interfaces: Vec<Interface>,
    /// The assigned addresses.
    pub ips: Vec<Ip>,
    /// The added routes.
    pub routes: Vec<Route>,
    /// The DNS configuration of the container.
    pub dns: Dns,
    /// Members that are not in the specification.
    pub extra: Map<String, Value>,
}

/// One of a result's `interfaces`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Interface {
    /// The name, in its namespace.
    pub name: String,
    /// The hardware address as text; empty if it is not given.
    pub mac: String,
    /// The MTU in bytes.
    #[serde(deserialize_with = "route::non_zero")]
    pub mtu: Option<u32>,
    /// The path of the network namespace, exactly as in `CNI_NETNS`; empty on the host.
    pub sandbox: String,
    /// The absolute path of the interface's socket file (vhost-user); empty if there is none.
    #[serde(rename = "socketPath")]
    pub socket_path: String,
    /// The PCI address of the device; empty if it is not given.
    #[serde(rename = "pciID")]
    pub pci_id: String,
    /// Members that are not in the specification.
    #[serde(rename = "*")]
    pub extra: Map<String, Value>,
}

/// One of a result's `ips`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Ip {
    /// The index in `interfaces` of the interface with this address, from 0. Some plugins write -1 if there is none.
    #[serde(default)]
    pub interface: Option<i64>,
    /// The address with its host bits and the prefix length of its network.
    #[serde(deserialize_with = "address::cidr")]
    pub address: IpNetwork,
    /// The gateway of the network.
    #[serde(default, deserialize_with = "address::optional")]
    pub gateway: Option<IpAddr>,
    /// Members that are not in the specification.
    #[serde(rename = "*", default)]
    pub extra: Map<String, Value>,
}

impl Ip {
    /// An address without interface and gateway.
    pub fn new(address: IpNetwork) -> Ip {
        Ip { interface: None, address, gateway: None, extra: Map::new() }
    }
}

impl CniResult {
    /// Checks the number of interfaces, addresses and routes.
    ///
    /// # Errors
    /// The first list that has more than [`limit::RESULT`] members.
    pub fn check_size(&self) -> Result<(), ReadError> {
        let lists = [("interfaces", self.interfaces.len()), ("ips", self.ips.len()), ("routes", self.routes.len())];
        for (key, found) in lists {
            limit::count("entries", found, limit::RESULT).map_err(|error| error.under(key))?;
        }
        Ok(())
    }
}

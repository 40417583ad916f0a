//! The result of an ADD, in the shape of the newest version.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{Dns, ReadError, Route, address, limit, route};

/// What ADD made, and `prevResult` of later calls (specification, section 5).
///
/// Always in the shape of the newest version; [`CniResult::read`] and [`CniResult::write`] convert. `extra` holds the members
/// of foreign plugins that the specification does not know, here and in every part, so that they survive a chain.
#[derive(Clone, Debug, Default, PartialEq)]
#[doc(alias = "Result")]
pub struct CniResult {
    /// Interfaces made or found, on both sides.
    pub interfaces: Vec<Interface>,
    /// Addresses assigned.
    pub ips: Vec<Ip>,
    /// Routes made.
    pub routes: Vec<Route>,
    /// How the container is to resolve names.
    pub dns: Dns,
    /// Members that the specification does not know.
    pub extra: Map<String, Value>,
}

/// One of a result's `interfaces`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Interface {
    /// Its name, where it is.
    pub name: String,
    /// Its hardware address as text; empty if it is not said.
    pub mac: String,
    /// Its MTU in bytes.
    #[serde(deserialize_with = "route::non_zero")]
    pub mtu: Option<u32>,
    /// The path of its network namespace, exactly as `CNI_NETNS` gave it; empty on the host.
    pub sandbox: String,
    /// The absolute path of a socket file that belongs to it (vhost-user); empty if there is none.
    #[serde(rename = "socketPath")]
    pub socket_path: String,
    /// The PCI address of its device; empty if it is not said.
    #[serde(rename = "pciID")]
    pub pci_id: String,
    /// Members that the specification does not know.
    #[serde(rename = "*")]
    pub extra: Map<String, Value>,
}

/// One of a result's `ips`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Ip {
    /// Which of `interfaces` has it, from 0; some plugins send -1 for none.
    #[serde(default)]
    pub interface: Option<i64>,
    /// The address, host bits and all, with the prefix length of its network.
    #[serde(deserialize_with = "address::cidr")]
    pub address: IpNetwork,
    /// The gateway of its network.
    #[serde(default, deserialize_with = "address::optional")]
    pub gateway: Option<IpAddr>,
    /// Members that the specification does not know.
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
    /// Checks how many interfaces, addresses and routes it has.
    ///
    /// # Errors
    /// The first list that has more than [`limit::RESULT`].
    pub fn check_size(&self) -> Result<(), ReadError> {
        let lists = [("interfaces", self.interfaces.len()), ("ips", self.ips.len()), ("routes", self.routes.len())];
        for (key, found) in lists {
            limit::count("entries", found, limit::RESULT).map_err(|error| error.under(key))?;
        }
        Ok(())
    }
}

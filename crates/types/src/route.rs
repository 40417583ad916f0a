//! A route of a result or of an IPAM configuration.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::address;

/// A route for the container (specification, section 5, `routes`).
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Route {
    /// The destination, with its host bits as written.
    #[serde(deserialize_with = "address::cidr")]
    pub dst: IpNetwork,
    /// The next hop; if `None`, the plugin chooses one, usually the gateway of the address.
    #[serde(default, deserialize_with = "address::optional")]
    pub gw: Option<IpAddr>,
    /// The path MTU in bytes.
    #[serde(default, deserialize_with = "non_zero")]
    pub mtu: Option<u32>,
    /// The TCP MSS to advertise, in bytes.
    #[serde(default, deserialize_with = "non_zero")]
    pub advmss: Option<u32>,
    /// The priority: of several routes to one destination the one with the lowest number is used.
    #[doc(alias = "metric")]
    #[serde(default, deserialize_with = "non_zero")]
    pub priority: Option<u32>,
    /// The routing table; by default the main table.
    #[serde(default)]
    pub table: Option<u32>,
    /// The scope of the destination: 0 global, 253 link, 254 host.
    #[serde(default)]
    pub scope: Option<u8>,
    /// Members that are not in the specification.
    #[serde(rename = "*", default)]
    pub extra: Map<String, Value>,
}

impl Route {
    /// A route with only a destination.
    pub fn to(dst: IpNetwork) -> Route {
        Route { dst, gw: None, mtu: None, advmss: None, priority: None, table: None, scope: None, extra: Map::new() }
    }
}

/// For `deserialize_with`: a number; 0 is `None`.
pub(crate) fn non_zero<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    Ok(Some(u32::deserialize(deserializer)?).filter(|value| *value != 0))
}

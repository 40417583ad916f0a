//! A route of a result or of an IPAM configuration.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::address;

/// A route that the container is to have (specification, section 5, `routes`).
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Route {
    /// Where to, host bits as written.
    #[serde(deserialize_with = "address::cidr")]
    pub dst: IpNetwork,
    /// The next hop; without one the plugin chooses, usually the gateway of the address.
    #[serde(default, deserialize_with = "address::optional")]
    pub gw: Option<IpAddr>,
    /// The path's MTU in bytes.
    #[serde(default, deserialize_with = "non_zero")]
    pub mtu: Option<u32>,
    /// The largest TCP segment to announce, in bytes.
    #[serde(default, deserialize_with = "non_zero")]
    pub advmss: Option<u32>,
    /// The lower it is, the more the route is preferred.
    #[doc(alias = "metric")]
    #[serde(default, deserialize_with = "non_zero")]
    pub priority: Option<u32>,
    /// The number of the routing table; the main table if it is not said.
    #[serde(default)]
    pub table: Option<u32>,
    /// How far away the destination is: 0 global, 253 link, 254 host.
    #[serde(default)]
    pub scope: Option<u8>,
    /// Members that the specification does not know.
    #[serde(rename = "*", default)]
    pub extra: Map<String, Value>,
}

impl Route {
    /// A route with only a destination.
    pub fn to(dst: IpNetwork) -> Route {
        Route { dst, gw: None, mtu: None, advmss: None, priority: None, table: None, scope: None, extra: Map::new() }
    }
}

/// For `deserialize_with`: a number of which 0 means that it is not said.
pub(crate) fn non_zero<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    Ok(Some(u32::deserialize(deserializer)?).filter(|value| *value != 0))
}

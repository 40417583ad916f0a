//! The keys of the configuration, and their validation.

use std::net::IpAddr;

use cnikit::resources::source_routing::SourceTables;
use serde::Deserialize;

use crate::SbrPlugin;

/// The keys of the configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SbrKeys {
    /// The table that packets from all addresses are routed by; its routes are made by another program, and `gateways` and
    /// `addSourceHints` are ignored. Default: a free table from 100 up per address, with the interface's routes.
    pub table: Option<i64>,
    /// The gateway of the default routes, at most one IPv4 and one IPv6 address. Default: that of each address.
    pub gateways: Vec<String>,
    /// The subnets of the addresses stay in the main table, each with the address as source. Default: false.
    pub add_source_hints: bool,
    /// The directory in which the changes are stored. Default: `/run/cni/sbr`.
    pub data_dir: String,
}

impl TryFrom<SbrKeys> for SbrPlugin {
    type Error = String;

    fn try_from(keys: SbrKeys) -> Result<SbrPlugin, String> {
        if let Some(number) = keys.table {
            return match u32::try_from(number) {
                Ok(table) if table > 0 => Ok(SbrPlugin { tables: SourceTables::Fixed(table), gateways: Vec::new() }),
                _ => Err(format!(
                    "table {number} is not a routing table; hint: set `table` to a number from 1 to {}",
                    u32::MAX
                )),
            };
        }
        let tables = SourceTables::Automatic { add_source_hints: keys.add_source_hints };
        Ok(SbrPlugin { tables, gateways: gateways(&keys.gateways)? })
    }
}

fn gateways(texts: &[String]) -> Result<Vec<IpAddr>, String> {
    if texts.len() > 2 {
        return Err("gateways list cannot contain more than 2 entries (one IPv4, one IPv6)".to_owned());
    }
    let mut gateways: Vec<IpAddr> = Vec::new();
    for text in texts {
        let gateway: IpAddr = match text.parse() {
            Ok(gateway) => gateway,
            Err(_) => return Err(format!("invalid static gateway IP address: {text}")),
        };
        if let Some(other) = gateways.iter().find(|other| other.is_ipv4() == gateway.is_ipv4()) {
            let family = if gateway.is_ipv4() { "IPv4" } else { "IPv6" };
            return Err(format!("gateways list contains multiple {family} addresses: {other} and {gateway}"));
        }
        gateways.push(gateway);
    }
    Ok(gateways)
}

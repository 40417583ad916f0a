//! Routes packets by their source: each address of the container's interface has a routing table of its own.
//!
//! A chained plugin, which comes after the plugin that makes the interface. Replies leave by the interface that the request came in
//! by, also if the container has several interfaces with default routes. What is changed is stored in a file, and DEL and GC give
//! it back. The keys are those of [`SbrKeys`].
#![forbid(unsafe_code)]

mod keys;

pub use keys::SbrKeys;

use std::net::IpAddr;

use cnikit::plan::{Kind, Plan};
use cnikit::resources::source_routing::{self, SourceAddress, SourceRouting, SourceTables};
use cnikit::types::Ip;
use cnikit::{AttachmentSpec, ChainedPlugin, CniResult, Result, Status};
use serde::Deserialize;

/// sbr's configuration, validated.
#[derive(Debug, Deserialize)]
#[serde(try_from = "SbrKeys")]
pub struct SbrPlugin {
    tables: SourceTables,
    /// The gateway of all addresses of its family, at most one per family.
    gateways: Vec<IpAddr>,
}

impl ChainedPlugin for SbrPlugin {
    const KINDS: &'static [Kind] = &[source_routing::KIND];

    fn plan(&self, at: &AttachmentSpec, prev: &CniResult) -> Result<Plan> {
        let ifname = at.tag.ifname.clone();
        let mut addresses: Vec<SourceAddress> = Vec::new();
        for ip in &prev.ips {
            if is_own(at, prev, ip) && !addresses.iter().any(|one| one.address.ip() == ip.address.ip()) {
                addresses.push(self.source_address(ip));
            }
        }
        let data_dir = source_routing::data_dir(&at.conf);
        Ok(Plan::of(SourceRouting { ifname, addresses, tables: self.tables, data_dir }))
    }

    fn status(&self, status: &Status) -> Result<()> {
        source_routing::available(&source_routing::data_dir(&status.call.conf))
    }
}

impl SbrPlugin {
    fn source_address(&self, ip: &Ip) -> SourceAddress {
        let is_ipv4 = ip.address.is_ipv4();
        let fixed = self.gateways.iter().copied().find(|gateway| gateway.is_ipv4() == is_ipv4);
        let own = ip.gateway.filter(|gateway| gateway.is_ipv4() == is_ipv4);
        SourceAddress { address: ip.address, gateway: fixed.or(own), has_static_gateway: fixed.is_some() }
    }
}

/// Whether an address is of the attachment's interface, or of none that the result lists.
fn is_own(at: &AttachmentSpec, prev: &CniResult, ip: &Ip) -> bool {
    let interface = ip.interface.and_then(|index| prev.interfaces.get(usize::try_from(index).ok()?));
    interface.is_none_or(|one| one.name == at.tag.ifname && !one.sandbox.is_empty())
}

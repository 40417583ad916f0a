//! Publishes ports of the container on the host (DNAT).
//!
//! A chained plugin, which comes after the plugin that makes the interface and works on the host alone. The keys are those of
//! [`PortmapKeys`].
#![forbid(unsafe_code)]

mod keys;

pub use keys::{MappingKeys, PortmapKeys};

use cnikit::plan::{Kind, Plan};
use cnikit::rules::Backend;
use cnikit::rules::portmap::{self, Mapping, Mark, Masquerades, OnPortConflict, PortMap, PublishedPorts};
use cnikit::types::limit;
use cnikit::{AttachmentSpec, ChainedPlugin, CniResult, Error, KeySource, Result, Sources, Status};
use ipnetwork::IpNetwork;
use serde::Deserialize;

/// portmap's configuration, validated.
#[derive(Debug, Deserialize)]
#[serde(try_from = "PortmapKeys")]
pub struct PortmapPlugin {
    mappings: Vec<Mapping>,
    backend: Backend,
    masquerades: Masquerades,
    mark: Mark,
    conditions_v4: Vec<String>,
    conditions_v6: Vec<String>,
    on_conflict: OnPortConflict,
}

impl ChainedPlugin for PortmapPlugin {
    const KINDS: &'static [Kind] = &[portmap::KIND];
    const EXAMPLE: &'static str = r#""runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]},
    "prevResult":{"cniVersion":"1.1.0","ips":[{"address":"10.99.0.2/24"}]}"#;
    const SOURCES: Sources = &[("portMappings", &[KeySource::Runtime("portMappings")])];

    fn plan(&self, at: &AttachmentSpec, prev: &CniResult) -> Result<Plan> {
        let addresses = addresses(at, prev);
        if self.mappings.is_empty() || addresses.is_empty() {
            return Ok(Plan::default());
        }
        let map = PortMap {
            mappings: self.mappings.clone(),
            addresses,
            masquerades: self.masquerades,
            mark: self.mark.clone(),
            conditions_v4: self.conditions_v4.clone(),
            conditions_v6: self.conditions_v6.clone(),
            backend: self.backend,
            on_conflict: self.on_conflict,
        };
        let needed = map.rules_needed();
        if let Err(error) = limit::count("rules to write", needed, limit::PORT_RULES) {
            let text = format!("portMappings for {} addresses: {error}", map.addresses.len());
            return Err(Error::config(text).hint("publish fewer ports, or give the container fewer addresses"));
        }
        Ok(Plan::of(PublishedPorts::of(map)))
    }

    fn status(&self, _status: &Status) -> Result<()> {
        portmap::available(self.backend)
    }
}

/// The addresses of the attachment's interface, and those of no interface.
fn addresses(at: &AttachmentSpec, prev: &CniResult) -> Vec<IpNetwork> {
    let mut addresses = Vec::new();
    for ip in &prev.ips {
        let interface = ip.interface.and_then(|index| prev.interfaces.get(usize::try_from(index).ok()?));
        if interface.is_none_or(|one| one.name == at.tag.ifname && !one.sandbox.is_empty()) {
            addresses.push(ip.address);
        }
    }
    addresses
}

//! Accepts the forwarded traffic of containers and the replies to it, and isolates bridges and containers from each other.
//!
//! A chained plugin, which comes after the plugin that assigned the addresses. The keys are those of [`FirewallKeys`].
#![forbid(unsafe_code)]

mod keys;

pub use keys::FirewallKeys;

use cnikit::plan::{Kind, Plan};
use cnikit::rules::firewall::{self, FirewallSettings, IngressPolicy};
use cnikit::{AttachmentSpec, ChainedPlugin, CniResult, Result, Status};
use serde::Deserialize;

/// firewall's configuration, validated.
#[derive(Debug, Deserialize)]
#[serde(try_from = "FirewallKeys")]
pub struct FirewallPlugin {
    settings: FirewallSettings,
    policy: Policy,
}

/// Which other containers may reach the containers of a bridge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "ingressPolicy")]
pub enum Policy {
    /// All packets are accepted that no other rule of the host drops.
    #[default]
    Open,
    /// Packets from other bridges with this policy are dropped.
    SameBridge,
    /// Packets from other bridges with this policy and from the same bridge are dropped.
    Isolated,
}

impl ChainedPlugin for FirewallPlugin {
    const KINDS: &'static [Kind] = &[firewall::KIND];

    fn plan(&self, _at: &AttachmentSpec, prev: &CniResult) -> Result<Plan> {
        let mut names = Vec::new();
        for interface in &prev.interfaces {
            if interface.sandbox.is_empty() && !interface.name.is_empty() {
                names.push(interface.name.clone());
            }
        }
        let ingress = match self.policy {
            Policy::Open => IngressPolicy::Open,
            Policy::SameBridge => IngressPolicy::SameBridge(names),
            Policy::Isolated => IngressPolicy::Isolated(names),
        };
        let addresses = prev.ips.iter().map(|ip| ip.address.ip());
        Ok(Plan::of(firewall::Firewall::of(addresses, ingress, self.settings.clone())))
    }

    fn status(&self, _status: &Status) -> Result<()> {
        firewall::available(self.settings.backend)
    }
}

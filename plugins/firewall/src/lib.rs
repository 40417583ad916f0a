//! What containers send, and what answers it, passes the host; what is isolated does not.
//!
//! It stands behind the plugin that gave the container its addresses. The keys are those of [`FirewallKeys`].
#![forbid(unsafe_code)]

mod keys;

pub use keys::FirewallKeys;

use cnikit::plan::{Kind, Plan};
use cnikit::rules::firewall::{self, FirewallSettings, Ingress};
use cnikit::{AttachmentSpec, ChainedPlugin, CniResult, Result, Status};
use serde::Deserialize;

/// firewall's configuration, checked.
#[derive(Debug, Deserialize)]
#[serde(try_from = "FirewallKeys")]
pub struct FirewallPlugin {
    settings: FirewallSettings,
    policy: Policy,
}

/// Who may reach the containers of a bridge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "ingressPolicy")]
pub enum Policy {
    /// Whoever the host lets.
    #[default]
    Open,
    /// No other bridge that says so too.
    SameBridge,
    /// Nor any other container of the bridge.
    Isolated,
}

impl ChainedPlugin for FirewallPlugin {
    const KINDS: &'static [Kind] = &[firewall::KIND];

    fn plan(&self, _at: &AttachmentSpec, prev: &CniResult) -> Result<Plan> {
        let on_host = prev.interfaces.iter().filter(|one| one.sandbox.is_empty());
        let names = on_host.map(|one| one.name.clone()).filter(|name| !name.is_empty()).collect();
        let ingress = match self.policy {
            Policy::Open => Ingress::Open,
            Policy::SameBridge => Ingress::SameBridge(names),
            Policy::Isolated => Ingress::Isolated(names),
        };
        let addresses = prev.ips.iter().map(|ip| ip.address.ip());
        Ok(Plan::of(firewall::Firewall::of(addresses, ingress, self.settings.clone())))
    }

    fn status(&self, _status: &Status) -> Result<()> {
        firewall::available(self.settings.backend)
    }
}

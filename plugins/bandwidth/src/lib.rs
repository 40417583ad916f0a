//! Limits the rates at which the container's interface receives and sends.
//!
//! A chained plugin, which comes after the plugin that makes the interface. It works on the host's side of that: at its host end,
//! and with an ifb for what the container sends. The keys are those of [`BandwidthKeys`].
#![forbid(unsafe_code)]

mod keys;

pub use keys::BandwidthKeys;

use cnikit::plan::{Kind, Plan};
use cnikit::resources::egress_limit::{self, EgressLimit};
use cnikit::resources::ingress_limit::{self, IngressLimit};
use cnikit::resources::{CountedTraffic, RateLimit};
use cnikit::{AttachmentSpec, ChainedPlugin, CniResult, KeySource, Result, Sources, Status};
use serde::Deserialize;

/// bandwidth's configuration, validated.
#[derive(Debug, Deserialize)]
#[serde(try_from = "BandwidthKeys")]
pub struct BandwidthPlugin {
    /// Toward the container.
    ingress: Option<RateLimit>,
    /// From the container.
    egress: Option<RateLimit>,
    /// Which traffic both limits count.
    counted: CountedTraffic,
}

impl ChainedPlugin for BandwidthPlugin {
    /// The limit from the container is made first and released last, because its ifb may be all that leads to the host end.
    const KINDS: &'static [Kind] = &[egress_limit::KIND, ingress_limit::KIND];
    const EXAMPLE: &'static str = r#""ingressRate":8000000,"ingressBurst":800000"#;
    const SOURCES: Sources = &[("bandwidth", &[KeySource::Runtime("bandwidth")])];

    fn plan(&self, at: &AttachmentSpec, _prev: &CniResult) -> Result<Plan> {
        let ifname = &at.tag.ifname;
        let counted = &self.counted;
        let ingress = IngressLimit { ifname: ifname.clone(), limit: self.ingress.clone(), counted: counted.clone() };
        let egress = EgressLimit { ifname: ifname.clone(), limit: self.egress.clone(), counted: counted.clone() };
        // To lift a limit from the container is the last step, because it is not undone.
        let plan = Plan::default();
        Ok(if self.egress.is_some() { plan.and(egress).and(ingress) } else { plan.and(ingress).and(egress) })
    }

    /// Without a configured limit, runtimes may ask for one all the same.
    fn status(&self, status: &Status) -> Result<()> {
        let from_runtime = status.call.conf.at(&["capabilities", "bandwidth"]).is_some_and(|wanted| wanted == true);
        if self.egress.is_some() || from_runtime { egress_limit::available() } else { Ok(()) }
    }
}

//! The keys of the configuration, and their validation.

use std::time::Duration;

use cnikit::resources::{CountedTraffic, RateLimit, USUAL_LATENCY};
use cnikit::types::Bandwidth;
use serde::Deserialize;

use crate::BandwidthPlugin;

/// The keys of the configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BandwidthKeys {
    /// The rate at which the container receives, in bits per second. Default, and 0: no limit.
    pub ingress_rate: Option<u64>,
    /// How much it may receive at once, in bits. Required with `ingressRate`.
    pub ingress_burst: Option<u64>,
    /// The rate at which the container sends, in bits per second. Default, and 0: no limit.
    pub egress_rate: Option<u64>,
    /// How much it may send at once, in bits. Required with `egressRate`.
    pub egress_burst: Option<u64>,
    /// How long a packet waits in a queue at most, in milliseconds. Default: 25.
    pub latency: Option<u32>,
    /// `fq_codel` below both limits. Default: false, a queue of the length that `latency` gives.
    #[serde(rename = "fq_codel")]
    pub fq_codel: bool,
    /// Only IP packets from and to these subnets count. Default: everything counts.
    pub shaped_subnets: Vec<String>,
    /// IP packets from and to these subnets do not count. Default: everything counts. Not with `shapedSubnets`.
    pub unshaped_subnets: Vec<String>,
    /// The first four keys, from the capability `bandwidth` of a runtime. Default: none.
    pub bandwidth: Bandwidth,
}

impl BandwidthKeys {
    /// The rates: those of the configuration if it limits anything, otherwise those of the runtime.
    fn rates(&self) -> Bandwidth {
        let configured = Bandwidth {
            ingress_rate: self.ingress_rate.unwrap_or_default(),
            ingress_burst: self.ingress_burst.unwrap_or_default(),
            egress_rate: self.egress_rate.unwrap_or_default(),
            egress_burst: self.egress_burst.unwrap_or_default(),
        };
        if configured == Bandwidth::default() { self.bandwidth } else { configured }
    }
}

impl TryFrom<BandwidthKeys> for BandwidthPlugin {
    type Error = String;

    fn try_from(keys: BandwidthKeys) -> Result<BandwidthPlugin, String> {
        let rates = keys.rates();
        let latency = keys.latency.map_or(USUAL_LATENCY, |latency| Duration::from_millis(latency.into()));
        let limit = |of, rate, burst| {
            limit(rate, burst, latency, keys.fq_codel).map_err(|why| format!("{of}Rate, {of}Burst: {why}"))
        };
        let counted = CountedTraffic::checked(&keys.shaped_subnets, &keys.unshaped_subnets)?;
        Ok(BandwidthPlugin {
            counted,
            ingress: limit("ingress", rates.ingress_rate, rates.ingress_burst)?,
            egress: limit("egress", rates.egress_rate, rates.egress_burst)?,
        })
    }
}

fn limit(rate: u64, burst: u64, latency: Duration, fq_codel: bool) -> Result<Option<RateLimit>, String> {
    match (rate, burst) {
        (0, 0) => Ok(None),
        (0, _) => Err("if burst is set, rate must also be set; hint: set both, or neither".to_owned()),
        (_, 0) => Err("if rate is set, burst must also be set; hint: set both, or neither".to_owned()),
        _ => RateLimit::checked(rate, burst, latency, fq_codel).map(Some),
    }
}

//! Drops what a container sends to some networks, such as the metadata service of a cloud, by rules of the host.
//!
//! A chained plugin: it comes after the plugin that makes the interface, and needs its addresses. This is the worked example of
//! the guide (`docs/guide-5-chained-plugins.md`). The keys are those of [`DenyKeys`].
#![forbid(unsafe_code)]

use std::fmt;

use cnikit::plan::{ApplyContext, Drifts, GcContext, Kind, Made, Plan, ReleaseContext, Resource};
use cnikit::rules::nftables;
use cnikit::rules::nftables::cnikit_nftables::{
    Chain, Hook, HookKind, HookPoint, Match, Rule, TableFamily, TableLayout, Verdict,
};
use cnikit::types::parse_cidr;
use cnikit::{Addresses, AttachmentSpec, ChainedPlugin, CniResult, Error, Journal, Result, Status, UnknownKeys};
use ipnetwork::IpNetwork;
use serde::Deserialize;

// guide: keys
/// The keys of the configuration.
#[derive(Clone, Debug, Deserialize)]
pub struct DenyKeys {
    /// The networks that the container must not reach, such as `169.254.169.254/32`. Required.
    pub to: Vec<String>,
}

/// The configuration, validated.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "DenyKeys")]
pub struct DenyPlugin {
    to: Vec<IpNetwork>,
}

impl TryFrom<DenyKeys> for DenyPlugin {
    type Error = String;

    fn try_from(keys: DenyKeys) -> Result<DenyPlugin, String> {
        let mut to = Vec::new();
        for text in &keys.to {
            to.push(parse_cidr(text).map_err(|why| format!("to: {why}; hint: write a network such as 10.0.0.0/8"))?);
        }
        if to.is_empty() {
            return Err("`to` names no network; hint: add one, or remove the plugin from the list".to_owned());
        }
        Ok(DenyPlugin { to })
    }
}
// guide: end

// guide: plugin
impl ChainedPlugin for DenyPlugin {
    const KINDS: &'static [Kind] = &[KIND];
    const EXAMPLE: &'static str = r#""to":["169.254.169.254/32"]"#;
    const RELEASE: &'static str = concat!("example-", env!("CARGO_PKG_VERSION"));
    /// A misspelled `to` must not look like protection.
    const UNKNOWN_KEYS: UnknownKeys = UnknownKeys::Refused;

    fn plan(&self, at: &AttachmentSpec, prev: &CniResult) -> Result<Plan> {
        let addresses = Addresses::recorded(prev, |interface| at.is_own(interface)).networks();
        if addresses.is_empty() {
            return Err(Error::config(format!("the plugins before this one gave {} no address", at.tag.ifname))
                .hint("put this plugin after one that has `ipam`"));
        }
        Ok(Plan::of(Denied { addresses, to: self.to.clone() }))
    }

    fn status(&self, _status: &Status) -> Result<()> {
        nftables::available(&layout())
    }
}
// guide: end

/// Rules that drop packets from these addresses to these networks.
struct Denied {
    addresses: Vec<IpNetwork>,
    to: Vec<IpNetwork>,
}

const KIND: Kind = Kind { name: "denied networks", release, sweep, outlives_link: true };

const DENIED: &str = "denied";

// guide: layout
/// Packets are dropped after connection tracking (-200) and before DNAT (-100): the destination is compared as the container
/// sent it.
fn layout() -> TableLayout {
    let mut layout = TableLayout::of(TableFamily::Inet, "cnikit_deny");
    let hook = Hook { kind: HookKind::Filter, hook: HookPoint::Prerouting, priority: -150 };
    layout.chains = vec![Chain { name: DENIED, comment: None, hook: Some(hook) }];
    layout.rule_chains = vec![DENIED];
    layout
}
// guide: end

// guide: resource
impl Denied {
    fn rules(&self) -> Vec<Rule> {
        let mut rules = Vec::new();
        for address in &self.addresses {
            for network in self.to.iter().filter(|network| network.is_ipv4() == address.is_ipv4()) {
                let matches = vec![Match::Source(address.ip()), Match::DestinationIn(*network)];
                rules.push(Rule { matches, verdict: Verdict::Drop, comment: None });
            }
        }
        rules
    }
}

impl Resource for Denied {
    fn kind(&self) -> Kind {
        KIND
    }

    fn ensure(&self, context: &ApplyContext, journal: &mut Journal) -> Result<Made> {
        nftables::ensure(&layout(), self.rules(), context, journal)?;
        Ok(Made::nothing())
    }

    fn restore(&self, context: &ApplyContext, journal: &mut Journal) -> Result<()> {
        nftables::ensure(&layout(), self.rules(), context, journal)
    }

    fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        nftables::verify(&layout(), self.rules(), context, drifts)
    }
}

fn release(context: &ReleaseContext) -> Result<()> {
    nftables::release(&layout(), context)
}

fn sweep(context: &GcContext) -> Result<()> {
    nftables::sweep(&layout(), context)
}
// guide: end

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let from: Vec<String> = self.addresses.iter().map(|address| address.ip().to_string()).collect();
        let to: Vec<String> = self.to.iter().map(ToString::to_string).collect();
        write!(f, "drop packets from {} to {} (nftables)", from.join(", "), to.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_denies_nothing_is_refused() {
        for (json, text) in [
            ("{}", "missing field `to`"),
            (r#"{"to":[]}"#, "`to` names no network; hint: add one"),
            (r#"{"to":["169.254.169.254"]}"#, "hint: write a network such as 10.0.0.0/8"),
        ] {
            let refused = serde_json::from_str::<DenyPlugin>(json).expect_err(json).to_string();
            assert!(refused.contains(text), "{json}: {refused}");
        }
    }

    #[test]
    fn an_address_is_denied_only_networks_of_its_family() {
        let networks = |texts: &[&str]| texts.iter().filter_map(|text| text.parse().ok()).collect();
        let denied =
            Denied { addresses: networks(&["10.1.0.2/24", "fd00::2/64"]), to: networks(&["10.9.0.0/16", "fd09::/64"]) };
        let rules: Vec<String> = denied.rules().iter().map(ToString::to_string).collect();
        assert_eq!(
            rules,
            ["ip saddr 10.1.0.2 ip daddr 10.9.0.0/16 drop", "ip6 saddr fd00::2 ip6 daddr fd09::/64 drop"]
        );
    }
}

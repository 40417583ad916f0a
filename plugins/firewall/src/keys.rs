//! The keys of the configuration, and their validation.

use cnikit::keys::word;
use cnikit::rules::firewall::{FirewallBackend, FirewallSettings};
use serde::{Deserialize, Deserializer};

use crate::{FirewallPlugin, Policy};

/// The keys of the configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FirewallKeys {
    /// The packet filter of the rules; absent or empty, it is detected on the host.
    #[serde(deserialize_with = "backend")]
    pub backend: FirewallBackend,
    /// The operator's chain, which is evaluated before the rules of containers. Default: `CNI-ADMIN`.
    pub iptables_admin_chain_name: String,
    /// The zone of firewalld that has the containers' addresses as sources. Default: `trusted`.
    pub firewalld_zone: String,
    /// Which other containers may reach the containers of a bridge: `open`, `same-bridge` or `isolated`.
    #[serde(deserialize_with = "policy")]
    pub ingress_policy: Policy,
}

/// The default of `iptablesAdminChainName`, the same as upstream's.
const ADMIN_CHAIN: &str = "CNI-ADMIN";
/// The default of `firewalldZone`, the same as upstream's.
const ZONE: &str = "trusted";
/// The longest name of a chain that iptables takes, in bytes.
#[doc(alias = "XT_EXTENSION_MAXNAMELEN")]
const LONGEST_CHAIN: usize = 28;
/// Names that have another meaning, or that this plugin uses for other chains.
const TAKEN: [&str; 14] = [
    "INPUT",
    "FORWARD",
    "OUTPUT",
    "ACCEPT",
    "DROP",
    "RETURN",
    "QUEUE",
    "CNI-FORWARD",
    "CNI-FORWARD-OWNERS",
    "CNI-ISOLATION-STAGE-1",
    "CNI-ISOLATION-STAGE-2",
    "owners",
    "admins",
    "forward",
];

fn backend<'de, D: Deserializer<'de>>(deserializer: D) -> Result<FirewallBackend, D::Error> {
    let known = "\"firewalld\", \"iptables\" and \"nftables\"";
    Ok(word(deserializer, FirewallBackend::named, "unknown backend", known)?.unwrap_or_default())
}

fn policy<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Policy, D::Error> {
    let known = "\"open\", \"same-bridge\" and \"isolated\"";
    Ok(word(deserializer, Policy::named, "unknown ingress policy", known)?.unwrap_or_default())
}

impl Policy {
    fn named(name: &str) -> Option<Policy> {
        match name {
            "open" => Some(Policy::Open),
            "same-bridge" => Some(Policy::SameBridge),
            "isolated" => Some(Policy::Isolated),
            _ => None,
        }
    }
}

fn non_empty_or(text: String, default: &str) -> String {
    if text.is_empty() { default.to_owned() } else { text }
}

impl TryFrom<FirewallKeys> for FirewallPlugin {
    type Error = String;

    fn try_from(keys: FirewallKeys) -> Result<FirewallPlugin, String> {
        let admin_chain = non_empty_or(keys.iptables_admin_chain_name, ADMIN_CHAIN);
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if admin_chain.len() > LONGEST_CHAIN || admin_chain.starts_with('-') || !admin_chain.bytes().all(is_name) {
            let what = format!("letters, digits, -, _ and ., at most {LONGEST_CHAIN} of them, and no - first");
            return Err(format!("iptablesAdminChainName {admin_chain:?} cannot be the name of a chain: {what}"));
        }
        if TAKEN.contains(&admin_chain.as_str()) {
            return Err(format!(
                "iptablesAdminChainName {admin_chain:?} is a reserved name; hint: choose another name"
            ));
        }
        let zone = non_empty_or(keys.firewalld_zone, ZONE);
        Ok(FirewallPlugin {
            settings: FirewallSettings { backend: keys.backend, admin_chain, zone },
            policy: keys.ingress_policy,
        })
    }
}

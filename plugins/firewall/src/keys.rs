//! The keys as they are written, and what is refused of them.

use cnikit::keys::word;
use cnikit::rules::firewall::{FirewallBackend, FirewallSettings};
use serde::{Deserialize, Deserializer};

use crate::{FirewallPlugin, Policy};

/// The keys as they are written.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FirewallKeys {
    /// What rules are written with; absent or empty, it is found out on the host.
    #[serde(deserialize_with = "backend")]
    pub backend: FirewallBackend,
    /// The operator's chain, which comes before what containers are allowed: `CNI-ADMIN`.
    pub iptables_admin_chain_name: String,
    /// The zone of firewalld that containers' addresses become sources of: `trusted`.
    pub firewalld_zone: String,
    /// Who may reach the containers of a bridge: `open`, `same-bridge` or `isolated`.
    #[serde(deserialize_with = "policy")]
    pub ingress_policy: Policy,
}

/// The reference's.
const ADMIN_CHAIN: &str = "CNI-ADMIN";
/// The reference's too.
const ZONE: &str = "trusted";
/// The longest name of a chain that iptables takes, in bytes.
#[doc(alias = "XT_EXTENSION_MAXNAMELEN")]
const LONGEST_CHAIN: usize = 28;
/// They have another meaning, or are made here for something else.
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
    let known = "without the key the host decides; \"firewalld\", \"iptables\" and \"nftables\"";
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

impl TryFrom<FirewallKeys> for FirewallPlugin {
    type Error = String;

    fn try_from(keys: FirewallKeys) -> Result<FirewallPlugin, String> {
        let name = Some(keys.iptables_admin_chain_name).filter(|name| !name.is_empty());
        let admin_chain = name.unwrap_or_else(|| ADMIN_CHAIN.to_owned());
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if admin_chain.len() > LONGEST_CHAIN || admin_chain.starts_with('-') || !admin_chain.bytes().all(is_name) {
            let what = format!("letters, digits, -, _ and ., at most {LONGEST_CHAIN} of them, and no - first");
            return Err(format!("iptablesAdminChainName {admin_chain:?} cannot be the name of a chain: {what}"));
        }
        if TAKEN.contains(&admin_chain.as_str()) {
            return Err(format!("iptablesAdminChainName {admin_chain:?} is taken for something else"));
        }
        let zone = Some(keys.firewalld_zone).filter(|zone| !zone.is_empty()).unwrap_or_else(|| ZONE.to_owned());
        Ok(FirewallPlugin {
            settings: FirewallSettings { backend: keys.backend, admin_chain, zone },
            policy: keys.ingress_policy,
        })
    }
}

//! The configuration of the firewall.

use std::fmt;

use crate::backend::Backend;

/// The configuration of the firewall: the backend, and names of its chain and zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirewallSettings {
    /// What rules are written with.
    pub backend: FirewallBackend,
    /// The chain of the operator. It is created, jumped to first, and never changed.
    #[doc(alias = "iptablesAdminChainName")]
    pub admin_chain: String,
    /// The zone of firewalld that addresses are added to as sources.
    #[doc(alias = "firewalldZone")]
    pub zone: String,
}

/// Who may reach containers of a bridge. The names are those of links of the host; the first bridge among them is used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "ingressPolicy")]
pub enum IngressPolicy {
    /// No restriction besides the host's.
    Open,
    /// No container of another bridge with a restriction.
    SameBridge(Vec<String>),
    /// As `SameBridge`, and no other container of the bridge.
    Isolated(Vec<String>),
}

/// What rules are written with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FirewallBackend {
    /// firewalld if it runs; otherwise iptables if its programs are installed and work, since upstream's plugins look for rules
    /// there; otherwise nftables.
    #[default]
    Automatic,
    /// The programs of iptables.
    Iptables,
    /// nftables, over netlink, in a table of its own.
    Nftables,
    /// A zone of firewalld, over D-Bus. Isolation is written as with `Automatic` without firewalld.
    Firewalld,
}

impl FirewallBackend {
    /// The backend of rules, with or without a zone of firewalld.
    pub(super) fn of_rules(self) -> Backend {
        match self {
            Self::Nftables => Backend::Nftables,
            Self::Iptables => Backend::Iptables,
            Self::Automatic | Self::Firewalld => Backend::Automatic,
        }
    }

    /// The backend of this name in a configuration.
    pub fn named(name: &str) -> Option<FirewallBackend> {
        [Self::Iptables, Self::Nftables, Self::Firewalld].into_iter().find(|one| one.to_string() == name)
    }
}

impl IngressPolicy {
    /// The names of the links, and whether containers of one bridge are isolated from each other; `None` without a restriction.
    pub(super) fn names(&self) -> Option<(&[String], bool)> {
        match self {
            IngressPolicy::Open => None,
            IngressPolicy::SameBridge(names) => Some((names, false)),
            IngressPolicy::Isolated(names) => Some((names, true)),
        }
    }

    /// The value of `ingressPolicy`.
    pub(super) fn word(&self) -> &'static str {
        match self {
            IngressPolicy::Open => "open",
            IngressPolicy::SameBridge(_) => "same-bridge",
            IngressPolicy::Isolated(_) => "isolated",
        }
    }
}

/// The text in a dry run.
impl fmt::Display for FirewallBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Automatic => "firewalld if it runs, iptables if it works, otherwise nftables",
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
            Self::Firewalld => "firewalld",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_has_a_name_unless_it_is_automatic() {
        for (name, backend, of_rules) in [
            ("iptables", Some(FirewallBackend::Iptables), Backend::Iptables),
            ("nftables", Some(FirewallBackend::Nftables), Backend::Nftables),
            ("firewalld", Some(FirewallBackend::Firewalld), Backend::Automatic),
            ("ipset", None, Backend::Automatic),
            ("", None, Backend::Automatic),
        ] {
            assert_eq!(FirewallBackend::named(name), backend, "{name}");
            assert_eq!(backend.unwrap_or_default().of_rules(), of_rules, "{name}");
        }
        let automatic = FirewallBackend::Automatic.to_string();
        assert_eq!(automatic, "firewalld if it runs, iptables if it works, otherwise nftables");
    }

    #[test]
    fn a_policy_names_the_links_and_whether_their_containers_are_isolated_from_each_other() {
        let names = vec!["cni0".to_owned()];
        for (policy, found, word) in [
            (IngressPolicy::Open, None, "open"),
            (IngressPolicy::SameBridge(names.clone()), Some((&names[..], false)), "same-bridge"),
            (IngressPolicy::Isolated(names.clone()), Some((&names[..], true)), "isolated"),
        ] {
            assert_eq!((policy.names(), policy.word()), (found, word));
        }
    }
}

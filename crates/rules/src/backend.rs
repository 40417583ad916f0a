//! What rules are written with: the choice in a configuration, and the properties of each kind's rules.

use std::fmt;

use cnikit_skel::AttachmentId;

/// What rules are written with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "ipMasqBackend")]
pub enum Backend {
    /// iptables, where upstream's plugins look for rules, if its programs are installed and work; otherwise nftables.
    #[default]
    Automatic,
    /// The programs of iptables.
    Iptables,
    /// nftables, over netlink.
    Nftables,
}

/// How rules of one kind are written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuleBackend {
    /// The name of the kind, in the log.
    pub(crate) kind: &'static str,
    /// What the rules are, in messages.
    pub(crate) what: &'static str,
    /// The table of iptables.
    pub(crate) table: &'static str,
    /// Chains of that table that all attachments share. A rule that is added there only where it is missing must not be hidden.
    pub(crate) shared: &'static [&'static str],
    /// Whether ADD locks out other processes of ours from reading to writing, since attachments share rules.
    pub(crate) locks: bool,
    /// The key of the configuration that chooses.
    pub(crate) key: &'static str,
    /// The modules and options of a kernel that has these rules in nftables.
    pub(crate) nftables_needs: &'static str,
    /// The same for iptables.
    pub(crate) iptables_needs: &'static str,
    /// What CHECK reports if no backend has rules of the attachment.
    pub(crate) absent: AbsentReport,
}

/// What CHECK reports if neither backend has rules of the attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AbsentReport {
    /// One difference for all rules.
    Once,
    /// Each rule that is missing from the backend that ADD would choose.
    #[cfg_attr(not(feature = "firewall"), expect(dead_code, reason = "the only kind that reports so"))]
    EachRule,
}

impl RuleBackend {
    /// The name of the undo step for the rules of an attachment.
    pub(crate) fn undo_name(self, tag: &AttachmentId) -> String {
        format!("{} of {tag}", self.what)
    }

    /// The end of a hint: an operator may choose this backend instead of repairing the other one.
    pub(crate) fn or_choose(self, backend: Backend) -> String {
        format!("or set `\"{}\": \"{backend}\"`", self.key)
    }
}

/// As a dry run prints it.
impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Automatic => "iptables if it works, otherwise nftables",
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
        })
    }
}

/// How the rules of one backend compare with those that are wanted.
#[derive(Default)]
pub(crate) struct Comparison {
    /// There are rules of this attachment.
    pub(crate) any: bool,
    /// What is missing or different.
    pub(crate) drifts: Vec<String>,
    /// What of the guard of the host's loopback belongs to these rules.
    pub(crate) loopback: Loopback,
}

/// What belongs to rules that publish ports to the host's loopback.
#[cfg_attr(not(feature = "portmap"), expect(dead_code, reason = "only port mappings have more than one answer"))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Loopback {
    /// The link's setting and its guard.
    #[default]
    Guarded,
    /// The setting alone: the upstream plugin made the rules, and no rule has a mark of ours.
    Unguarded,
    /// Neither: no port is published.
    Unpublished,
}

/// A kind of rules, for the tests of this crate.
#[cfg(test)]
pub(crate) const TRIED: RuleBackend = RuleBackend {
    kind: "tried",
    what: "tried rules",
    table: "nat",
    shared: &[],
    locks: false,
    key: "triedBackend",
    nftables_needs: "CONFIG_NF_TABLES",
    iptables_needs: "CONFIG_IP_NF_NAT",
    absent: AbsentReport::Once,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_names_a_backend_as_the_configuration_does() {
        assert_eq!(TRIED.or_choose(Backend::Nftables), "or set `\"triedBackend\": \"nftables\"`");
        assert_eq!(TRIED.or_choose(Backend::Iptables), "or set `\"triedBackend\": \"iptables\"`");
        assert_eq!(Backend::Automatic.to_string(), "iptables if it works, otherwise nftables");
    }

    #[test]
    fn an_undo_step_names_the_rules_and_the_attachment() {
        let tag = AttachmentId { network: "n".into(), container: "c".into(), ifname: "eth0".into() };
        assert_eq!(TRIED.undo_name(&tag), format!("tried rules of {tag}"));
    }
}

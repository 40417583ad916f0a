//! What rules of the packet filter are written with.

use std::fmt;

use cnikit_skel::Result;

use crate::rules::iptables::RuleTable;

/// What rules are written with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "ipMasqBackend")]
pub enum Backend {
    /// iptables, where a mixed or downgraded node looks for them, if its programs are there and work; else nftables.
    #[default]
    Automatic,
    /// The programs of iptables.
    Iptables,
    /// nftables, over netlink.
    Nftables,
}

impl Backend {
    /// How its rules compare with what is wanted; of a choice by itself see [`Standing::of_either`].
    pub(crate) fn standing(
        self,
        nftables: impl FnOnce() -> Result<Standing>,
        iptables: impl FnOnce() -> Result<Standing>,
        usable: impl FnOnce() -> Result<bool>,
    ) -> Result<Standing> {
        match self {
            Self::Iptables => iptables(),
            Self::Nftables => nftables(),
            Self::Automatic => Standing::of_either(nftables(), iptables, usable),
        }
    }

    /// Whether this host can write such rules, for STATUS.
    pub(crate) fn available(self, iptables: RuleTable, nftables: impl FnOnce() -> Result<()>) -> Result<()> {
        match self {
            Self::Automatic => iptables.usable()?.or_else(|_| nftables()),
            Self::Iptables => iptables.available(),
            Self::Nftables => nftables(),
        }
    }
}

/// As a dry run says it.
impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Automatic => "iptables where it works, else nftables",
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
        })
    }
}

/// How one backend's rules compare with what is wanted.
#[derive(Default)]
pub(crate) struct Standing {
    /// Something of this attachment is there.
    pub(crate) any: bool,
    /// What is missing or different.
    pub(crate) drifts: Vec<String>,
    /// What of the guard of the host's loopback belongs to these rules.
    pub(crate) loopback: Loopback,
}

/// What belongs to rules that publish ports to the host's loopback.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Loopback {
    /// The link's setting and its guard.
    #[default]
    Guarded,
    /// The setting alone: the upstream plugin made the rules, and no rule bears a mark of ours.
    Unguarded,
    /// Neither: no port is published.
    Unpublished,
}

impl Standing {
    /// Of the backend that has something of this attachment, for what ADD chose may not be what it would choose today. In
    /// nftables that is certain, while a chain of iptables may be there for another interface. Where neither has, `usable`
    /// says whether iptables could.
    pub(crate) fn of_either(
        nftables: Result<Standing>,
        iptables: impl FnOnce() -> Result<Standing>,
        usable: impl FnOnce() -> Result<bool>,
    ) -> Result<Standing> {
        if nftables.as_ref().is_ok_and(|standing| standing.any) {
            return nftables;
        }
        let iptables = iptables()?;
        if iptables.any {
            return Ok(iptables);
        }
        if !usable()? {
            nftables?;
        }
        let drift = "there are rules neither in iptables nor in nftables";
        Ok(Standing { drifts: vec![drift.to_owned()], ..Standing::default() })
    }
}

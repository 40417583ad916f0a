//! What rules are written with: nftables or iptables, chosen, compared and undone in one way for all kinds.

use std::fmt;
use std::rc::Rc;

use cnikit_nftables::{InstalledRule, Nftables, OwnerFilter, Replacement, Rules, Snapshot, TableLayout};
use cnikit_plan::{ApplyContext, Drifts, Resource, Shared};
use cnikit_skel::{Journal, Result, log};

use crate::iptables::{Opened, Opening};

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

/// How rules of one kind are written: their table of iptables, and how nftables is tried.
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
    /// ADD keeps other processes of ours away from reading to writing, since attachments share rules.
    pub(crate) locks: bool,
    /// What an operator may do instead of repairing iptables.
    pub(crate) instead: &'static str,
    /// Tries whether the kernel accepts such rules of nftables.
    pub(crate) try_nftables: fn() -> Result<()>,
}

/// The backend of one ADD.
pub(crate) enum Chosen {
    /// iptables, whose tables have been read.
    Iptables(Opened),
    Nftables,
}

impl RuleBackend {
    /// Chooses the backend. `prefetched` is what programs have been reading since preflight.
    ///
    /// # Errors
    /// iptables is configured and cannot be used; a failure that may be over the next time.
    pub(crate) fn choose(
        self,
        configured: Backend,
        prefetched: Option<Opening>,
        open: impl FnOnce() -> Result<Opening>,
    ) -> Result<Chosen> {
        if configured == Backend::Nftables {
            return Ok(Chosen::Nftables);
        }
        let opening = match prefetched {
            Some(opening) => opening,
            None => open()?,
        };
        if configured == Backend::Iptables {
            return opening.finish().map(Chosen::Iptables);
        }
        match opening.finish_if_usable()? {
            Ok(opened) => Ok(Chosen::Iptables(opened)),
            Err(unusable) => {
                log::info(format_args!("{} with nftables: {unusable}", self.kind));
                Ok(Chosen::Nftables)
            }
        }
    }

    /// Compares the rules of the backend that has any of this attachment: what ADD chose may not be what it would choose today.
    /// In nftables that is certain, while a chain of iptables may be there for another interface.
    ///
    /// # Errors
    /// Those of the comparison, and without any rules those of trying iptables.
    pub(crate) fn compare(
        self,
        configured: Backend,
        nftables: impl FnOnce() -> Result<Comparison>,
        iptables: impl FnOnce() -> Result<Comparison>,
    ) -> Result<Comparison> {
        match configured {
            Backend::Iptables => return iptables(),
            Backend::Nftables => return nftables(),
            Backend::Automatic => {}
        }
        let by_nftables = nftables();
        if by_nftables.as_ref().is_ok_and(|found| found.any) {
            return by_nftables;
        }
        let by_iptables = iptables()?;
        if by_iptables.any {
            return Ok(by_iptables);
        }
        if self.usable()?.is_err() {
            by_nftables?;
        }
        let drift = "there are rules neither in iptables nor in nftables";
        Ok(Comparison { drifts: vec![drift.to_owned()], ..Comparison::default() })
    }

    /// Whether this host can have such rules, for STATUS.
    ///
    /// # Errors
    /// It cannot.
    pub(crate) fn available(self, configured: Backend) -> Result<()> {
        match configured {
            Backend::Automatic => self.usable()?.or_else(|_| (self.try_nftables)()),
            Backend::Iptables => self.usable()?.map_err(|error| self.explained(error)),
            Backend::Nftables => (self.try_nftables)(),
        }
    }
}

/// As a dry run prints it.
impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Automatic => "iptables where it works, else nftables",
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

/// The host's packet filter, which the kinds of one DEL or GC share; `None` where the kernel has no netfilter.
///
/// # Errors
/// The kernel's.
pub(crate) fn shared_nftables(shared: &Shared) -> Result<Option<Rc<Nftables>>> {
    let opened = shared.get(|| Ok(Nftables::if_any()?.map(Rc::new)))?;
    Ok(opened.as_ref().clone())
}

/// Makes `rules` all the rules of an owner; the roll-back puts back those that it had, which may be a running container's.
///
/// # Errors
/// As [`Nftables::replace`].
pub(crate) fn replace(
    nftables: &Nftables,
    (layout, filter): (&TableLayout, OwnerFilter),
    rules: impl Into<Rules>,
    (what, journal): (&String, &mut Journal),
) -> cnikit_nftables::Result<()> {
    let mut replacement = nftables.begin_replace(layout, filter, rules)?;
    while !replacement.is_done() {
        let snapshot = replacement.read()?;
        commit(&mut replacement, snapshot, (what, journal))?;
    }
    Ok(())
}

/// Commits a replacement, and notes before how to undo it: the change may be made and its answer lost.
///
/// # Errors
/// As [`Replacement::commit`].
pub(crate) fn commit<'a>(
    replacement: &mut Replacement<'a>,
    snapshot: Snapshot<'a>,
    (what, journal): (&String, &mut Journal),
) -> cnikit_nftables::Result<()> {
    // Once a part of the changes was made, the undo of the first attempt puts back what there was before them.
    if snapshot.begun() {
        return replacement.commit(snapshot);
    }
    let layout = replacement.layout().clone();
    let filter = replacement.filter().clone();
    let before: Vec<InstalledRule> = snapshot.before().to_vec();
    let undo = journal.undo(what, move |_| Nftables::here()?.put_back(&layout, filter, &before));
    replacement.commit(snapshot)?;
    // Nothing was changed, and the next attempt notes what there is then.
    if !replacement.is_done() && !replacement.has_begun() {
        journal.strike(undo);
    }
    Ok(())
}

/// Makes rules again if any is missing or different. Otherwise not even the backend is chosen again.
///
/// # Errors
/// Those of CHECK and ADD.
pub(crate) fn restore(rules: &impl Resource, context: &ApplyContext, journal: &mut Journal) -> Result<()> {
    let mut drifts = Drifts::default();
    rules.verify(context, &mut drifts)?;
    if drifts.texts().is_empty() {
        return Ok(());
    }
    rules.preflight(context)?;
    rules.ensure(context, journal).map(drop)
}

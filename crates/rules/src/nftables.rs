//! Rules of nftables for a resource of your own: the socket, opened once per call, and rules replaced with an undo step.
//!
//! The types of rules are those of [`cnikit_nftables`].

use std::rc::Rc;

use cnikit_nftables::{InstalledRule, Nftables, OwnerFilter, Replacement, Rules, Snapshot, TableLayout};
use cnikit_plan::Shared;
use cnikit_skel::{Journal, Result};

pub use cnikit_nftables;

/// The socket for nftables that all resources of one ADD, or all kinds of one DEL or GC, share; `shared` is that of their context.
/// `None` if the kernel has no netfilter.
///
/// # Errors
/// The kernel's.
pub fn shared_nftables(shared: &Shared) -> Result<Option<Rc<Nftables>>> {
    let opened = shared.get(|| Ok(Nftables::if_any()?.map(Rc::new)))?;
    Ok(opened.as_ref().clone())
}

/// Replaces the rules of an owner in one transaction. The undo step is in the journal before the change is made, because the reply
/// may be lost: the roll-back puts back the rules from before, which may be a running container's. `undo_name` names it in the log.
///
/// # Errors
/// As [`Nftables::replace`].
pub fn replace(
    nftables: &Nftables,
    layout: &TableLayout,
    filter: OwnerFilter,
    rules: impl Into<Rules>,
    undo_name: &str,
    journal: &mut Journal,
) -> cnikit_nftables::Result<()> {
    let mut replacement = nftables.begin_replace(layout, filter, rules)?;
    while !replacement.is_done() {
        let snapshot = replacement.read()?;
        commit(&mut replacement, snapshot, undo_name, journal)?;
    }
    Ok(())
}

/// Records how to undo a replacement, and commits it. The undo step comes first: the change may be made and the reply lost.
///
/// # Errors
/// As [`Replacement::commit`].
pub(crate) fn commit<'a>(
    replacement: &mut Replacement<'a>,
    snapshot: Snapshot<'a>,
    undo_name: &str,
    journal: &mut Journal,
) -> cnikit_nftables::Result<()> {
    // If a part of the changes was made, the undo step of the first attempt puts back the rules from before.
    if snapshot.begun() {
        return replacement.commit(snapshot);
    }
    let layout = replacement.layout().clone();
    let filter = replacement.filter().clone();
    let before: Vec<InstalledRule> = snapshot.before().to_vec();
    let undo = journal.undo(&undo_name.to_owned(), move |_| Nftables::here()?.put_back(&layout, filter, &before));
    replacement.commit(snapshot)?;
    // Nothing was changed. The next attempt records the rules that it finds.
    if !replacement.is_done() && !replacement.has_begun() {
        journal.strike(undo);
    }
    Ok(())
}

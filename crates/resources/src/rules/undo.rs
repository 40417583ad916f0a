//! Rules as a step of an ADD, and put back when somebody has flushed them.

use std::cell::RefCell;
use std::rc::Rc;

use cnikit_netfilter::{Error, InstalledRule, Nftables, OwnerFilter, Rules, Snapshot, TableLayout};
use cnikit_plan::{ApplyContext, Drifts, Resource};
use cnikit_skel::{Journal, Result};

/// Makes these all the rules there are of an owner; the roll-back puts back what he had before, which may be a running
/// container's. That is noted before the change, for the change may be made and its answer lost; and judged before it.
pub(crate) fn replace<E: From<Error>>(
    nftables: &Nftables,
    (frame, whose): (TableLayout, OwnerFilter),
    rules: impl Into<Rules>,
    mut judge: impl FnMut(&Snapshot<'_>) -> std::result::Result<(), E>,
    (what, journal): (&String, &mut Journal),
) -> std::result::Result<(), E> {
    let (frame, before) = (Rc::new(frame), Rc::new(RefCell::new(None::<Vec<InstalledRule>>)));
    let (place, owner, noted) = (Rc::clone(&frame), whose.clone(), Rc::clone(&before));
    let _ = journal.undo(what, move |_| match noted.take() {
        Some(before) => Nftables::here()?.put_back(&place, owner, &before),
        None => Ok(()),
    });
    nftables.replace_judged(&frame, whose, rules, |looked| {
        // Once a part of the changes was made, what was there before them is what the roll-back puts back.
        if looked.begun() {
            return judge(looked);
        }
        // Nothing came of what was judged before.
        *before.borrow_mut() = None;
        judge(looked)?;
        *before.borrow_mut() = Some(looked.before().to_vec());
        Ok(())
    })
}

/// Makes rules anew where any is missing or different; where none is, not even the choice of a backend is made again.
pub(crate) fn restore(rules: &impl Resource, context: &ApplyContext, journal: &mut Journal) -> Result<()> {
    let mut drifts = Drifts::default();
    rules.verify(context, &mut drifts)?;
    if drifts.texts().is_empty() {
        return Ok(());
    }
    rules.preflight(context)?;
    rules.ensure(context, journal).map(drop)
}

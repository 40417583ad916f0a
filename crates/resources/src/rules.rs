//! Rules of nftables as a step of an ADD.

use std::cell::RefCell;
use std::rc::Rc;

use cnikit_netfilter::{Error, Found, Frame, Nftables, Rule, Whose};
use cnikit_skel::Journal;

/// Makes these all the rules there are of an owner; the roll-back puts back what he had before, which may be a running
/// container's. That is noted before the change, for the change may be made and its answer lost.
pub(crate) fn replace(
    nftables: &Nftables,
    (frame, whose): (Frame, Whose),
    rules: &[Rule],
    (what, journal): (&String, &mut Journal),
) -> Result<(), Error> {
    let (frame, before) = (Rc::new(frame), Rc::new(RefCell::new(None::<Vec<Found>>)));
    let (place, owner, noted) = (Rc::clone(&frame), whose.clone(), Rc::clone(&before));
    let _ = journal.undo(what, move |_| match noted.take() {
        Some(before) => Nftables::here()?.put_back(&place, owner, &before),
        None => Ok(()),
    });
    nftables.replace_noting(&frame, whose, rules, |found| *before.borrow_mut() = Some(found))
}

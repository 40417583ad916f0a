//! The journal: the steps that undo a call unless its result has been written.

use std::fmt::Display;

use crate::error::{Error, Errors, Result};
use crate::log;
use crate::panic::caught;

/// The undo steps of a call, newest last.
///
/// A resource adds an undo step *before or at the moment* it makes something. If the call fails the journal is rolled back, newest
/// first. When the result has been written and flushed the journal is committed, and nothing is undone. A journal that is dropped
/// rolls back too, so that a panic leaves nothing.
#[derive(Default)]
pub struct Journal {
    entries: Vec<Entry>,
    next: usize,
}

/// The handle of an entry, to strike it out again.
#[derive(Debug)]
#[must_use = "an entry that is never struck out needs no handle: drop it on purpose"]
pub struct Undo(usize);

struct Entry {
    id: usize,
    what: String,
    how: Box<dyn FnOnce() -> Result<()>>,
    only_if_clean: bool,
}

impl Journal {
    /// Adds an undo step for `thing`, of which the journal has a clone. The log prints its `Display`.
    pub fn undo<T, E>(&mut self, thing: &T, how: impl FnOnce(&T) -> Result<(), E> + 'static) -> Undo
    where
        T: Clone + Display + 'static,
        E: Into<Error>,
    {
        self.note(thing, how, false)
    }

    /// As [`Journal::undo`], but the step is skipped, and left for DEL, if a newer step failed.
    ///
    /// An address is released like this: as long as its link may exist, no other attachment must get it.
    pub fn undo_if_clean<T, E>(&mut self, thing: &T, how: impl FnOnce(&T) -> Result<(), E> + 'static) -> Undo
    where
        T: Clone + Display + 'static,
        E: Into<Error>,
    {
        self.note(thing, how, true)
    }

    fn note<T, E>(&mut self, thing: &T, how: impl FnOnce(&T) -> Result<(), E> + 'static, only_if_clean: bool) -> Undo
    where
        T: Clone + Display + 'static,
        E: Into<Error>,
    {
        let copy = thing.clone();
        self.next += 1;
        let how = Box::new(move || how(&copy).map_err(Into::into));
        self.entries.push(Entry { id: self.next, what: thing.to_string(), how, only_if_clean });
        Undo(self.next)
    }

    /// Removes an entry, because there is nothing to undo.
    #[expect(clippy::needless_pass_by_value, reason = "an entry can be struck out once")]
    pub fn strike(&mut self, undo: Undo) {
        self.entries.retain(|entry| entry.id != undo.0);
    }

    /// Drops all undo steps, once the result has been written.
    pub fn commit(mut self) {
        self.entries.clear();
    }

    /// Runs all undo steps, newest first. A step that fails or panics does not stop the others.
    ///
    /// # Errors
    /// The steps that failed, as one error.
    pub fn roll_back(mut self) -> Result<()> {
        self.unwind()
    }

    /// Rolls back, and returns the error that caused it, with the steps that failed as a detail.
    pub(crate) fn roll_back_for(self, error: Error) -> Error {
        let Err(left) = self.roll_back() else { return error };
        let hint = match &error.hint {
            Some(hint) => format!("DEL removes the rest; {hint}"),
            None => "DEL removes the rest".to_owned(),
        };
        error.detail(format!("not everything could be undone: {left}")).hint(hint)
    }

    fn unwind(&mut self) -> Result<()> {
        let mut errors = Errors::default();
        while let Some(entry) = self.entries.pop() {
            if entry.only_if_clean && !errors.is_empty() {
                let left =
                    format!("{} is not undone, because its container may still exist; DEL undoes it", entry.what);
                errors.note(Err(Error::new(crate::code::SYSTEM, left)));
                continue;
            }
            let undone = log::step(format_args!("undo {}", entry.what), || caught(entry.how));
            errors.note(undone.map_err(|error| error.context(format_args!("undo {}", entry.what))));
        }
        errors.finish()
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if let Err(error) = self.unwind() {
            log::warn(format_args!("roll-back: {error}"));
        }
    }
}

/// Runs one of several independent tasks with a journal of its own: if it fails it is undone, and the others are not affected.
///
/// # Errors
/// The error of `work`, or its panic as an error, with the steps of the roll-back that failed.
pub fn each_by_itself(work: impl FnOnce(&mut Journal) -> Result<()>) -> Result<()> {
    let mut journal = Journal::default();
    match caught(|| work(&mut journal)) {
        Ok(()) => {
            journal.commit();
            Ok(())
        }
        Err(error) => Err(journal.roll_back_for(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    type Deeds = Rc<RefCell<Vec<&'static str>>>;

    fn note(journal: &mut Journal, deeds: &Deeds, what: &'static str) -> Undo {
        let deeds = Rc::clone(deeds);
        journal.undo(&what, move |what| {
            deeds.borrow_mut().push(what);
            Ok::<(), Error>(())
        })
    }

    fn fail(journal: &mut Journal) {
        let _undo = journal.undo(&"stubborn", |_| Err(Error::new(1, "no")));
    }

    #[test]
    fn a_dropped_journal_undoes_its_steps_in_reverse_order() {
        let deeds = Deeds::default();
        let mut journal = Journal::default();
        let _ = (note(&mut journal, &deeds, "a"), note(&mut journal, &deeds, "b"));
        drop(journal);
        assert_eq!(*deeds.borrow(), ["b", "a"]);
    }

    #[test]
    fn a_committed_journal_undoes_nothing() {
        let deeds = Deeds::default();
        let mut journal = Journal::default();
        let _undo = note(&mut journal, &deeds, "a");
        journal.commit();
        assert!(deeds.borrow().is_empty());
    }

    #[test]
    fn a_struck_entry_is_not_undone() {
        let deeds = Deeds::default();
        let mut journal = Journal::default();
        let struck = note(&mut journal, &deeds, "a");
        let _undo = note(&mut journal, &deeds, "b");
        journal.strike(struck);
        journal.roll_back().unwrap();
        assert_eq!(*deeds.borrow(), ["b"]);
    }

    #[test]
    fn an_undo_that_panics_is_an_error_of_its_own_entry() {
        let deeds = Deeds::default();
        let mut journal = Journal::default();
        let _undo = note(&mut journal, &deeds, "a");
        let _undo = journal.undo(&"mad", |_| -> Result<()> { panic!("out of bounds") });
        let _undo = note(&mut journal, &deeds, "b");
        let error = journal.roll_back().unwrap_err();
        assert_eq!(*deeds.borrow(), ["b", "a"]);
        assert_eq!((error.code, error.msg.as_str()), (crate::code::DEFECT, "undo mad: panic: out of bounds"));
    }

    #[test]
    fn a_failed_undo_stops_no_other_but_the_one_that_hangs_on_it() {
        let deeds = Deeds::default();
        let mut journal = Journal::default();
        let _undo = note(&mut journal, &deeds, "a");
        let freed = Rc::clone(&deeds);
        let _undo = journal.undo_if_clean(&"address", move |_| {
            freed.borrow_mut().push("address");
            Ok::<(), Error>(())
        });
        fail(&mut journal);
        let error = journal.roll_back().unwrap_err();
        assert_eq!(*deeds.borrow(), ["a"]);
        assert!(error.to_string().contains("undo stubborn: no"), "{error}");
        assert!(error.to_string().contains("address is not undone"), "{error}");
    }
}

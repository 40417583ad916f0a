//! One thing wanted, and the sort of thing it is.

use std::fmt::{Debug, Display};

use cnikit_skel::{Journal, Result};
use cnikit_types::Interface;

use crate::context::{ApplyContext, GcContext, ReleaseContext};
use crate::restore_batch::RestoreBatch;

/// One thing wanted. Its `Display` is what a dry run prints and a log names.
pub trait Resource: Display {
    /// The sort of thing it is.
    fn kind(&self) -> Kind;

    /// Looks, before anything at all is made, whether something is in the way; changes nothing. What takes long to read is
    /// begun here, to be waited for when it is made.
    fn preflight(&self, _context: &ApplyContext) -> Result<()> {
        Ok(())
    }

    /// Makes it true. What there is to undo is noted in the journal at the moment it is made, so that a half-made thing is
    /// not lost.
    fn ensure(&self, context: &ApplyContext, journal: &mut Journal) -> Result<Made>;

    /// Makes true again what others flush who do not know whose it is: rules. What stands already stays, and nothing else
    /// of the attachment is touched; most sorts of things are not flushed.
    fn restore(&self, _context: &ApplyContext, _journal: &mut Journal) -> Result<()> {
        Ok(())
    }

    /// Gathers what it would restore with what many attachments want, so that all of it is made at once. The answer is false
    /// where it is restored by itself.
    fn enqueue(&self, _context: &ApplyContext, _together: &mut RestoreBatch) -> Result<bool> {
        Ok(false)
    }

    /// What is left to do once that is as it was wanted. `made`: it was not so before.
    fn finish_batch(&self, _context: &ApplyContext, _made: bool, _journal: &mut Journal) -> Result<()> {
        Ok(())
    }

    /// Compares it with what is, and notes every difference. An error only for what cannot be looked at.
    fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()>;
}

/// All things of one sort: how to find them by tag when nothing else is known.
#[derive(Clone, Copy)]
pub struct Kind {
    /// What it is called; two kinds of one name are one.
    pub name: &'static str,
    /// Removes what belongs to one attachment. That it is gone already is success.
    pub release: fn(&ReleaseContext) -> Result<()>,
    /// Removes what belongs to this network and to no valid attachment.
    pub sweep: fn(&GcContext) -> Result<()>,
    /// It stays behind when the container's link goes, so the plugin has to list it.
    pub outlives_link: bool,
}

impl Kind {
    /// A kind that needs no removing: it goes with the container's link.
    pub const fn goes_with_link(name: &'static str) -> Kind {
        Kind { name, release: |_| Ok(()), sweep: |_| Ok(()), outlives_link: false }
    }

    /// A kind that stays: it is shared with other attachments, which may use it by now.
    pub const fn shared(name: &'static str) -> Kind {
        Kind::goes_with_link(name)
    }
}

impl PartialEq for Kind {
    fn eq(&self, other: &Kind) -> bool {
        self.name == other.name
    }
}

impl Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// What making a thing brought about: the interfaces that the answer lists.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Made {
    /// In the order in which the answer lists them.
    pub interfaces: Vec<Interface>,
}

impl Made {
    /// Nothing that the answer lists.
    pub fn nothing() -> Made {
        Made::default()
    }

    /// One interface.
    pub fn one(interface: Interface) -> Made {
        Made { interfaces: vec![interface] }
    }
}

/// Everything that is not as it should be: wanted, found, where.
#[derive(Debug, Default)]
pub struct Drifts(Vec<String>);

impl Drifts {
    /// Compares two values of one thing.
    #[expect(clippy::needless_pass_by_value, reason = "callers compare values they have just looked up")]
    pub fn compare<T: PartialEq + Display>(&mut self, of: impl Display, wanted: T, found: T) {
        if wanted != found {
            self.0.push(format!("{of}: wanted {wanted}, found {found}"));
        }
    }

    /// Notes the text unless it holds.
    pub fn unless(&mut self, holds: bool, text: impl FnOnce() -> String) {
        if !holds {
            self.0.push(text());
        }
    }

    /// Notes what somebody else found.
    pub fn extend(&mut self, texts: impl IntoIterator<Item = String>) {
        self.0.extend(texts);
    }

    /// Each difference, a sentence.
    pub fn texts(&self) -> &[String] {
        &self.0
    }
}

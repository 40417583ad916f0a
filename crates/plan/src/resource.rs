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

    /// Checks, before anything is made, whether something is in the way; changes nothing. What takes long to read is started
    /// here, and awaited when the resource is made.
    ///
    /// # Errors
    /// Something is in the way, such as a link of another owner, or it cannot be read.
    fn preflight(&self, _context: &ApplyContext) -> Result<()> {
        Ok(())
    }

    /// Makes the resource. Its undo step is put in the journal at the moment it is made, so that a half-made resource is not
    /// lost.
    ///
    /// # Errors
    /// It could not be made. The journal undoes what was made.
    fn ensure(&self, context: &ApplyContext, journal: &mut Journal) -> Result<Made>;

    /// Makes the resource again if other programs flush it without knowing its owner: rules. What exists stays, and nothing
    /// else of the attachment is changed; most kinds of resources are not flushed.
    ///
    /// # Errors
    /// It could not be made. The journal undoes what was made.
    fn restore(&self, _context: &ApplyContext, _journal: &mut Journal) -> Result<()> {
        Ok(())
    }

    /// Adds what it would restore to a batch of many attachments, so that all of it is made at once. Returns false if the
    /// resource is restored by itself.
    ///
    /// # Errors
    /// It could not be added: the resource is reported as failed, and the others are restored all the same.
    fn enqueue(&self, _context: &ApplyContext, _together: &mut RestoreBatch) -> Result<bool> {
        Ok(false)
    }

    /// Does what remains once the batch has been made. `made`: the batch changed something of this resource.
    ///
    /// # Errors
    /// It could not be done. The journal undoes what was made.
    fn finish_batch(&self, _context: &ApplyContext, _made: bool, _journal: &mut Journal) -> Result<()> {
        Ok(())
    }

    /// Compares the resource with the actual state, and adds every difference to `drifts`.
    ///
    /// # Errors
    /// The actual state cannot be read. A difference is not an error.
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
    /// A kind that need not be removed: it is removed with the container's link.
    pub const fn goes_with_link(name: &'static str) -> Kind {
        Kind { name, release: |_| Ok(()), sweep: |_| Ok(()), outlives_link: false }
    }

    /// A kind that is not removed: it is shared with other attachments, which may use it by now.
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
    /// No interface for the result.
    pub fn nothing() -> Made {
        Made::default()
    }

    /// One interface for the result.
    pub fn one(interface: Interface) -> Made {
        Made { interfaces: vec![interface] }
    }
}

/// Everything that is not as it should be: wanted, found, where.
#[derive(Debug, Default)]
pub struct Drifts(Vec<String>);

impl Drifts {
    /// Compares two values, and adds a difference.
    #[expect(clippy::needless_pass_by_value, reason = "callers compare values they have just looked up")]
    pub fn compare<T: PartialEq + Display>(&mut self, of: impl Display, wanted: T, found: T) {
        if wanted != found {
            self.0.push(format!("{of}: wanted {wanted}, found {found}"));
        }
    }

    /// Adds the text as a difference unless `holds`.
    pub fn unless(&mut self, holds: bool, text: impl FnOnce() -> String) {
        if !holds {
            self.0.push(text());
        }
    }

    /// Adds differences that were found elsewhere.
    pub fn extend(&mut self, texts: impl IntoIterator<Item = String>) {
        self.0.extend(texts);
    }

    /// The differences, one sentence each.
    pub fn texts(&self) -> &[String] {
        &self.0
    }
}

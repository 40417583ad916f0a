//! Resources, their kinds, and the differences that CHECK finds.

use std::fmt::{Debug, Display};

use cnikit_skel::{Journal, Result};
use cnikit_types::Interface;

use crate::context::{ApplyContext, GcContext, ReleaseContext};
use crate::restore_batch::RestoreBatch;

/// One thing that an attachment needs. Dry runs, errors and logs print its `Display`.
///
/// What the author of a resource has to know:
///
/// - Its errors name the object and the reason only. The engine puts the resource before them, and skel the plugin, the verb, the
///   network and the interface, so that each is named once.
/// - An error does not mean that nothing was done: the kernel may have made the change, and the reply was lost. So an undo step is
///   in the journal before the change or at its moment, and undoing what was not done succeeds.
/// - A resource that still exists after the link of the container was deleted, such as a rule or a link of the host, has a [`Kind`]
///   with `outlives_link`, and its plugin lists that kind in `KINDS`: otherwise neither DEL without a configuration nor GC would
///   remove it. All that a kind gets is the tag. So the name, the alias or the comment of what is made has to contain the tag or
///   its hash.
pub trait Resource: Display {
    /// The kind of the resource.
    fn kind(&self) -> Kind;

    /// Checks, before anything is made, whether something is in the way; changes nothing. Reads that take long are started here,
    /// and awaited when the resource is made.
    ///
    /// # Errors
    /// Something is in the way, such as a link of another owner, or it cannot be read.
    fn preflight(&self, _context: &ApplyContext) -> Result<()> {
        Ok(())
    }

    /// Makes the resource. Each undo step is recorded in the journal at the moment its part is made, so that a half-made resource
    /// is undone too.
    ///
    /// # Errors
    /// It could not be made. The journal undoes what was made.
    fn ensure(&self, context: &ApplyContext, journal: &mut Journal) -> Result<Made>;

    /// Makes the resource again if another program has flushed it, as happens to rules. Existing parts stay, and nothing else of
    /// the attachment is changed. Most kinds of resources are never flushed; for them this does nothing.
    ///
    /// # Errors
    /// It could not be made. The journal undoes what was made.
    fn restore(&self, _context: &ApplyContext, _journal: &mut Journal) -> Result<()> {
        Ok(())
    }

    /// Adds what [`Resource::restore`] would make to a batch of many attachments, so that all of it is made at once. Returns false
    /// if the resource is restored separately.
    ///
    /// # Errors
    /// It could not be added. The resource is then restored separately; the batch is made for the other resources.
    fn enqueue(&self, _context: &ApplyContext, _batch: &mut RestoreBatch) -> Result<bool> {
        Ok(false)
    }

    /// Completes the restoration after the batch has been made. `made` is true if the batch changed anything of this resource.
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

/// A type of resource, with the functions that remove its resources for DEL and GC, when only the tag is known.
#[derive(Clone, Copy)]
pub struct Kind {
    /// The name; kinds with the same name are the same kind.
    pub name: &'static str,
    /// Removes the resources of one attachment. Resources that do not exist any more are not an error.
    pub release: fn(&ReleaseContext) -> Result<()>,
    /// Removes the resources of this network that belong to no valid attachment.
    pub sweep: fn(&GcContext) -> Result<()>,
    /// Whether the resource still exists after the container's link was deleted. Then the plugin has to list this kind (`KINDS` of
    /// its shape), and `release` and `sweep` are called for it; a plan that has a resource of a kind that is not listed is refused.
    pub outlives_link: bool,
}

impl Kind {
    /// A kind whose resources need not be removed, because the kernel removes them with the container's link.
    pub const fn goes_with_link(name: &'static str) -> Kind {
        Kind { name, release: |_| Ok(()), sweep: |_| Ok(()), outlives_link: false }
    }

    /// A kind whose resources are not removed, because other attachments may use them too.
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

/// The outcome of making resources: the interfaces for the result.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Made {
    /// The interfaces in the order of the result.
    pub interfaces: Vec<Interface>,
    /// Interfaces for the result that are not links of the kernel, because a program in user space has the device.
    pub without_link: Vec<Interface>,
}

impl Made {
    /// No interface for the result.
    pub fn nothing() -> Made {
        Made::default()
    }

    /// One interface for the result.
    pub fn one(interface: Interface) -> Made {
        Made { interfaces: vec![interface], without_link: Vec::new() }
    }
}

/// The differences between the plan and the actual state, each as a text with the expected and the actual value.
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

    /// Adds the text as a difference unless `holds` is true.
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

//! GC: deletes the cached attachments that are not valid, then passes the valid ones to the plugins.

use cnikit_store::Directory;
use cnikit_types::Version;

use crate::cache::file_name;
use crate::cache::lock::{Locks, is_busy};
use crate::runtime::verbs::OnFailure;
use crate::{
    Attachment, CachedAttachment, Error, ErrorContext, NetworkList, Runtime, State, ValidAttachment, Warnings,
};

impl Runtime {
    /// Removes the attachments of this network that are not `valid`: those in the cache, including those whose ADD was
    /// interrupted, by a DEL with the recorded configuration; all others by the plugins' GC, since version 1.1.0.
    ///
    /// Nothing is added or deleted in the network meanwhile. A DEL that failed is repeated by the next GC. A list with `disableGC`
    /// is skipped.
    ///
    /// # Errors
    /// [`Error::Busy`], [`Error::Cancelled`] or [`Error::Cache`] if the network's lock cannot be taken; nothing is done then.
    /// [`Error::Several`] with everything that failed; the rest is still done.
    pub fn gc(&self, list: &NetworkList, valid: &[ValidAttachment]) -> Result<Warnings, Error> {
        let mut report = Warnings::default();
        if list.disable_gc {
            return Ok(report);
        }
        let _locks = self.wait(|waiting| Locks::of_network(&self.cache, &list.name, waiting))?;
        let mut errors = Vec::new();
        match self.cache.attachments() {
            Ok(all) => {
                for cached in &all {
                    let Some(at) = stale(list, valid, cached) else { continue };
                    if let Err(error) = self.remove_stale(list, &at, cached, &mut report) {
                        let what = format!("failed to delete stale attachment {} {}", at.container_id, at.ifname);
                        errors.push(ErrorContext { what, error });
                    }
                }
            }
            Err(error) => errors.push(ErrorContext { what: "failed to list attachments".to_owned(), error }),
        }
        errors.extend(self.collect(list, valid));
        self.remove_leftovers(&mut report);
        Error::of(errors)?;
        Ok(report)
    }

    fn remove_stale(
        &self,
        list: &NetworkList,
        at: &Attachment,
        cached: &CachedAttachment,
        report: &mut Warnings,
    ) -> Result<(), Error> {
        let _locks = self.wait(|waiting| Locks::container(&self.cache, at, waiting))?;
        let recorded = cached.list().ok();
        let used = recorded.as_ref().unwrap_or(list);
        let done = self.del_locked(used, at, OnFailure::Continue, Warnings::default())?;
        report.warnings.extend(done.warnings);
        Ok(())
    }

    /// Runs GC of the plugins; returns their failures.
    fn collect(&self, list: &NetworkList, valid: &[ValidAttachment]) -> Vec<ErrorContext> {
        if !list.is_since(Version::V1_1_0) {
            return Vec::new();
        }
        let _slot = match self.slot() {
            Ok(slot) => slot,
            Err(error) => return vec![ErrorContext { what: "failed to run the plugins".to_owned(), error }],
        };
        let none = Attachment::default();
        let chain = self.chain("GC", list, &none);
        let mut errors = Vec::new();
        for index in chain.indices() {
            if let Err(failure) = chain.collect(index, valid) {
                errors.push(Error::from(failure).into());
            }
        }
        errors
    }

    /// Removes what killed runtimes left: temporary files, and lock files of containers.
    fn remove_leftovers(&self, report: &mut Warnings) {
        for dir in [self.cache.results(), self.cache.intents()] {
            match Directory::open(&dir).and_then(|directory| directory.discard_unfinished()) {
                Err(error) if !error.is_absent() => report.warnings.push(error.to_string()),
                _ => {}
            }
        }
        let names = Directory::open(self.cache.locks()).and_then(|directory| directory.list()).unwrap_or_default();
        for name in &names {
            if let Some(container_id) = name.to_str().and_then(|name| name.strip_prefix("c-")) {
                // This removes the file if no call holds the lock.
                is_busy(&self.cache, container_id);
            }
        }
    }
}

/// The attachment for a DEL, if this cached one is of the network and not valid. A file that cannot be read counts as valid as long
/// as it may belong to a container that has a valid attachment.
fn stale(list: &NetworkList, valid: &[ValidAttachment], cached: &CachedAttachment) -> Option<Attachment> {
    let attachment = cached.attachment_of(&list.name)?;
    let name = cached.file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    for one in valid {
        let is_same = match cached.state {
            // Its name may be split in several ways.
            State::Unreadable => name.starts_with(&file_name::from_parts(&list.name, &one.container_id, "")),
            _ => *one == attachment,
        };
        if is_same {
            return None;
        }
    }
    let ValidAttachment { container_id, ifname } = attachment;
    Some(Attachment { container_id, ifname, ..cached.for_del() })
}

//! GC: what the cache knows and is not valid is deleted, then the plugins are told what is.

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
    /// Nothing is added or deleted in the network meanwhile. A DEL that failed is repeated by the next GC. A list with
    /// `disableGC` is left alone.
    ///
    /// # Errors
    /// [`Error::Busy`], [`Error::Cancelled`] or [`Error::Cache`] if the network's lock cannot be taken; nothing is done then.
    /// [`Error::Several`] with everything that failed; the rest is done all the same.
    pub fn gc(&self, list: &NetworkList, valid: &[ValidAttachment]) -> Result<Warnings, Error> {
        let mut report = Warnings::default();
        if list.disable_gc {
            return Ok(report);
        }
        let _locks = self.waited(|waiting| Locks::of_network(&self.cache, &list.name, waiting))?;
        let mut failed = Vec::new();
        match self.cache.attachments() {
            Ok(all) => {
                for (at, kept) in all.iter().filter_map(|kept| stale(list, valid, kept)) {
                    if let Err(why) = self.remove_stale(list, &at, kept, &mut report) {
                        let what = format!("failed to delete stale attachment {} {}", at.container_id, at.ifname);
                        failed.push(ErrorContext { what, why });
                    }
                }
            }
            Err(why) => failed.push(ErrorContext { what: "failed to list attachments".to_owned(), why }),
        }
        failed.extend(self.collect(list, valid));
        self.tidy(&mut report);
        Error::of(failed).map(|()| report)
    }

    fn remove_stale(
        &self,
        list: &NetworkList,
        at: &Attachment,
        kept: &CachedAttachment,
        report: &mut Warnings,
    ) -> Result<(), Error> {
        let _locks = self.waited(|waiting| Locks::container(&self.cache, at, waiting))?;
        let recorded = kept.list().ok();
        let done = self.del_held(recorded.as_ref().unwrap_or(list), at, OnFailure::GoOn, Warnings::default())?;
        report.warnings.extend(done.warnings);
        Ok(())
    }

    /// Tells the plugins what is valid; their failures.
    fn collect(&self, list: &NetworkList, valid: &[ValidAttachment]) -> Vec<ErrorContext> {
        if !list.is_since(Version::V1_1_0) {
            return Vec::new();
        }
        let nobody = Attachment::default();
        let chain = self.chain("GC", list, &nobody);
        let failed = |place: usize| chain.collect(place, valid).err();
        let told = |why: crate::Failure| ErrorContext { what: String::new(), why: why.into() };
        match self.slot() {
            Ok(_slot) => chain.places().filter_map(failed).map(told).collect(),
            Err(why) => vec![ErrorContext { what: "failed to ask the plugins".to_owned(), why }],
        }
    }

    /// Removes what killed runtimes left: temporary files, and locks that nobody holds.
    fn tidy(&self, report: &mut Warnings) {
        for dir in [self.cache.results(), self.cache.intents()] {
            let tidied = Directory::open(&dir).and_then(|directory| directory.discard_unfinished());
            report.warnings.extend(tidied.err().filter(|error| !error.is_absent()).map(|error| error.to_string()));
        }
        let names = Directory::open(self.cache.locks()).and_then(|directory| directory.list()).unwrap_or_default();
        let containers = names.iter().filter_map(|name| name.to_str()?.strip_prefix("c-"));
        for id in containers {
            is_busy(&self.cache, id); // which removes one that nobody holds
        }
    }
}

/// An attachment of this network that is not valid: whom a DEL is about. A file that cannot be read stays while it may be one
/// of a container that has any valid attachment.
fn stale<'k>(
    list: &NetworkList,
    valid: &[ValidAttachment],
    kept: &'k CachedAttachment,
) -> Option<(Attachment, &'k CachedAttachment)> {
    let whose = kept.whose(&list.name)?;
    let name = kept.file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_valid = |one: &ValidAttachment| match kept.state {
        // Its name may be cut in more ways than one.
        State::Unreadable => name.starts_with(&file_name::from_parts(&list.name, &one.container_id, "")),
        _ => *one == whose,
    };
    if valid.iter().any(is_valid) {
        return None;
    }
    let ValidAttachment { container_id, ifname } = whose;
    Some((Attachment { container_id, ifname, ..kept.at_now() }, kept))
}

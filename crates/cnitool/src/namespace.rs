//! Whether a path leads to a network namespace, for one stat.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use cnikit_libcni::CacheMetadata;

/// What a look at a path says. Which namespace is there it does not say: for that it has to be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// A namespace is there.
    There,
    /// Nothing is there.
    Gone,
    /// Something else is there: a name whose namespace has ended, it may be.
    None,
    /// Nobody said where.
    Unsaid,
    /// It was of another boot, so it is gone, whatever is there now.
    OtherBoot,
    /// It could not be looked at.
    Unknown,
}

impl Standing {
    /// The word for people and programs.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Standing::There => "there",
            Standing::Gone => "gone",
            Standing::None => "no namespace",
            Standing::Unsaid => "unsaid",
            Standing::OtherBoot => "of another boot",
            Standing::Unknown => "unknown",
        }
    }

    /// Whether it is known not to be there.
    pub(crate) fn is_lost(self) -> bool {
        matches!(self, Standing::Gone | Standing::None | Standing::OtherBoot)
    }
}

/// Looks at paths, knowing this boot and the file system of namespaces.
#[derive(Debug)]
pub(crate) struct Look {
    boot: Option<String>,
    device: Option<u64>,
}

impl Look {
    pub(crate) fn new() -> Look {
        let own = fs::metadata("/proc/thread-self/ns/net");
        Look { boot: cnikit_netns::boot_id().ok(), device: own.ok().map(|own| own.dev()) }
    }

    /// Whether an attachment was made in this boot; `None` if it does not say.
    pub(crate) fn is_of_now(&self, note: &CacheMetadata) -> Option<bool> {
        Some(note.boot_id.as_ref()? == self.boot.as_ref()?)
    }

    /// Where an attachment's namespace should be.
    pub(crate) fn at(&self, netns: &str, note: &CacheMetadata) -> Standing {
        if self.is_of_now(note) == Some(false) { Standing::OtherBoot } else { self.path(netns) }
    }

    /// What a path leads to.
    pub(crate) fn path(&self, path: &str) -> Standing {
        if path.is_empty() {
            return Standing::Unsaid;
        }
        match fs::metadata(path) {
            Ok(found) if self.device.is_none_or(|device| found.dev() == device) => Standing::There,
            Ok(_) => Standing::None,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Standing::Gone
            }
            Err(_) => Standing::Unknown,
        }
    }
}

//! Whether a network namespace still exists at the path of an attachment, by one stat(2).

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use cnikit_libcni::CacheMetadata;

/// What is at the path of a namespace. Only opening the path shows which namespace it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathState {
    /// A namespace.
    Present,
    /// Nothing.
    Gone,
    /// Something else, for example the mount point of a namespace that was unmounted.
    NotNetns,
    /// There is no path.
    NoPath,
    /// The attachment is of an earlier boot, so its namespace is gone, whatever is at the path now.
    OtherBoot,
    /// The path cannot be read.
    Unknown,
}

impl PathState {
    /// The word for the state in text and JSON.
    pub(crate) fn word(self) -> &'static str {
        match self {
            PathState::Present => "present",
            PathState::Gone => "gone",
            PathState::NotNetns => "invalid",
            PathState::NoPath => "unset",
            PathState::OtherBoot => "stale",
            PathState::Unknown => "unknown",
        }
    }

    /// Whether the namespace is known not to be at the path.
    pub(crate) fn is_lost(self) -> bool {
        matches!(self, PathState::Gone | PathState::NotNetns | PathState::OtherBoot)
    }
}

/// Inspects the paths of namespaces.
#[derive(Debug)]
pub(crate) struct PathInspector {
    boot_id: Option<String>,
    /// The device of nsfs, which every namespace is on.
    device: Option<u64>,
}

impl PathInspector {
    pub(crate) fn new() -> PathInspector {
        let device = match fs::metadata("/proc/thread-self/ns/net") {
            Ok(own) => Some(own.dev()),
            Err(_) => None,
        };
        PathInspector { boot_id: cnikit_netns::boot_id().ok(), device }
    }

    /// Whether an attachment was added in this boot; `None` if that is not recorded.
    pub(crate) fn is_of_this_boot(&self, metadata: &CacheMetadata) -> Option<bool> {
        Some(metadata.boot_id.as_ref()? == self.boot_id.as_ref()?)
    }

    /// The state of an attachment's path.
    pub(crate) fn attachment(&self, netns: &str, metadata: &CacheMetadata) -> PathState {
        if self.is_of_this_boot(metadata) == Some(false) { PathState::OtherBoot } else { self.path(netns) }
    }

    /// The state of a path.
    pub(crate) fn path(&self, path: &str) -> PathState {
        if path.is_empty() {
            return PathState::NoPath;
        }
        match fs::metadata(path) {
            Ok(found) if self.device.is_none_or(|device| found.dev() == device) => PathState::Present,
            Ok(_) => PathState::NotNetns,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                PathState::Gone
            }
            Err(_) => PathState::Unknown,
        }
    }
}

//! The error type of this crate.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

/// One failed operation on one path.
///
/// The text includes a hint if the cause is the machine and not the caller: the file system is full or read-only, or the path of a
/// directory leads to something else.
#[derive(Debug)]
pub struct Error {
    operation: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl Error {
    pub(crate) fn new(operation: &'static str, path: impl Into<PathBuf>, source: impl Into<io::Error>) -> Error {
        Error { operation, path: path.into(), source: source.into() }
    }

    /// The operation that failed, a verb.
    pub fn operation(&self) -> &'static str {
        self.operation
    }

    /// The path on which it failed.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the file or directory does not exist (ENOENT).
    pub fn is_absent(&self) -> bool {
        self.is(Errno::ENOENT)
    }

    /// Whether no space, no inodes or no quota is left (ENOSPC, EDQUOT, EFBIG).
    #[doc(alias = "ENOSPC")]
    pub fn is_full(&self) -> bool {
        [Errno::ENOSPC, Errno::EDQUOT, Errno::EFBIG].into_iter().any(|errno| self.is(errno))
    }

    /// Whether the file system is mounted read-only (EROFS).
    #[doc(alias = "EROFS")]
    pub fn is_read_only(&self) -> bool {
        self.is(Errno::EROFS)
    }

    /// Whether something else is where a directory should be (ENOTDIR; a dangling link is EEXIST, a link to itself ELOOP), so
    /// that no file can be stored there.
    pub fn is_misplaced(&self) -> bool {
        let is_any = |all: &[Errno]| all.iter().any(|errno| self.is(*errno));
        self.operation.ends_with("directory") && is_any(&[Errno::ENOTDIR, Errno::EEXIST, Errno::ELOOP])
    }

    /// Whether another process held the lock until the deadline.
    pub fn is_deadline(&self) -> bool {
        self.source.kind() == io::ErrorKind::TimedOut
    }

    /// Whether this process or the machine has no descriptors or memory left (EMFILE, ENFILE, ENOMEM). The path is not the
    /// cause then.
    #[doc(alias = "EMFILE")]
    pub fn is_shortage(&self) -> bool {
        [Errno::EMFILE, Errno::ENFILE, Errno::ENOMEM].into_iter().any(|errno| self.is(errno))
    }

    /// Whether the entry exists but is not a regular file (a link is ELOOP, a socket ENXIO) or is too long.
    pub fn is_garbage(&self) -> bool {
        self.source.kind() == io::ErrorKind::InvalidData || self.is(Errno::ELOOP) || self.is(Errno::ENXIO)
    }

    /// Whether a later release wrote the file, in a format that this one cannot read. See
    /// [`check_version`](crate::check_version).
    pub fn is_newer_version(&self) -> bool {
        let Some(source) = self.source.get_ref() else { return false };
        source.is::<NewerVersion>()
    }

    /// What to do about it, where that is known.
    pub fn hint(&self) -> Option<&'static str> {
        if self.is_full() {
            Some("the file system is full: free space or inodes on it")
        } else if self.is_read_only() {
            Some("the file system is read-only: remount it writable, or keep the files elsewhere")
        } else if self.is_misplaced() {
            Some("something else exists at the path of the directory: move it away")
        } else if self.is_deadline() {
            Some("`fuser` or `lsof` shows the process; try again when it has ended")
        } else if self.is_newer_version() {
            Some(
                "a later release wrote it: install that release again, or remove the file when its container has ended",
            )
        } else {
            None
        }
    }

    /// The same cause, as the failure of another operation.
    pub(crate) fn during(self, operation: &'static str, path: impl Into<PathBuf>) -> Error {
        Error::new(operation, path, self.source)
    }

    pub(crate) fn is(&self, errno: Errno) -> bool {
        self.source.raw_os_error() == Some(errno as i32)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.operation, self.path.display(), self.source)?;
        match self.hint() {
            Some(hint) => write!(f, " ({hint})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// The cause of an error for a file that a later release wrote.
#[derive(Debug)]
pub(crate) struct NewerVersion {
    pub(crate) found: u64,
    pub(crate) newest: u64,
}

impl fmt::Display for NewerVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "it has version {} of its format, and this release reads no version above {}",
            self.found, self.newest
        )
    }
}

impl std::error::Error for NewerVersion {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_full_disk_has_operation_path_cause_and_hint() {
        let error = Error::new("write", "/var/x", Errno::ENOSPC);
        assert_eq!(
            error.to_string(),
            "write /var/x: No space left on device (os error 28) (the file system is full: free space or inodes on it)"
        );
        assert!(error.is_full() && !error.is_read_only() && !error.is_absent());
    }
}

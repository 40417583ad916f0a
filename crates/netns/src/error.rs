//! The error type of this crate.

use std::fmt;
use std::io;

/// A failed operation on a namespace or a sysctl: the operation, its object and the kernel's error.
#[derive(Debug)]
pub struct Error {
    operation: &'static str,
    object: String,
    source: io::Error,
}

impl Error {
    pub(crate) fn new(operation: &'static str, object: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self { operation, object: object.into(), source: source.into() }
    }

    /// An error that this crate found itself: no system call was made, or it would not have failed.
    pub(crate) fn refused(operation: &'static str, object: impl Into<String>, why: &str) -> Self {
        Self::new(operation, object, io::Error::new(io::ErrorKind::InvalidInput, why))
    }

    /// Whether the object does not exist (`ENOENT`): a namespace that is gone, a setting that this kernel or link does not
    /// have.
    #[doc(alias = "ENOENT")]
    pub fn is_absent(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }

    /// The kernel's error number, if the kernel returned the error; see errno(3).
    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }

    /// Whether the error says what is wrong with the object; `false` if the kernel could not find that out.
    pub(crate) fn is_verdict(&self) -> bool {
        let paths = [libc::ENOTDIR, libc::ELOOP, libc::ENAMETOOLONG, libc::ENXIO, libc::ENODEV, libc::ESTALE];
        let about_the_path = self.errno().is_some_and(|errno| paths.contains(&errno));
        about_the_path || self.source.kind() == io::ErrorKind::InvalidInput
    }

    /// The cause, without the operation and the object.
    pub(crate) fn why(&self) -> String {
        self.source.to_string()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} {}: {}", self.operation, self.object, self.source)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

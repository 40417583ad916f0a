//! The error of an operation on a socket.

use std::fmt;
use std::io;

/// A failed operation, with the kernel's reason.
#[derive(Debug)]
pub struct Error {
    operation: String,
    source: io::Error,
}

/// The result of the functions of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(operation: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self { operation: operation.into(), source: source.into() }
    }

    /// The kernel's number of the reason; `None` if the reason is not the kernel's.
    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.operation, self.source)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

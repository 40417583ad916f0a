//! The error of a netlink operation.

use std::fmt;
use std::io;

use nix::errno::Errno;

use crate::NetlinkError;

/// A failed operation: its name, its object, the kernel's error number and, if the kernel gave one, its explanation.
#[derive(Debug)]
#[non_exhaustive]
pub struct Error {
    /// The operation, such as `create veth`.
    pub operation: String,
    /// The object of the operation, such as `vethab12 on br0`.
    pub object: String,
    /// The error number of errno(3); 0 for errors without one, such as an answer that cannot be parsed.
    pub errno: i32,
    /// The text of the kernel's extended acknowledgement.
    #[doc(alias = "NLMSGERR_ATTR_MSG")]
    pub kernel: Option<String>,
    source: io::Error,
}

/// The result of the functions of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(operation: &str, object: impl Into<String>, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        let errno = source.raw_os_error().unwrap_or(0);
        Self { operation: operation.to_owned(), object: object.into(), errno, kernel: None, source }
    }

    /// The error for one message that the kernel refused.
    pub fn refused(operation: &str, object: impl Into<String>, refusal: &NetlinkError) -> Self {
        let source = io::Error::from_raw_os_error(refusal.errno);
        Self { kernel: refusal.text.clone(), ..Self::new(operation, object, source) }
    }

    /// An error found before anything was sent to the kernel, with its reason.
    pub fn ours(operation: &str, object: impl Into<String>, why: impl Into<String>) -> Self {
        Self::new(operation, object, io::Error::new(io::ErrorKind::InvalidInput, why.into()))
    }

    /// The error for a message of the kernel that cannot be parsed.
    pub(crate) fn unreadable(operation: &str, object: impl Into<String>, why: &str) -> Self {
        Self::new(operation, object, io::Error::new(io::ErrorKind::InvalidData, why.to_owned()))
    }

    /// The same error with the operation and the object of the caller.
    #[must_use]
    pub fn during(self, operation: &str, object: impl Into<String>) -> Self {
        Self { operation: operation.to_owned(), object: object.into(), ..self }
    }

    /// Whether the object, or the link that it belongs to, does not exist: `ENODEV`, `ENOENT`, `ESRCH` or `ENXIO`.
    ///
    /// A missing address is `EADDRNOTAVAIL` and counts too.
    pub fn is_absent(&self) -> bool {
        [libc::ENODEV, libc::ENOENT, libc::ESRCH, libc::ENXIO, libc::EADDRNOTAVAIL].contains(&self.errno)
    }

    /// Whether the object exists already: `EEXIST`.
    #[doc(alias = "EEXIST")]
    pub fn exists(&self) -> bool {
        self.errno == libc::EEXIST
    }

    /// Whether the change conflicts with the current state: `EINVAL` or `EBUSY`.
    #[doc(alias = "EBUSY")]
    pub fn is_at_odds(&self) -> bool {
        [libc::EINVAL, libc::EBUSY].contains(&self.errno)
    }

    /// Whether the deadline passed: `ETIMEDOUT`.
    #[doc(alias = "ETIMEDOUT")]
    pub fn timed_out(&self) -> bool {
        self.errno == libc::ETIMEDOUT
    }

    /// Whether this kernel or this kind of object does not support the operation: `EOPNOTSUPP`, `EPROTONOSUPPORT` or
    /// `EAFNOSUPPORT`.
    #[doc(alias = "EOPNOTSUPP")]
    pub fn unsupported(&self) -> bool {
        [libc::EOPNOTSUPP, libc::EPROTONOSUPPORT, libc::EAFNOSUPPORT].contains(&self.errno)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.operation)?;
        if !self.object.is_empty() {
            write!(f, " \"{}\"", self.object)?;
        }
        match self.errno {
            0 => write!(f, ": {}", self.source)?,
            errno => write!(f, ": {}", Errno::from_raw(errno).desc())?,
        }
        match &self.kernel {
            Some(text) => write!(f, " (the kernel says: {text})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

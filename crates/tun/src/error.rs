//! The error type of this crate.

use std::fmt;
use std::io;

/// A failed operation on a TAP device: the operation, its object and the kernel's error.
#[derive(Debug)]
pub struct Error {
    operation: &'static str,
    object: String,
    source: io::Error,
}

impl Error {
    pub(crate) fn new(operation: &'static str, object: &str, source: io::Error) -> Error {
        Error { operation, object: object.to_owned(), source }
    }

    /// The error number of a process that could not make the device; see [`Error::number`].
    pub fn of_process(name: &str, number: i32) -> Error {
        Error::new("create tap", name, io::Error::from_raw_os_error(number))
    }

    /// The kernel's error number, see errno(3).
    pub fn number(&self) -> Option<i32> {
        self.source.raw_os_error()
    }

    /// Whether another link has the name: `EBUSY`, or `EEXIST` if it was made at the same time.
    #[doc(alias = "EBUSY")]
    pub fn exists(&self) -> bool {
        self.is_one_of(&[libc::EBUSY, libc::EEXIST])
    }

    /// Whether there is no file `/dev/net/tun`, or no driver behind it: `ENOENT`, `ENODEV` or `ENXIO`.
    #[doc(alias = "ENODEV")]
    pub fn no_device(&self) -> bool {
        self.is_one_of(&[libc::ENOENT, libc::ENODEV, libc::ENXIO])
    }

    fn is_one_of(&self, numbers: &[i32]) -> bool {
        self.source.raw_os_error().is_some_and(|errno| numbers.contains(&errno))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} \"{}\": {}", self.operation, self.object, self.source)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

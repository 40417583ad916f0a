//! What went wrong, with which object, and what the kernel said about it.

use std::fmt;
use std::io;

use cnikit_netlink::Refusal;

/// A failed operation on the packet filter: the deed, its object and the kernel's own words.
#[derive(Debug)]
pub struct Error {
    /// What was tried, as words: `add rule`.
    pub operation: String,
    /// With what: ``ip saddr 10.0.0.2 masquerade in chain c of table inet t``.
    pub object: String,
    /// The error number of errno(3); 0 when it was not the kernel that refused.
    pub errno: i32,
    /// The text of the kernel's extended acknowledgement.
    #[doc(alias = "NLMSGERR_ATTR_MSG")]
    pub kernel: Option<String>,
    source: io::Error,
}

/// What the functions of this crate return.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The kernel's "no" to one message.
    pub(crate) fn refused(operation: &str, object: impl Into<String>, refusal: &Refusal) -> Self {
        let source = io::Error::from_raw_os_error(refusal.errno);
        let (operation, object) = (operation.to_owned(), object.into());
        Self { operation, object, errno: refusal.errno, kernel: refusal.text.clone(), source }
    }

    /// A "no" of our own, for which the kernel was not asked.
    pub(crate) fn ours(operation: &str, object: impl Into<String>, why: impl Into<String>) -> Self {
        let source = io::Error::new(io::ErrorKind::InvalidInput, why.into());
        Self { operation: operation.to_owned(), object: object.into(), errno: 0, kernel: None, source }
    }

    /// The same trouble, told in the words of whoever knows what it was for.
    pub(crate) fn during(self, operation: &str, object: impl Into<String>) -> Self {
        Self { operation: operation.to_owned(), object: object.into(), ..self }
    }

    /// Whether the object, or what it hangs on, is not there: `ENOENT`.
    ///
    /// The kernel says the same of an expression (such as `masq`) for which it has no module.
    #[doc(alias = "ENOENT")]
    pub fn is_absent(&self) -> bool {
        self.errno == libc::ENOENT
    }

    /// Whether this kernel has no `nf_tables`, or not this family or chain type of it.
    #[doc(alias = "EOPNOTSUPP")]
    pub fn unsupported(&self) -> bool {
        [libc::EOPNOTSUPP, libc::EPROTONOSUPPORT, libc::EAFNOSUPPORT].contains(&self.errno)
    }
}

impl From<cnikit_netlink::Error> for Error {
    fn from(error: cnikit_netlink::Error) -> Self {
        let (operation, object) = (error.operation.clone(), error.object.clone());
        let (errno, kernel) = (error.errno, error.kernel.clone());
        let source = if errno == 0 { io::Error::other(error) } else { io::Error::from_raw_os_error(errno) };
        Self { operation, object, errno, kernel, source }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}", self.operation)?;
        if !self.object.is_empty() {
            write!(f, " {}", self.object)?;
        }
        write!(f, ": {}", self.source)?;
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

//! The error of a call to firewalld, with a hint.

use std::fmt;
use std::io;

/// A failed operation, with its cause and a hint.
#[derive(Debug)]
pub struct Error {
    /// The operation, such as `add the source 10.0.0.2/32 to zone "trusted" of firewalld`.
    pub operation: String,
    /// The cause of the failure.
    pub cause: Cause,
}

/// The cause of an [`Error`].
#[derive(Debug)]
#[non_exhaustive]
pub enum Cause {
    /// An operation on the socket of the bus failed; `TimedOut` if no answer arrived before the deadline.
    Socket(io::Error),
    /// The bus or firewalld answered with an error.
    Refused {
        /// The error name, such as `org.fedoraproject.FirewallD1.Exception`.
        name: String,
        /// The error message, such as `INVALID_ZONE: nope`.
        message: String,
    },
    /// The source belongs to this other zone; a source can be in one zone only.
    InZone(String),
    /// The answer is not a valid D-Bus message, or the call cannot be encoded as one.
    Unreadable(String),
}

/// The result of the functions of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The hints, each with a word of the error's name or message; the first that matches is used.
const HINTS: [(&str, &str); 5] = [
    ("INVALID_ZONE", "`firewall-cmd --get-zones` lists the zones, `firewall-cmd --permanent --new-zone` adds one"),
    ("NameHasNoOwner", "firewalld does not run: start it, or choose another backend"),
    ("ServiceUnknown", "firewalld does not run: start it, or choose another backend"),
    ("NoReply", "firewalld ended meanwhile: read its log, and try again"),
    ("AccessDenied", "the policy of the bus does not allow this user to talk to firewalld: run as root"),
];

impl Error {
    pub(crate) fn new(operation: impl Into<String>, cause: Cause) -> Self {
        Self { operation: operation.into(), cause }
    }

    /// The same error with the operation of the caller.
    #[must_use]
    pub(crate) fn during(self, operation: impl Into<String>) -> Self {
        Self { operation: operation.into(), ..self }
    }

    /// Whether the error means that firewalld does not run.
    pub fn is_absent(&self) -> bool {
        self.is_named("NameHasNoOwner") || self.is_named("ServiceUnknown")
    }

    /// Whether the deadline passed before an answer came.
    pub fn timed_out(&self) -> bool {
        matches!(&self.cause, Cause::Socket(error) if error.kind() == io::ErrorKind::TimedOut)
    }

    /// Whether it is the error of the bus with this name, without its prefix `org.freedesktop.DBus.Error.`.
    fn is_named(&self, word: &str) -> bool {
        matches!(&self.cause, Cause::Refused { name, .. } if name.strip_prefix("org.freedesktop.DBus.Error.") == Some(word))
    }

    /// Whether it is an exception of firewalld with one of these codes, with which its message begins.
    pub(crate) fn is_exception(&self, codes: &[&str]) -> bool {
        matches!(&self.cause, Cause::Refused { message, .. }
            if codes.contains(&message.split(':').next().unwrap_or_default().trim()))
    }

    fn hint(&self) -> Option<String> {
        match &self.cause {
            Cause::Refused { name, message } => {
                for (word, hint) in HINTS {
                    if name.ends_with(word) || message.starts_with(word) {
                        return Some(hint.to_owned());
                    }
                }
                None
            }
            Cause::Socket(error) if error.kind() == io::ErrorKind::TimedOut => {
                Some("check whether firewalld and the bus answer other requests, and try again".to_owned())
            }
            Cause::InZone(zone) => {
                Some(format!("remove it with `firewall-cmd --zone={zone} --remove-source`, or use zone {zone}"))
            }
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.operation)?;
        match &self.cause {
            Cause::Socket(error) if error.kind() == io::ErrorKind::TimedOut => write!(f, "no answer in time")?,
            Cause::Socket(error) => write!(f, "{error}")?,
            Cause::Refused { name, message } => write!(f, "{message} ({name})")?,
            Cause::InZone(zone) => write!(f, "it belongs to zone \"{zone}\"")?,
            Cause::Unreadable(why) => write!(f, "{why}")?,
        }
        match self.hint() {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.cause {
            Cause::Socket(error) => Some(error),
            _ => None,
        }
    }
}

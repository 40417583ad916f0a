//! The error type of this crate.

use std::fmt;

/// The kind of an error. A caller handles each kind differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// A value in the configuration or in a request is invalid.
    Value,
    /// No address is free, or the requested one is taken. A later call may succeed.
    Exhausted,
    /// Other processes held the lock until the deadline.
    Busy,
    /// The owner holds an address already. Nothing was allocated, so the caller must release nothing.
    HoldsAlready,
    /// The owner does not hold an address that it should hold.
    Drift,
    /// A file could not be read or written.
    Disk,
}

/// An error. The hint is separate from the text, so that a program can print it in the place for hints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The kind.
    pub kind: ErrorKind,
    /// What failed and why.
    pub text: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, text: impl Into<String>) -> Error {
        Error { kind, text: text.into(), hint: None }
    }

    pub(crate) fn value(text: impl Into<String>) -> Error {
        Error::new(ErrorKind::Value, text)
    }

    pub(crate) fn hint(self, hint: impl Into<String>) -> Error {
        Error { hint: Some(hint.into()), ..self }
    }

    pub(crate) fn within(self, what: impl fmt::Display) -> Error {
        Error { text: format!("{what}: {}", self.text), ..self }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        match &self.hint {
            Some(hint) => write!(f, "; hint: {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

impl From<cnikit_store::Error> for Error {
    fn from(error: cnikit_store::Error) -> Error {
        let kind = if error.is_deadline() { ErrorKind::Busy } else { ErrorKind::Disk };
        let operation = error.operation();
        let path = error.path().display();
        let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        let hint = error.hint().map(str::to_owned);
        Error { hint, ..Error::new(kind, format!("{operation} {path}: {cause}")) }
    }
}

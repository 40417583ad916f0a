//! The error type of this crate.

use std::fmt;

/// An invalid definition, record or message. The hint is separate from the text, so that a program can print it in the place for
/// hints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// What is invalid and why.
    pub text: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Error {
    pub(crate) fn new(text: impl Into<String>) -> Error {
        Error { text: text.into(), hint: None }
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

impl From<cnikit_reservations::Error> for Error {
    fn from(error: cnikit_reservations::Error) -> Error {
        Error { text: error.text, hint: error.hint }
    }
}

impl From<cnikit_types::ReadError> for Error {
    fn from(error: cnikit_types::ReadError) -> Error {
        Error { text: error.to_string(), hint: error.hint }
    }
}

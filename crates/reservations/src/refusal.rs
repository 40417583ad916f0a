//! Why a call was not served, and what to do about it.

use std::fmt;

/// What sort of refusal it is; each asks for another answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value in the configuration or a request that cannot be served.
    Value,
    /// No address is free, or the wanted one is taken: it may be otherwise later.
    Exhausted,
    /// Others held the lock until the deadline.
    Busy,
    /// The owner holds an address already: nothing was allocated, nothing may be released.
    HoldsAlready,
    /// The owner does not hold what it should.
    Drift,
    /// A file could not be read or written.
    Disk,
}

/// One refusal. Its text is complete; the remedy comes apart, so that it stands where a reader looks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The sort.
    pub kind: Kind,
    /// What failed and why.
    pub text: String,
    /// What the reader can do about it.
    pub remedy: Option<String>,
}

impl Refusal {
    pub(crate) fn new(kind: Kind, text: impl Into<String>) -> Refusal {
        Refusal { kind, text: text.into(), remedy: None }
    }

    pub(crate) fn value(text: impl Into<String>) -> Refusal {
        Refusal::new(Kind::Value, text)
    }

    pub(crate) fn remedy(self, remedy: impl Into<String>) -> Refusal {
        Refusal { remedy: Some(remedy.into()), ..self }
    }

    pub(crate) fn within(self, what: impl fmt::Display) -> Refusal {
        Refusal { text: format!("{what}: {}", self.text), ..self }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        self.remedy.as_ref().map_or(Ok(()), |remedy| write!(f, "; remedy: {remedy}"))
    }
}

impl From<cnikit_store::Error> for Refusal {
    fn from(error: cnikit_store::Error) -> Refusal {
        let kind = if error.is_deadline() { Kind::Busy } else { Kind::Disk };
        let (operation, path) = (error.operation(), error.path().display());
        let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        let remedy = error.remedy().map(str::to_owned);
        Refusal { remedy, ..Refusal::new(kind, format!("{operation} {path}: {cause}")) }
    }
}

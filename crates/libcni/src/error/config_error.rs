//! What is wrong with a configuration file, and where in it.

use std::fmt;
use std::path::PathBuf;

/// The file ends before its document does: how the message begins, or is.
pub(crate) const EMPTY: &str = "the file is empty";
pub(crate) const CUT: &str = "the document ends in its middle";

/// What is wrong with a file: which, where in it, why, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file; empty for a document that came as bytes.
    pub file: PathBuf,
    /// Where in it; `None` if it is the file itself that is wrong.
    pub place: Option<SourceLocation>,
    /// The key, such as `plugins[0].ipam.subnet`; empty if it is no single one.
    pub key: String,
    /// The code of the specification: 5 if the file cannot be read, 6 if it is no JSON or a value has a wrong type, 7
    /// if a value cannot be.
    pub code: u32,
    /// What is wrong, in a sentence.
    pub why: String,
    /// What to do, in a sentence.
    pub hint: String,
}

/// A position in a file, as editors count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceLocation {
    /// From 1.
    pub line: u32,
    /// From 1, in characters.
    pub column: u32,
}

impl ConfigError {
    /// Whether the file ends in the middle of its document: a program may still be writing it.
    pub fn is_cut_short(&self) -> bool {
        self.why == EMPTY || self.why.starts_with(CUT)
    }
}

/// `FILE:LINE:COLUMN: KEY: what is wrong; hint: what to do`, each part as far as it is known.
impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.file.as_os_str().is_empty() {
            write!(f, "{}:", self.file.display())?;
        }
        if let Some(place) = self.place {
            write!(f, "{place}:")?;
        }
        if !self.file.as_os_str().is_empty() || self.place.is_some() {
            f.write_str(" ")?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        write!(f, "{}; hint: {}", self.why, self.hint)
    }
}

impl std::error::Error for ConfigError {}

/// `LINE:COLUMN`.
impl fmt::Display for SourceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

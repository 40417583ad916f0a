//! Errors in configuration files, with their positions.

use std::fmt;
use std::path::PathBuf;

/// The message about a file without content.
pub(crate) const EMPTY: &str = "the file is empty";
/// The beginning of the message about a file that ends before its document does.
pub(crate) const CUT: &str = "unexpected end of file";

/// An error in a configuration file: the file, the position in it, the cause, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConfigError {
    /// The file; empty for a document that is not from a file.
    pub file: PathBuf,
    /// The position in the file; `None` if the file itself cannot be used.
    pub location: Option<SourceLocation>,
    /// The key, such as `plugins[0].ipam.subnet`; empty if the error is not about a single key.
    pub key: String,
    /// The specification's error code: 5 if the file cannot be read, 6 if it is not JSON or a value has the wrong type, 7 if a
    /// value is invalid.
    pub code: u32,
    /// What is wrong, in a sentence.
    pub message: String,
    /// What to do, in a sentence.
    pub hint: String,
}

/// A position in a file, as editors count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct SourceLocation {
    /// From 1.
    pub line: u32,
    /// From 1, in characters.
    pub column: u32,
}

impl ConfigError {
    /// Whether the file ends in the middle of its document: a program may still be writing it.
    pub fn is_cut_short(&self) -> bool {
        self.message == EMPTY || self.message.starts_with(CUT)
    }
}

/// `FILE:LINE:COLUMN: KEY: what is wrong; hint: what to do`, each part as far as it is known.
impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_file = !self.file.as_os_str().is_empty();
        if has_file {
            write!(f, "{}:", self.file.display())?;
        }
        if let Some(location) = self.location {
            write!(f, "{location}:")?;
        }
        if has_file || self.location.is_some() {
            f.write_str(" ")?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        write!(f, "{}; hint: {}", self.message, self.hint)
    }
}

impl std::error::Error for ConfigError {}

/// `LINE:COLUMN`.
impl fmt::Display for SourceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

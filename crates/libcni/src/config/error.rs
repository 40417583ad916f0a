//! What is wrong with a file of a configuration directory.

use std::fmt;
use std::path::{Path, PathBuf};

use cnikit_types::{ReadError, Wrong, code};

use crate::SourceLocation;

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

impl ConfigError {
    /// The file itself cannot be read: code 5.
    pub(crate) fn of_file(file: &Path, why: impl Into<String>, hint: impl Into<String>) -> ConfigError {
        let (file, key) = (file.to_owned(), String::new());
        ConfigError { file, place: None, key, code: code::IO, why: why.into(), hint: hint.into() }
    }

    /// Something in the text of the file: code 7 unless the type is wrong.
    pub(crate) fn of_key(file: &Path, text: &str, error: ReadError, hint: impl Into<String>) -> ConfigError {
        let place = Some(SourceLocation::of_key(text, &error.path));
        let code = match error.what {
            Wrong::Type => code::DECODE,
            Wrong::Value => code::INVALID_CONFIG,
        };
        ConfigError { file: file.to_owned(), place, key: error.path, code, why: error.message, hint: hint.into() }
    }

    /// The text is no JSON: code 6.
    pub(crate) fn of_syntax(file: &Path, text: &str, error: &serde_json::Error) -> ConfigError {
        let place = Some(SourceLocation::of_syntax(text, error));
        let (why, hint) = syntax(text, error);
        ConfigError { file: file.to_owned(), place, key: String::new(), code: code::DECODE, why, hint: hint.to_owned() }
    }

    /// Whether the file ends before its document does: somebody may still be writing it.
    pub fn is_cut_short(&self) -> bool {
        self.why == EMPTY || self.why.starts_with(CUT)
    }
}

const EMPTY: &str = "the file is empty";
const CUT: &str = "the document ends in its middle";

/// What is wrong with a text that is no JSON, and the hint.
fn syntax(text: &str, error: &serde_json::Error) -> (String, &'static str) {
    const WHOLE: &str = "write it whole: to another name in the same directory, then rename it";
    let words = error.to_string();
    let words = words.split(" at line ").next().unwrap_or_default();
    match text {
        text if text.trim().is_empty() => (EMPTY.to_owned(), WHOLE),
        _ if error.is_eof() => (format!("{CUT}: {words}"), WHOLE),
        text if text.starts_with('\u{feff}') => {
            ("the file begins with a byte order mark".to_owned(), "save it as UTF-8 without one")
        }
        // What is JSON, but more than is read.
        _ if error.is_data() => (format!("the document {words}"), "make it smaller"),
        _ => (format!("not JSON: {words}"), "correct it at that place"),
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

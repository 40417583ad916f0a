//! Makes a [`ConfigError`] from an error about a file, a key or the text.

use std::path::Path;

use cnikit_types::{ReadError, Wrong, code};

use crate::ConfigError;
use crate::config::position;
use crate::error::config_error::{CUT, EMPTY};

impl ConfigError {
    /// The file itself cannot be read: code 5.
    pub(crate) fn of_file(file: &Path, message: impl Into<String>, hint: impl Into<String>) -> ConfigError {
        ConfigError {
            file: file.to_owned(),
            location: None,
            key: String::new(),
            code: code::IO,
            message: message.into(),
            hint: hint.into(),
        }
    }

    /// A key of the file is wrong: code 6 for the wrong type, otherwise 7.
    pub(crate) fn of_key(file: &Path, text: &str, error: ReadError, hint: impl Into<String>) -> ConfigError {
        ConfigError {
            file: file.to_owned(),
            location: Some(position::of_key(text, &error.path)),
            key: error.path,
            code: match error.what {
                Wrong::Type => code::DECODE,
                Wrong::Value => code::INVALID_CONFIG,
            },
            message: error.message,
            hint: hint.into(),
        }
    }

    /// The text is not JSON: code 6.
    pub(crate) fn of_syntax(file: &Path, text: &str, error: &serde_json::Error) -> ConfigError {
        let (message, hint) = syntax(text, error);
        ConfigError {
            file: file.to_owned(),
            location: Some(position::of_syntax(text, error)),
            key: String::new(),
            code: code::DECODE,
            message,
            hint: hint.to_owned(),
        }
    }
}

/// The message and the hint about a text that is not JSON.
fn syntax(text: &str, error: &serde_json::Error) -> (String, &'static str) {
    const WHOLE: &str =
        "complete the file; a program should write it under another name in this directory, then rename it";
    let with_position = error.to_string();
    let cause = with_position.split(" at line ").next().unwrap_or_default();
    if text.trim().is_empty() {
        return (EMPTY.to_owned(), WHOLE);
    }
    if error.is_eof() {
        return (CUT.to_owned(), WHOLE);
    }
    if text.starts_with('\u{feff}') {
        return ("the file begins with a byte order mark".to_owned(), "save it as UTF-8 without one");
    }
    if error.is_data() {
        // It is JSON that exceeds a limit.
        return (format!("the document {cause}"), "make it smaller");
    }
    (format!("not JSON: {cause}"), "correct it at that place")
}

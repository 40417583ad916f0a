//! Makes a [`ConfigError`] from what is wrong with a file, a key or the text.

use std::path::Path;

use cnikit_types::{ReadError, Wrong, code};

use crate::ConfigError;
use crate::config::position;
use crate::error::config_error::{CUT, EMPTY};

impl ConfigError {
    /// The file itself cannot be read: code 5.
    pub(crate) fn of_file(file: &Path, why: impl Into<String>, hint: impl Into<String>) -> ConfigError {
        let (file, key) = (file.to_owned(), String::new());
        ConfigError { file, place: None, key, code: code::IO, why: why.into(), hint: hint.into() }
    }

    /// Something in the text of the file: code 7 unless the type is wrong.
    pub(crate) fn of_key(file: &Path, text: &str, error: ReadError, hint: impl Into<String>) -> ConfigError {
        let place = Some(position::of_key(text, &error.path));
        let code = match error.what {
            Wrong::Type => code::DECODE,
            Wrong::Value => code::INVALID_CONFIG,
        };
        ConfigError { file: file.to_owned(), place, key: error.path, code, why: error.message, hint: hint.into() }
    }

    /// The text is no JSON: code 6.
    pub(crate) fn of_syntax(file: &Path, text: &str, error: &serde_json::Error) -> ConfigError {
        let place = Some(position::of_syntax(text, error));
        let (why, hint) = syntax(text, error);
        ConfigError { file: file.to_owned(), place, key: String::new(), code: code::DECODE, why, hint: hint.to_owned() }
    }
}

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

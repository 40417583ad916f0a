//! The error for a member of a document that cannot be read.

use std::fmt;

use serde::de::{Error, Expected, Unexpected};

/// The category of an error: a wrong JSON type or a wrong value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrong {
    /// Another JSON type than expected: error code 6.
    Type,
    /// The right type with an invalid value, or a missing member: error code 7.
    Value,
}

/// The error for a value that could not be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReadError {
    /// The path of the value, with the keys as the document spells them: `ipam.ranges[0][1].subnet`; empty for the document itself.
    pub path: String,
    /// The category.
    pub what: Wrong,
    /// The expected and the actual value.
    pub message: String,
    /// What to do about it, if the code that read the value knows that.
    pub hint: Option<String>,
}

/// Separates the message from the hint in the text of an error of a `TryFrom`: `table 0 is not a routing table; hint: ...`.
const HINT: &str = "; hint: ";

impl ReadError {
    /// An error about the value itself.
    pub fn value(message: impl Into<String>) -> ReadError {
        ReadError { path: String::new(), what: Wrong::Value, message: message.into(), hint: None }
    }

    /// An error about the JSON type.
    pub fn wrong_type(message: impl Into<String>) -> ReadError {
        ReadError { path: String::new(), what: Wrong::Type, message: message.into(), hint: None }
    }

    /// The same error, with `key` in front of its path: the value is in an object.
    #[must_use]
    pub fn under(mut self, key: &str) -> ReadError {
        let separator = if self.path.is_empty() || self.path.starts_with('[') { "" } else { "." };
        self.path = format!("{key}{separator}{}", self.path);
        self
    }

    /// The same error, with `[index]` in front of its path: the value is in a list.
    #[must_use]
    pub fn at(self, index: usize) -> ReadError {
        self.under(&format!("[{index}]"))
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => f.write_str(&self.message),
            path => write!(f, "{path}: {}", self.message),
        }
    }
}

impl std::error::Error for ReadError {}

impl Error for ReadError {
    fn custom<T: fmt::Display>(message: T) -> ReadError {
        let text = message.to_string();
        match text.split_once(HINT) {
            Some((message, hint)) => ReadError { hint: Some(hint.to_owned()), ..ReadError::value(message) },
            None => ReadError::value(text),
        }
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> ReadError {
        ReadError::wrong_type(contrast(found, expected))
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> ReadError {
        ReadError::value(contrast(found, expected))
    }

    fn missing_field(field: &'static str) -> ReadError {
        ReadError::value("is missing").under(field)
    }
}

fn contrast(found: Unexpected<'_>, expected: &dyn Expected) -> String {
    format!("expected {}, found {}", without_rust_terms(&expected.to_string()), sight(found))
}

/// The words of serde for what a type expects, without the terms of Rust.
fn without_rust_terms(expected: &str) -> &str {
    match expected {
        "u8" => "an integer from 0 to 255",
        "u16" => "an integer from 0 to 65535",
        "u32" => "an integer from 0 to 4294967295",
        "u64" | "usize" => "an integer of at least 0",
        "i32" => "an integer from -2147483648 to 2147483647",
        "i64" | "isize" => "an integer",
        "a string" => "a text",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "an object",
        other if other.starts_with("struct ") => "an object",
        other => other,
    }
}

fn sight(found: Unexpected<'_>) -> String {
    match found {
        Unexpected::Bool(value) => value.to_string(),
        Unexpected::Unsigned(value) => value.to_string(),
        Unexpected::Signed(value) => value.to_string(),
        Unexpected::Str(text) => format!("the text {text:?}"),
        Unexpected::Unit => "null".into(),
        Unexpected::Seq => "a list".into(),
        Unexpected::Map => "an object".into(),
        other => other.to_string(),
    }
}

//! `CNI_ARGS`.

use std::collections::HashSet;

/// The pairs of `CNI_ARGS`, `KEY=VALUE;KEY=VALUE`, in their order. Of several pairs with one key only the last counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[doc(alias = "CNI_ARGS")]
pub struct Args(Vec<(String, String)>);

/// The key that makes a plugin ignore keys that it does not support.
const IGNORE_UNKNOWN: &str = "IgnoreUnknown";

impl Args {
    /// Parses the text of the variable; an empty text has no pairs. Every piece must contain exactly one `=`; the last of
    /// several pairs with one key counts.
    ///
    /// # Errors
    /// The first piece that does not have exactly one `=`.
    pub fn parse(text: &str) -> Result<Args, String> {
        let mut args = Args::default();
        if text.is_empty() {
            return Ok(args);
        }
        let mut pairs = Vec::new();
        for piece in text.split(';') {
            match pair(piece) {
                Some(pair) => pairs.push(pair),
                None => return Err(format!("ARGS: invalid pair {piece:?}")),
            }
        }
        let mut later = HashSet::new();
        for (key, value) in pairs.into_iter().rev() {
            if later.insert(key) {
                args.0.push((key.to_owned(), value.to_owned()));
            }
        }
        args.0.reverse();
        Ok(args)
    }

    /// The value of `key`, which is case-sensitive.
    pub fn get(&self, key: &str) -> Option<&str> {
        for (name, value) in &self.0 {
            if name == key {
                return Some(value);
            }
        }
        None
    }

    /// Whether unknown keys are to be ignored. The value is `1`, `0`, `true` or `false`, in any letter case.
    ///
    /// # Errors
    /// Any other value of `IgnoreUnknown`.
    pub fn ignore_unknown(&self) -> Result<bool, String> {
        match self.get(IGNORE_UNKNOWN).map(str::to_ascii_lowercase).as_deref() {
            Some("1" | "true") => Ok(true),
            None | Some("0" | "false") => Ok(false),
            Some(other) => Err(format!("ARGS: {IGNORE_UNKNOWN} is {other:?}, not 1, 0, true or false")),
        }
    }

    /// The pairs whose keys are not in `known`, as `KEY=VALUE`.
    pub fn unknown(&self, known: &[&str]) -> Vec<String> {
        let mut unknown = Vec::new();
        for (key, value) in &self.0 {
            if key != IGNORE_UNKNOWN && !known.contains(&key.as_str()) {
                unknown.push(format!("{key}={value}"));
            }
        }
        unknown
    }
}

fn pair(piece: &str) -> Option<(&str, &str)> {
    match piece.split_once('=') {
        Some((_, value)) if value.contains('=') => None,
        pair => pair,
    }
}

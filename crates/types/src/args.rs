//! `CNI_ARGS`.

use std::collections::HashSet;

/// The pairs of `CNI_ARGS`, `KEY=VALUE;KEY=VALUE`, in their order; of one key the last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[doc(alias = "CNI_ARGS")]
pub struct Args(Vec<(String, String)>);

/// The key that tells a plugin to put up with keys it does not know.
const IGNORE_UNKNOWN: &str = "IgnoreUnknown";

impl Args {
    /// Parses the text of the variable; an empty text has no pairs. Every piece must contain exactly one `=`; the last of
    /// several pairs with one key counts.
    ///
    /// # Errors
    /// The first piece that does not have exactly one `=`.
    pub fn parse(text: &str) -> Result<Args, String> {
        let pieces = text.split(';').filter(|_| !text.is_empty());
        let pairs = pieces.map(|piece| pair(piece).ok_or_else(|| format!("ARGS: invalid pair {piece:?}")));
        let mut pairs = pairs.collect::<Result<Vec<_>, _>>()?;
        let mut later = HashSet::new();
        pairs.reverse();
        pairs.retain(|(key, _)| later.insert(*key));
        pairs.reverse();
        Ok(Args(pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()))
    }

    /// The value of `key`, which is case-sensitive.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// Whether the caller wants unknown keys to be ignored: `1`, `0`, `true` or `false`, in any case of letters.
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

    /// The pairs whose keys are not among `known`, as they were given.
    pub fn unknown(&self, known: &[&str]) -> Vec<String> {
        let is_unknown = |key: &String| key != IGNORE_UNKNOWN && !known.contains(&key.as_str());
        self.0.iter().filter(|(key, _)| is_unknown(key)).map(|(key, value)| format!("{key}={value}")).collect()
    }
}

fn pair(piece: &str) -> Option<(&str, &str)> {
    piece.split_once('=').filter(|(_, value)| !value.contains('='))
}

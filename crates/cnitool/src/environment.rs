//! What the environment says, each variable with its default and its grammar.

use std::path::PathBuf;

use cnikit_libcni::{Cache, Runtime};
use serde_json::{Map, Value};

/// A variable's text; empty is as good as unset.
#[expect(clippy::disallowed_methods, reason = "cnitool's own environment is read here and nowhere else")]
fn variable(name: &str) -> Option<String> {
    let text = std::env::var_os(name)?.to_string_lossy().into_owned();
    Some(text).filter(|text| !text.is_empty())
}

/// Where configurations are.
pub(crate) fn configurations() -> PathBuf {
    variable("NETCONFPATH").unwrap_or_else(|| "/etc/cni/net.d".to_owned()).into()
}

/// Where plugins and kept results are. The reference has no default for the former, and no variable for the latter.
pub(crate) fn runtime() -> Runtime {
    let path = variable("CNI_PATH").unwrap_or_else(|| "/opt/cni/bin".to_owned());
    let cache = PathBuf::from(variable("CNI_CACHE_DIR").unwrap_or_else(|| "/var/lib/cni".to_owned()));
    Runtime { path, cache: Cache::below(&cache) }
}

/// The interface's name if no flag gave one.
pub(crate) fn ifname() -> String {
    variable("CNI_IFNAME").unwrap_or_else(|| "eth0".to_owned())
}

/// `CNI_ARGS`.
pub(crate) fn args() -> Result<Vec<(String, String)>, String> {
    variable("CNI_ARGS").map_or(Ok(Vec::new()), |text| pairs(&text))
}

/// `CAP_ARGS`.
pub(crate) fn capabilities() -> Result<Map<String, Value>, String> {
    let Some(text) = variable("CAP_ARGS") else { return Ok(Map::new()) };
    serde_json::from_str(&text).map_err(|error| format!("CAP_ARGS is not a JSON object: {error}"))
}

/// Pairs joined by semicolons, each with one equals sign and something on either side of it.
fn pairs(text: &str) -> Result<Vec<(String, String)>, String> {
    let pair = |piece: &str| match piece.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() && !value.contains('=') => {
            Ok((key.to_owned(), value.to_owned()))
        }
        _ => Err(format!("invalid CNI_ARGS pair \"{piece}\"")),
    };
    text.split(';').map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn args_keep_their_order() {
        let expected = [("b", "1"), ("a", "2"), ("b", "3")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(pairs("b=1;a=2;b=3").unwrap(), expected);
    }

    #[test]
    fn a_piece_that_is_no_pair_is_named() {
        for (text, piece) in [("a=1;", ""), ("a=", "a="), ("=1", "=1"), ("a=1;b", "b"), ("a=b=c", "a=b=c")] {
            assert_eq!(pairs(text).unwrap_err(), format!("invalid CNI_ARGS pair \"{piece}\""));
        }
    }
}

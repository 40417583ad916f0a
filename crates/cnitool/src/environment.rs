//! The environment variables of the tool, each with its default and its syntax. An option takes precedence.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::Arc;

use cnikit_libcni::{Cache, Runtime};
use serde_json::{Map, Value};

use crate::failure::Result;
use crate::options::{Common, When};
use crate::output::format::Output;
use crate::output::plugin_progress::ProgressExecutor;

/// The value of a variable. An empty one counts as unset.
#[expect(clippy::disallowed_methods, reason = "cnitool's own environment is read here and nowhere else")]
fn variable(name: &str) -> Option<String> {
    let text = std::env::var_os(name)?.to_string_lossy().into_owned();
    if text.is_empty() { None } else { Some(text) }
}

/// The directory of configuration files.
pub(crate) fn configurations(common: &Common) -> PathBuf {
    if let Some(dir) = &common.conf_dir {
        return dir.clone();
    }
    variable("NETCONFPATH").unwrap_or_else(|| "/etc/cni/net.d".to_owned()).into()
}

/// The cache of results. Upstream has no variable for it.
pub(crate) fn cache(common: &Common) -> Cache {
    if let Some(dir) = &common.cache_dir {
        return Cache::below(dir);
    }
    Cache::below(variable("CNI_CACHE_DIR").unwrap_or_else(|| "/var/lib/cni".to_owned()).as_ref())
}

/// The directories of plugins, separated by colons. They have no default upstream.
fn plugin_path(common: &Common) -> String {
    let path = common.plugin_path.clone().or_else(|| variable("CNI_PATH"));
    path.unwrap_or_else(|| "/opt/cni/bin".to_owned())
}

/// The directories of plugins.
pub(crate) fn plugin_directories(common: &Common) -> Vec<PathBuf> {
    plugin_path(common).split(':').filter(|dir| !dir.is_empty()).map(PathBuf::from).collect()
}

/// The runtime with the directories of plugins and the cache.
pub(crate) fn runtime(common: &Common) -> Runtime {
    let runtime = Runtime::new(plugin_path(common), cache(common));
    Runtime { executor: Arc::new(ProgressExecutor::default()), ..runtime }
}

/// The name of the interface. An empty one counts as not given.
pub(crate) fn ifname(common: &Common) -> String {
    match &common.ifname {
        Some(name) if !name.is_empty() => name.clone(),
        _ => variable("CNI_IFNAME").unwrap_or_else(|| "eth0".to_owned()),
    }
}

/// `CNI_ARGS`.
pub(crate) fn args() -> Result<Vec<(String, String)>> {
    match variable("CNI_ARGS") {
        Some(text) => Ok(pairs(&text)?),
        None => Ok(Vec::new()),
    }
}

/// `CAP_ARGS`.
pub(crate) fn capabilities() -> Result<Map<String, Value>> {
    let Some(text) = variable("CAP_ARGS") else { return Ok(Map::new()) };
    Ok(serde_json::from_str(&text).map_err(|error| format!("CAP_ARGS is not a JSON object: {error}"))?)
}

/// The format of output: `--color` and the terminal, `NO_COLOR` and `TERM` decide on colours.
pub(crate) fn output(common: &Common) -> Output {
    let colour = match common.color {
        When::Always => true,
        When::Never => false,
        When::Auto => {
            io::stdout().is_terminal()
                && variable("NO_COLOR").is_none()
                && variable("TERM").is_none_or(|term| term != "dumb")
        }
    };
    Output { json: common.json, colour }
}

/// Pairs separated by semicolons, each a key and a value with one equals sign between them.
fn pairs(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut pairs = Vec::new();
    for piece in text.split(';') {
        match piece.split_once('=') {
            Some((key, value)) if !key.is_empty() && !value.is_empty() && !value.contains('=') => {
                pairs.push((key.to_owned(), value.to_owned()));
            }
            _ => return Err(format!("invalid CNI_ARGS pair \"{piece}\"")),
        }
    }
    Ok(pairs)
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
    fn an_invalid_pair_is_named() {
        for (text, piece) in [("a=1;", ""), ("a=", "a="), ("=1", "=1"), ("a=1;b", "b"), ("a=b=c", "a=b=c")] {
            assert_eq!(pairs(text).unwrap_err(), format!("invalid CNI_ARGS pair \"{piece}\""));
        }
    }
}

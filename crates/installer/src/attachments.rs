//! The attachments in the runtime's cache, with the plugins that their DEL needs.

use std::collections::BTreeSet;
use std::path::PathBuf;

use base64ct::{Base64, Encoding};
use serde_json::Value;

use crate::root::{Absent, Root, Trust};

/// The longest result that is read.
const LONGEST: u64 = 1 << 22;
/// The directories of the cache, unless others are given: libcni's, and that of runtimes that keep it in memory.
const USUAL: [&str; 2] = ["/var/lib/cni", "/run/cni"];

/// An attachment, as the runtime cached it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cached {
    /// Network, container and interface, for the message.
    pub(crate) text: String,
    /// The plugins that it was made by; empty if the file cannot be read.
    pub(crate) types: BTreeSet<String>,
}

impl Cached {
    /// Whether its DEL needs one of these plugins. One whose plugins are not known may need any.
    pub(crate) fn needs_any(&self, lost: &BTreeSet<String>) -> bool {
        self.types.is_empty() || !self.types.is_disjoint(lost)
    }
}

/// All attachments in the caches.
pub(crate) fn find(root: &Root, dirs: &[PathBuf]) -> Result<Vec<Cached>, String> {
    let dirs = if dirs.is_empty() { USUAL.map(PathBuf::from).to_vec() } else { dirs.to_vec() };
    let mut found = Vec::new();
    for dir in dirs {
        let dir = dir.join("results");
        let Some(directory) = root.directory(&dir, Absent::Report, Trust::GroupToo)? else { continue };
        let mut names = directory.list().map_err(|error| error.to_string())?;
        names.sort();
        for name in names {
            let path = dir.join(&name);
            let text = name.to_string_lossy().into_owned();
            if text.starts_with('.') {
                continue;
            }
            match root.read(&path, LONGEST) {
                Ok(Some(content)) => found.push(parse(&text, &content)),
                Ok(None) => {}
                Err(_) => found.push(Cached { text, types: BTreeSet::new() }),
            }
        }
    }
    Ok(found)
}

fn parse(name: &str, content: &[u8]) -> Cached {
    let entry: Value = serde_json::from_slice(content).unwrap_or_default();
    let text = |key: &str| entry.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let described = match (text("networkName"), text("containerId"), text("ifName")) {
        (network, container, interface) if !container.is_empty() => format!("{network} {container} {interface}"),
        _ => name.to_owned(),
    };
    let mut types = BTreeSet::new();
    if let Ok(config) = Base64::decode_vec(&text("config"))
        && let Ok(config) = serde_json::from_slice::<Value>(&config)
    {
        let plugins = config.get("plugins").and_then(Value::as_array).cloned();
        for plugin in plugins.unwrap_or_else(|| vec![config]) {
            add_types(&plugin, &mut types);
        }
    }
    Cached { text: described, types }
}

/// The plugin of a configuration, and those that it delegates to.
fn add_types(plugin: &Value, types: &mut BTreeSet<String>) {
    for part in [Some(plugin), plugin.get("ipam"), plugin.get("delegate")].into_iter().flatten() {
        types.extend(part.get("type").and_then(Value::as_str).map(str::to_owned));
    }
}

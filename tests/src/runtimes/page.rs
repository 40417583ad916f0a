//! The files that `docs/runtimes.md` shows. Each block names the path of its file in the first line.

use serde_json::{Value, json};

use crate::docs::page;

/// Where the page puts its network.
pub const CONFLIST: &str = "/etc/cni/net.d/10-cnikit.conflist";

/// The text of a file as the page has it.
pub fn file(path: &str) -> String {
    file_in("docs/runtimes.md", path)
}

/// The text of a file as another page has it.
pub fn file_in(other: &str, path: &str) -> String {
    let page = page(other);
    let opening = format!(" file={path}\n");
    let after = page.text.split_once(&opening).unwrap_or_else(|| panic!("{other} shows no {path}")).1;
    after.split_once("```").unwrap().0.to_owned()
}

/// The path and the text of each file of the page.
pub fn files() -> Vec<(String, String)> {
    let page = page("docs/runtimes.md").text;
    let openings = page.lines().filter(|line| line.starts_with("```")).filter_map(|line| line.split_once(" file="));
    openings.map(|(_, path)| (path.to_owned(), file(path))).collect()
}

/// The page's network in a version of the specification.
pub fn network(version: &str) -> Value {
    let mut list: Value = serde_json::from_str(&file(CONFLIST)).unwrap();
    assert!(list["cniVersion"].is_string(), "{CONFLIST} names no version");
    list["cniVersion"] = json!(version);
    list
}

/// A network list with this backend in the key of each plugin that writes rules.
pub fn with_backend(mut list: Value, backend: &str) -> Value {
    let keys = [("bridge", "ipMasqBackend"), ("portmap", "backend"), ("firewall", "backend")];
    for plugin in list["plugins"].as_array_mut().unwrap() {
        let key = keys.iter().find(|(name, _)| plugin["type"] == *name);
        if let Some((_, key)) = key {
            plugin[*key] = json!(backend);
        }
    }
    list
}

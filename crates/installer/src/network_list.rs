//! The network list that is placed after the plugins, and the record that it is ours.

use std::fmt::Write;
use std::path::Path;

use cnikit_store::Directory;
use ipnetwork::IpNetwork;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::place;

/// The longest network list, as crates/libcni reads it.
const LONGEST: u64 = 1 << 20;
/// The file beside the list that says which list was placed. No runtime reads a file with this name.
pub(crate) const RECORD: &str = ".cnikit-network-list";

/// A network list with the file name that it will have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NetworkList {
    pub(crate) name: String,
    pub(crate) content: Vec<u8>,
}

impl NetworkList {
    /// Reads a list, and puts the node's ranges of addresses in the place of the placeholders.
    pub(crate) fn read(path: &Path, pod_cidrs: &[IpNetwork]) -> Result<NetworkList, String> {
        let failed = |why: &dyn std::fmt::Display| format!("network list {}: {why}", path.display());
        let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(|| failed(&"it has no file name"))?;
        let end = Path::new(name).extension().and_then(|end| end.to_str()).unwrap_or_default();
        if name.starts_with('.') || !["conf", "conflist", "json"].contains(&end) {
            return Err(failed(&"no runtime reads this name; hint: it has to end in .conflist"));
        }
        let content = read_given(path, LONGEST).map_err(|why| failed(&why))?;
        let mut list: Value = serde_json::from_slice(&content).map_err(|error| failed(&error))?;
        check(&list, end).map_err(|why| failed(&why))?;
        let content = if fill(&mut list, pod_cidrs).map_err(|why| failed(&why))? {
            format!("{list:#}\n").into_bytes()
        } else {
            content
        };
        Ok(NetworkList { name: name.to_owned(), content })
    }

    /// The record of this list.
    pub(crate) fn record(&self) -> Record {
        Record { name: self.name.clone(), digests: vec![digest(&self.content)] }
    }
}

/// Reads a file that a flag names.
pub(crate) fn read_given(path: &Path, longest: u64) -> Result<Vec<u8>, String> {
    let facts = std::fs::metadata(path).map_err(|error| error.to_string())?;
    if !facts.is_file() || facts.len() > longest {
        return Err(format!("it is not a regular file of at most {longest} bytes"));
    }
    std::fs::read(path).map_err(|error| error.to_string())
}

/// Whether this can be a network list at all; the runtime and the plugins check the rest.
fn check(list: &Value, end: &str) -> Result<(), String> {
    let is_named = list.get("name").and_then(Value::as_str).is_some_and(|name| !name.is_empty());
    let types: Vec<Option<&str>> = match list.get("plugins") {
        Some(Value::Array(plugins)) => plugins.iter().map(|one| one.get("type").and_then(Value::as_str)).collect(),
        None if end != "conflist" => vec![list.get("type").and_then(Value::as_str)],
        _ => Vec::new(),
    };
    if is_named && !types.is_empty() && types.iter().all(Option::is_some) {
        return Ok(());
    }
    Err("it is not a network list: `name`, and `plugins` with a `type` each, are missing".into())
}

/// The placeholders, with what they are replaced by. A range of one family has a name of its own.
fn placeholders(pod_cidrs: &[IpNetwork]) -> [(&'static str, Option<Value>); 5] {
    let of = |is_wanted: fn(&IpNetwork) -> bool| pod_cidrs.iter().find(|one| is_wanted(one)).map(|one| json!(one));
    let mut ranges = Vec::new();
    let mut routes = Vec::new();
    for one in pod_cidrs {
        ranges.push(json!([{"subnet": one}]));
        routes.push(json!({"dst": if one.is_ipv4() { "0.0.0.0/0" } else { "::/0" }}));
    }
    let all = |values: Vec<Value>| if values.is_empty() { None } else { Some(Value::Array(values)) };
    [
        ("@podCIDR@", of(|_| true)),
        ("@podCIDRv4@", of(IpNetwork::is_ipv4)),
        ("@podCIDRv6@", of(IpNetwork::is_ipv6)),
        ("@podCIDRRanges@", all(ranges)),
        ("@podCIDRRoutes@", all(routes)),
    ]
}

/// Replaces every string that is a placeholder; returns whether there was one.
fn fill(value: &mut Value, pod_cidrs: &[IpNetwork]) -> Result<bool, String> {
    let mut is_filled = false;
    match value {
        Value::Array(values) => {
            for one in values {
                is_filled |= fill(one, pod_cidrs)?;
            }
        }
        Value::Object(members) => {
            for (_, one) in members {
                is_filled |= fill(one, pod_cidrs)?;
            }
        }
        Value::String(text) if text.starts_with('@') && text.ends_with('@') => {
            let Some((name, by)) = placeholders(pod_cidrs).into_iter().find(|(name, _)| name == text) else {
                return Err(format!("there is no placeholder {text}"));
            };
            *value =
                by.ok_or_else(|| format!("{name} needs a range of this family; hint: --pod-cidr, --pod-cidr-file"))?;
            is_filled = true;
        }
        _ => {}
    }
    Ok(is_filled)
}

/// Which list was placed last, and with which content: while it is replaced, the content before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) name: String,
    pub(crate) digests: Vec<String>,
}

impl Record {
    pub(crate) fn read(directory: &Directory) -> Result<Option<Record>, String> {
        let Some((content, _)) = directory.read(RECORD, 1 << 12).map_err(|error| error.to_string())? else {
            return Ok(None);
        };
        let parsed: Value = serde_json::from_slice(&content).unwrap_or_default();
        let name = parsed.get("name").and_then(Value::as_str).filter(|name| !name.contains('/'));
        let mut digests = Vec::new();
        for one in parsed.get("sha256").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default() {
            digests.extend(one.as_str().map(str::to_owned));
        }
        // A record that cannot be read says nothing: the list is then another program's, and is kept.
        Ok(name.map(|name| Record { name: name.to_owned(), digests }))
    }

    pub(crate) fn write(&self, directory: &Directory) -> Result<(), String> {
        let content = format!("{}\n", json!({"name": self.name, "sha256": self.digests}));
        place::stage(directory, RECORD, content.as_bytes(), 0o600)?.place()
    }

    /// Whether this is the content that was placed.
    pub(crate) fn is_of(&self, content: &[u8]) -> bool {
        self.digests.contains(&digest(content))
    }
}

fn digest(content: &[u8]) -> String {
    let mut text = String::new();
    for byte in Sha256::digest(content) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// The content of a list in the directory; `None` if there is none, or no regular file.
pub(crate) fn installed(directory: &Directory, name: &str) -> Result<Option<Vec<u8>>, String> {
    let limit = usize::try_from(LONGEST).unwrap_or(usize::MAX);
    match directory.read(name, limit) {
        Ok(found) => Ok(found.map(|(content, _)| content)),
        Err(error) if error.is_garbage() => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod_cidrs::parse;

    fn filled(list: &str, cidrs: &str) -> Result<Value, String> {
        let mut list: Value = serde_json::from_str(list).unwrap();
        let cidrs = if cidrs.is_empty() { Vec::new() } else { parse(cidrs, "--pod-cidr")? };
        fill(&mut list, &cidrs).map(|_| list)
    }

    #[test]
    fn placeholders_get_the_ranges_of_the_node() {
        let both = "10.1.2.0/24,fd00:1::/64";
        assert_eq!(
            filled(r#"["@podCIDR@","@podCIDRv6@","@podCIDRv4@"]"#, both).unwrap(),
            json!(["10.1.2.0/24", "fd00:1::/64", "10.1.2.0/24"])
        );
        assert_eq!(
            filled(r#"{"ipam":{"ranges":"@podCIDRRanges@","routes":"@podCIDRRoutes@"}}"#, both).unwrap(),
            json!({"ipam": {"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00:1::/64"}]],
                                   "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}})
        );
        assert_eq!(filled(r#"{"name":"a@b"}"#, "").unwrap(), json!({"name": "a@b"}));
        for (list, cidrs, says) in [
            (r#"["@podCIDR@"]"#, "", "@podCIDR@ needs a range"),
            (r#"["@podCIDRv6@"]"#, "10.1.2.0/24", "@podCIDRv6@ needs a range of this family"),
            (r#"["@podCIRD@"]"#, both, "there is no placeholder @podCIRD@"),
        ] {
            let error = filled(list, cidrs).unwrap_err();
            assert!(error.contains(says), "{list} {cidrs}: {error}");
        }
    }

    #[test]
    fn a_file_that_no_runtime_would_use_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for (name, content, says) in [
            ("net.txt", "{}", "no runtime reads this name"),
            (".net.conflist", "{}", "no runtime reads this name"),
            ("net.conflist", "{", "EOF"),
            ("net.conflist", r#"{"name":"n","type":"bridge"}"#, "not a network list"),
            ("net.conflist", r#"{"plugins":[{"type":"bridge"}]}"#, "not a network list"),
            ("net.conflist", r#"{"name":"n","plugins":[{}]}"#, "not a network list"),
            ("net.conflist", r#"{"name":"n","plugins":[]}"#, "not a network list"),
        ] {
            let path = dir.path().join(name);
            std::fs::write(&path, content).unwrap();
            let error = NetworkList::read(&path, &[]).unwrap_err();
            assert!(error.contains(says), "{name} {content}: {error}");
        }
        let path = dir.path().join("n.conf");
        std::fs::write(&path, "{\"name\":\"n\",  \"type\":\"bridge\"}").unwrap();
        assert_eq!(NetworkList::read(&path, &[]).unwrap().content, b"{\"name\":\"n\",  \"type\":\"bridge\"}");
    }
}

//! What ADD answered, kept until DEL.

use std::path::{Path, PathBuf};

use cnikit_store::Directory;
use cnikit_types::{Answer, Version};
use serde_json::{Map, Value, json};

use crate::base64::encode;
use crate::{Attachment, Error, NetworkList};

/// The mark of the form that a file is in.
const KIND: &str = "cniCacheV1";

/// The longest file that is read: a result is a few kilobytes.
const LIMIT: usize = 16 << 20;

/// What a file name may be (ext4 and nearly all others), less what the store adds to a temporary one.
const LONGEST_NAME: usize = 255 - ".".len() - ".new".len();

/// The directory of kept results: one file an attachment, named `<network>-<container id>-<ifname>`.
///
/// Place, names and content are the reference's. Unlike its own files these appear whole and survive a power cut.
#[derive(Clone, Debug)]
pub struct Cache {
    results: PathBuf,
}

impl Cache {
    /// Below `dir`, which is `/var/lib/cni` for nearly everybody; it is made when the first result is kept.
    pub fn below(dir: &Path) -> Self {
        Self { results: dir.join("results") }
    }

    /// Refuses an attachment whose result could not be kept: asked before anything is set up.
    ///
    /// Names with dashes can meet in one file name (`a-b` and `c`, `a` and `b-c`); the first one stays.
    pub(crate) fn check_room(&self, list: &NetworkList, at: &Attachment) -> Result<(), Error> {
        let name = file_name(list, at);
        if name.len() > LONGEST_NAME {
            return Err(Error::Cache(format!("network, container id and interface are too long together: \"{name}\"")));
        }
        Directory::make(&self.results, 0o700)?;
        match self.entry(list, at) {
            Ok(Some(entry)) if !is_of(&entry, list, at) => {
                Err(Error::Cache(format!("{} is another attachment's", self.results.join(name).display())))
            }
            _ => Ok(()), // garbage too makes room
        }
    }

    /// The kept result in the version of the list; `None` if nothing is kept for this attachment.
    pub fn result(&self, list: &NetworkList, at: &Attachment) -> Result<Option<Value>, Error> {
        let Some(mut entry) = self.entry(list, at)?.filter(|entry| is_of(entry, list, at)) else { return Ok(None) };
        // Before 2019 the file was the result itself.
        let result = if is_marked(&entry) { entry.remove("result") } else { Some(Value::Object(entry)) };
        result.map(|result| in_version_of(list, result)).transpose()
    }

    /// Keeps the result of an ADD that succeeded.
    pub(crate) fn keep(&self, list: &NetworkList, at: &Attachment, result: &Value) -> Result<(), Error> {
        let directory = Directory::make(&self.results, 0o700)?;
        let content = Value::Object(entry(list, at, result)).to_string();
        Ok(directory.replace_durably(&file_name(list, at), content.as_bytes(), 0o600)?)
    }

    /// Forgets the attachment, when it is gone.
    pub(crate) fn forget(&self, list: &NetworkList, at: &Attachment) -> Result<(), Error> {
        // What cannot be read is nobody's: it goes too.
        if self.entry(list, at).is_ok_and(|entry| entry.is_none_or(|entry| !is_of(&entry, list, at))) {
            return Ok(());
        }
        Directory::open(&self.results)?.remove_durably(&file_name(list, at))?;
        Ok(())
    }

    fn entry(&self, list: &NetworkList, at: &Attachment) -> Result<Option<Map<String, Value>>, Error> {
        let directory = match Directory::open(&self.results) {
            Err(error) if error.is_absent() => return Ok(None),
            opened => opened?,
        };
        let name = file_name(list, at);
        let Some((bytes, _)) = directory.read(&name, LIMIT)? else { return Ok(None) };
        let garbage =
            |why: serde_json::Error| Error::Cache(format!("kept result {}: {why}", self.results.join(&name).display()));
        serde_json::from_slice(&bytes).map(Some).map_err(garbage)
    }
}

fn file_name(list: &NetworkList, at: &Attachment) -> String {
    format!("{}-{}-{}", list.name, at.container_id, at.ifname)
}

/// The content of a file. The reference leaves out what is empty; so do we.
fn entry(list: &NetworkList, at: &Attachment, result: &Value) -> Map<String, Value> {
    let args: Vec<Value> = at.args.iter().map(|(key, value)| json!([key, value])).collect();
    let members = [
        ("kind", Some(KIND.into())),
        ("containerId", Some(at.container_id.as_str().into())),
        ("config", Some(encode(&list.bytes).into())),
        ("ifName", Some(at.ifname.as_str().into())),
        ("networkName", Some(list.name.as_str().into())),
        ("netns", (!at.netns.is_empty()).then(|| at.netns.as_str().into())),
        ("cniArgs", (!args.is_empty()).then_some(Value::Array(args))),
        ("capabilityArgs", (!at.capabilities.is_empty()).then(|| Value::Object(at.capabilities.clone()))),
        ("result", Some(result.clone())),
    ];
    members.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
}

fn is_marked(entry: &Map<String, Value>) -> bool {
    entry.get("kind").and_then(Value::as_str) == Some(KIND)
}

/// Whether a file is this attachment's. An old one does not say, and one of another tool may say less.
fn is_of(entry: &Map<String, Value>, list: &NetworkList, at: &Attachment) -> bool {
    let own = [("containerId", &at.container_id), ("ifName", &at.ifname), ("networkName", &list.name)];
    let agrees = |(key, own): (&str, &String)| entry.get(key).and_then(Value::as_str).is_none_or(|found| found == own);
    !is_marked(entry) || own.into_iter().all(agrees)
}

/// A result as it is, if it is in the list's version already; else converted.
fn in_version_of(list: &NetworkList, result: Value) -> Result<Value, Error> {
    let wanted = Version::exact(&list.version).unwrap_or(Version::NEWEST);
    let (version, answer) = Answer::read(&result, wanted).map_err(|error| {
        Error::Cache(format!("failed to convert cached result to config version \"{}\": {error}", list.version))
    })?;
    Ok(if version == wanted { result } else { answer.write(wanted) })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use tempfile::TempDir;

    fn list(name: &str, version: &str) -> NetworkList {
        NetworkList {
            name: name.to_owned(),
            version: version.to_owned(),
            disable_check: false,
            plugins: Vec::new(),
            bytes: b"{}".to_vec(),
            warnings: Vec::new(),
        }
    }

    fn at(container_id: &str) -> Attachment {
        let (netns, ifname) = ("/ns".to_owned(), "eth0".to_owned());
        Attachment { container_id: container_id.to_owned(), netns, ifname, ..Attachment::default() }
    }

    fn result() -> Value {
        json!({"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/8"}], "x": 1})
    }

    #[test]
    fn what_is_kept_comes_back_until_it_is_forgotten() {
        let dir = TempDir::new().unwrap();
        let (cache, list, at) = (Cache::below(dir.path()), list("net", "1.0.0"), at("c1"));
        assert_eq!(cache.result(&list, &at).unwrap(), None);
        cache.keep(&list, &at, &result()).unwrap();
        assert_eq!(cache.result(&list, &at).unwrap(), Some(result()));
        cache.forget(&list, &at).unwrap();
        cache.forget(&list, &at).unwrap();
        assert_eq!(cache.result(&list, &at).unwrap(), None);
        assert_eq!(fs::read_dir(dir.path().join("results")).unwrap().count(), 0);
    }

    #[test]
    fn a_kept_result_is_read_in_the_version_of_the_configuration() {
        let dir = TempDir::new().unwrap();
        let cache = Cache::below(dir.path());
        cache.keep(&list("net", "1.0.0"), &at("c1"), &result()).unwrap();
        let read = cache.result(&list("net", "0.4.0"), &at("c1")).unwrap().unwrap();
        assert_eq!((&read["cniVersion"], &read["ips"][0]["version"]), (&json!("0.4.0"), &json!("4")));
    }

    #[test]
    fn the_old_form_of_a_bare_result_is_read() {
        let dir = TempDir::new().unwrap();
        fs::create_dir(dir.path().join("results")).unwrap();
        fs::write(dir.path().join("results/net-c1-eth0"), result().to_string()).unwrap();
        let cache = Cache::below(dir.path());
        assert_eq!(cache.result(&list("net", "1.0.0"), &at("c1")).unwrap(), Some(result()));
    }

    #[test]
    fn an_attachment_whose_file_name_is_anothers_is_refused_and_harms_it_not() {
        let dir = TempDir::new().unwrap();
        let cache = Cache::below(dir.path());
        cache.keep(&list("a-b", "1.0.0"), &at("c"), &result()).unwrap();
        let (other, other_at) = (list("a", "1.0.0"), at("b-c"));
        assert!(cache.check_room(&other, &other_at).unwrap_err().to_string().contains("another attachment's"));
        assert_eq!(cache.result(&other, &other_at).unwrap(), None);
        cache.forget(&other, &other_at).unwrap();
        assert_eq!(cache.result(&list("a-b", "1.0.0"), &at("c")).unwrap(), Some(result()));
        cache.check_room(&list("a-b", "1.0.0"), &at("c")).unwrap();
    }

    #[test]
    fn names_that_do_not_fit_one_file_name_are_refused_and_the_longest_that_do_are_kept() {
        let dir = TempDir::new().unwrap();
        let (cache, list) = (Cache::below(dir.path()), list("n", "1.0.0"));
        let longest = at(&"c".repeat(LONGEST_NAME - "n--eth0".len()));
        cache.check_room(&list, &longest).unwrap();
        cache.keep(&list, &longest, &result()).unwrap();
        let longer = at(&format!("{}c", longest.container_id));
        assert!(cache.check_room(&list, &longer).unwrap_err().to_string().contains("too long"));
    }

    #[test]
    fn garbage_makes_room_and_is_forgotten_with_the_attachment() {
        let dir = TempDir::new().unwrap();
        fs::create_dir(dir.path().join("results")).unwrap();
        fs::write(dir.path().join("results/net-c1-eth0"), "\0\0").unwrap();
        let (cache, list, at) = (Cache::below(dir.path()), list("net", "1.0.0"), at("c1"));
        assert!(cache.result(&list, &at).is_err());
        cache.check_room(&list, &at).unwrap();
        cache.forget(&list, &at).unwrap();
        assert_eq!(cache.result(&list, &at).unwrap(), None);
    }
}

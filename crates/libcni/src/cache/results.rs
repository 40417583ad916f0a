//! The directory of cached results, and beside it the intents of ADDs that are not finished.

use std::path::{Path, PathBuf};

use cnikit_store::{Directory, check_version};
use cnikit_types::{CniResult, Version};
use serde_json::Value;

use crate::cache::entry::{CacheMetadata, Entry, FORMAT};
use crate::cache::file_name;
use crate::{Attachment, Error, NetworkList};

/// The longest file that is read: a result is a few kilobytes.
pub(crate) const LIMIT: usize = 16 << 20;

/// The cache of results: one file per attachment, named `<network>-<container id>-<ifname>`.
///
/// Directory, names and content are upstream's, in `results/`. Unlike upstream's, these files are replaced atomically and
/// survive a power cut. What upstream does not have is in `cnikit/`: `intents/` has the ADDs that are not finished, `aside/` has
/// damaged files, `locks/` has lock files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    dir: PathBuf,
}

/// The cached data of one attachment, for its DEL.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// The cached attachment, or the intent of its ADD; `None` if there is neither, or neither can be trusted.
    pub(crate) entry: Option<Entry>,
    /// What is wrong with the files, each in a sentence.
    pub(crate) damage: Vec<String>,
}

impl Cache {
    /// The cache below `dir`, which is usually `/var/lib/cni`. It is created with the first result.
    pub fn below(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// Returns an error if the result of the attachment could not be cached; called before any plugin.
    ///
    /// Names with dashes can give the same file name (`a-b` and `c`, `a` and `b-c`); the first attachment keeps it.
    pub(crate) fn check_space(&self, list: &NetworkList, attachment: &Attachment) -> Result<(), Error> {
        let name = file_name::of(&list.name, attachment);
        if name.len() > file_name::LONGEST {
            return Err(Error::Cache(format!(
                "the names of network, container and interface are too long together: \"{name}\""
            )));
        }
        Directory::make(self.results(), 0o700)?.probe()?;
        for dir in [self.results(), self.intents()] {
            match read(&dir, &name)? {
                CacheFile::Entry(entry) if !entry.is_of(&list.name, attachment) => {
                    return Err(Error::Cache(format!("{} belongs to another attachment", dir.join(name).display())));
                }
                CacheFile::Newer(why) => return Err(Error::Cache(why)),
                // A damaged file will be set aside.
                CacheFile::Entry(_) | CacheFile::Damaged(_) | CacheFile::Missing => {}
            }
        }
        Ok(())
    }

    /// The cached result in the version of the list; `None` if there is none for this attachment.
    ///
    /// # Errors
    /// [`Error::Cache`] if the file cannot be read, is damaged, or has a result that the version of the list cannot express.
    pub fn result(&self, list: &NetworkList, attachment: &Attachment) -> Result<Option<Value>, Error> {
        let name = file_name::of(&list.name, attachment);
        match read(&self.results(), &name)? {
            CacheFile::Entry(entry) if entry.is_of(&list.name, attachment) => match entry.result {
                Some(result) => Ok(Some(in_version_of(list, result)?)),
                None => Ok(None),
            },
            CacheFile::Damaged(why) => Err(Error::Cache(self.damaged(&name, &why))),
            CacheFile::Newer(why) => Err(Error::Cache(why)),
            CacheFile::Entry(_) | CacheFile::Missing => Ok(None),
        }
    }

    /// The cached data of an attachment, for its DEL: the result, otherwise the intent. Damage is reported, and is not an error.
    pub(crate) fn record(&self, network: &str, attachment: &Attachment) -> Record {
        let name = file_name::of(network, attachment);
        let mut record = Record::default();
        for dir in [self.results(), self.intents()] {
            match read(&dir, &name) {
                Ok(CacheFile::Entry(entry)) if entry.is_of(network, attachment) => {
                    if record.entry.is_none() {
                        record.entry = Some(*entry);
                    }
                }
                Ok(CacheFile::Damaged(why)) => record.damage.push(format!("{}: {why}", dir.join(&name).display())),
                Ok(CacheFile::Newer(why)) => record.damage.push(why),
                Ok(CacheFile::Entry(_) | CacheFile::Missing) => {}
                Err(error) => record.damage.push(error.to_string()),
            }
        }
        record
    }

    /// Records the intent of an ADD, which survives the runtime. It is not synced, because that would take as long as the ADD: a
    /// power cut also removes what the ADD made in the kernel, and if the file loses its content, its name is still enough for a
    /// DEL or GC.
    pub(crate) fn begin(
        &self,
        list: &NetworkList,
        attachment: &Attachment,
        metadata: &CacheMetadata,
    ) -> Result<(), Error> {
        let content = Entry::new(list, attachment, metadata, None).to_bytes();
        let directory = Directory::make(self.intents(), 0o700)?;
        Ok(directory.replace(&file_name::of(&list.name, attachment), &content, 0o600)?)
    }

    /// Whether there is an intent of an ADD that neither succeeded nor was withdrawn. If stat(2) cannot tell, there may be one.
    pub(crate) fn has_begun(&self, list: &NetworkList, attachment: &Attachment) -> bool {
        self.intents().join(file_name::of(&list.name, attachment)).try_exists().unwrap_or(true)
    }

    /// Removes the intent of an ADD that made nothing a DEL would have to undo.
    pub(crate) fn withdraw(&self, list: &NetworkList, attachment: &Attachment) -> Result<(), Error> {
        Directory::open(self.intents())?.remove_durably(&file_name::of(&list.name, attachment))?;
        Ok(())
    }

    /// Writes the result of an ADD that succeeded, and removes its intent.
    pub(crate) fn save(
        &self,
        list: &NetworkList,
        attachment: &Attachment,
        metadata: &CacheMetadata,
        result: &Value,
    ) -> Result<(), Error> {
        let name = file_name::of(&list.name, attachment);
        let content = Entry::new(list, attachment, metadata, Some(result)).to_bytes();
        let directory = Directory::make(self.results(), 0o700)?;
        if matches!(read_in(&directory, &name), Ok(CacheFile::Damaged(_) | CacheFile::Newer(_))) {
            self.set_aside(&directory, &name)?;
        }
        directory.replace_and_sync(&name, &content, 0o600)?;
        // If a power cut brings the intent back, the result is read before it.
        Directory::open(self.intents())?.remove(&name)?;
        Ok(())
    }

    /// Removes an attachment from the cache. A damaged file is set aside.
    pub(crate) fn forget(&self, network: &str, attachment: &Attachment) -> Result<(), Error> {
        let name = file_name::of(network, attachment);
        if !file_name::is_valid(&name) {
            return Ok(());
        }
        for dir in [self.intents(), self.results()] {
            let directory = match Directory::open(dir) {
                Ok(directory) => directory,
                // Without a directory nothing is cached.
                Err(error) if error.is_absent() || error.is_misplaced() => continue,
                Err(error) => return Err(error.into()),
            };
            match read_in(&directory, &name)? {
                CacheFile::Damaged(_) | CacheFile::Newer(_) => self.set_aside(&directory, &name)?,
                CacheFile::Entry(entry) if entry.is_of(network, attachment) => {
                    directory.remove_durably(&name)?;
                }
                CacheFile::Entry(_) | CacheFile::Missing => {}
            }
            // A runtime that was killed while it wrote may have left a temporary file.
            directory.discard_unfinished_of(&name)?;
        }
        Ok(())
    }

    fn set_aside(&self, from: &Directory, name: &str) -> Result<(), Error> {
        let aside = Directory::make(self.dir.join("cnikit/aside"), 0o700)?;
        Ok(from.set_aside(name, &aside)?)
    }

    fn damaged(&self, name: &str, why: &str) -> String {
        let file = self.results().join(name);
        let hint = "run DEL for this attachment: it succeeds without the file, and moves it away";
        format!("cached result {}: {why}; hint: {hint}", file.display())
    }

    /// The directory that upstream uses too.
    pub(crate) fn results(&self) -> PathBuf {
        self.dir.join("results")
    }

    pub(crate) fn intents(&self) -> PathBuf {
        self.dir.join("cnikit/intents")
    }

    pub(crate) fn locks(&self) -> PathBuf {
        self.dir.join("cnikit/locks")
    }
}

/// The file of an attachment.
#[derive(Debug)]
pub(crate) enum CacheFile {
    Missing,
    /// It cannot be trusted; the reason.
    Damaged(String),
    /// A later release wrote it: the file, its version and what to do.
    Newer(String),
    Entry(Box<Entry>),
}

/// Reads a cache file. An error is the file system's; a name that no file can have is missing.
pub(crate) fn read(dir: &Path, name: &str) -> Result<CacheFile, Error> {
    if !file_name::is_valid(name) {
        return Ok(CacheFile::Missing);
    }
    match Directory::open_if_any(dir)? {
        Some(directory) => read_in(&directory, name),
        None => Ok(CacheFile::Missing),
    }
}

fn read_in(directory: &Directory, name: &str) -> Result<CacheFile, Error> {
    let bytes = match directory.read(name, LIMIT) {
        Ok(None) => return Ok(CacheFile::Missing),
        Ok(Some((bytes, _))) => bytes,
        Err(error) if error.is_garbage() => return Ok(CacheFile::Damaged(error.to_string())),
        Err(error) => return Err(error.into()),
    };
    let entry = match Entry::of_file(&bytes, name) {
        Ok(entry) => entry,
        Err(why) => return Ok(CacheFile::Damaged(why)),
    };
    match check_version(directory.path().join(name), entry.version, FORMAT) {
        Ok(()) => Ok(CacheFile::Entry(Box::new(entry))),
        Err(newer) => Ok(CacheFile::Newer(newer.to_string())),
    }
}

/// A result in the version of the list. It is returned as it is if it has that version already.
pub(crate) fn in_version_of(list: &NetworkList, result: Value) -> Result<Value, Error> {
    let wanted = Version::exact(&list.version).unwrap_or(Version::NEWEST);
    let (version, parsed) = CniResult::read(&result, wanted).map_err(|error| {
        Error::Cache(format!("failed to convert cached result to config version \"{}\": {error}", list.version))
    })?;
    Ok(if version == wanted { result } else { parsed.write(wanted) })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use serde_json::json;
    use tempfile::TempDir;

    fn save(cache: &Cache, list: &NetworkList, attachment: &Attachment) {
        cache.check_space(list, attachment).unwrap();
        cache.begin(list, attachment, &CacheMetadata::now("")).unwrap();
        cache.save(list, attachment, &CacheMetadata::now(""), &result()).unwrap();
    }

    fn list(name: &str, version: &str) -> NetworkList {
        let text = format!(r#"{{"name": "{name}", "cniVersion": "{version}", "plugins": [{{"type": "t"}}]}}"#);
        NetworkList::parse(text.as_bytes()).unwrap()
    }

    fn at(container_id: &str) -> Attachment {
        Attachment::new(container_id, "/ns")
    }

    fn result() -> Value {
        json!({"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/8"}], "x": 1})
    }

    #[test]
    fn a_result_is_read_until_its_attachment_is_removed() {
        let dir = TempDir::new().unwrap();
        let cache = Cache::below(dir.path());
        let list = list("net", "1.0.0");
        let at = at("c1");
        assert_eq!(cache.result(&list, &at).unwrap(), None);
        save(&cache, &list, &at);
        assert_eq!(cache.result(&list, &at).unwrap(), Some(result()));
        cache.forget("net", &at).unwrap();
        cache.forget("net", &at).unwrap();
        assert_eq!(cache.result(&list, &at).unwrap(), None);
        assert_eq!(fs::read_dir(dir.path().join("results")).unwrap().count(), 0);
    }

    #[test]
    fn a_cached_result_is_read_in_the_version_of_the_configuration() {
        let dir = TempDir::new().unwrap();
        let cache = Cache::below(dir.path());
        save(&cache, &list("net", "1.0.0"), &at("c1"));
        let read = cache.result(&list("net", "0.4.0"), &at("c1")).unwrap().unwrap();
        assert_eq!((&read["cniVersion"], &read["ips"][0]["version"]), (&json!("0.4.0"), &json!("4")));
    }

    #[test]
    fn a_bare_result_is_read() {
        let dir = TempDir::new().unwrap();
        fs::create_dir(dir.path().join("results")).unwrap();
        fs::write(dir.path().join("results/net-c1-eth0"), result().to_string()).unwrap();
        let cache = Cache::below(dir.path());
        assert_eq!(cache.result(&list("net", "1.0.0"), &at("c1")).unwrap(), Some(result()));
    }

    #[test]
    fn an_attachment_with_the_file_name_of_another_is_refused_and_changes_nothing() {
        let dir = TempDir::new().unwrap();
        let cache = Cache::below(dir.path());
        save(&cache, &list("a-b", "1.0.0"), &at("c"));
        let other = list("a", "1.0.0");
        let other_at = at("b-c");
        assert!(
            cache.check_space(&other, &other_at).unwrap_err().to_string().contains("belongs to another attachment")
        );
        assert_eq!(cache.result(&other, &other_at).unwrap(), None);
        cache.forget("a", &other_at).unwrap();
        assert_eq!(cache.result(&list("a-b", "1.0.0"), &at("c")).unwrap(), Some(result()));
        cache.check_space(&list("a-b", "1.0.0"), &at("c")).unwrap();
    }

    #[test]
    fn names_that_are_too_long_for_a_file_name_are_refused() {
        let dir = TempDir::new().unwrap();
        let cache = Cache::below(dir.path());
        let list = list("n", "1.0.0");
        let longest = at(&"c".repeat(file_name::LONGEST - "n--eth0".len()));
        save(&cache, &list, &longest);
        let longer = at(&format!("{}c", longest.container_id));
        assert!(cache.check_space(&list, &longer).unwrap_err().to_string().contains("too long"));
    }

    #[test]
    fn a_damaged_file_blocks_no_add_and_is_removed_with_the_attachment() {
        let dir = TempDir::new().unwrap();
        fs::create_dir(dir.path().join("results")).unwrap();
        fs::write(dir.path().join("results/net-c1-eth0"), "\0\0").unwrap();
        let cache = Cache::below(dir.path());
        let list = list("net", "1.0.0");
        let at = at("c1");
        assert!(cache.result(&list, &at).is_err());
        cache.check_space(&list, &at).unwrap();
        cache.forget("net", &at).unwrap();
        assert_eq!(cache.result(&list, &at).unwrap(), None);
    }
}

//! What ADD answered, kept until DEL, and what an ADD was about to do, noted until it has answered.

use std::path::{Path, PathBuf};

use cnikit_store::{Directory, check_version};
use cnikit_types::{CniResult, Version};
use serde_json::Value;

use crate::cache::entry::{CacheMetadata, Entry, FORMAT};
use crate::cache::file_name;
use crate::{Attachment, Error, NetworkList};

/// The longest file that is read: a result is a few kilobytes.
pub(crate) const LIMIT: usize = 16 << 20;

/// The directory of kept results: one file an attachment, named `<network>-<container id>-<ifname>`.
///
/// Place, names and content are the reference's, in `results/`. Unlike its own files these appear whole and survive a power
/// cut. What the reference does not know lies beside, in `cnikit/`: in `intents/` what an ADD is about to do, in `aside/`
/// what was found damaged, in `locks/` who is at work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    dir: PathBuf,
}

/// What is known of one attachment before a verb that is to take it down.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// What ADD kept, or had begun to do; `None` if nothing is known, or nothing that can be trusted.
    pub(crate) entry: Option<Entry>,
    /// What is wrong with the files, each in a sentence.
    pub(crate) damage: Vec<String>,
}

impl Cache {
    /// A cache below `dir`, usually `/var/lib/cni`; it is created when the first result is cached.
    pub fn below(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// Refuses an attachment whose result could not be kept: asked before anything is set up.
    ///
    /// Names with dashes can meet in one file name (`a-b` and `c`, `a` and `b-c`); the first one stays.
    pub(crate) fn check_room(&self, list: &NetworkList, at: &Attachment) -> Result<(), Error> {
        let name = file_name::of(&list.name, at);
        if name.len() > file_name::LONGEST {
            return Err(Error::Cache(format!("network, container id and interface are too long together: \"{name}\"")));
        }
        Directory::make(self.results(), 0o700)?.probe()?;
        for dir in [self.results(), self.intents()] {
            match read(&dir, &name)? {
                CacheFile::Entry(entry) if !entry.is_of(&list.name, at) => {
                    return Err(Error::Cache(format!("{} is another attachment's", dir.join(name).display())));
                }
                CacheFile::Newer(why) => return Err(Error::Cache(why)),
                // Garbage too makes room.
                CacheFile::Entry(_) | CacheFile::Garbage(_) | CacheFile::Nothing => {}
            }
        }
        Ok(())
    }

    /// The cached result in the version of the list; `None` if there is none for this attachment.
    ///
    /// # Errors
    /// [`Error::Cache`] if the file cannot be read, is damaged, or has a result that the version of the list cannot express.
    pub fn result(&self, list: &NetworkList, at: &Attachment) -> Result<Option<Value>, Error> {
        let name = file_name::of(&list.name, at);
        match read(&self.results(), &name)? {
            CacheFile::Entry(entry) if entry.is_of(&list.name, at) => {
                entry.result.map(|result| in_version_of(list, result)).transpose()
            }
            CacheFile::Garbage(why) => Err(Error::Cache(self.garbage(&name, &why))),
            CacheFile::Newer(why) => Err(Error::Cache(why)),
            CacheFile::Entry(_) | CacheFile::Nothing => Ok(None),
        }
    }

    /// What is known of an attachment, for a DEL: the kept result, else the intent. Whatever is wrong is told, and is no
    /// error.
    pub(crate) fn record(&self, network: &str, at: &Attachment) -> Record {
        let name = file_name::of(network, at);
        let mut record = Record::default();
        for dir in [self.results(), self.intents()] {
            match read(&dir, &name) {
                Ok(CacheFile::Entry(entry)) if entry.is_of(network, at) => record.entry = record.entry.or(Some(*entry)),
                Ok(CacheFile::Garbage(why)) => record.damage.push(format!("{}: {why}", dir.join(&name).display())),
                Ok(CacheFile::Newer(why)) => record.damage.push(why),
                Ok(CacheFile::Entry(_) | CacheFile::Nothing) => {}
                Err(error) => record.damage.push(error.to_string()),
            }
        }
        record
    }

    /// Notes what an ADD is about to do. It outlives the runtime; it is not synced, which would take as long as the ADD: what
    /// the kernel had goes with the power too, and a file that lost its content still tells a DEL or GC by its name.
    pub(crate) fn begin(&self, list: &NetworkList, at: &Attachment, note: &CacheMetadata) -> Result<(), Error> {
        let content = Entry::new(list, at, note, None).to_bytes();
        let directory = Directory::make(self.intents(), 0o700)?;
        Ok(directory.replace(&file_name::of(&list.name, at), &content, 0o600)?)
    }

    /// Whether an ADD of this attachment was begun and neither succeeded nor was withdrawn.
    pub(crate) fn has_begun(&self, list: &NetworkList, at: &Attachment) -> bool {
        self.intents().join(file_name::of(&list.name, at)).exists()
    }

    /// Takes back what an ADD was about to do, for it did nothing that a DEL would have to undo.
    pub(crate) fn withdraw(&self, list: &NetworkList, at: &Attachment) -> Result<(), Error> {
        Directory::open(self.intents())?.remove_durably(&file_name::of(&list.name, at))?;
        Ok(())
    }

    /// Keeps the result of an ADD that succeeded, in place of its intent.
    pub(crate) fn save(
        &self,
        list: &NetworkList,
        at: &Attachment,
        note: &CacheMetadata,
        result: &Value,
    ) -> Result<(), Error> {
        let name = file_name::of(&list.name, at);
        let content = Entry::new(list, at, note, Some(result)).to_bytes();
        let directory = Directory::make(self.results(), 0o700)?;
        if matches!(read_in(&directory, &name), Ok(CacheFile::Garbage(_) | CacheFile::Newer(_))) {
            self.set_aside(&directory, &name)?;
        }
        directory.replace_and_sync(&name, &content, 0o600)?;
        // Should it come back after a power cut, the result beside it says more.
        Directory::open(self.intents())?.remove(&name)?;
        Ok(())
    }

    /// Forgets the attachment, when it is gone. What cannot be read is nobody's: it is set aside.
    pub(crate) fn forget(&self, network: &str, at: &Attachment) -> Result<(), Error> {
        let name = file_name::of(network, at);
        if !file_name::is_valid(&name) {
            return Ok(());
        }
        for dir in [self.intents(), self.results()] {
            let directory = match Directory::open(dir) {
                // Where no directory is, nothing is kept.
                Err(error) if error.is_absent() || error.is_misplaced() => continue,
                opened => opened?,
            };
            match read_in(&directory, &name)? {
                CacheFile::Garbage(_) | CacheFile::Newer(_) => self.set_aside(&directory, &name)?,
                CacheFile::Entry(entry) if entry.is_of(network, at) => {
                    directory.remove_durably(&name)?;
                }
                CacheFile::Entry(_) | CacheFile::Nothing => {}
            }
            // A runtime that was killed while it wrote may have left that.
            directory.discard_unfinished_of(&name)?;
        }
        Ok(())
    }

    fn set_aside(&self, from: &Directory, name: &str) -> Result<(), Error> {
        let aside = Directory::make(self.dir.join("cnikit/aside"), 0o700)?;
        Ok(from.set_aside(name, &aside)?)
    }

    fn garbage(&self, name: &str, why: &str) -> String {
        let file = self.results().join(name);
        format!("kept result {}: {why}; hint: DEL, which does without it and sets the file aside", file.display())
    }

    /// Where the reference has its files.
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

/// What a file is.
#[derive(Debug)]
pub(crate) enum CacheFile {
    Nothing,
    Garbage(String),
    /// A later release wrote it: the file, its version and what to do.
    Newer(String),
    Entry(Box<Entry>),
}

/// Reads a file of a directory of entries. An error is the file system's; what cannot be a file's name is none's.
pub(crate) fn read(dir: &Path, name: &str) -> Result<CacheFile, Error> {
    if !file_name::is_valid(name) {
        return Ok(CacheFile::Nothing);
    }
    match Directory::open_if_any(dir)? {
        Some(directory) => read_in(&directory, name),
        None => Ok(CacheFile::Nothing),
    }
}

fn read_in(directory: &Directory, name: &str) -> Result<CacheFile, Error> {
    match directory.read(name, LIMIT) {
        Ok(None) => Ok(CacheFile::Nothing),
        Ok(Some((bytes, _))) => {
            let entry = match Entry::of_file(&bytes, name) {
                Ok(entry) => entry,
                Err(why) => return Ok(CacheFile::Garbage(why)),
            };
            match check_version(directory.path().join(name), entry.version, FORMAT) {
                Ok(()) => Ok(CacheFile::Entry(Box::new(entry))),
                Err(newer) => Ok(CacheFile::Newer(newer.to_string())),
            }
        }
        Err(error) if error.is_garbage() => Ok(CacheFile::Garbage(error.to_string())),
        Err(error) => Err(error.into()),
    }
}

/// A result as it is, if it is in the list's version already; else converted.
pub(crate) fn in_version_of(list: &NetworkList, result: Value) -> Result<Value, Error> {
    let wanted = Version::exact(&list.version).unwrap_or(Version::NEWEST);
    let (version, answer) = CniResult::read(&result, wanted).map_err(|error| {
        Error::Cache(format!("failed to convert cached result to config version \"{}\": {error}", list.version))
    })?;
    Ok(if version == wanted { result } else { answer.write(wanted) })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use serde_json::json;
    use tempfile::TempDir;

    fn keep(cache: &Cache, list: &NetworkList, at: &Attachment) {
        cache.check_room(list, at).unwrap();
        cache.begin(list, at, &CacheMetadata::now("")).unwrap();
        cache.save(list, at, &CacheMetadata::now(""), &result()).unwrap();
    }

    fn list(name: &str, version: &str) -> NetworkList {
        let text = format!(r#"{{"name": "{name}", "cniVersion": "{version}", "plugins": [{{"type": "t"}}]}}"#);
        NetworkList::parse(text.as_bytes()).unwrap()
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
        keep(&cache, &list, &at);
        assert_eq!(cache.result(&list, &at).unwrap(), Some(result()));
        cache.forget("net", &at).unwrap();
        cache.forget("net", &at).unwrap();
        assert_eq!(cache.result(&list, &at).unwrap(), None);
        assert_eq!(fs::read_dir(dir.path().join("results")).unwrap().count(), 0);
    }

    #[test]
    fn a_kept_result_is_read_in_the_version_of_the_configuration() {
        let dir = TempDir::new().unwrap();
        let cache = Cache::below(dir.path());
        keep(&cache, &list("net", "1.0.0"), &at("c1"));
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
        keep(&cache, &list("a-b", "1.0.0"), &at("c"));
        let (other, other_at) = (list("a", "1.0.0"), at("b-c"));
        assert!(cache.check_room(&other, &other_at).unwrap_err().to_string().contains("another attachment's"));
        assert_eq!(cache.result(&other, &other_at).unwrap(), None);
        cache.forget("a", &other_at).unwrap();
        assert_eq!(cache.result(&list("a-b", "1.0.0"), &at("c")).unwrap(), Some(result()));
        cache.check_room(&list("a-b", "1.0.0"), &at("c")).unwrap();
    }

    #[test]
    fn names_that_do_not_fit_one_file_name_are_refused_and_the_longest_that_do_are_kept() {
        let dir = TempDir::new().unwrap();
        let (cache, list) = (Cache::below(dir.path()), list("n", "1.0.0"));
        let longest = at(&"c".repeat(file_name::LONGEST - "n--eth0".len()));
        keep(&cache, &list, &longest);
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
        cache.forget("net", &at).unwrap();
        assert_eq!(cache.result(&list, &at).unwrap(), None);
    }
}

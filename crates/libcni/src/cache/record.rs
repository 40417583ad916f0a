//! The cached attachments of a node, with their state and their problems.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cnikit_netns::{NetnsLookup, find};
use cnikit_store::Directory;
use cnikit_types::{CniResult, Version};
use serde_json::Value;

use crate::cache::entry::{CacheMetadata, Entry, recorded};
use crate::cache::file_name;
use crate::cache::lock::is_busy;
use crate::cache::results::{CacheFile, read};
use crate::{Attachment, Cache, ConfigError, Error, NetworkList, ValidAttachment};

/// The state of a cached attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Its ADD succeeded, and no DEL has.
    Attached,
    /// A call works on its container, and its ADD has not succeeded.
    Adding,
    /// Its ADD failed or was killed, and no DEL has succeeded since: parts of it may exist.
    Interrupted,
    /// Its file is damaged; only the file's name is known.
    Unreadable,
}

/// One attachment in the cache.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CachedAttachment {
    /// The network's name; empty if the file does not have it.
    pub network: String,
    /// Container, interface, path of the namespace, arguments and capabilities; a value is empty if the file does not have it.
    pub at: Attachment,
    /// Its state.
    pub state: State,
    /// The result of the last plugin, in the version in which it was returned.
    pub result: Option<Value>,
    /// The configuration with which it was added; see [`CachedAttachment::list`].
    pub config: Option<Vec<u8>>,
    /// The time, the boot and the namespace of its ADD; empty in a file of another runtime.
    pub metadata: CacheMetadata,
    /// When its file was last written.
    pub written: SystemTime,
    /// Its file.
    pub file: PathBuf,
    /// Its problems, one sentence each: a damaged file, a namespace that is gone, an invalid configuration.
    pub problems: Vec<String>,
}

impl Cache {
    /// Every attachment, sorted by file name: first those that are attached, then those whose ADD has not succeeded.
    ///
    /// # Errors
    /// [`Error::Cache`] if one of the directories cannot be listed. A single damaged file is not an error:
    /// [`CachedAttachment::problems`] says what is wrong with it.
    pub fn attachments(&self) -> Result<Vec<CachedAttachment>, Error> {
        self.all_named(|_| true)
    }

    /// The attachments of one container, as far as their files can be read.
    ///
    /// # Errors
    /// As [`Cache::attachments`].
    pub fn attachments_of(&self, container_id: &str) -> Result<Vec<CachedAttachment>, Error> {
        let part = format!("-{container_id}-");
        let mut found = self.all_named(|name| name.to_str().is_some_and(|name| name.contains(&part)))?;
        found.retain(|cached| cached.at.container_id == container_id);
        Ok(found)
    }

    fn all_named(&self, is_wanted: impl Fn(&OsString) -> bool) -> Result<Vec<CachedAttachment>, Error> {
        let results = names(&self.results())?;
        let mut intents = names(&self.intents())?;
        intents.retain(|name| results.binary_search(name).is_err());
        let mut found = Vec::new();
        for (dir, names) in [(self.results(), &results), (self.intents(), &intents)] {
            for name in names {
                if is_wanted(name)
                    && let Some(cached) = self.read_attachment(&dir, name)
                {
                    found.push(cached);
                }
            }
        }
        Ok(found)
    }

    /// One attachment, if it is in the cache.
    pub fn attachment(&self, network: &str, container_id: &str, ifname: &str) -> Option<CachedAttachment> {
        let name = OsString::from(file_name::from_parts(network, container_id, ifname));
        let from_results = self.read_attachment(&self.results(), &name);
        let cached = from_results.or_else(|| self.read_attachment(&self.intents(), &name))?;
        if cached.network.is_empty() || cached.network == network { Some(cached) } else { None }
    }

    /// The state of an ADD that has an intent and no result.
    pub(crate) fn state_of_intent(&self, container_id: &str) -> State {
        if is_busy(self, container_id) { State::Adding } else { State::Interrupted }
    }

    /// The attachment in a file; `None` if the file is gone.
    fn read_attachment(&self, dir: &Path, name: &OsString) -> Option<CachedAttachment> {
        let file = dir.join(name);
        let written = file.symlink_metadata().and_then(|found| found.modified()).unwrap_or(UNIX_EPOCH);
        let found = match name.to_str() {
            Some(text) => read(dir, text).unwrap_or_else(|error| CacheFile::Damaged(error.to_string())),
            None => CacheFile::Damaged("its name is not UTF-8".to_owned()),
        };
        let entry = match found {
            CacheFile::Missing => return None,
            CacheFile::Damaged(why) | CacheFile::Newer(why) => return Some(unreadable(file, written, why)),
            CacheFile::Entry(entry) => *entry,
        };
        if !entry.has_kind {
            let why = "a bare result, as runtimes stored them before 2019: it does not name the attachment".to_owned();
            return Some(CachedAttachment { result: entry.result, ..unreadable(file, written, why) });
        }
        let state = if dir == self.intents() { self.state_of_intent(&entry.at.container_id) } else { State::Attached };
        Some(readable(entry, state, file, written))
    }
}

/// The attachment of a file that cannot be read.
fn unreadable(file: PathBuf, written: SystemTime, why: String) -> CachedAttachment {
    CachedAttachment {
        network: String::new(),
        at: Attachment::default(),
        state: State::Unreadable,
        result: None,
        config: None,
        metadata: CacheMetadata::default(),
        written,
        file,
        problems: vec![why],
    }
}

/// The attachment of a file that was read, with its problems.
fn readable(entry: Entry, state: State, file: PathBuf, written: SystemTime) -> CachedAttachment {
    let Entry { network, at, config, result, metadata, .. } = entry;
    let mut cached =
        CachedAttachment { network, at, state, result, config, metadata, written, file, problems: Vec::new() };
    if state == State::Interrupted {
        cached.problems.push("its ADD was not completed: DEL removes what it made".to_owned());
    }
    if state == State::Attached && cached.cni_result().is_none() {
        cached.problems.push("it has no result that can be read".to_owned());
    }
    if let Err(error) = cached.list() {
        cached.problems.push(format!("its configuration cannot be used: {error}"));
    }
    if let Some(why) = cached.lost_namespace() {
        cached.problems.push(why);
    }
    cached
}

impl CachedAttachment {
    /// Container and interface, if it is an attachment of this network. If the file cannot be read they are from its name, which
    /// may be another network's if names have dashes.
    pub fn attachment_of(&self, network: &str) -> Option<ValidAttachment> {
        let (container_id, ifname) = match self.state {
            State::Unreadable => {
                let name = self.file.file_name()?.to_str()?;
                name.strip_prefix(network)?.strip_prefix('-')?.rsplit_once('-')?
            }
            _ if self.network == network => (&*self.at.container_id, &*self.at.ifname),
            _ => return None,
        };
        Some(ValidAttachment { container_id: container_id.to_owned(), ifname: ifname.to_owned() })
    }

    /// The addresses of the result, such as `10.1.0.2/24`.
    pub fn addresses(&self) -> Vec<String> {
        addresses_of(self.cni_result().as_ref())
    }

    /// The result converted to the newest version; `None` if there is none, or it cannot be parsed.
    pub fn cni_result(&self) -> Option<CniResult> {
        match CniResult::read(self.result.as_ref()?, Version::NEWEST) {
            Ok((_, result)) => Some(result),
            Err(_) => None,
        }
    }

    /// The network list with which it was added.
    ///
    /// # Errors
    /// [`Error::Configuration`] if the file has no configuration, or one that cannot be parsed.
    pub fn list(&self) -> Result<NetworkList, Error> {
        let hint = "put the network's configuration into the runtime's directory; DEL uses that";
        let failed = |why: &str| Error::from(ConfigError::of_file(&self.file, why, hint));
        let bytes = self.config.as_deref().ok_or_else(|| failed("the file has no configuration"))?;
        recorded(bytes, &self.network).map_err(|why| failed(&why))
    }

    /// The attachment for a DEL: without the path of a namespace that is gone, because it may now be another container's.
    pub(crate) fn for_del(&self) -> Attachment {
        let mut attachment = self.at.clone();
        if self.lost_namespace().is_some() {
            attachment.netns.clear();
        }
        attachment
    }

    /// The time since its ADD, or since its file was written.
    pub fn age(&self) -> Duration {
        self.metadata.age(self.written)
    }

    /// Why the path of its namespace no longer leads to it; `None` if it does, or if that is not known.
    pub fn lost_namespace(&self) -> Option<String> {
        let path = &self.at.netns;
        if let (Some(then), Ok(now)) = (&self.metadata.boot_id, cnikit_netns::boot_id())
            && *then != now
        {
            return Some("it is of another boot: its namespace is gone".to_owned());
        }
        match find(path) {
            NetnsLookup::Gone => Some(format!("its namespace {path} is gone")),
            NetnsLookup::NotNetns { why, .. } => {
                Some(format!("its namespace {path} is not a namespace any more: {why}"))
            }
            NetnsLookup::Own(_) => Some(format!("its namespace {path} is the host's own")),
            NetnsLookup::Present(netns) => match (self.metadata.netns_cookie, netns.cookie()) {
                (Some(then), Ok(now)) if then != now => Some(format!("{path} leads to another namespace now")),
                _ => None,
            },
            NetnsLookup::Empty | NetnsLookup::Unknown { .. } => None,
        }
    }
}

/// The addresses of a result, such as `10.1.0.2/24`.
pub(crate) fn addresses_of(result: Option<&CniResult>) -> Vec<String> {
    let ips = result.map(|result| result.ips.as_slice()).unwrap_or_default();
    ips.iter().map(|ip| ip.address.to_string()).collect()
}

/// The files of a directory without temporary ones, by name; empty if the directory does not exist.
fn names(dir: &Path) -> Result<Vec<OsString>, Error> {
    match Directory::open_if_any(dir)? {
        Some(directory) => names_in(&directory),
        None => Ok(Vec::new()),
    }
}

/// The same for an open directory.
pub(crate) fn names_in(directory: &Directory) -> Result<Vec<OsString>, Error> {
    let mut names = directory.list()?;
    names.retain(|name| !name.as_encoded_bytes().starts_with(b"."));
    names.sort_unstable();
    Ok(names)
}

//! Everything that is known of the attachments of a node, without asking a plugin.

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

/// How far an attachment has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Its ADD succeeded, and no DEL has.
    Attached,
    /// Somebody is at work on its container, and its ADD has not succeeded.
    Adding,
    /// Its ADD failed or was killed, and no DEL has been: some of it may stand.
    Interrupted,
    /// Its file says nothing that can be trusted; of the attachment no more is known than the file's name.
    Unreadable,
}

/// One attachment, as the cache has it.
#[derive(Clone, Debug)]
pub struct CachedAttachment {
    /// The network's name; empty if the file does not say.
    pub network: String,
    /// Container, interface, path of the namespace, and what the plugins were given; empty as far as the file does not say.
    pub at: Attachment,
    /// How far it has come.
    pub state: State,
    /// What the last plugin answered, in the version in which it did.
    pub result: Option<Value>,
    /// The configuration with which it was added, as a [`NetworkList`] reads it.
    pub config: Option<Vec<u8>>,
    /// When, in which boot, in which namespace; empty in a file of another runtime.
    pub note: CacheMetadata,
    /// When its file was last written.
    pub written: SystemTime,
    /// Its file.
    pub file: PathBuf,
    /// What is wrong with it, each in a sentence: a damaged file, a namespace that is gone, a configuration that is none.
    pub broken: Vec<String>,
}

impl Cache {
    /// Every attachment, by the name of its file: first those that are attached, then those whose ADD has not succeeded.
    ///
    /// # Errors
    /// [`Error::Cache`] if one of the directories cannot be listed. A single damaged file is not an error:
    /// [`CachedAttachment::broken`] says what is wrong with it.
    pub fn attachments(&self) -> Result<Vec<CachedAttachment>, Error> {
        self.all_named(|_| true)
    }

    /// The attachments of one container, as far as their files can be read.
    ///
    /// # Errors
    /// As [`Cache::attachments`].
    pub fn attachments_of(&self, container_id: &str) -> Result<Vec<CachedAttachment>, Error> {
        let part = format!("-{container_id}-");
        let all = self.all_named(|name| name.to_str().is_some_and(|name| name.contains(&part)))?;
        Ok(all.into_iter().filter(|kept| kept.at.container_id == container_id).collect())
    }

    fn all_named(&self, is_wanted: impl Fn(&OsString) -> bool) -> Result<Vec<CachedAttachment>, Error> {
        let done = names(&self.results())?;
        let is_only_begun = |name: &OsString| done.binary_search(name).is_err();
        let begun: Vec<OsString> = names(&self.intents())?.into_iter().filter(is_only_begun).collect();
        let look = |dir: PathBuf, names: Vec<OsString>| -> Vec<CachedAttachment> {
            names.iter().filter(|name| is_wanted(name)).filter_map(|name| self.look(&dir, name)).collect()
        };
        let begun = look(self.intents(), begun);
        Ok([look(self.results(), done), begun].concat())
    }

    /// One attachment; `None` if there is no file of it.
    pub fn attachment(&self, network: &str, container_id: &str, ifname: &str) -> Option<CachedAttachment> {
        let name = OsString::from(file_name::from_parts(network, container_id, ifname));
        let kept = self.look(&self.results(), &name).or_else(|| self.look(&self.intents(), &name))?;
        Some(kept).filter(|kept| kept.network.is_empty() || kept.network == network)
    }

    /// How far an ADD has come whose result is not kept.
    pub(crate) fn state_of_begun(&self, container_id: &str) -> State {
        if is_busy(self, container_id) { State::Adding } else { State::Interrupted }
    }

    /// What a file says; `None` if it has gone.
    fn look(&self, dir: &Path, name: &OsString) -> Option<CachedAttachment> {
        let (file, begun) = (dir.join(name), dir == self.intents());
        let written = file.symlink_metadata().and_then(|found| found.modified()).unwrap_or(UNIX_EPOCH);
        let found = match name.to_str() {
            Some(text) => read(dir, text).unwrap_or_else(|error| CacheFile::Garbage(error.to_string())),
            None => CacheFile::Garbage("its name is not UTF-8".to_owned()),
        };
        let unreadable = |why: String| CachedAttachment {
            network: String::new(),
            at: Attachment::default(),
            state: State::Unreadable,
            result: None,
            config: None,
            note: CacheMetadata::default(),
            written,
            file: file.clone(),
            broken: vec![why],
        };
        match found {
            CacheFile::Nothing => None,
            CacheFile::Garbage(why) | CacheFile::Newer(why) => Some(unreadable(why)),
            CacheFile::Entry(entry) if !entry.marked => {
                let why = "a bare result, as runtimes kept them before 2019: it does not say whose".to_owned();
                Some(CachedAttachment { result: entry.result, ..unreadable(why) })
            }
            CacheFile::Entry(entry) => {
                let state = if begun { self.state_of_begun(&entry.at.container_id) } else { State::Attached };
                Some(cached_attachment(*entry, state, written, file.clone()))
            }
        }
    }
}

fn cached_attachment(entry: Entry, state: State, written: SystemTime, file: PathBuf) -> CachedAttachment {
    let Entry { network, at, config, result, note, .. } = entry;
    let mut kept = CachedAttachment { network, at, state, result, config, note, written, file, broken: Vec::new() };
    if state == State::Interrupted {
        kept.broken.push("its ADD has not come to its end: DEL removes what it made".to_owned());
    }
    if state == State::Attached && kept.answer().is_none() {
        kept.broken.push("it has no result that can be read".to_owned());
    }
    if let Err(error) = kept.list() {
        kept.broken.push(format!("its configuration cannot be used: {error}"));
    }
    kept.broken.extend(kept.lost_namespace());
    kept
}

impl CachedAttachment {
    /// Container and interface, if it is an attachment of this network. For a file that cannot be read they are taken from its
    /// name, which can be another network's if names contain dashes: enough to decide whom to ask, but not a proof.
    pub fn whose(&self, network: &str) -> Option<ValidAttachment> {
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
        self.answer().into_iter().flat_map(|answer| answer.ips).map(|ip| ip.address.to_string()).collect()
    }

    /// The result in the form of the newest version, if there is one and it can be read.
    pub fn answer(&self) -> Option<CniResult> {
        CniResult::read(self.result.as_ref()?, Version::NEWEST).ok().map(|(_, answer)| answer)
    }

    /// The network as it was when the attachment was added.
    ///
    /// # Errors
    /// [`Error::Configuration`] if the file has no configuration, or one that cannot be parsed.
    pub fn list(&self) -> Result<NetworkList, Error> {
        let hint = "put the network's configuration into the runtime's directory; DEL goes by that";
        let failed = |why: &str| Error::from(ConfigError::of_file(&self.file, why, hint));
        let bytes = self.config.as_deref().ok_or_else(|| failed("the file has no configuration"))?;
        recorded(bytes, &self.network).map_err(|why| failed(&why))
    }

    /// Whom a DEL is about now: without the path of a namespace that is gone, for it may lead to another container's.
    pub(crate) fn at_now(&self) -> Attachment {
        let mut at = self.at.clone();
        if self.lost_namespace().is_some() {
            at.netns.clear();
        }
        at
    }

    /// How long ago its file was written, according to the clock.
    pub fn age(&self) -> Duration {
        self.note.age(self.written)
    }

    /// Why the path of its namespace no longer leads to it; `None` if it does, or if that cannot be determined.
    pub fn lost_namespace(&self) -> Option<String> {
        let path = &self.at.netns;
        if let (Some(then), Ok(now)) = (&self.note.boot_id, cnikit_netns::boot_id())
            && *then != now
        {
            return Some("it is of another boot: its namespace is gone".to_owned());
        }
        match find(path) {
            NetnsLookup::Gone => Some(format!("its namespace {path} is gone")),
            NetnsLookup::NotNetns { why, .. } => Some(format!("its namespace {path} is none any more: {why}")),
            NetnsLookup::Own(_) => Some(format!("its namespace {path} is the host's own")),
            NetnsLookup::Present(netns) => match (self.note.netns_cookie, netns.cookie()) {
                (Some(then), Ok(now)) if then != now => Some(format!("{path} leads to another namespace now")),
                _ => None,
            },
            NetnsLookup::Empty | NetnsLookup::Unknown { .. } => None,
        }
    }
}

/// The files of a directory but for temporary ones, by name; none if it is not there.
fn names(dir: &Path) -> Result<Vec<OsString>, Error> {
    Directory::open_if_any(dir)?.map_or(Ok(Vec::new()), |directory| names_in(&directory))
}

/// The same of an open one.
pub(crate) fn names_in(directory: &Directory) -> Result<Vec<OsString>, Error> {
    let mut names = directory.list()?;
    names.retain(|name| !name.as_encoded_bytes().starts_with(b"."));
    names.sort_unstable();
    Ok(names)
}

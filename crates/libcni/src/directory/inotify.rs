//! The inotify watches of a directory of configurations: every directory in which a change can affect a configuration.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};

use crate::config::load::EXTENSIONS;

/// The kernel's limit on symbolic links in one path; see `path_resolution(7)`.
const MOST_LINKS: usize = 40;

/// Adds to the events of a directory that is already watched.
#[doc(alias = "IN_MASK_ADD")]
const MASK_ADD: AddWatchFlags = AddWatchFlags::from_bits_retain(libc::IN_MASK_ADD);

/// Events of names in a directory, and of the directory itself.
const NAMES: AddWatchFlags = AddWatchFlags::IN_CREATE
    .union(AddWatchFlags::IN_DELETE)
    .union(AddWatchFlags::IN_MOVE)
    .union(AddWatchFlags::IN_DELETE_SELF)
    .union(AddWatchFlags::IN_MOVE_SELF)
    .union(AddWatchFlags::IN_ONLYDIR)
    .union(MASK_ADD);

/// The same, and events of the content and the permissions of files.
const CONTENT: AddWatchFlags =
    NAMES.union(AddWatchFlags::IN_MODIFY).union(AddWatchFlags::IN_CLOSE_WRITE).union(AddWatchFlags::IN_ATTRIB);

/// The relevant names in a watched directory.
#[derive(Debug)]
enum Interest {
    All,
    Names(BTreeSet<OsString>),
}

/// Whether relevant events were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Events {
    None,
    Some,
}

/// All watches of one directory of configurations.
#[derive(Debug)]
pub(crate) struct Watches {
    inotify: Inotify,
    directories: BTreeMap<WatchDescriptor, Interest>,
    /// Configuration files that were written and not closed since.
    open_files: BTreeSet<(WatchDescriptor, OsString)>,
}

impl Watches {
    pub(crate) fn new() -> Result<Watches, Errno> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        Ok(Watches { inotify, directories: BTreeMap::new(), open_files: BTreeSet::new() })
    }

    /// Watches the directory of configurations, its subdirectories, the directories of plugins, and every directory on the path to
    /// any of them or to the target of a link. Watches that are no longer needed are removed.
    ///
    /// Each directory is watched before the next name is looked up in it, so no change is missed.
    pub(crate) fn update<'a>(&mut self, dir: &Path, plugin_dirs: impl Iterator<Item = &'a str>) -> Result<(), Errno> {
        let mut update = Update { inotify: &self.inotify, directories: BTreeMap::new() };
        for plugin_dir in plugin_dirs {
            if let Some(found) = update.follow(Path::new(plugin_dir), NAMES)? {
                update.watch(&found, NAMES | AddWatchFlags::IN_ATTRIB | AddWatchFlags::IN_CLOSE_WRITE, None)?;
            }
        }
        if let Some(found) = update.follow(dir, NAMES)? {
            update.watch(&found, CONTENT, None)?;
            update.watch_below(&found)?;
        }
        let directories = update.directories;
        for watch in self.directories.keys() {
            if !directories.contains_key(watch) {
                // This fails if the kernel has removed it with its directory.
                let _ = self.inotify.rm_watch(*watch);
            }
        }
        self.directories = directories;
        self.open_files.retain(|(watch, _)| self.directories.contains_key(watch));
        Ok(())
    }

    /// Reads all events since the last time.
    pub(crate) fn read(&mut self) -> Result<Events, Errno> {
        let mut read = Events::None;
        loop {
            match self.inotify.read_events() {
                Ok(events) => {
                    for event in &events {
                        if self.handle(event) {
                            read = Events::Some;
                        }
                    }
                }
                Err(Errno::EAGAIN) => return Ok(read),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Whether a configuration file is being written.
    pub(crate) fn is_file_open(&self) -> bool {
        !self.open_files.is_empty()
    }

    /// Stops waiting for files that are being written.
    pub(crate) fn forget_open_files(&mut self) {
        self.open_files.clear();
    }

    /// Handles one event; returns whether it is relevant.
    fn handle(&mut self, event: &InotifyEvent) -> bool {
        if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
            self.open_files.clear();
            return true;
        }
        // An event may be of a watch that was removed meanwhile.
        let Some(interest) = self.directories.get(&event.wd) else { return false };
        let Some(name) = &event.name else { return true };
        let is_configuration = match interest {
            Interest::Names(names) if !names.contains(name) => return false,
            Interest::Names(_) => true,
            Interest::All => has_extension(name),
        };
        if is_configuration {
            let file = (event.wd, name.clone());
            if event.mask.contains(AddWatchFlags::IN_MODIFY) {
                self.open_files.insert(file);
            } else if !event.mask.contains(AddWatchFlags::IN_ATTRIB) {
                self.open_files.remove(&file);
            }
        }
        true
    }
}

impl AsFd for Watches {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

fn has_extension(name: &OsStr) -> bool {
    Path::new(name).extension().is_some_and(|end| EXTENSIONS.iter().any(|known| end == *known))
}

/// An update of the watches.
struct Update<'a> {
    inotify: &'a Inotify,
    directories: BTreeMap<WatchDescriptor, Interest>,
}

impl Update<'_> {
    /// Resolves a path as the kernel does, and watches the directory of each name; returns the resolved path, if all of it exists.
    fn follow(&mut self, path: &Path, last: AddWatchFlags) -> Result<Option<PathBuf>, Errno> {
        let Ok(path) = std::path::absolute(path) else { return Ok(None) };
        let mut ahead = names(&path);
        let mut here = PathBuf::from("/");
        let mut links = 0;
        while let Some(name) = ahead.pop_front() {
            if name == ".." {
                here.pop();
                continue;
            }
            self.watch(&here, if ahead.is_empty() { last } else { NAMES }, Some(&name))?;
            let next = here.join(&name);
            let Ok(found) = fs::symlink_metadata(&next) else { return Ok(None) };
            if !found.is_symlink() {
                here = next;
                continue;
            }
            links += 1;
            let Ok(target) = fs::read_link(&next) else { return Ok(None) };
            if links > MOST_LINKS {
                return Ok(None);
            }
            if target.is_absolute() {
                here = PathBuf::from("/");
            }
            let rest = std::mem::replace(&mut ahead, names(&target));
            ahead.extend(rest);
        }
        Ok(Some(here))
    }

    /// Watches the targets of links in the directory of configurations, and its subdirectories, which have plugins.
    fn watch_below(&mut self, dir: &Path) -> Result<(), Errno> {
        let Ok(entries) = fs::read_dir(dir) else { return Ok(()) };
        for entry in entries.flatten() {
            let path = entry.path();
            match entry.file_type() {
                Ok(kind) if kind.is_symlink() => match self.follow(&path, CONTENT)? {
                    Some(target) if target.is_dir() => self.watch(&target, CONTENT, None)?,
                    _ => {}
                },
                Ok(kind) if kind.is_dir() => self.watch(&path, CONTENT, None)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Watches one name in a directory, or all names. A directory that does not exist or cannot be read is skipped.
    fn watch(&mut self, dir: &Path, mask: AddWatchFlags, name: Option<&OsStr>) -> Result<(), Errno> {
        let watch = match self.inotify.add_watch(dir, mask) {
            Ok(watch) => watch,
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES | Errno::ELOOP) => return Ok(()),
            Err(errno) => return Err(errno),
        };
        let interest = self.directories.entry(watch).or_insert_with(|| Interest::Names(BTreeSet::new()));
        match (interest, name) {
            (Interest::Names(names), Some(name)) => {
                names.insert(name.to_owned());
            }
            (interest, None) => *interest = Interest::All,
            (Interest::All, Some(_)) => {}
        }
        Ok(())
    }
}

/// The names of a path, with `..` and without `.`.
fn names(path: &Path) -> VecDeque<OsString> {
    let mut names = VecDeque::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => names.push_back(name.to_owned()),
            Component::ParentDir => names.push_back(OsString::from("..")),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    names
}

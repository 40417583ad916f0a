//! Which directories have to be watched so that nothing is missed, and what happened in them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};

use crate::config::load::EXTENSIONS;

/// More symbolic links than this on the way to one file the kernel does not follow either; see `path_resolution(7)`.
const MOST_LINKS: usize = 40;

/// A directory that is watched for two reasons is watched for both.
#[doc(alias = "IN_MASK_ADD")]
const MASK_ADD: AddWatchFlags = AddWatchFlags::from_bits_retain(libc::IN_MASK_ADD);

/// Names that come and go, and the directory itself.
const NAMES: AddWatchFlags = AddWatchFlags::IN_CREATE
    .union(AddWatchFlags::IN_DELETE)
    .union(AddWatchFlags::IN_MOVE)
    .union(AddWatchFlags::IN_DELETE_SELF)
    .union(AddWatchFlags::IN_MOVE_SELF)
    .union(AddWatchFlags::IN_ONLYDIR)
    .union(MASK_ADD);

/// And what files say: their text, and who may read them.
const TEXTS: AddWatchFlags =
    NAMES.union(AddWatchFlags::IN_MODIFY).union(AddWatchFlags::IN_CLOSE_WRITE).union(AddWatchFlags::IN_ATTRIB);

/// The names in one directory that matter.
#[derive(Debug)]
enum Interest {
    All,
    These(BTreeSet<OsString>),
}

/// What came of listening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    Nothing,
    Something,
}

/// The watches.
#[derive(Debug)]
pub(crate) struct Armed {
    inotify: Inotify,
    watches: BTreeMap<WatchDescriptor, Interest>,
    /// Configurations that were written to and not closed since.
    written: BTreeSet<(WatchDescriptor, OsString)>,
}

impl Armed {
    pub(crate) fn new() -> Result<Armed, Errno> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        Ok(Armed { inotify, watches: BTreeMap::new(), written: BTreeSet::new() })
    }

    /// Watches the directory of configurations, those below it, the plugins' directories, and every directory in which
    /// a name stands that leads to any of them or to a file that is linked. What is no longer on the way is left.
    ///
    /// Each directory is watched before the next name is looked up in it, so nothing changes unseen.
    pub(crate) fn arm<'a>(&mut self, dir: &Path, bins: impl Iterator<Item = &'a str>) -> Result<(), Errno> {
        let mut way = Way { inotify: &self.inotify, watches: BTreeMap::new() };
        for bin in bins {
            if let Some(found) = way.follow(Path::new(bin), NAMES)? {
                way.watch(&found, NAMES | AddWatchFlags::IN_ATTRIB | AddWatchFlags::IN_CLOSE_WRITE, None)?;
            }
        }
        if let Some(found) = way.follow(dir, NAMES)? {
            way.watch(&found, TEXTS, None)?;
            way.below(&found)?;
        }
        let watches = way.watches;
        for watch in self.watches.keys().filter(|watch| !watches.contains_key(watch)) {
            // It is gone by itself if its directory is.
            let _ = self.inotify.rm_watch(*watch);
        }
        self.watches = watches;
        self.written.retain(|(watch, _)| self.watches.contains_key(watch));
        Ok(())
    }

    /// Reads what happened since the last time.
    pub(crate) fn listen(&mut self) -> Result<Heard, Errno> {
        let mut heard = Heard::Nothing;
        loop {
            match self.inotify.read_events() {
                Ok(events) => {
                    // Each has to be taken, whatever the one before it was.
                    let counted = events.iter().filter(|event| self.take(event)).count();
                    heard = if counted > 0 { Heard::Something } else { heard };
                }
                Err(Errno::EAGAIN) => return Ok(heard),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Whether somebody is writing a configuration.
    pub(crate) fn is_written(&self) -> bool {
        !self.written.is_empty()
    }

    /// Nobody is waited for any longer.
    pub(crate) fn forget_writers(&mut self) {
        self.written.clear();
    }

    /// Whether it counts.
    fn take(&mut self, event: &InotifyEvent) -> bool {
        if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
            self.written.clear();
            return true;
        }
        let (counts, is_named) = match (self.watches.get(&event.wd), &event.name) {
            // One of those that were left.
            (None, _) => (false, false),
            (Some(Interest::These(names)), Some(name)) => (names.contains(name), true),
            _ => (true, false),
        };
        let is_text = |name: &&OsString| is_named || is_configuration(name);
        if let Some(name) = event.name.as_ref().filter(|_| counts).filter(is_text) {
            let file = (event.wd, name.clone());
            if event.mask.contains(AddWatchFlags::IN_MODIFY) {
                self.written.insert(file);
            } else if !event.mask.contains(AddWatchFlags::IN_ATTRIB) {
                self.written.remove(&file);
            }
        }
        counts
    }
}

impl AsFd for Armed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

fn is_configuration(name: &OsStr) -> bool {
    Path::new(name).extension().is_some_and(|end| EXTENSIONS.iter().any(|known| end == *known))
}

/// The watches that are being set.
struct Way<'a> {
    inotify: &'a Inotify,
    watches: BTreeMap<WatchDescriptor, Interest>,
}

impl Way<'_> {
    /// Walks a path as the kernel does, watching the directory of each name; returns where it ends, if all of it is
    /// there.
    fn follow(&mut self, path: &Path, last: AddWatchFlags) -> Result<Option<PathBuf>, Errno> {
        let Ok(path) = std::path::absolute(path) else { return Ok(None) };
        let mut ahead = names(&path);
        let (mut here, mut links) = (PathBuf::from("/"), 0);
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
            let behind = std::mem::replace(&mut ahead, names(&target));
            ahead.extend(behind);
        }
        Ok(Some(here))
    }

    /// What stands in the directory of configurations and is not itself a file: links to files, directories of plugins.
    fn below(&mut self, dir: &Path) -> Result<(), Errno> {
        let Ok(entries) = fs::read_dir(dir) else { return Ok(()) };
        for entry in entries.flatten() {
            let path = entry.path();
            match entry.file_type() {
                Ok(kind) if kind.is_symlink() => {
                    if let Some(found) = self.follow(&path, TEXTS)?.filter(|found| found.is_dir()) {
                        self.watch(&found, TEXTS, None)?;
                    }
                }
                Ok(kind) if kind.is_dir() => self.watch(&path, TEXTS, None)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Watches one name in a directory, or all. One that is gone, or may not be read, is none to be watched.
    fn watch(&mut self, dir: &Path, mask: AddWatchFlags, name: Option<&OsStr>) -> Result<(), Errno> {
        let watch = match self.inotify.add_watch(dir, mask) {
            Ok(watch) => watch,
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES | Errno::ELOOP) => return Ok(()),
            Err(errno) => return Err(errno),
        };
        let interest = self.watches.entry(watch).or_insert_with(|| Interest::These(BTreeSet::new()));
        match (interest, name) {
            (Interest::These(names), Some(name)) => drop(names.insert(name.to_owned())),
            (interest, None) => *interest = Interest::All,
            (Interest::All, Some(_)) => {}
        }
        Ok(())
    }
}

/// The names of a path; those that lead nowhere else are left out.
fn names(path: &Path) -> VecDeque<OsString> {
    let name = |component: Component<'_>| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().filter_map(name).collect()
}

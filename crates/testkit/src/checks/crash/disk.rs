//! The files on the disk, and their changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The tree of a directory; paths are relative to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Disk(BTreeMap<PathBuf, Entry>);

/// A file or directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) inode: u64,
    /// The content of a file; `None` for a directory.
    pub(super) content: Option<Vec<u8>>,
}

/// One change that a system call made to the disk.
#[derive(Clone, Debug)]
pub(super) struct DiskChange {
    pub(super) path: PathBuf,
    pub(super) what: ChangeKind,
    /// Whether the change was synced.
    pub(super) durable: bool,
    /// Whether the file or directory that would have to be synced is removed. The file system may reuse its inode number for a new
    /// file; a sync of that file does not make this change durable.
    pub(super) removed: bool,
}

/// Identifies a change by file and kind, independent of its position in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChangeId {
    path: PathBuf,
    part: ChangedPart,
    /// The number of earlier changes of the same kind to the same file.
    nth: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChangedPart {
    Name,
    Content,
}

/// A change, and whether it is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChangeRecord {
    pub(super) mark: ChangeId,
    pub(super) durable: bool,
}

/// Identifies each change of a list.
pub(super) fn change_records(changes: &[DiskChange]) -> Vec<ChangeRecord> {
    let mut all: Vec<ChangeRecord> = Vec::new();
    for DiskChange { path, what, durable, .. } in changes {
        let part = match what {
            ChangeKind::Name { .. } => ChangedPart::Name,
            ChangeKind::Content { .. } => ChangedPart::Content,
        };
        let nth = all.iter().filter(|one| one.mark.path == *path && one.mark.part == part).count();
        all.push(ChangeRecord { mark: ChangeId { path: path.clone(), part, nth }, durable: *durable });
    }
    all
}

#[derive(Clone, Debug)]
pub(super) enum ChangeKind {
    /// The name refers to another file than before. `before` is the old file; `None` if the name is new.
    Name { before: Option<Entry>, directory: u64 },
    /// The content of the file changed; `before` is the old content, which is empty for a new file.
    Content { before: Vec<u8>, inode: u64 },
}

impl Disk {
    pub(super) fn of(root: &Path) -> Disk {
        let mut disk = Disk::default();
        disk.read(root, Path::new(""));
        disk
    }

    fn read(&mut self, root: &Path, at: &Path) {
        for entry in fs::read_dir(root.join(at)).into_iter().flatten().flatten() {
            let path = at.join(entry.file_name());
            let Ok(found) = entry.metadata() else { continue };
            if found.is_dir() {
                self.read(root, &path);
            }
            let content = if found.is_dir() { None } else { Some(fs::read(entry.path()).unwrap_or_default()) };
            self.0.insert(path, Entry { inode: found.ino(), content });
        }
    }

    pub(super) fn get(&self, path: &Path) -> Option<&Entry> {
        self.0.get(path)
    }

    pub(super) fn files(&self) -> impl Iterator<Item = (&Path, &[u8])> {
        self.0.iter().filter_map(|(path, entry)| Some((path.as_path(), entry.content.as_deref()?)))
    }

    /// The inode numbers of all files and directories.
    pub(super) fn inodes(&self) -> BTreeSet<u64> {
        self.0.values().map(|entry| entry.inode).collect()
    }

    /// The changes from `before` to this state; changes of a directory come before those in it.
    pub(super) fn changes_since(&self, before: &Disk, root: u64) -> Vec<DiskChange> {
        let paths: BTreeSet<&PathBuf> = self.0.keys().chain(before.0.keys()).collect();
        let mut changes = Vec::new();
        for path in paths {
            let was = before.get(path);
            let is = self.get(path);
            let mut note = |what| changes.push(DiskChange { path: path.clone(), what, durable: false, removed: false });
            let same = was.map(|entry| entry.inode) == is.map(|entry| entry.inode);
            if !same {
                let above = path.parent().and_then(|above| self.get(above).or_else(|| before.get(above)));
                note(ChangeKind::Name { before: was.cloned(), directory: above.map_or(root, |above| above.inode) });
            }
            let Some(Entry { inode, content: Some(content) }) = is else { continue };
            let old = was.filter(|_| same).and_then(|entry| entry.content.clone()).unwrap_or_default();
            if *content != old {
                note(ChangeKind::Content { before: old, inode: *inode });
            }
        }
        changes
    }
}

impl ChangeId {
    pub(super) fn part(&self) -> ChangedPart {
        self.part
    }
}

impl fmt::Display for ChangeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = match self.part {
            ChangedPart::Name => "name",
            ChangedPart::Content => "content",
        };
        write!(f, "change {} of the {part} of {}", self.nth + 1, self.path.display())
    }
}

impl DiskChange {
    /// The inode number of the file or directory whose sync makes the change durable.
    pub(super) fn inode(&self) -> u64 {
        match self.what {
            ChangeKind::Name { directory, .. } => directory,
            ChangeKind::Content { inode, .. } => inode,
        }
    }

    /// Marks the change as durable if a sync of this inode number makes it so.
    pub(super) fn synced(&mut self, inode: u64) {
        self.durable |= !self.removed && self.inode() == inode;
    }
}

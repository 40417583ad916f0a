//! Paths below the root of a node, resolved one name at a time.
//!
//! A container has the node's files below `--root`, and a link of the node, `/opt/cni -> /var/opt/cni`, is meant there. So links
//! are resolved here, as the kernel would after chroot(2): none leads out of the root. The same walk looks at every directory
//! whose entries decide where a path leads: root writes there only if nobody else can.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use cnikit_store::Directory;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, mkdirat};
use nix::unistd::{fsync, getegid, geteuid};

/// The kernel's limit on symbolic links in one path; see `path_resolution(7)`.
const MOST_LINKS: usize = 40;
/// The mode of directories that are made.
const DIRECTORY_MODE: Mode = Mode::from_bits_truncate(0o755);
/// The owner of files whose owner has no number in this user namespace: `/proc/sys/kernel/overflowuid`.
const UNMAPPED: u32 = 65_534;

/// Who else may write in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// Root, or this user.
    OwnerOnly,
    /// A group too, as `staff` in Debian's `/usr/local/bin`: who is in it can already replace root's programs.
    GroupToo,
}

/// What is done about a directory that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absent {
    Make,
    Report,
}

/// The root of a node.
#[derive(Debug)]
pub(crate) struct Root {
    file: Rc<OwnedFd>,
    path: PathBuf,
    /// Another user whose directories are trusted.
    trusted: Option<u32>,
    /// Whether this process is in a user namespace, where the owner of the node's directories has no number.
    is_mapped: bool,
}

/// A directory on the way.
#[derive(Clone)]
struct Step {
    file: Rc<OwnedFd>,
    path: PathBuf,
}

/// Where a walk ended.
enum End {
    Directory(Step),
    File(File, PathBuf),
    Absent,
}

impl Root {
    pub(crate) fn open(path: &Path, trusted: Option<u32>) -> Result<Root, String> {
        let file = openat(AT_FDCWD, path, AS_DIRECTORY, Mode::empty())
            .map_err(|errno| format!("open --root {}: {errno}", path.display()))?;
        let is_mapped = std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| !is_whole_map(&map));
        Ok(Root { file: Rc::new(file), path: path.to_owned(), trusted, is_mapped })
    }

    /// A path of the node as this process sees it, for messages.
    pub(crate) fn shown(&self, path: &Path) -> PathBuf {
        self.path.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Resolves a directory. It and every directory on the way must be safe from other users.
    pub(crate) fn directory(&self, path: &Path, absent: Absent, trust: Trust) -> Result<Option<Directory>, String> {
        match self.walk(path, absent, trust, &mut Vec::new())? {
            End::Directory(step) => {
                let file = step.file.try_clone().map_err(|error| format!("open {}: {error}", step.path.display()))?;
                Directory::of_descriptor(file, self.shown(path)).map(Some).map_err(|error| error.to_string())
            }
            End::Absent => Ok(None),
            End::File(_, shown) => Err(format!("{} is not a directory: move it away", shown.display())),
        }
    }

    /// Every directory in which a name of the path is looked up, as far as it exists, and the directory itself.
    pub(crate) fn visited(&self, path: &Path) -> Result<Vec<Rc<OwnedFd>>, String> {
        let mut visited = Vec::new();
        self.walk(path, Absent::Report, Trust::GroupToo, &mut visited)?;
        Ok(visited)
    }

    /// Reads a regular file of at most `limit` bytes; `None` if it does not exist.
    pub(crate) fn read(&self, path: &Path, limit: u64) -> Result<Option<Vec<u8>>, String> {
        match self.walk(path, Absent::Report, Trust::GroupToo, &mut Vec::new())? {
            End::Absent => Ok(None),
            End::Directory(step) => Err(format!("read {}: it is a directory", step.path.display())),
            End::File(file, shown) => {
                let mut content = Vec::new();
                let read = file.take(limit + 1).read_to_end(&mut content);
                read.map_err(|error| format!("read {}: {error}", shown.display()))?;
                if content.len() as u64 > limit {
                    return Err(format!("read {}: it is longer than {limit} bytes", shown.display()));
                }
                Ok(Some(content))
            }
        }
    }

    fn walk(&self, path: &Path, absent: Absent, trust: Trust, visited: &mut Vec<Rc<OwnedFd>>) -> Result<End, String> {
        let mut ahead = names(path);
        let mut way = vec![Step { file: Rc::clone(&self.file), path: self.path.clone() }];
        let mut links = 0;
        loop {
            let here = way.last().cloned().ok_or("a path without a root")?;
            visited.push(Rc::clone(&here.file));
            self.check(&here, ahead.is_empty(), trust)?;
            let Some(name) = ahead.pop_front() else { return Ok(End::Directory(here)) };
            if name == ".." {
                if way.len() > 1 {
                    way.pop();
                }
                continue;
            }
            let next = here.path.join(&name);
            let failed = |what: &str, errno: Errno| format!("{what} {}: {errno}", next.display());
            let found = match fstatat(&*here.file, name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
                Ok(found) => found,
                Err(Errno::ENOENT) if absent == Absent::Report => return Ok(End::Absent),
                Err(Errno::ENOENT) => {
                    make(&here, &name).map_err(|errno| failed("make directory", errno))?;
                    way.push(enter(&here, &name, next.clone()).map_err(|errno| failed("open directory", errno))?);
                    continue;
                }
                Err(errno) => return Err(failed("look at", errno)),
            };
            match SFlag::from_bits_truncate(found.st_mode & SFlag::S_IFMT.bits()) {
                SFlag::S_IFDIR => match enter(&here, &name, next.clone()) {
                    Ok(step) => way.push(step),
                    // It was removed or replaced since.
                    Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => ahead.push_front(name),
                    Err(errno) => return Err(failed("open directory", errno)),
                },
                SFlag::S_IFLNK => {
                    links += 1;
                    if links > MOST_LINKS {
                        return Err(failed("resolve", Errno::ELOOP));
                    }
                    self.check_owner(&next, &found)?;
                    let target =
                        readlinkat(&*here.file, name.as_os_str()).map_err(|errno| failed("read link", errno))?;
                    if Path::new(&target).is_absolute() {
                        way.truncate(1);
                    }
                    let rest = std::mem::replace(&mut ahead, names(Path::new(&target)));
                    ahead.extend(rest);
                }
                SFlag::S_IFREG if ahead.is_empty() => {
                    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
                    let file = openat(&*here.file, name.as_os_str(), flags, Mode::empty())
                        .map_err(|errno| failed("open", errno))?;
                    let opened = fstat(&file).map_err(|errno| failed("look at", errno))?;
                    self.check_owner(&next, &opened)?;
                    return Ok(End::File(file.into(), next));
                }
                _ => return Err(format!("{} is neither a directory nor a regular file", next.display())),
            }
        }
    }

    /// Refuses a directory in which another user can write, because that user could put another directory or file in place.
    fn check(&self, step: &Step, is_last: bool, trust: Trust) -> Result<(), String> {
        let found = fstat(&*step.file).map_err(|errno| format!("look at {}: {errno}", step.path.display()))?;
        self.check_owner(&step.path, &found)?;
        // In a sticky directory, such as /tmp, nobody can rename or remove what root or this user has there.
        if found.st_mode & libc::S_ISVTX != 0 && !is_last {
            return Ok(());
        }
        let is_own_group = found.st_gid == 0 || found.st_gid == getegid().as_raw() || self.is_mapped;
        let by_group = found.st_mode & 0o020 != 0 && !is_own_group && trust == Trust::OwnerOnly;
        if found.st_mode & 0o002 != 0 || by_group {
            return Err(format!(
                "{}: other users can write there, its mode is {:o}; hint: root's programs do not belong there: chmod go-w {0}",
                step.path.display(),
                found.st_mode & 0o7777
            ));
        }
        Ok(())
    }

    fn check_owner(&self, path: &Path, found: &FileStat) -> Result<(), String> {
        let owner = found.st_uid;
        let is_trusted = Some(owner) == self.trusted || (self.is_mapped && owner == UNMAPPED);
        if owner == 0 || owner == geteuid().as_raw() || is_trusted {
            return Ok(());
        }
        let path = path.display();
        Err(format!("{path}: it belongs to user {owner}, who could replace what root runs; hint: chown root {path}"))
    }
}

const AS_DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

fn enter(here: &Step, name: &OsStr, path: PathBuf) -> Result<Step, Errno> {
    let file = openat(&*here.file, name, AS_DIRECTORY | OFlag::O_NOFOLLOW, Mode::empty())?;
    Ok(Step { file: Rc::new(file), path })
}

fn make(here: &Step, name: &OsStr) -> Result<(), Errno> {
    match mkdirat(&*here.file, name, DIRECTORY_MODE) {
        Ok(()) => fsync(&*here.file),
        Err(Errno::EEXIST) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// The names of a path, `..` included.
fn names(path: &Path) -> VecDeque<OsString> {
    let mut names = VecDeque::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => names.push_back(name.to_owned()),
            Component::ParentDir => names.push_back("..".into()),
            _ => {}
        }
    }
    names
}

/// Whether `/proc/self/uid_map` is that of the first user namespace.
fn is_whole_map(map: &str) -> bool {
    map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}

/// The path by which inotify(7) watches an open directory.
pub(crate) fn path_of(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

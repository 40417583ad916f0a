//! A directory that is resolved once and held open.

use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, stat};
use nix::sys::statfs::{
    BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, F2FS_SUPER_MAGIC, FsType, OVERLAYFS_SUPER_MAGIC, TMPFS_MAGIC, fstatfs,
};
use nix::unistd::{UnlinkatFlags, fsync, unlinkat};

use crate::file_time::wide;
use crate::{Error, Facts};

/// The magic of XFS, which nix defines for glibc only; see statfs(2).
const XFS_SUPER_MAGIC: FsType = FsType(0x5846_5342);

/// File systems that no other machine has mounted at the same time.
const LOCAL: [FsType; 6] =
    [EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC, F2FS_SUPER_MAGIC, TMPFS_MAGIC, OVERLAYFS_SUPER_MAGIC];

/// File systems on which all supported kernels can create a file without a name (`O_TMPFILE`). Others may, as overlayfs of newer
/// kernels.
const WITH_UNNAMED_FILES: [FsType; 5] =
    [EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC, F2FS_SUPER_MAGIC, TMPFS_MAGIC];

/// A directory of small files, resolved when it was opened.
///
/// File names are single components: one with a slash, `.` or `..` is an error (EINVAL), so no name from a caller leads out of it.
#[derive(Debug)]
pub struct Directory {
    file: OwnedFd,
    path: PathBuf,
    identity: (u64, u64),
}

const AS_DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Directory {
    /// Opens an existing directory. Symbolic links in the path and at its end are followed once, by this call.
    ///
    /// # Errors
    /// open(2) fails: the path does not exist ([`Error::is_absent`]), it is not a directory ([`Error::is_misplaced`]), or it
    /// may not be read.
    pub fn open(path: impl AsRef<Path>) -> Result<Directory, Error> {
        Directory::open_at(AT_FDCWD, path.as_ref(), path.as_ref().to_owned())
    }

    /// Opens the directory `name` relative to another one; `path` is the path for messages.
    fn open_at(from: impl AsFd, name: &Path, path: PathBuf) -> Result<Directory, Error> {
        open_directory(from, name, path, OFlag::empty()).map(|(directory, _)| directory)
    }

    /// Opens the subdirectory `name` without following a symbolic link; returns its metadata too.
    pub(crate) fn open_below(&self, name: &str, path: PathBuf) -> Result<(Directory, FileStat), Error> {
        self.checked(name)?;
        open_directory(self, Path::new(name), path, OFlag::O_NOFOLLOW)
    }

    /// Opens a directory; it and its parents are created with this mode if they do not exist.
    ///
    /// # Errors
    /// As [`Directory::open`], and mkdir(2) fails: the file system is full or read-only, or a parent is not a directory.
    #[doc(alias = "mkdir")]
    pub fn make(path: impl AsRef<Path>, mode: u32) -> Result<Directory, Error> {
        match Directory::open(&path) {
            Err(error) if error.is_absent() => {
                let made = DirBuilder::new().recursive(true).mode(mode).create(&path);
                made.map_err(|source| Error::new("make directory", path.as_ref(), source))?;
                Directory::open(path)
            }
            opened => opened,
        }
    }

    /// As [`Directory::make`]; a power cut after this does not take away what was made.
    ///
    /// # Errors
    /// As [`Directory::make`], and fsync(2) of a directory fails in which another one was made.
    pub fn make_durably(path: impl AsRef<Path>, mode: u32) -> Result<Directory, Error> {
        let existing = Directory::nearest(&path)?;
        let directory = Directory::make(&path, mode)?;
        let mut made = directory.try_clone()?;
        // The name of each new directory is in the one above it.
        for _ in path.as_ref().components() {
            if made.identity() == existing.identity() {
                break;
            }
            made = made.parent()?;
            made.sync()?;
        }
        Ok(directory)
    }

    /// Opens a directory; `None` if it does not exist.
    ///
    /// # Errors
    /// As [`Directory::open`], except a path that does not exist.
    pub fn open_if_any(path: impl AsRef<Path>) -> Result<Option<Directory>, Error> {
        match Directory::open(path) {
            Err(error) if error.is_absent() => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// Opens a directory, or the nearest parent that exists, in which it would be created.
    ///
    /// # Errors
    /// As [`Directory::open`], except a path that does not exist.
    pub fn nearest(path: impl AsRef<Path>) -> Result<Directory, Error> {
        let path = path.as_ref();
        let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        match Directory::open(path) {
            Err(error) if error.is_absent() && above != path => Directory::nearest(above),
            opened => opened,
        }
    }

    /// A directory that the caller has opened; `path` is its path for messages, and what [`Directory::is_current`] and
    /// [`Directory::resolved`] look up.
    ///
    /// # Errors
    /// fstat(2) fails.
    pub fn of_descriptor(file: OwnedFd, path: PathBuf) -> Result<Directory, Error> {
        match fstat(&file) {
            Ok(found) => Ok(Directory { file, path, identity: identity_of(&found) }),
            Err(errno) => Err(Error::new("look at", path, errno)),
        }
    }

    /// The path as the caller gave it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path without symbolic links, for messages; as it was given if it cannot be resolved any more.
    pub fn resolved(&self) -> PathBuf {
        self.path.canonicalize().unwrap_or_else(|_| self.path.clone())
    }

    /// Whether the path still leads to this directory. It does not if the directory was removed or replaced.
    ///
    /// # Errors
    /// stat(2) of the path fails with anything but `ENOENT`.
    pub fn is_current(&self) -> Result<bool, Error> {
        match stat(&self.path) {
            Ok(found) => Ok(identity_of(&found) == self.identity),
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(self.error("look at", "", errno)),
        }
    }

    /// Device and inode number, which identify the directory whatever its path.
    pub fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// Whether it is on a file system that only this machine can have mounted; `false` if that is not certain.
    #[doc(alias = "statfs")]
    pub fn is_local(&self) -> bool {
        fstatfs(self).is_ok_and(|found| LOCAL.contains(&found.filesystem_type()))
    }

    /// Whether a file without a name can be created in it; `false` if that is not certain.
    pub(crate) fn has_unnamed_files(&self) -> bool {
        fstatfs(self).is_ok_and(|found| WITH_UNNAMED_FILES.contains(&found.filesystem_type()))
    }

    /// The metadata of a file, without following a symbolic link; `None` if there is no such file.
    ///
    /// # Errors
    /// `name` is not a single name (EINVAL), or fstatat(2) fails.
    pub fn facts(&self, name: &str) -> Result<Option<Facts>, Error> {
        Ok(self.stat(name)?.map(Facts::from))
    }

    /// Reads a regular file of at most `limit` bytes; `None` if it does not exist.
    ///
    /// # Errors
    /// `name` is not a single name (EINVAL); the file is a symbolic link, a directory or longer ([`Error::is_garbage`]); or
    /// openat(2) or pread(2) fails.
    pub fn read(&self, name: &str, limit: usize) -> Result<Option<(Vec<u8>, Facts)>, Error> {
        let file = match self.open_file(name, OFlag::O_RDONLY, 0) {
            Err(error) if error.is_absent() => return Ok(None),
            opened => opened?,
        };
        let facts = Facts::from(fstat(&file).map_err(|errno| self.error("look at", name, errno))?);
        if !facts.regular || facts.size > limit as u64 {
            let text = if facts.regular { "is longer than expected" } else { "is not a regular file" };
            return Err(self.error("read", name, io::Error::new(io::ErrorKind::InvalidData, text)));
        }
        let mut content = vec![0; usize::try_from(facts.size).unwrap_or(limit)];
        file.read_exact_at(&mut content, 0).map_err(|source| self.error("read", name, source))?;
        Ok(Some((content, facts)))
    }

    /// Opens a file to read and write parts of it; `None` if it does not exist.
    ///
    /// # Errors
    /// `name` is not a single name (EINVAL), the file is not a regular one ([`Error::is_garbage`]), or openat(2) fails.
    pub fn open_parts(&self, name: &str) -> Result<Option<File>, Error> {
        match self.open_regular(name, OFlag::O_RDWR, 0) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.is_absent() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes a file in place, and creates it if it does not exist. It is for hints of a few bytes: a kill in the middle can leave
    /// the new text followed by the end of a longer old one.
    ///
    /// # Errors
    /// As [`Directory::open_parts`], and the file system is full or read-only.
    pub fn rewrite(&self, name: &str, content: &[u8], mode: u32) -> Result<(), Error> {
        let file = self.open_regular(name, OFlag::O_WRONLY | OFlag::O_CREAT, mode)?;
        let write = || {
            let longer = file.metadata()?.len() > content.len() as u64;
            file.write_all_at(content, 0)?;
            if longer { file.set_len(content.len() as u64) } else { Ok(()) }
        };
        write().map_err(|source| self.error("write", name, source))
    }

    /// Removes a file; returns whether it existed.
    ///
    /// # Errors
    /// `name` is not a single name (EINVAL), or unlinkat(2) fails with anything but `ENOENT`, as for a directory.
    #[doc(alias = "unlink")]
    pub fn remove(&self, name: &str) -> Result<bool, Error> {
        self.checked(name)?;
        match unlinkat(self, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(self.error("remove", name, errno)),
        }
    }

    /// The names of all entries, in no particular order.
    ///
    /// # Errors
    /// openat(2) or getdents(2) fails.
    #[doc(alias = "getdents")]
    pub fn list(&self) -> Result<Vec<OsString>, Error> {
        let failed = |errno| self.error("list", "", errno);
        let mut open = Dir::openat(self, ".", AS_DIRECTORY, Mode::empty()).map_err(failed)?;
        let names = open.iter().map(|entry| entry.map(|entry| entry.file_name().to_bytes().to_vec()));
        let names: Result<Vec<Vec<u8>>, Errno> = names.collect();
        let names = names.map_err(failed)?.into_iter().filter(|name| name != b"." && name != b"..");
        Ok(names.map(OsString::from_vec).collect())
    }

    /// Moves a file into another directory, where it replaces an older file of the same name. If that is on another file system,
    /// the file is copied.
    ///
    /// # Errors
    /// `name` is not a single name (EINVAL), or renameat(2) fails. Between file systems, the file is not a regular file of at most
    /// 1 MiB, or [`Directory::replace`] fails.
    #[doc(alias = "quarantine")]
    pub fn set_aside(&self, name: &str, to: &Directory) -> Result<(), Error> {
        self.checked(name)?;
        match renameat(self, name, to, name) {
            Ok(()) => Ok(()),
            Err(Errno::EXDEV) => {
                let content = self.read(name, 1 << 20)?.map(|(content, _)| content).unwrap_or_default();
                to.replace(name, &content, 0o600)?;
                self.remove(name).map(drop)
            }
            Err(errno) => Err(self.error("set aside", name, errno)),
        }
    }

    /// Writes the directory to the disk (fsync(2)), so that names created and removed in it survive a power cut.
    pub(crate) fn sync(&self) -> Result<(), Error> {
        fsync(self).map_err(|errno| self.error("sync", "", errno))
    }

    /// The parent of this directory, as `..` leads to it: without the symbolic links of the path.
    pub(crate) fn parent(&self) -> Result<Directory, Error> {
        Directory::open_at(self, Path::new(".."), self.path.join(".."))
    }

    /// Another handle of the same directory.
    pub(crate) fn try_clone(&self) -> Result<Directory, Error> {
        let file = self.file.try_clone().map_err(|source| self.error("open", "", source))?;
        Ok(Directory { file, path: self.path.clone(), identity: self.identity })
    }

    /// Opens a file if it is a regular one. A symbolic link is not followed, and a pipe does not block.
    pub(crate) fn open_regular(&self, name: &str, flags: OFlag, mode: u32) -> Result<File, Error> {
        let file = self.open_file(name, flags, mode)?;
        let found = fstat(&file).map_err(|errno| self.error("look at", name, errno))?;
        if SFlag::from_bits_truncate(found.st_mode & SFlag::S_IFMT.bits()) == SFlag::S_IFREG {
            return Ok(file);
        }
        Err(self.error("use", name, io::Error::new(io::ErrorKind::InvalidData, "is not a regular file")))
    }

    pub(crate) fn open_file(&self, name: &str, flags: OFlag, mode: u32) -> Result<File, Error> {
        if !flags.contains(OFlag::O_TMPFILE) {
            self.checked(name)?;
        }
        let flags = flags | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let opened = openat(self, name, flags, Mode::from_bits_truncate(mode));
        opened.map(File::from).map_err(|errno| self.error("open", name, errno))
    }

    /// Whether the name still leads to this open file.
    pub(crate) fn is_named(&self, file: &File, name: &str) -> Result<bool, Error> {
        let open = fstat(file).map_err(|errno| self.error("look at", name, errno))?;
        Ok(self.stat(name)?.is_some_and(|named| identity_of(&named) == identity_of(&open)))
    }

    pub(crate) fn error(&self, operation: &'static str, name: &str, source: impl Into<io::Error>) -> Error {
        let path = if name.is_empty() { self.path.clone() } else { self.path.join(name) };
        Error::new(operation, path, source)
    }

    pub(crate) fn stat(&self, name: &str) -> Result<Option<FileStat>, Error> {
        self.checked(name)?;
        match fstatat(self, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(self.error("look at", name, errno)),
        }
    }

    fn checked(&self, name: &str) -> Result<(), Error> {
        let single = !name.is_empty() && name != "." && name != ".." && !name.contains('/') && !name.contains('\0');
        if single { Ok(()) } else { Err(self.error("use as a file name", name, Errno::EINVAL)) }
    }
}

fn open_directory(from: impl AsFd, name: &Path, path: PathBuf, more: OFlag) -> Result<(Directory, FileStat), Error> {
    let opened = openat(from, name, AS_DIRECTORY | more, Mode::empty()).and_then(|file| Ok((fstat(&file)?, file)));
    match opened {
        Ok((found, file)) => Ok((Directory { file, path, identity: identity_of(&found) }, found)),
        Err(errno) => Err(Error::new("open directory", path, errno)),
    }
}

fn identity_of(found: &FileStat) -> (u64, u64) {
    (wide(found.st_dev), wide(found.st_ino))
}

//! Directories that no other user can change.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{FileStat, Mode, mkdirat};
use nix::unistd::{Uid, geteuid};

use crate::{Directory, Error, Lock};

/// A directory for lock files and records: it belongs to this process's user, and no other user can write there or open a file
/// of it.
///
/// With every kind of lock, a user who can open the file can hold the lock for ever, and a user who can write in its directory can
/// put another file in its place. So owner and mode of both are verified, by descriptor, before a lock is trusted.
#[derive(Debug)]
pub struct PrivateDirectory {
    directory: Directory,
    owner: Uid,
}

impl PrivateDirectory {
    /// Opens the directory that the names `below` lead to from `base`, and creates each with mode 0700 if it does not exist.
    /// Symbolic links are followed in `base`, which has to exist, and nowhere below it.
    ///
    /// # Errors
    /// `base` does not exist, openat(2) or mkdirat(2) fails, or a directory below `base` belongs to another user or can be
    /// written by one.
    pub fn make(base: impl AsRef<Path>, below: &[&str]) -> Result<PrivateDirectory, Error> {
        let owner = geteuid();
        let mut directory = Directory::open(base)?;
        for name in below {
            directory = step(&directory, name, owner)?;
        }
        Ok(PrivateDirectory { directory, owner })
    }

    /// Opens the directory that the names `below` lead to from `base`, as [`PrivateDirectory::make`] does; `None` if one of them,
    /// or `base`, does not exist.
    ///
    /// # Errors
    /// openat(2) fails, or a directory below `base` belongs to another user or can be written by one.
    pub fn open(base: impl AsRef<Path>, below: &[&str]) -> Result<Option<PrivateDirectory>, Error> {
        let owner = geteuid();
        let Some(mut directory) = Directory::open_if_any(base)? else { return Ok(None) };
        for name in below {
            let path = directory.path().join(name);
            let (next, found) = match directory.open_below(name, path.clone()) {
                Err(error) if error.is_absent() => return Ok(None),
                opened => opened?,
            };
            verify_directory(&path, &found, owner)?;
            directory = next;
        }
        Ok(Some(PrivateDirectory { directory, owner }))
    }

    /// The directory, for all operations on its files that need no lock.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Takes the exclusive lock on the file `name`, which is created with mode 0600 if it does not exist, and waits at most
    /// `timeout`.
    ///
    /// # Errors
    /// As [`Directory::lock`], and the file belongs to another user, can be opened by one, or has a second name.
    pub fn lock(&self, name: &str, timeout: Duration) -> Result<Lock, Error> {
        if let Some(found) = self.directory.stat(name)? {
            self.verify_file(name, &found)?;
        }
        self.directory.lock(name, 0o600, timeout)
    }

    /// Opens a file to read and write parts of it; it is created with mode 0600 if it does not exist.
    ///
    /// # Errors
    /// As [`Directory::open_parts`].
    pub fn open_parts(&self, name: &str) -> Result<File, Error> {
        self.directory.open_regular(name, OFlag::O_RDWR | OFlag::O_CREAT, 0o600)
    }

    /// Removes a lock file; returns whether it existed. The caller holds the lock. A process that waits for it notices, and
    /// creates another file.
    ///
    /// # Errors
    /// As [`Directory::remove`].
    pub fn remove(&self, name: &str) -> Result<bool, Error> {
        self.directory.remove(name)
    }

    /// Checks that no other user can open the file. What is verified stays true, because only the owner can change it.
    fn verify_file(&self, name: &str, found: &FileStat) -> Result<(), Error> {
        if found.st_uid != self.owner.as_raw() || found.st_mode & 0o077 != 0 || found.st_nlink != 1 {
            let text = "it is not a file with mode 0600 and one name that belongs to this user";
            return Err(self.directory.error("lock", name, io::Error::new(io::ErrorKind::InvalidData, text)));
        }
        Ok(())
    }
}

fn step(above: &Directory, name: &str, owner: Uid) -> Result<Directory, Error> {
    let path = above.path().join(name);
    let (directory, found) = match above.open_below(name, path.clone()) {
        Err(error) if error.is_absent() => {
            match mkdirat(above, name, Mode::S_IRWXU) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(errno) => return Err(Error::new("make directory", path, errno)),
            }
            above.open_below(name, path.clone())?
        }
        opened => opened?,
    };
    verify_directory(&path, &found, owner)?;
    Ok(directory)
}

/// Checks that no other user can write in the directory.
fn verify_directory(path: &Path, found: &FileStat, owner: Uid) -> Result<(), Error> {
    let refused = |text| Error::new("trust directory", path, io::Error::new(io::ErrorKind::InvalidData, text));
    if found.st_uid != owner.as_raw() {
        return Err(refused(format!("it belongs to user {} and not to {owner}", found.st_uid)));
    }
    if found.st_mode & 0o022 != 0 {
        return Err(refused(format!("other users may write there: its mode is {:o}", found.st_mode & 0o7777)));
    }
    Ok(())
}

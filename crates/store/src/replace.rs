//! Replace the content of a file atomically.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::time::{Duration, Instant};

use fs2::FileExt as _;
use nix::fcntl::{OFlag, renameat};
use nix::sys::stat::{Mode, umask};

use crate::lock::{EXCLUSIVE, wait};
use crate::{Directory, Error};

/// How long to wait for another writer of the same file.
const TIMEOUT: Duration = Duration::from_mins(1);
/// The mode of a temporary file: no other user can open it, and so lock it, before it is complete.
const PRIVATE: u32 = 0o600;

/// The suffix of the name of a temporary file, which begins with a dot.
const UNFINISHED: &str = ".new";

/// An empty temporary file, locked while this process writes it.
pub(crate) struct Staged {
    pub(crate) file: File,
    pub(crate) name: String,
    mode: u32,
}

impl Directory {
    /// Gives a file new content atomically: a reader sees the old or the new content. A temporary file `.NAME.new` is renamed
    /// over it.
    ///
    /// A power cut may bring the old content back, or none: see [`Directory::replace_durably`].
    ///
    /// # Errors
    /// `name` is not a single name (EINVAL), another writer holds the temporary file for a minute ([`Error::is_deadline`]), or a
    /// write or rename fails: the file system is full or read-only, or `name` is a directory. The temporary file is removed then.
    #[doc(alias = "rename")]
    pub fn replace(&self, name: &str, content: &[u8], mode: u32) -> Result<(), Error> {
        let staged = self.stage(name, mode)?;
        self.fill(&staged, content)?;
        self.rename_over(&staged, name)
    }

    /// As [`Directory::replace`], and survives a power cut once it has returned: the file is synced before it gets its name,
    /// the directory after.
    ///
    /// # Errors
    /// As [`Directory::replace`], and fsync(2) fails; if that of the directory fails, the new content is in place.
    #[doc(alias = "fsync")]
    pub fn replace_durably(&self, name: &str, content: &[u8], mode: u32) -> Result<(), Error> {
        let staged = self.stage(name, mode)?;
        self.fill(&staged, content)?;
        staged.file.sync_all().map_err(|source| self.error("sync", &staged.name, source))?;
        self.rename_over(&staged, name)?;
        self.sync()
    }

    /// As [`Directory::replace`], and syncs the file under its name: it waits once for the disk instead of twice. The content
    /// survives a power cut once this has returned, because ext4, XFS and Btrfs write the name along with the file. A power cut
    /// before that may leave the name with less than the content, so a reader has to recognise an incomplete file.
    ///
    /// # Errors
    /// As [`Directory::replace`], and fsync(2) fails; the new content is in place then.
    #[doc(alias = "fsync")]
    pub fn replace_and_sync(&self, name: &str, content: &[u8], mode: u32) -> Result<(), Error> {
        let staged = self.stage(name, mode)?;
        self.fill(&staged, content)?;
        self.rename_over(&staged, name)?;
        staged.file.sync_all().map_err(|source| self.error("sync", name, source))
    }

    /// Removes a file so that a power cut does not bring it back; returns whether it existed.
    ///
    /// # Errors
    /// As [`Directory::remove`], and fsync(2) of the directory fails.
    pub fn remove_durably(&self, name: &str) -> Result<bool, Error> {
        let was_there = self.remove(name)?;
        self.sync()?;
        Ok(was_there)
    }

    /// Removes temporary files whose writers were killed, also those of [`Directory::discard_uncreated`]. Those that are being
    /// written are left alone.
    ///
    /// # Errors
    /// The directory cannot be listed, or a temporary file cannot be opened or removed. It stops at the first error.
    pub fn discard_unfinished(&self) -> Result<(), Error> {
        self.discard_all(|_| true)?;
        self.discard_uncreated()
    }

    /// Removes the temporary files of killed writers whose names are chosen.
    pub(crate) fn discard_all(&self, choose: impl Fn(&str) -> bool) -> Result<(), Error> {
        let names = self.list()?;
        let unfinished = names.iter().filter_map(|name| name.to_str()).filter(|name| is_unfinished(name));
        unfinished.filter(|name| choose(name)).try_for_each(|name| self.discard(name))
    }

    /// Removes the temporary file of `name` if its writer was killed, as [`Directory::discard_unfinished`] does.
    ///
    /// # Errors
    /// The temporary file cannot be opened or removed. Its absence is not an error.
    pub fn discard_unfinished_of(&self, name: &str) -> Result<(), Error> {
        self.discard(&format!(".{name}{UNFINISHED}"))
    }

    fn discard(&self, name: &str) -> Result<(), Error> {
        let Some(file) = self.open_parts(name)? else { return Ok(()) };
        if file.try_lock_exclusive().is_ok() && self.is_named(&file, name)? {
            self.remove(name)?;
        }
        Ok(())
    }

    /// Opens the temporary file for `name`: reuses one whose writer was killed, and waits for one that is being written.
    ///
    /// In [`Directory::create`], a writer that was killed after it linked the final name and before it removed the temporary one
    /// left one complete file with two names. Then the temporary name is removed, and the file itself is not written to.
    pub(crate) fn stage(&self, name: &str, mode: u32) -> Result<Staged, Error> {
        let name = format!(".{name}{UNFINISHED}");
        loop {
            let file = self.open_regular(&name, OFlag::O_RDWR | OFlag::O_CREAT, mode & PRIVATE)?;
            let locked = wait(&file, EXCLUSIVE, Instant::now() + TIMEOUT, None);
            locked.map_err(|source| self.error("lock", &name, source))?;
            if !self.is_named(&file, &name)? {
                continue;
            }
            let found = file.metadata().map_err(|source| self.error("look at", &name, source))?;
            if found.nlink() > 1 {
                self.remove(&name)?;
                continue;
            }
            file.set_len(0).map_err(|source| self.error("write", &name, source))?;
            return Ok(Staged { file, name, mode });
        }
    }

    fn fill(&self, staged: &Staged, content: &[u8]) -> Result<(), Error> {
        let written = staged.file.write_all_at(content, 0).map_err(|source| self.error("write", &staged.name, source));
        written.or_else(|error| self.remove(&staged.name).and(Err(error)))
    }

    fn rename_over(&self, staged: &Staged, name: &str) -> Result<(), Error> {
        let renamed = staged.set_final_mode().and_then(|()| {
            renameat(self, staged.name.as_str(), self, name)?;
            Ok(())
        });
        renamed
            .map_err(|source| self.error("write", name, source))
            .or_else(|error| self.remove(&staged.name).and(Err(error)))
    }
}

impl Staged {
    /// Sets the mode that open(2) would have given the file.
    fn set_final_mode(&self) -> io::Result<()> {
        if self.mode & !PRIVATE == 0 {
            return Ok(());
        }
        // The kernel returns the umask of this process only in exchange for another one.
        let mask = umask(Mode::S_IRWXG | Mode::S_IRWXO);
        umask(mask);
        self.file.set_permissions(Permissions::from_mode(self.mode & !mask.bits()))
    }
}

/// Whether this is the name of a temporary file.
fn is_unfinished(name: &str) -> bool {
    name.starts_with('.') && name.ends_with(UNFINISHED)
}

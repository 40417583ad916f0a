//! Create files that are complete from the first moment they can be seen.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag};
use nix::sys::stat::fstat;
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};

use crate::{Directory, Error, Facts};

/// A file with all its content that has no name yet in its directory.
pub(crate) struct UnnamedFile<'a> {
    directory: &'a Directory,
    file: File,
    /// The directory and the temporary name, if the file system does not support files without a name.
    temporary: Option<(Directory, String)>,
}

impl Directory {
    /// Creates a file that is complete from the first moment it can be seen; `None` if the name is taken.
    ///
    /// The content is written to a file without a name (`O_TMPFILE`), which is then linked into the directory: a kill in between
    /// leaves nothing. On a file system that does not support this, the file has a temporary name, which begins with a dot, in the
    /// *parent* directory, never in this one.
    ///
    /// # Errors
    /// `name` is not a single name (EINVAL), or open(2), write(2) or linkat(2) fails: the file system is full or read-only, or the
    /// directory may not be written. No file is left then.
    #[doc(alias = "O_TMPFILE")]
    pub fn create(&self, name: &str, content: &[u8], mode: u32) -> Result<Option<Facts>, Error> {
        if self.facts(name)?.is_some() {
            return Ok(None);
        }
        UnnamedFile::new(self, name, content, mode)?.link(name)
    }

    /// As [`Directory::create`], and syncs the file under its name, with the guarantee of [`Directory::replace_and_sync`].
    ///
    /// # Errors
    /// As [`Directory::create`], and fsync(2) fails; the file is removed then.
    #[doc(alias = "fsync")]
    pub fn create_and_sync(&self, name: &str, content: &[u8], mode: u32) -> Result<Option<Facts>, Error> {
        if self.facts(name)?.is_some() {
            return Ok(None);
        }
        let unnamed = UnnamedFile::new(self, name, content, mode)?;
        let Some(facts) = unnamed.link(name)? else { return Ok(None) };
        let synced = unnamed.file.sync_all().map_err(|source| self.error("sync", name, source));
        synced.map(|()| Some(facts)).or_else(|error| self.remove(name).and(Err(error)))
    }

    /// Replaces the file of this name by a new one. The new one exists, without a name, before the old one is removed, so their
    /// inode numbers differ and a program that remembers the old number notices.
    ///
    /// A kill in between leaves no file of that name.
    ///
    /// # Errors
    /// As [`Directory::create`] and [`Directory::remove`]. If only the last step fails, the old file is gone.
    pub fn renew(&self, name: &str, content: &[u8], mode: u32) -> Result<Option<Facts>, Error> {
        let unnamed = UnnamedFile::new(self, name, content, mode)?;
        match self.remove(name) {
            Ok(_) => unnamed.link(name),
            Err(error) => unnamed.discard().and(Err(error)),
        }
    }

    /// Removes the temporary files that killed calls of [`Directory::create`] and [`Directory::renew`] left beside this directory,
    /// on a file system that needs them. Those that are being written are left alone.
    ///
    /// # Errors
    /// The parent directory cannot be opened or listed, or a temporary file cannot be opened or removed.
    pub fn discard_uncreated(&self) -> Result<(), Error> {
        if self.has_unnamed_files() { Ok(()) } else { self.discard_temporary_names() }
    }

    fn discard_temporary_names(&self) -> Result<(), Error> {
        let place = self.place_of_temporary_names()?;
        let prefix = format!(".{}.", self.identity().1);
        place.discard_all(|name| name.starts_with(&prefix))
    }

    /// The parent directory. That of a mount's root is on another file system: then this directory itself.
    fn place_of_temporary_names(&self) -> Result<Directory, Error> {
        let above = self.parent()?;
        if above.identity().0 == self.identity().0 { Ok(above) } else { self.try_clone() }
    }

    /// Checks that a small file could be created here, without creating one that is visible.
    ///
    /// # Errors
    /// As [`Directory::create`].
    pub fn probe(&self) -> Result<(), Error> {
        UnnamedFile::new(self, "probe", b"probe", 0o600)?.discard()
    }

    /// As [`Directory::probe`], of a directory that may not exist yet: then of its nearest parent that exists.
    ///
    /// # Errors
    /// As [`Directory::nearest`] and [`Directory::probe`].
    pub fn probe_at(path: impl AsRef<Path>) -> Result<(), Error> {
        Directory::nearest(path)?.probe()
    }
}

impl<'a> UnnamedFile<'a> {
    fn new(directory: &'a Directory, name: &str, content: &[u8], mode: u32) -> Result<UnnamedFile<'a>, Error> {
        match directory.open_file(".", OFlag::O_TMPFILE | OFlag::O_RDWR, mode) {
            Ok(file) => UnnamedFile { directory, file, temporary: None }.filled(name, content),
            Err(error) if lacks_unnamed_files(&error) => {
                UnnamedFile::with_temporary_name(directory, name, mode)?.filled(name, content)
            }
            Err(error) => Err(error.during("create", directory.path().join(name))),
        }
    }

    /// For a file system without unnamed files.
    fn with_temporary_name(directory: &'a Directory, name: &str, mode: u32) -> Result<UnnamedFile<'a>, Error> {
        let place = directory.place_of_temporary_names()?;
        let staged = place.stage(&format!("{}.{name}", directory.identity().1), mode)?;
        Ok(UnnamedFile { directory, file: staged.file, temporary: Some((place, staged.name)) })
    }

    fn filled(mut self, name: &str, content: &[u8]) -> Result<UnnamedFile<'a>, Error> {
        match self.file.write_all(content) {
            Ok(()) => Ok(self),
            Err(source) => {
                let error = self.directory.error("write", name, source);
                self.discard().and(Err(error))
            }
        }
    }

    /// Links the file under its name; `None` if that is taken. If fstat(2) then fails, or the temporary name cannot be removed, the
    /// new name is removed again: the caller gets an error, and nothing would remove the file later.
    fn link(&self, name: &str) -> Result<Option<Facts>, Error> {
        let linked = self.try_link(name);
        // Before fstat(2), because the removal of a name changes the file.
        let discarded = self.discard();
        match linked {
            Ok(()) => {}
            Err(Errno::EEXIST) => return discarded.map(|()| None),
            Err(errno) => return discarded.and(Err(self.directory.error("create", name, errno))),
        }
        let look = |()| fstat(&self.file).map_err(|errno| self.directory.error("look at", name, errno));
        let looked = discarded.and_then(look).map(|stat| Some(stat.into()));
        looked.or_else(|error| self.directory.remove(name).and(Err(error)))
    }

    fn try_link(&self, name: &str) -> nix::Result<()> {
        use std::os::fd::AsRawFd;
        if let Some((parent, waiting)) = &self.temporary {
            return linkat(parent, waiting.as_str(), self.directory, name, AtFlags::empty());
        }
        // By descriptor it needs CAP_DAC_READ_SEARCH before Linux 6.10, by /proc it needs /proc: most callers have both.
        match linkat(&self.file, "", self.directory, name, AtFlags::AT_EMPTY_PATH) {
            Err(Errno::ENOENT | Errno::EPERM) => {
                let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                linkat(AT_FDCWD, path.as_str(), self.directory, name, AtFlags::AT_SYMLINK_FOLLOW)
            }
            done => done,
        }
    }

    /// Removes the temporary name, if the file has one.
    fn discard(&self) -> Result<(), Error> {
        let Some((parent, waiting)) = &self.temporary else { return Ok(()) };
        match unlinkat(parent, waiting.as_str(), UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(parent.error("remove", waiting, errno)),
        }
    }
}

/// Whether the file system does not support files without a name. Old kernels report an attempt to write a directory.
fn lacks_unnamed_files(error: &Error) -> bool {
    [Errno::EOPNOTSUPP, Errno::EISDIR, Errno::EINVAL].into_iter().any(|errno| error.is(errno))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn names(path: &std::path::Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_draft_that_waits_under_a_name_waits_in_the_parent_and_leaves_nothing_there() {
        let above = tempfile::tempdir().unwrap();
        let directory = Directory::make(above.path().join("d"), 0o755).unwrap();
        let unnamed = UnnamedFile::with_temporary_name(&directory, "a", 0o600).unwrap().filled("a", b"whole").unwrap();
        let waiting = format!(".{}.a.new", directory.identity().1);
        assert_eq!(names(above.path()), [waiting.as_str(), "d"]);
        assert_eq!(names(directory.path()), [""; 0]);
        let facts = unnamed.link("a").unwrap().unwrap();
        assert_eq!(directory.facts("a").unwrap(), Some(facts), "nothing touched it since");
        let second = UnnamedFile::with_temporary_name(&directory, "a", 0o600).unwrap().filled("a", b"second").unwrap();
        assert!(second.link("a").unwrap().is_none(), "taken");
        assert_eq!((names(above.path()), names(directory.path())), (vec!["d".into()], vec!["a".into()]));
        assert_eq!(fs::read(directory.path().join("a")).unwrap(), b"whole");
    }

    #[test]
    fn a_temporary_file_of_a_killed_writer_is_reused() {
        let above = tempfile::tempdir().unwrap();
        let directory = Directory::make(above.path().join("d"), 0o755).unwrap();
        drop(
            UnnamedFile::with_temporary_name(&directory, "a", 0o600)
                .unwrap()
                .filled("a", b"a long text, half wr")
                .unwrap(),
        );
        let unnamed = UnnamedFile::with_temporary_name(&directory, "a", 0o600).unwrap().filled("a", b"short").unwrap();
        unnamed.link("a").unwrap();
        assert_eq!(fs::read(directory.path().join("a")).unwrap(), b"short");
        assert_eq!(names(above.path()), ["d"]);
    }

    #[test]
    fn a_temporary_file_of_a_killed_writer_is_removed_and_that_of_another_directory_is_not() {
        let above = tempfile::tempdir().unwrap();
        let directory = Directory::make(above.path().join("d"), 0o755).unwrap();
        let other = Directory::make(above.path().join("e"), 0o755).unwrap();
        for directory in [&directory, &other] {
            drop(UnnamedFile::with_temporary_name(directory, "a", 0o600).unwrap());
        }
        let written = UnnamedFile::with_temporary_name(&directory, "b", 0o600).unwrap();
        directory.discard_temporary_names().unwrap();
        let left = [format!(".{}.b.new", directory.identity().1), format!(".{}.a.new", other.identity().1)];
        let mut left = Vec::from(left.map(String::from));
        left.extend(["d".to_owned(), "e".to_owned()]);
        left.sort();
        assert_eq!(names(above.path()), left);
        drop(written);
        directory.discard_temporary_names().unwrap();
        directory.discard_uncreated().unwrap();
        assert_eq!(names(above.path()).len(), 3, "the other directory's is left");
    }

    #[test]
    fn a_finished_file_is_not_written_through_the_waiting_name_that_a_kill_left_to_it() {
        let above = tempfile::tempdir().unwrap();
        let directory = Directory::make(above.path().join("d"), 0o755).unwrap();
        let killed = UnnamedFile::with_temporary_name(&directory, "a", 0o600).unwrap().filled("a", b"other").unwrap();
        killed.try_link("a").unwrap();
        drop(killed);
        let next = UnnamedFile::with_temporary_name(&directory, "a", 0o600).unwrap();
        assert_eq!(fs::read(directory.path().join("a")).unwrap(), b"other");
        assert!(next.filled("a", b"third").unwrap().link("a").unwrap().is_none(), "taken");
        assert_eq!(fs::read(directory.path().join("a")).unwrap(), b"other");
        assert_eq!(names(above.path()), ["d"]);
    }
}

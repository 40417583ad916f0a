//! Change stamps of directories, which show whether another program added or removed a name.

use nix::sys::stat::{FileStat, fstat, futimens};
use nix::sys::time::{TimeSpec, TimeValLike};

use crate::{Directory, Error, FileTime};

/// The modification time and the change time of a directory. If both are equal to those that [`Directory::stamp_anew`]
/// returned, no name has been added or removed since.
///
/// The modification time is a random time before 1970. Linux does not let its clock be set before 1970, so no change of the
/// directory can leave that value. A value of the clock would not do: file systems take the time of a change from a clock that
/// advances every few milliseconds, and since Linux 6.13 that clock is also advanced to the fine time that any other file was
/// given, so a change can get any value that the fine clock shows.
///
/// A program that restores a backup can set the modification time back, but not the change time.
#[doc(alias = "mtime")]
#[doc(alias = "ctime")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeStamp {
    /// When the list of names changed (`st_mtime`).
    pub modified: FileTime,
    /// When the list of names, the modification time, the mode or the owner changed (`st_ctime`); always set by the kernel.
    pub changed: FileTime,
}

impl From<FileStat> for ChangeStamp {
    fn from(stat: FileStat) -> ChangeStamp {
        ChangeStamp { modified: FileTime::modified(&stat), changed: FileTime::changed(&stat) }
    }
}

impl Directory {
    /// The current stamp.
    ///
    /// # Errors
    /// fstat(2) fails.
    pub fn stamp(&self) -> Result<ChangeStamp, Error> {
        fstat(self).map(ChangeStamp::from).map_err(|errno| self.error("look at", "", errno))
    }

    /// Sets a stamp that the directory never had before and that no later change produces, even if the clock is set back.
    ///
    /// `None` means that this file system does not store nanoseconds, or no time before 1970, so its stamps prove nothing.
    ///
    /// # Errors
    /// futimens(2) fails, which it does if the directory belongs to another user or is read-only, or the kernel has no random
    /// bytes.
    #[doc(alias = "utimensat")]
    pub fn stamp_anew(&self) -> Result<Option<ChangeStamp>, Error> {
        let wanted = FileTime::before_1970().map_err(|source| self.error("stamp", "", source))?;
        let time = TimeSpec::nanoseconds(wanted.as_nanoseconds().cast_signed());
        futimens(self, &TimeSpec::UTIME_OMIT, &time).map_err(|errno| self.error("stamp", "", errno))?;
        let stamp = self.stamp()?;
        Ok((stamp.modified == wanted).then_some(stamp))
    }
}

//! Change stamps of directories, which tell whether another program changed the list of names.

use std::io;

use nix::sys::stat::{FileStat, fstat, futimens};
use nix::sys::time::TimeSpec;

use crate::{Directory, Error};

/// A time of the file system: seconds and nanoseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileTime {
    /// Seconds; negative before 1970.
    pub seconds: i64,
    /// Nanoseconds of that second.
    pub nanoseconds: i64,
}

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
    /// When the list of names changed: `st_mtime`.
    pub modified: FileTime,
    /// When the list of names, the modification time, the mode or the owner changed: `st_ctime`. Always the kernel's clock.
    pub changed: FileTime,
}

/// The oldest second that ext4 and XFS store with its nanoseconds: in December 1901.
const OLDEST: i64 = i32::MIN as i64 + 1;

impl FileTime {
    /// A random time before 1970: one of 2 × 10^18.
    fn before_1970() -> io::Result<FileTime> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes)?;
        let (high, low) = bytes.split_at(8);
        let number = |bytes: &[u8]| bytes.iter().fold(0_i64, |number, byte| (number << 8) | i64::from(*byte));
        let seconds = number(high).rem_euclid(-OLDEST) + OLDEST;
        Ok(FileTime { seconds, nanoseconds: number(low).rem_euclid(1_000_000_000) })
    }

    /// Nanoseconds since 1970, modulo 2^64: the form in which [`Facts`](crate::Facts) has it.
    pub fn as_nanoseconds(self) -> u64 {
        self.seconds.wrapping_mul(1_000_000_000).wrapping_add(self.nanoseconds).cast_unsigned()
    }
}

impl From<FileStat> for ChangeStamp {
    fn from(stat: FileStat) -> ChangeStamp {
        ChangeStamp {
            modified: FileTime { seconds: stat.st_mtime, nanoseconds: stat.st_mtime_nsec },
            changed: FileTime { seconds: stat.st_ctime, nanoseconds: stat.st_ctime_nsec },
        }
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

    /// Sets a stamp that the directory never had before and that no later change leaves, even if the clock is set back.
    ///
    /// `None` means that this file system does not store nanoseconds, or no time before 1970, so its stamps prove nothing.
    ///
    /// # Errors
    /// futimens(2) fails, which it does if the directory belongs to another user or is read-only, or the kernel has no random
    /// bytes.
    #[doc(alias = "utimensat")]
    pub fn stamp_anew(&self) -> Result<Option<ChangeStamp>, Error> {
        let wanted = FileTime::before_1970().map_err(|source| self.error("stamp", "", source))?;
        let time = TimeSpec::new(wanted.seconds, wanted.nanoseconds);
        futimens(self, &TimeSpec::UTIME_OMIT, &time).map_err(|errno| self.error("stamp", "", errno))?;
        Ok(Some(self.stamp()?).filter(|stamp| stamp.modified == wanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_clock_of_linux_shows_the_time_of_a_stamp_and_none_comes_twice() {
        let times: Vec<FileTime> = (0..10_000).map(|_| FileTime::before_1970().unwrap()).collect();
        for time in &times {
            assert!((OLDEST..0).contains(&time.seconds), "{time:?}");
            assert!((0..1_000_000_000).contains(&time.nanoseconds), "{time:?}");
        }
        let mut unique = times.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), times.len());
    }
}

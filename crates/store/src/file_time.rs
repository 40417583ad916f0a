//! Timestamps of a file system.

use std::io;

use nix::sys::stat::FileStat;

/// A timestamp of the file system: seconds and nanoseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileTime {
    /// Seconds; negative before 1970.
    pub seconds: i64,
    /// Nanoseconds of that second.
    pub nanoseconds: i64,
}

/// The oldest second that ext4 and XFS store together with nanoseconds: in December 1901.
const OLDEST: i64 = i32::MIN as i64 + 1;

impl FileTime {
    /// The change time of a file: `st_ctime`.
    pub(crate) fn changed(stat: &FileStat) -> FileTime {
        FileTime { seconds: wide(stat.st_ctime), nanoseconds: wide(stat.st_ctime_nsec) }
    }

    /// The modification time of a file: `st_mtime`.
    pub(crate) fn modified(stat: &FileStat) -> FileTime {
        FileTime { seconds: wide(stat.st_mtime), nanoseconds: wide(stat.st_mtime_nsec) }
    }

    /// A random time before 1970, one of 2 × 10^18 values.
    pub(crate) fn before_1970() -> io::Result<FileTime> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes)?;
        let (high, low) = bytes.split_at(8);
        let number = |bytes: &[u8]| bytes.iter().fold(0_i64, |number, byte| (number << 8) | i64::from(*byte));
        let seconds = number(high).rem_euclid(-OLDEST) + OLDEST;
        Ok(FileTime { seconds, nanoseconds: number(low).rem_euclid(1_000_000_000) })
    }

    /// Nanoseconds since 1970, modulo 2^64, as in [`Facts`](crate::Facts).
    pub fn as_nanoseconds(self) -> u64 {
        self.seconds.wrapping_mul(1_000_000_000).wrapping_add(self.nanoseconds).cast_unsigned()
    }
}

/// A number of the C library, whose type has 32 bits on some processors.
pub(crate) fn wide<N: Into<W>, W>(number: N) -> W {
    number.into()
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

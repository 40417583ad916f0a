//! The identity and the state of a file.

use nix::sys::stat::{FileStat, SFlag};

use crate::FileTime;
use crate::file_time::wide;

/// Metadata that identifies a file and its last change.
///
/// An inode number alone is reused at once. Together with the change time it identifies one state of one file, except for changes
/// within one tick: file systems take the time from a clock that advances every few milliseconds, so a file that is rewritten, or
/// removed and created again, within one tick can have equal metadata. Equal metadata proves that a file has not changed only if
/// the change time is before a time that the file system gave to a file *after* the metadata was read.
#[doc(alias = "stat")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Facts {
    /// The inode number.
    pub inode: u64,
    /// When content, owner, mode or links last changed: nanoseconds since the epoch, modulo 2^64.
    pub changed: u64,
    /// The size in bytes.
    pub size: u64,
    /// Whether it is a regular file.
    pub regular: bool,
}

impl From<FileStat> for Facts {
    fn from(stat: FileStat) -> Facts {
        let kind = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT;
        Facts {
            inode: wide(stat.st_ino),
            changed: FileTime::changed(&stat).as_nanoseconds(),
            size: u64::try_from(stat.st_size).unwrap_or(0),
            regular: kind == SFlag::S_IFREG,
        }
    }
}

//! What the file system says about a file.

use nix::sys::stat::{FileStat, SFlag};

/// Which file it is and whether it was touched since: two equal values mean the same untouched file.
///
/// An inode number alone is re-used at once; together with the time of its last change it names one state of one file.
#[doc(alias = "stat")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Facts {
    /// The inode's number.
    pub inode: u64,
    /// When content, owner, mode or links last changed: nanoseconds since the epoch, modulo 2^64.
    pub changed: u64,
    /// Bytes.
    pub size: u64,
    /// Is it a regular file?
    pub regular: bool,
}

impl From<FileStat> for Facts {
    fn from(stat: FileStat) -> Facts {
        let changed = stat.st_ctime.wrapping_mul(1_000_000_000).wrapping_add(stat.st_ctime_nsec);
        let kind = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT;
        Facts {
            inode: stat.st_ino,
            changed: changed.cast_unsigned(),
            size: u64::try_from(stat.st_size).unwrap_or(0),
            regular: kind == SFlag::S_IFREG,
        }
    }
}

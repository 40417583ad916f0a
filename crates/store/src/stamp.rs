//! A directory's own clock, which tells whether anybody else changed it.

use std::time::{SystemTime, UNIX_EPOCH};

use nix::sys::stat::{fstat, futimens};
use nix::sys::time::TimeSpec;

use crate::{Directory, Error};

/// When a directory's list of names last changed, in nanoseconds: equal stamps mean the same list.
///
/// The kernel stamps a directory with a clock that many kernels advance only every few milliseconds, so two changes within
/// one tick look like one. A stamp that was set by [`Directory::stamp_anew`] has been read from the fine clock, and any later
/// change leaves another value.
#[doc(alias = "mtime")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp {
    /// Seconds since the epoch.
    pub seconds: i64,
    /// Nanoseconds of that second.
    pub nanoseconds: i64,
}

impl Stamp {
    fn now() -> Stamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Stamp { seconds: i64::try_from(since.as_secs()).unwrap_or(0), nanoseconds: since.subsec_nanos().into() }
    }

    fn next(self) -> Stamp {
        match self.nanoseconds {
            ..999_999_999 => Stamp { nanoseconds: self.nanoseconds + 1, ..self },
            _ => Stamp { seconds: self.seconds + 1, nanoseconds: 0 },
        }
    }
}

impl Directory {
    /// The stamp as it stands.
    pub fn stamp(&self) -> Result<Stamp, Error> {
        let stat = fstat(self).map_err(|errno| self.error("look at", "", errno))?;
        Ok(Stamp { seconds: stat.st_mtime, nanoseconds: stat.st_mtime_nsec })
    }

    /// Sets a stamp that the directory never had before, even if the clock was set back.
    ///
    /// `None`: this file system does not keep nanoseconds, so its stamps prove nothing.
    #[doc(alias = "utimensat")]
    pub fn stamp_anew(&self) -> Result<Option<Stamp>, Error> {
        // One more than now: at the edge of a tick, or where two processors' counters differ, the fine clock reads as the
        // coarse one does, and whoever changes the directory in the same tick would leave the very same stamp.
        let wanted = Stamp::now().max(self.stamp()?).next();
        let time = TimeSpec::new(wanted.seconds, wanted.nanoseconds);
        futimens(self, &TimeSpec::UTIME_OMIT, &time).map_err(|errno| self.error("stamp", "", errno))?;
        Ok(Some(self.stamp()?).filter(|stands| *stands == wanted))
    }
}

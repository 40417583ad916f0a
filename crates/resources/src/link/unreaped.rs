//! Bound the number of child processes that nobody reaps.
//!
//! A child that outlives this process is adopted by init, or by the nearest subreaper, who should reap it. Some do so late, and
//! some never, such as a runtime that is the first process of a container. So the ID of each child is recorded, in one of a few
//! places. Where the recorded child is a zombie, the next call has no child, and waits for the kernel itself. There are never more
//! zombies than places, and one for each call that runs at the same time.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process;

use cnikit_process::SlowSend;
use cnikit_store::{Error, PrivateDirectory};
use nix::unistd::Pid;

/// The directory of the file, which no other user can change: an existing one, and those that we create below it.
const PLACE: (&str, &[&str]) = ("/run", &["cnikit"]);
/// The file with the places: a process ID each, or 0.
const NAME: &str = "children";
/// The number of places.
const PLACES: u32 = 16;
/// The length of a place, in bytes.
const LENGTH: usize = size_of::<i32>();
/// A process ID that no process has: the largest one is 4,194,304, see `proc_sys_kernel(5)`.
const NOBODY: i32 = i32::MAX;

/// A place whose child has been reaped, or has not ended.
pub(crate) struct Place {
    file: File,
    offset: u64,
}

impl Place {
    /// The place of this process; `None` if the child in it is a zombie, or if there can be no file.
    pub(crate) fn free() -> Option<Self> {
        let file = open().ok()?;
        let offset = u64::from(process::id() % PLACES) * LENGTH as u64;
        let mut bytes = [0; LENGTH];
        // The file is empty at first.
        let found = file.read_at(&mut bytes, offset).ok()?;
        let pid = if found == LENGTH { i32::from_ne_bytes(bytes) } else { NOBODY };
        let pid = if pid > 0 { pid } else { NOBODY };
        (!SlowSend::is_unreaped(Pid::from_raw(pid))).then_some(Self { file, offset })
    }

    /// Records the child. If that fails, waits until it has ended.
    pub(crate) fn record(&self, child: SlowSend) {
        if self.file.write_all_at(&child.pid().as_raw().to_ne_bytes(), self.offset).is_err() {
            child.wait();
        }
    }
}

fn open() -> Result<File, Error> {
    let (base, below) = PLACE;
    PrivateDirectory::make(base, below)?.open_parts(NAME)
}

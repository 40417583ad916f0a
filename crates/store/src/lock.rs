//! An exclusive lock that ends with its process.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use fs2::FileExt;
use nix::fcntl::OFlag;

use crate::{Directory, Error};

/// An exclusive lock on a file; held until the value is dropped, or the process ends in whatever way.
///
/// It is flock(2)'s, so it excludes every other program that takes `LOCK_EX` on the same file.
#[doc(alias = "flock")]
#[derive(Debug)]
pub struct Lock {
    _file: File,
    waited: bool,
}

impl Lock {
    /// Takes the exclusive lock on what is open here, and waits for it no longer than `patience`.
    ///
    /// Anything that can be opened serves, a namespace too: who opens it again and locks it excludes this one.
    pub fn on(opened: OwnedFd, patience: Duration) -> io::Result<Lock> {
        let file = File::from(opened);
        let waited = wait(&file, Instant::now() + patience)?;
        Ok(Lock { _file: file, waited })
    }

    /// Whether somebody else had it first, so that more may be waiting for it now.
    pub fn waited(&self) -> bool {
        self.waited
    }
}

impl Directory {
    /// Takes the exclusive lock on the file `name`, which is made with this mode if it is not there; waits for it no longer
    /// than `patience`.
    ///
    /// Should somebody remove the file meanwhile, the lock on what is then under the name is taken.
    pub fn lock(&self, name: &str, mode: u32, patience: Duration) -> Result<Lock, Error> {
        let deadline = Instant::now() + patience;
        loop {
            let file = self.open_file(name, OFlag::O_RDONLY | OFlag::O_CREAT, mode)?;
            let waited = wait(&file, deadline).map_err(|source| self.error("lock", name, source))?;
            if self.is_named(&file, name)? {
                return Ok(Lock { _file: file, waited });
            }
            if Instant::now() >= deadline {
                let replaced =
                    io::Error::new(io::ErrorKind::TimedOut, "it was replaced again and again until the deadline");
                return Err(self.error("lock", name, replaced));
            }
        }
    }
}

/// Takes it, and says whether others had it first. Then it waits in a thread of its own, for flock(2) knows no deadline:
/// the kernel wakes waiters in order and at once, which no polling does. The lock belongs to the open file, of which the
/// thread has a copy; should the deadline come first, that copy is the last one and lets go of whatever it still gets.
fn wait(file: &File, deadline: Instant) -> io::Result<bool> {
    match file.try_lock_exclusive() {
        Err(error) if error.raw_os_error() == fs2::lock_contended_error().raw_os_error() => {}
        done => return done.map(|()| false),
    }
    let waiting = file.try_clone()?;
    let (say, hear) = sync_channel(1);
    thread::Builder::new().spawn(move || {
        // The caller may have gone: then nobody hears it, and the lock goes with this copy of the file.
        let _ = say.send(uninterrupted(&waiting));
    })?;
    match hear.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(locked) => locked.map(|()| true),
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            Err(io::Error::new(io::ErrorKind::TimedOut, "another process held it until the deadline"))
        }
    }
}

fn uninterrupted(file: &File) -> io::Result<()> {
    loop {
        match file.lock_exclusive() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

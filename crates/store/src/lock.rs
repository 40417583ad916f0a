//! Locks that end with their process.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use fs2::FileExt;
use nix::fcntl::OFlag;

use crate::{Directory, Error};

/// A lock on a file; held until the value is dropped, or the process ends in whatever way.
///
/// It is flock(2)'s, so an exclusive one excludes every other program that takes one on the same file.
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
        let waited = wait(&file, EXCLUSIVE, Instant::now() + patience, None)?;
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
        self.take(name, mode, EXCLUSIVE, patience, None)
    }

    /// As [`Directory::lock`], given up as soon as the caller says so, within a few hundredths of a second.
    pub fn lock_while(
        &self,
        name: &str,
        mode: u32,
        patience: Duration,
        given_up: &dyn Fn() -> bool,
    ) -> Result<Lock, Error> {
        self.take(name, mode, EXCLUSIVE, patience, Some(given_up))
    }

    /// As [`Directory::lock_while`], but beside others that share it; whoever locks the file waits for all of them.
    pub fn share_while(
        &self,
        name: &str,
        mode: u32,
        patience: Duration,
        given_up: &dyn Fn() -> bool,
    ) -> Result<Lock, Error> {
        self.take(name, mode, SHARED, patience, Some(given_up))
    }

    fn take(
        &self,
        name: &str,
        mode: u32,
        way: Way,
        patience: Duration,
        given_up: Option<&dyn Fn() -> bool>,
    ) -> Result<Lock, Error> {
        let deadline = Instant::now() + patience;
        loop {
            let file = self.open_file(name, OFlag::O_RDONLY | OFlag::O_CREAT, mode)?;
            let waited = wait(&file, way, deadline, given_up).map_err(|source| self.error("lock", name, source))?;
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

/// One of flock(2)'s two: how it is tried, and how it is waited for.
#[derive(Clone, Copy)]
struct Way {
    try_it: fn(&File) -> io::Result<()>,
    wait: fn(&File) -> io::Result<()>,
}

const EXCLUSIVE: Way = Way { try_it: FileExt::try_lock_exclusive, wait: FileExt::lock_exclusive };
const SHARED: Way = Way { try_it: FileExt::try_lock_shared, wait: FileExt::lock_shared };

/// How often a waiter asks whether its caller has given up, if that can be.
const TICK: Duration = Duration::from_millis(20);

/// Takes it, and says whether others had it first. Then it waits in a thread of its own, for flock(2) knows no
/// deadline: the kernel wakes waiters in order and at once, which no polling does. The lock belongs to the open file,
/// of which the thread has a copy; should the deadline come first, that copy is the last one and lets go of whatever it
/// still gets.
fn wait(file: &File, way: Way, deadline: Instant, given_up: Option<&dyn Fn() -> bool>) -> io::Result<bool> {
    match (way.try_it)(file) {
        Err(error) if error.raw_os_error() == fs2::lock_contended_error().raw_os_error() => {}
        done => return done.map(|()| false),
    }
    let late = || io::Error::new(io::ErrorKind::TimedOut, "another process held it until the deadline");
    if Instant::now() >= deadline {
        return Err(late());
    }
    let waiting = file.try_clone()?;
    let (say, hear) = sync_channel(1);
    thread::Builder::new().spawn(move || {
        // The caller may have gone: then nobody hears it, and the lock goes with this copy of the file.
        let _ = say.send(uninterrupted(&waiting, way));
    })?;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match hear.recv_timeout(given_up.map_or(left, |_| left.min(TICK))) {
            Ok(locked) => return locked.map(|()| true),
            Err(RecvTimeoutError::Timeout) if Instant::now() < deadline && !given_up.is_some_and(|asked| asked()) => {}
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Err(late()),
        }
    }
}

fn uninterrupted(file: &File, way: Way) -> io::Result<()> {
    loop {
        match (way.wait)(file) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

//! Locks that end with their process.

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use fs2::FileExt;
use nix::fcntl::OFlag;

use crate::{Directory, Error};

/// A lock on a file; held until the value is dropped, or the process ends in whatever way.
///
/// It is flock(2)'s, so an exclusive one excludes every other program that takes one on the same file. A user who can open a file
/// can lock it, so there is no lock on anything but a lock file in a [`Directory`], which no other user can open.
#[doc(alias = "flock")]
#[derive(Debug)]
pub struct Lock {
    _file: File,
    waited: bool,
}

impl Lock {
    /// Whether another process had it first, so that more may be waiting for it now.
    pub fn waited(&self) -> bool {
        self.waited
    }
}

/// An exclusive flock(2) on a file that any user can open, and so hold for ever: a courtesy to programs that know no better lock,
/// never a guarantee. It is not a [`Lock`], and cannot be made one.
#[derive(Debug)]
pub struct WeakLock {
    _file: File,
}

impl WeakLock {
    /// Takes it if it is free, or becomes free within `timeout`, which therefore must be short; `None` if not.
    pub fn take(opened: OwnedFd, timeout: Duration) -> Option<WeakLock> {
        let file = File::from(opened);
        wait(&file, EXCLUSIVE, Instant::now() + timeout, None).ok()?;
        Some(WeakLock { _file: file })
    }
}

impl Directory {
    /// Takes the exclusive lock on the file `name`, which is created with this mode if it does not exist, and waits at most
    /// `timeout` for it.
    ///
    /// If another process removes the file meanwhile, the lock is taken on the file that then has the name. A file of ours that
    /// other users can open, and so lock, is closed to them.
    ///
    /// # Errors
    /// The lock is not free within `timeout` ([`Error::is_deadline`]), `name` is not a single name or not a regular file, or
    /// openat(2) fails.
    pub fn lock(&self, name: &str, mode: u32, timeout: Duration) -> Result<Lock, Error> {
        self.take(name, mode, EXCLUSIVE, timeout, None)
    }

    /// As [`Directory::lock`], but gives up within 20 ms after `given_up` returns true.
    ///
    /// # Errors
    /// As [`Directory::lock`]. Giving up is reported as a deadline.
    pub fn lock_while(
        &self,
        name: &str,
        mode: u32,
        timeout: Duration,
        given_up: &dyn Fn() -> bool,
    ) -> Result<Lock, Error> {
        self.take(name, mode, EXCLUSIVE, timeout, Some(given_up))
    }

    /// As [`Directory::lock_while`], but takes a shared lock: many can hold it at once, and an exclusive lock waits for all of
    /// them.
    ///
    /// # Errors
    /// As [`Directory::lock_while`].
    pub fn share_while(
        &self,
        name: &str,
        mode: u32,
        timeout: Duration,
        given_up: &dyn Fn() -> bool,
    ) -> Result<Lock, Error> {
        self.take(name, mode, SHARED, timeout, Some(given_up))
    }

    fn take(
        &self,
        name: &str,
        mode: u32,
        way: Way,
        timeout: Duration,
        given_up: Option<&dyn Fn() -> bool>,
    ) -> Result<Lock, Error> {
        let deadline = Instant::now() + timeout;
        loop {
            let file = self.open_regular(name, OFlag::O_RDONLY | OFlag::O_CREAT, mode)?;
            close_to_others(&file);
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

/// Other programs make lock files that other users can open. What they opened before they go on holding. Where this fails, the
/// file belongs to another user, and is used as it is.
fn close_to_others(file: &File) {
    if let Ok(found) = file.metadata()
        && found.mode() & 0o077 != 0
    {
        let _ = file.set_permissions(Permissions::from_mode(found.mode() & 0o600));
    }
}

/// One of flock(2)'s two: how it is tried, and how it is waited for.
#[derive(Clone, Copy)]
pub(crate) struct Way {
    try_it: fn(&File) -> io::Result<()>,
    wait: fn(&File) -> io::Result<()>,
}

pub(crate) const EXCLUSIVE: Way = Way { try_it: FileExt::try_lock_exclusive, wait: FileExt::lock_exclusive };
const SHARED: Way = Way { try_it: FileExt::try_lock_shared, wait: FileExt::lock_shared };

/// How often a waiter asks whether its caller has given up, if that can be.
const TICK: Duration = Duration::from_millis(20);

/// Takes it, and says whether others had it first. Then it waits in a thread of its own, for flock(2) knows no
/// deadline: the kernel wakes waiters in order and at once, which no polling does. The lock belongs to the open file,
/// of which the thread has a copy; should the deadline come first, that copy is the last one and lets go of whatever it
/// still gets.
pub(crate) fn wait(file: &File, way: Way, deadline: Instant, given_up: Option<&dyn Fn() -> bool>) -> io::Result<bool> {
    match (way.try_it)(file) {
        Err(error) if error.raw_os_error() == fs2::lock_contended_error().raw_os_error() => {}
        locked_or_failed => return locked_or_failed.map(|()| false),
    }
    let late = || io::Error::new(io::ErrorKind::TimedOut, "another process held it until the deadline");
    if Instant::now() >= deadline {
        return Err(late());
    }
    let waiting = file.try_clone()?;
    let (say, hear) = sync_channel(1);
    thread::Builder::new().spawn(move || {
        // The caller may have given up: then nothing receives it, and the lock is released with this copy of the file.
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

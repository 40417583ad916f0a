//! Locks that are released when their process ends.

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

/// A lock on a file, held until the value is dropped or the process ends for any reason.
///
/// It is an flock(2) lock, so an exclusive one excludes every other program that locks the same file. A user who can open a file
/// can lock it, so only lock files in a [`Directory`] can be locked, which no other user can open.
#[doc(alias = "flock")]
#[derive(Debug)]
pub struct Lock {
    _file: File,
    waited: bool,
}

impl Lock {
    /// Whether another process held the lock first, so that more processes may be waiting for it now.
    pub fn waited(&self) -> bool {
        self.waited
    }
}

/// An exclusive flock(2) lock on a file that any user can open, and so hold for ever. It is a courtesy to programs that use only
/// this lock, never a guarantee. It is not a [`Lock`], and cannot be converted to one.
#[derive(Debug)]
pub struct WeakLock {
    _file: File,
}

impl WeakLock {
    /// Takes the lock if it is free, or becomes free within `timeout`, which therefore must be short; `None` otherwise.
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
    /// If another process removes the file meanwhile, the lock is taken on the file that then has the name. If other users can
    /// open, and so lock, a file of ours, its mode is restricted to the owner.
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
        lock_mode: LockMode,
        timeout: Duration,
        given_up: Option<&dyn Fn() -> bool>,
    ) -> Result<Lock, Error> {
        let deadline = Instant::now() + timeout;
        loop {
            let file = self.open_regular(name, OFlag::O_RDONLY | OFlag::O_CREAT, mode)?;
            restrict_to_owner(&file);
            let waited =
                wait(&file, lock_mode, deadline, given_up).map_err(|source| self.error("lock", name, source))?;
            if self.is_named(&file, name)? {
                return Ok(Lock { _file: file, waited });
            }
            if Instant::now() >= deadline {
                let replaced =
                    io::Error::new(io::ErrorKind::TimedOut, "it was replaced again and again until the time limit");
                return Err(self.error("lock", name, replaced));
            }
        }
    }
}

/// Removes the permissions of other users from a lock file that another program created. Descriptors that they have already opened
/// stay valid. If this fails, the file belongs to another user, and is used as it is.
fn restrict_to_owner(file: &File) {
    if let Ok(found) = file.metadata()
        && found.mode() & 0o077 != 0
    {
        let _ = file.set_permissions(Permissions::from_mode(found.mode() & 0o600));
    }
}

/// One of the two modes of flock(2): the non-blocking and the blocking call.
#[derive(Clone, Copy)]
pub(crate) struct LockMode {
    try_it: fn(&File) -> io::Result<()>,
    wait: fn(&File) -> io::Result<()>,
}

pub(crate) const EXCLUSIVE: LockMode = LockMode { try_it: FileExt::try_lock_exclusive, wait: FileExt::lock_exclusive };
const SHARED: LockMode = LockMode { try_it: FileExt::try_lock_shared, wait: FileExt::lock_shared };

/// How often a waiter checks whether its caller has given up, if the caller can.
const TICK: Duration = Duration::from_millis(20);

/// Takes the lock, and returns whether another process held it first. In that case it waits in a thread of its own, because
/// flock(2) has no timeout; the kernel wakes waiters in order and at once, which polling cannot. The lock belongs to the open file
/// description, of which the thread has a duplicate descriptor. If the deadline passes first, that one is the last, so a lock that
/// it still gets is released at once.
pub(crate) fn wait(
    file: &File,
    lock_mode: LockMode,
    deadline: Instant,
    given_up: Option<&dyn Fn() -> bool>,
) -> io::Result<bool> {
    match (lock_mode.try_it)(file) {
        Err(error) if error.raw_os_error() == fs2::lock_contended_error().raw_os_error() => {}
        locked_or_failed => return locked_or_failed.map(|()| false),
    }
    let late = || io::Error::new(io::ErrorKind::TimedOut, "another process held it until the time limit");
    if Instant::now() >= deadline {
        return Err(late());
    }
    let waiting = file.try_clone()?;
    let (sender, receiver) = sync_channel(1);
    thread::Builder::new().spawn(move || {
        // The caller may have given up: then nothing receives this, and the lock is released when this descriptor is closed.
        let _ = sender.send(uninterrupted(&waiting, lock_mode));
    })?;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match receiver.recv_timeout(given_up.map_or(left, |_| left.min(TICK))) {
            Ok(locked) => return locked.map(|()| true),
            Err(RecvTimeoutError::Timeout) if Instant::now() < deadline && !given_up.is_some_and(|asked| asked()) => {}
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Err(late()),
        }
    }
}

fn uninterrupted(file: &File, lock_mode: LockMode) -> io::Result<()> {
    loop {
        match (lock_mode.wait)(file) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

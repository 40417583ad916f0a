//! Let only one of our processes at a time change what all attachments of a network namespace share.
//!
//! The lock is a file of ours, for the namespace's cookie, in a directory that no other user can change or read. It is not the
//! namespace's own file, which is world-readable: any process could hold a lock on that for ever.
//!
//! | this process can create a lock file in | lock |
//! |---|---|
//! | `/run/cnikit/locks` | the lock file |
//! | `/var/lib/cnikit/locks` only, because `/run` is read-only or belongs to another user | the lock file there |
//! | no directory: a chroot, a user namespace without directories of its own | the namespace's own file, for at most two seconds of waiting |
//!
//! Releases without lock files use the namespace's own file. It is locked in addition to the lock file if it is free at once, so
//! that a plugin of such a release waits for this one while a node is upgraded. Nothing depends on that lock: a process that holds
//! it delays another one for two seconds at most. Without it, a table is still read again if a change to it fails, and the kernel
//! still refuses changes to an older state of nftables.
//!
//! A mount namespace with a `/run` of its own has lock files of its own. Processes in two such mount namespaces that work on one
//! network namespace are serialised by that namespace's own file only.

use std::fmt;
use std::os::fd::AsFd;
use std::time::Duration;

use cnikit_netns::Netns;
use cnikit_skel::{Error, Result, code, log};
use cnikit_store::{Error as Failed, Lock, PrivateDirectory, WeakLock};

/// How long another process is waited for.
const TIMEOUT: Duration = Duration::from_mins(1);
/// The same where any user can make it wait.
const WEAK_TIMEOUT: Duration = Duration::from_secs(2);
/// The directories of lock files: an existing directory, and the directories that we create below it. The first usable one counts.
const PLACES: [(&str, &[&str]); 2] = [("/run", &["cnikit", "locks"]), ("/var/lib", &["cnikit", "locks"])];

/// The lock on a network namespace, until it is dropped. It is made by [`own`] and [`of`], of nothing else.
#[derive(Debug)]
#[doc(alias = "flock")]
pub struct NetnsLock {
    lock: Option<FileLock>,
    _weak: Option<WeakLock>,
}

#[derive(Debug)]
struct FileLock {
    lock: Lock,
    /// Removed with the lock: where it is, and its name.
    temporary: Option<(PrivateDirectory, String)>,
}

impl NetnsLock {
    /// Whether another process had it first, so that more may be waiting for it now.
    pub fn waited(&self) -> bool {
        self.lock.as_ref().is_some_and(|held| held.lock.waited())
    }
}

impl Drop for FileLock {
    /// While the lock is still held: a process that waits for it sees that the file has gone, and makes another.
    fn drop(&mut self) {
        if let Some((directory, name)) = &self.temporary {
            // A file that stays is used by the next process.
            let _ = directory.remove(name);
        }
    }
}

/// Locks the namespace that the calling thread is in. `others` completes "calls that ..." in messages.
///
/// # Errors
/// Another process held the lock for a minute (code 11), or the namespace cannot be identified. It is not an error if no lock file
/// can be created: the call continues and logs this.
pub fn own(others: &str) -> Result<NetnsLock> {
    take(&Netns::own()?, others, Keep::File)
}

/// Locks a namespace, which has to be opened only for this. If it is not the calling thread's own, the file is removed with the
/// lock: a host has few namespaces of its own, and any number of containers.
///
/// # Errors
/// As [`own`].
pub fn of(netns: &Netns, others: &str) -> Result<NetnsLock> {
    let keep = if netns.is_own()? { Keep::File } else { Keep::Nothing };
    take(netns, others, keep)
}

/// Whether the lock file remains when the lock is dropped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    /// The file remains, because removing it would wake all waiting processes each time.
    File,
    Nothing,
}

fn take(netns: &Netns, others: &str, keep: Keep) -> Result<NetnsLock> {
    let failed = |error: &dyn fmt::Display| {
        let text = format!("this network namespace could not be locked for calls that {others}: {error}");
        Error::new(code::TRY_AGAIN, text).hint("try again")
    };
    let name = format!("netns-{}", netns.name_while_held()?);
    let lock = lock_file(&PLACES, &name, keep).map_err(|error| failed(&error))?;
    let timeout = if lock.is_some() { Duration::ZERO } else { WEAK_TIMEOUT };
    let opened = netns.as_fd().try_clone_to_owned().map_err(|error| failed(&error))?;
    let weak = WeakLock::take(opened, timeout);
    if lock.is_none() && weak.is_none() {
        log::warn(format_args!("this network namespace is not locked for calls that {others}: one of them is held"));
    }
    Ok(NetnsLock { lock, _weak: weak })
}

/// The lock on the file of this name, in the first place where there can be one; `None` if there is no such place.
fn lock_file(places: &[(&str, &[&str])], name: &str, keep: Keep) -> std::result::Result<Option<FileLock>, Failed> {
    for (base, below) in places {
        let locked = PrivateDirectory::make(base, below).and_then(|directory| {
            let lock = directory.lock(name, TIMEOUT)?;
            Ok((lock, directory))
        });
        match locked {
            Ok((lock, directory)) => {
                let temporary = (keep == Keep::Nothing).then(|| (directory, name.to_owned()));
                return Ok(Some(FileLock { lock, temporary }));
            }
            // After a deadline or a lack of memory, no other lock may be taken instead.
            Err(error) if error.is_deadline() || error.is_shortage() => return Err(error),
            Err(error) => log::warn(format_args!("no lock file: {error}")),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_first_usable_directory_has_the_lock_file() {
        let one = tempfile::tempdir().unwrap();
        let two = tempfile::tempdir().unwrap();
        let [one_path, two_path] = [&one, &two].map(|dir| dir.path().to_str().unwrap());
        let places: [(&str, &[&str]); 2] = [(one_path, &["cnikit", "locks"]), (two_path, &["cnikit", "locks"])];
        let [first, second] = [&one, &two].map(|dir| dir.path().join("cnikit/locks/netns-7"));
        for (keep, stays) in [(Keep::Nothing, false), (Keep::File, true)] {
            let held = lock_file(&places, "netns-7", keep).unwrap().unwrap();
            assert!(first.exists() && !second.exists());
            drop(held);
            assert_eq!(first.exists(), stays);
        }
        fs::remove_file(&first).unwrap();
        std::os::unix::fs::symlink("/dev/null", &first).unwrap();
        let held = lock_file(&places, "netns-7", Keep::File).unwrap();
        assert!(held.is_some() && second.exists());
        fs::remove_dir_all(two.path()).unwrap();
        assert!(lock_file(&places, "netns-7", Keep::File).unwrap().is_none());
    }
}

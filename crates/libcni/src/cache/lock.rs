//! Locks: calls for one container run one after another, and no other call runs in a network during its GC.
//!
//! The specification requires both (section 3, "Lifecycle & ordering"). The locks are flock(2) locks on files in `cnikit/locks`.
//! They work between all runtimes that are built on this crate, and the kernel releases those of a killed process. Upstream's
//! libcni takes no locks.
//!
//! The order is always the same, so that there is no deadlock: networks by name, then the container. A call that holds a
//! container waits for no other lock.

use std::time::{Duration, Instant};

use cnikit_store::{Directory, Lock};

use crate::{Attachment, Cache, Error};

/// The locks that one call holds until this value is dropped.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    container: Option<ContainerLock>,
    _networks: Vec<Lock>,
}

/// The lock of a container. Its file is removed with it, because there is one per container.
#[derive(Debug)]
struct ContainerLock {
    directory: Directory,
    name: String,
    _lock: Lock,
}

/// How long a call waits.
#[derive(Clone, Copy)]
pub(crate) struct Waiting<'a> {
    pub(crate) until: Instant,
    /// Whether the caller has cancelled.
    pub(crate) is_cancelled: &'a (dyn Fn() -> bool + Sync),
}

impl Waiting<'_> {
    /// The time that is left.
    pub(crate) fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    fn lock(&self, directory: &Directory, name: &str) -> Result<Lock, Error> {
        directory.lock_while(name, 0o600, self.left(), self.is_cancelled).map_err(lock_error)
    }

    fn share(&self, directory: &Directory, name: &str) -> Result<Lock, Error> {
        directory.share_while(name, 0o600, self.left(), self.is_cancelled).map_err(lock_error)
    }
}

impl Locks {
    /// The locks for work on one container in some networks.
    pub(crate) fn of_attachment(
        cache: &Cache,
        networks: &[&str],
        attachment: &Attachment,
        waiting: Waiting<'_>,
    ) -> Result<Self, Error> {
        let directory = Directory::make(cache.locks(), 0o700)?;
        let mut names = networks.to_vec();
        names.sort_unstable();
        names.dedup();
        let mut shared = Vec::new();
        for name in names {
            shared.push(share_network(&directory, name, waiting)?);
        }
        let container = ContainerLock::take(directory, &attachment.container_id, waiting)?;
        Ok(Self { container: Some(container), _networks: shared })
    }

    /// The locks for the GC of a network: no other call begins there until they are released.
    pub(crate) fn of_network(cache: &Cache, network: &str, waiting: Waiting<'_>) -> Result<Self, Error> {
        let directory = Directory::make(cache.locks(), 0o700)?;
        let turn = waiting.lock(&directory, &turn_file(network))?;
        let gate = waiting.lock(&directory, &gate_file(network))?;
        Ok(Self { container: None, _networks: vec![turn, gate] })
    }

    /// The lock for a container, while its network is locked.
    pub(crate) fn container(cache: &Cache, attachment: &Attachment, waiting: Waiting<'_>) -> Result<Self, Error> {
        let directory = Directory::make(cache.locks(), 0o700)?;
        let container = ContainerLock::take(directory, &attachment.container_id, waiting)?;
        Ok(Self { container: Some(container), _networks: Vec::new() })
    }
}

impl ContainerLock {
    fn take(directory: Directory, container_id: &str, waiting: Waiting<'_>) -> Result<Self, Error> {
        let name = container_file(container_id);
        let lock = waiting.lock(&directory, &name)?;
        Ok(Self { directory, name, _lock: lock })
    }
}

impl Drop for Locks {
    /// Removes the container's file while the lock is still held: a waiting call then finds that its file was removed, and creates
    /// another.
    fn drop(&mut self) {
        if let Some(held) = &self.container {
            // A file that cannot be removed is used by the next call.
            let _ = held.directory.remove(&held.name);
        }
    }
}

/// Whether another call works on a container. The lock file of a killed call is removed.
pub(crate) fn is_busy(cache: &Cache, container_id: &str) -> bool {
    let name = container_file(container_id);
    let Ok(directory) = Directory::open(cache.locks()) else { return false };
    let Ok(Some(_)) = directory.facts(&name) else { return false };
    match directory.lock(&name, 0o600, Duration::ZERO) {
        Ok(lock) => {
            let _ = directory.remove(&name);
            drop(lock);
            false
        }
        Err(error) => error.is_deadline(),
    }
}

/// Shares a network with all calls except GC. A waiting GC has priority, because it holds the turn lock.
fn share_network(directory: &Directory, network: &str, waiting: Waiting<'_>) -> Result<Lock, Error> {
    let turn = waiting.lock(directory, &turn_file(network))?;
    let gate = waiting.share(directory, &gate_file(network));
    drop(turn);
    gate
}

fn lock_error(error: cnikit_store::Error) -> Error {
    if error.is_deadline() { Error::Busy(error.to_string()) } else { error.into() }
}

// The prefixes are short, so that every name that fits into the name of a result fits here.

fn container_file(container_id: &str) -> String {
    format!("c-{container_id}")
}

fn gate_file(network: &str) -> String {
    format!("n-{network}")
}

fn turn_file(network: &str) -> String {
    format!("t-{network}")
}

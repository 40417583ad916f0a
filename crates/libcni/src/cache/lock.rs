//! Who may be at work at the same time: nobody else for a container, and GC of a network alone on it.
//!
//! The specification asks for both (section 3, "Lifecycle & ordering"). The locks are flock(2)'s on files in `cnikit/locks`, so
//! every runtime that is built on this crate takes part, and a killed one lets go; the reference takes none.
//!
//! The order is the same everywhere, so that nobody waits in a ring: networks by their names, then the container. Whoever
//! holds a container waits for nobody.

use std::time::{Duration, Instant};

use cnikit_store::{Directory, Lock};

use crate::{Attachment, Cache, Error};

/// What one call holds. It goes with the value, or with the process.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    container: Option<OfContainer>,
    _networks: Vec<Lock>,
}

/// The lock of a container, whose file goes with it: there is one for each container that ever was.
#[derive(Debug)]
struct OfContainer {
    directory: Directory,
    name: String,
    _lock: Lock,
}

/// For how long, and until whom.
#[derive(Clone, Copy)]
pub(crate) struct Waiting<'a> {
    pub(crate) until: Instant,
    /// Whether the caller has given up.
    pub(crate) given_up: &'a (dyn Fn() -> bool + Sync),
}

impl Waiting<'_> {
    pub(crate) fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }
}

impl Locks {
    /// For the work on one container in some networks.
    pub(crate) fn of_attachment(
        cache: &Cache,
        networks: &[&str],
        at: &Attachment,
        waiting: Waiting<'_>,
    ) -> Result<Self, Error> {
        let directory = Directory::make(cache.locks(), 0o700)?;
        let mut names = networks.to_vec();
        names.sort_unstable();
        names.dedup();
        let networks: Result<Vec<Lock>, Error> = names.iter().map(|name| beside(&directory, name, waiting)).collect();
        let networks = networks?;
        let container = OfContainer::take(directory, &at.container_id, waiting)?;
        Ok(Self { container: Some(container), _networks: networks })
    }

    /// For the GC of a network: until it is let go, nobody begins anything there.
    pub(crate) fn of_network(cache: &Cache, network: &str, waiting: Waiting<'_>) -> Result<Self, Error> {
        let directory = Directory::make(cache.locks(), 0o700)?;
        let turn = taken(directory.lock_while(&turn_of(network), 0o600, waiting.left(), waiting.given_up))?;
        let gate = taken(directory.lock_while(&gate_of(network), 0o600, waiting.left(), waiting.given_up))?;
        Ok(Self { container: None, _networks: vec![turn, gate] })
    }

    /// For a container besides, while a network is held.
    pub(crate) fn container(cache: &Cache, at: &Attachment, waiting: Waiting<'_>) -> Result<Self, Error> {
        let directory = Directory::make(cache.locks(), 0o700)?;
        let container = OfContainer::take(directory, &at.container_id, waiting)?;
        Ok(Self { container: Some(container), _networks: Vec::new() })
    }
}

impl OfContainer {
    fn take(directory: Directory, id: &str, waiting: Waiting<'_>) -> Result<Self, Error> {
        let name = name_of(id);
        let lock = taken(directory.lock_while(&name, 0o600, waiting.left(), waiting.given_up))?;
        Ok(Self { directory, name, _lock: lock })
    }
}

impl Drop for Locks {
    /// While the lock is still held: whoever waits for it sees that its file has gone, and makes another.
    fn drop(&mut self) {
        if let Some(held) = &self.container {
            // A file that stays is taken over by the next one.
            let _ = held.directory.remove(&held.name);
        }
    }
}

/// Whether somebody is at work on a container.
pub(crate) fn is_busy(cache: &Cache, container_id: &str) -> bool {
    let name = name_of(container_id);
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

/// Waits behind a GC that waits, and then beside all others.
fn beside(directory: &Directory, network: &str, waiting: Waiting<'_>) -> Result<Lock, Error> {
    let turn = taken(directory.lock_while(&turn_of(network), 0o600, waiting.left(), waiting.given_up))?;
    let gate = taken(directory.share_while(&gate_of(network), 0o600, waiting.left(), waiting.given_up));
    drop(turn);
    gate
}

fn taken(lock: Result<Lock, cnikit_store::Error>) -> Result<Lock, Error> {
    lock.map_err(|error| if error.is_deadline() { Error::Busy(error.to_string()) } else { error.into() })
}

// One letter and a dash, so that what fits into the name of a result fits here.

fn name_of(container_id: &str) -> String {
    format!("c-{container_id}")
}

fn gate_of(network: &str) -> String {
    format!("n-{network}")
}

fn turn_of(network: &str) -> String {
    format!("t-{network}")
}

//! Attempts at a change: other programs may change the ruleset between our read and our transaction.

use std::time::{Duration, Instant};

use super::nftables::Nftables;
use crate::wire::batch::Batch;
use crate::{Error, Result};

/// How long a change is tried again while other programs change the ruleset. Each refusal means that a change of another one was
/// made: on a busy machine the last of 64 calls at once waits for more than 10 seconds.
const TIMEOUT: Duration = Duration::from_mins(1);
/// How often it is tried again if an object does not exist, exists or is busy, which may be permanent.
const TRIES: usize = 20;

/// The attempts at one change. Each reads what there is, decides, and sends a transaction.
pub(super) struct Attempts {
    deadline: Instant,
    tries: usize,
    /// An earlier attempt was refused after some of its transactions were carried out.
    pub(super) begun: bool,
}

impl Attempts {
    pub(super) fn new() -> Self {
        Self { deadline: Instant::now() + TIMEOUT, tries: 0, begun: false }
    }

    /// Whether no attempt was made yet.
    pub(super) fn is_first(&self) -> bool {
        self.tries == 0
    }

    /// Sends the changes. Returns false if another program changed the ruleset since it was read, so that the caller has to read it
    /// again.
    ///
    /// # Errors
    /// The kernel refuses the changes, and does so whatever other programs do.
    pub(super) fn send(&mut self, nftables: &Nftables, batch: &Batch) -> Result<bool> {
        if batch.is_empty() {
            return Ok(true);
        }
        self.tries += 1;
        let sent = batch.send(&mut nftables.socket.borrow_mut());
        let Err((done, error)) = sent else { return Ok(true) };
        self.begun |= done > 0;
        if is_overtaken(&error, self.tries) && Instant::now() < self.deadline {
            return Ok(false);
        }
        Err(error)
    }
}

/// Whether a refusal may come from a change of another program between our read and our transaction.
///
/// That something does not exist (a rule to delete, a chain to add to), exists already or is busy may also be our own fault, or
/// the kernel may lack a module: then only a few more attempts are made.
fn is_overtaken(error: &Error, tries: usize) -> bool {
    match error.errno {
        // The guard: the ruleset has another generation by now.
        libc::ERESTART => true,
        libc::ENOENT | libc::EEXIST | libc::EBUSY => tries < TRIES,
        _ => false,
    }
}

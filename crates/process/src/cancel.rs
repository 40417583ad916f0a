//! Cancel a program that runs, from another thread.

use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Cancels the programs that run with this token, from any thread. Clones are the same token. A cancelled token stays cancelled.
///
/// It is a pipe: cancelling closes its write end, which wakes every poll(2) on the read end at once.
#[derive(Clone, Debug)]
pub struct CancellationToken(Arc<Ends>);

#[derive(Debug)]
struct Ends {
    read: PipeReader,
    write: Mutex<Option<PipeWriter>>,
}

impl CancellationToken {
    /// A token that is not cancelled yet.
    ///
    /// # Errors
    /// pipe(2) fails because no descriptor is free.
    pub fn new() -> io::Result<Self> {
        let (read, write) = io::pipe()?;
        Ok(Self(Arc::new(Ends { read, write: Mutex::new(Some(write)) })))
    }

    /// Cancels everything that waits with this token.
    pub fn cancel(&self) {
        self.0.write.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Whether the token is cancelled.
    pub fn is_cancelled(&self) -> bool {
        let mut ends = [PollFd::new(self.as_fd(), PollFlags::empty())];
        poll(&mut ends, PollTimeout::ZERO).is_ok_and(|count| count > 0)
    }
}

impl AsFd for CancellationToken {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.read.as_fd()
    }
}

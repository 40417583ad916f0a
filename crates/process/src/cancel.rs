//! The caller's word that it wants no more.

use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Ends what runs under it, from any thread; clones are one. Once said it stays said.
///
/// It is a pipe whose end is closed, so that who waits in poll(2) hears it at once.
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
    /// pipe(2) fails because no descriptor is left.
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

//! Packet sockets are closed by short-lived threads: close(2) of one waits for a grace period of the kernel, about 20 ms
//! (`packet_release()`, which calls `synchronize_net()`). In the event loop every caller would wait for all of them, one after the
//! other. Several threads wait for the same grace period.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// The most threads at a time; beyond that, a socket is closed at once.
const MOST: usize = 64;
/// The stack of a thread, in bytes: it calls close(2).
const STACK: usize = 65_536;

/// The number of sockets that are being closed.
static CLOSING: AtomicUsize = AtomicUsize::new(0);

/// A socket that is closed when this is dropped.
struct Closing(Option<OwnedFd>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.take();
        CLOSING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Closes a socket without waiting until that is done.
pub(crate) fn close(socket: impl Into<OwnedFd>) {
    let before = CLOSING.fetch_add(1, Ordering::Relaxed);
    let closing = Closing(Some(socket.into()));
    if before < MOST {
        // If no thread can be started, the socket is closed here.
        let _ = thread::Builder::new().stack_size(STACK).spawn(move || drop(closing));
    }
}

/// A packet socket, while one is open.
#[derive(Debug)]
pub(crate) struct SocketSlot<S: Into<OwnedFd>>(Option<S>);

impl<S: Into<OwnedFd>> SocketSlot<S> {
    pub(crate) const EMPTY: SocketSlot<S> = SocketSlot(None);

    pub(crate) fn get(&self) -> Option<&S> {
        self.0.as_ref()
    }

    pub(crate) fn get_mut(&mut self) -> Option<&mut S> {
        self.0.as_mut()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn set(&mut self, socket: S) {
        self.clear();
        self.0 = Some(socket);
    }

    pub(crate) fn clear(&mut self) {
        if let Some(socket) = self.0.take() {
            close(socket);
        }
    }
}

impl<S: Into<OwnedFd>> Drop for SocketSlot<S> {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn every_socket_of_a_slot_is_closed() {
        let mut slot = SocketSlot::EMPTY;
        let others: Vec<UnixStream> = (0..3 * MOST)
            .map(|_| {
                let (one, other) = UnixStream::pair().unwrap();
                slot.set(one);
                other
            })
            .collect();
        assert!(!slot.is_empty() && slot.get().is_some() && slot.get_mut().is_some());
        drop(slot);
        for mut other in others {
            assert_eq!(other.read(&mut [0]).unwrap(), 0, "the end of the stream");
        }
    }
}

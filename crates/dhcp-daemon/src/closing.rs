//! Packet sockets are closed by a few threads: close(2) of one waits for a grace period of the kernel, about 20 ms
//! (`packet_release()`, which calls `synchronize_net()`). In the event loop every caller would wait for all of them, one after the
//! other. Several threads wait for the same grace period.
//!
//! They are started before the daemon serves: a thread of the standard library that gets no memory for its signal stack aborts the
//! process.

use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use cnikit_netns::disregard_thread;

/// The threads: a hundred sockets are closed in 0.3 s.
const THREADS: usize = 8;
/// The stack of a thread, in bytes: it calls close(2).
const STACK: usize = 65_536;
/// The most sockets that wait for a thread; beyond that, one is closed at once.
const MOST: usize = 256;

/// Where the threads get sockets from.
static QUEUE: OnceLock<SyncSender<OwnedFd>> = OnceLock::new();

/// Starts as many of the threads as the kernel allows. Without one, sockets are closed at once.
pub(crate) fn start() {
    QUEUE.get_or_init(|| {
        let (sender, sockets) = sync_channel(MOST);
        let sockets = Arc::new(Mutex::new(sockets));
        for _ in 0..THREADS {
            let sockets = Arc::clone(&sockets);
            if thread::Builder::new().stack_size(STACK).spawn(move || close_all(&sockets)).is_ok() {
                disregard_thread();
            }
        }
        sender
    });
}

fn close_all(sockets: &Mutex<Receiver<OwnedFd>>) {
    loop {
        // In a statement of its own, so that other threads get sockets while this one waits for the kernel.
        let next = sockets.lock().unwrap_or_else(PoisonError::into_inner).recv();
        match next {
            Ok(socket) => drop(socket),
            Err(_) => return,
        }
    }
}

/// Closes a socket, without waiting until that is done if there are threads.
pub(crate) fn close(socket: impl Into<OwnedFd>) {
    if let Some(queue) = QUEUE.get() {
        // If the queue is full or has no thread, the error has the socket: dropping it closes it.
        drop(queue.try_send(socket.into()));
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
        start();
        let mut slot = SocketSlot::EMPTY;
        let others: Vec<UnixStream> = (0..MOST + 2 * THREADS)
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

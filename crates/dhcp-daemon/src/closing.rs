//! Sockets that are closed when the daemon has nothing else to do. close(2) of a packet socket waits for a grace period of the
//! kernel, about 20 ms (`packet_release()`, which calls `synchronize_net()`), and every caller would wait with it.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// The most sockets that wait. Each keeps a namespace alive, and a daemon that takes over waits until they are closed.
const MOST: usize = 128;

/// The sockets that are to be closed. Each clone is the same list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Closing(Rc<RefCell<Vec<OwnedFd>>>);

impl Closing {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Has a socket closed later; at once, if too many wait.
    pub(crate) fn add(&self, socket: impl Into<OwnedFd>) {
        let socket = socket.into();
        if self.0.borrow().len() < MOST {
            self.0.borrow_mut().push(socket);
        } else {
            drop(socket);
        }
    }

    /// Closes one of them, which takes about 20 ms.
    pub(crate) fn close_one(&self) {
        let socket = self.0.borrow_mut().pop();
        drop(socket);
    }
}

/// A packet socket, while one is open.
#[derive(Debug)]
pub(crate) struct SocketSlot<S: Into<OwnedFd>> {
    socket: Option<S>,
    closing: Closing,
}

impl<S: Into<OwnedFd>> SocketSlot<S> {
    /// An empty one, whose sockets are closed by way of this list.
    pub(crate) fn new(closing: &Closing) -> SocketSlot<S> {
        SocketSlot { socket: None, closing: closing.clone() }
    }

    pub(crate) fn get(&self) -> Option<&S> {
        self.socket.as_ref()
    }

    pub(crate) fn get_mut(&mut self) -> Option<&mut S> {
        self.socket.as_mut()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.socket.is_none()
    }

    pub(crate) fn set(&mut self, socket: S) {
        self.clear();
        self.socket = Some(socket);
    }

    /// Has the socket closed later.
    pub(crate) fn clear(&mut self) {
        if let Some(socket) = self.socket.take() {
            self.closing.add(socket);
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

    /// Whether the other end of this socket is open.
    fn is_open(mut socket: &UnixStream) -> bool {
        socket.read(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    }

    #[test]
    fn a_socket_of_a_slot_stays_open_until_its_turn_has_come() {
        let closing = Closing::default();
        let mut slot = SocketSlot::new(&closing);
        let others: Vec<UnixStream> = (0..MOST + 2)
            .map(|_| {
                let (one, other) = UnixStream::pair().unwrap();
                other.set_nonblocking(true).unwrap();
                slot.set(one);
                other
            })
            .collect();
        let open = || others.iter().filter(|other| is_open(other)).count();
        assert_eq!(open(), MOST + 1, "one is in use, and one was too many");
        drop(slot);
        assert_eq!(open(), MOST);
        for left in (0..MOST).rev() {
            assert!(!closing.is_empty());
            closing.close_one();
            assert_eq!(open(), left);
        }
        assert!(closing.is_empty());
    }
}

//! The transport: one blocking socket, opened in its namespace, and the events that it hears.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use cnikit_netns::Netns;
use cnikit_process::Deadline;
use netlink_sys::SocketAddr;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, setsockopt, sockopt};

use crate::deferred_close::DeferredClose;
use crate::frame::frames;
use crate::{Error, Result};

/// How long an answer may take, all attempts at a dump included. The kernel answers at once; this is against hanging.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);
/// The longest datagram: the kernel builds dumps of up to 32 KiB, and nothing that it says of one thing comes near to that.
/// More than twice as much would be memory that comes from the system, and goes back to it, at a price.
const LONGEST: usize = 64 << 10;
/// Room for acknowledgements and events that wait to be read, and for a large transaction to be sent.
const QUEUE: usize = 4 << 20;
/// A netlink socket of any protocol; it works in the namespace that it was opened in, wherever it is used from.
///
/// See netlink(7). Extended acknowledgements, capped acknowledgements and strict checking of dump requests are on.
pub struct Socket {
    inner: netlink_sys::Socket,
    /// The kernel's address for this socket, by which answers to us are told from the events of others.
    pub(crate) port: u32,
    sequence: u32,
    /// Whether events went by unread while an answer was awaited.
    pub(crate) missed: bool,
    /// What was received last. Never written but by the kernel: only the pages that it fills cost anything.
    pub(crate) buffer: Vec<u8>,
    /// Whether closing it takes so long that no caller should wait for it.
    ends_slowly: bool,
    /// At its end, what outlives `inner`, and so stands behind it.
    last: Option<DeferredClose>,
}

/// What [`Socket::listen`] heard.
pub(crate) enum Heard {
    /// At least one datagram of events, split into messages.
    Events(Vec<Vec<u8>>),
    /// Events were lost, or were more than the queue holds: the caller has to read the state again.
    Lost,
    /// The deadline passed.
    Nothing,
}

impl Socket {
    /// Opens a socket in the namespace of the calling thread, for `NETLINK_ROUTE` (0), `NETLINK_NETFILTER` (12), …
    ///
    /// # Errors
    /// socket(2), bind(2) or setsockopt(2) fails: no descriptor is left, or the kernel lacks the protocol
    /// ([`Error::unsupported`]).
    #[doc(alias = "NETLINK_ROUTE")]
    pub fn here(protocol: isize) -> Result<Self> {
        open(protocol).map_err(|source| Error::new("open a netlink socket", "", source))
    }

    /// Opens a socket inside `netns`, which is entered only for this, as [`Netns::enter`] does.
    ///
    /// # Errors
    /// The namespace cannot be entered, or as [`Socket::here`].
    pub fn inside(netns: &Netns, protocol: isize) -> Result<Self> {
        let failed = |source: io::Error| Error::new("open a netlink socket in", netns.path().to_string_lossy(), source);
        let outside = |error: cnikit_netns::Error| match error.errno() {
            Some(errno) => failed(io::Error::from_raw_os_error(errno)),
            None => failed(io::Error::other(error)),
        };
        netns.enter(|_| open(protocol)).map_err(outside)?.map_err(failed)
    }

    /// The same socket, closed later by the kernel: closing a netfilter socket waits until rules that any process removed are
    /// freed, 8 to 16 ms. All answers have arrived by then, so nothing depends on when it is closed.
    #[must_use]
    pub fn ending_slowly(mut self) -> Self {
        self.ends_slowly = true;
        self
    }

    /// The sequence number for the next message; never 0, which events have.
    pub fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1).max(1);
        self.sequence
    }

    /// Has the events of a multicast group sent to this socket from now on.
    #[doc(alias = "NETLINK_ADD_MEMBERSHIP")]
    pub(crate) fn join(&mut self, group: u32) -> io::Result<()> {
        self.inner.add_membership(group)
    }

    pub(crate) fn leave(&mut self, group: u32) -> io::Result<()> {
        self.inner.drop_membership(group)
    }

    /// Waits for events, which are messages that do not answer us.
    pub(crate) fn listen(&mut self, deadline: Deadline) -> Result<Heard> {
        if std::mem::take(&mut self.missed) {
            return Ok(Heard::Lost);
        }
        match self.receive(deadline) {
            Ok(size) => Ok(Heard::Events(frames(&self.buffer[..size]).map(|frame| frame.bytes.to_vec()).collect())),
            Err(error) if lost(&error) => Ok(Heard::Lost),
            Err(error) if timed_out(&error) => Ok(Heard::Nothing),
            Err(error) => Err(Error::new("listen to netlink events", "", error)),
        }
    }

    /// Throws away the events so far. A full queue has no room for the next answer, which the kernel would drop.
    pub(crate) fn drain(&mut self) {
        self.missed = false;
        let now = Deadline::after(Duration::ZERO);
        loop {
            match self.receive(now) {
                Err(error) if !lost(&error) => return,
                _ => {}
            }
        }
    }

    /// The size limit of one datagram in bytes (`SO_SNDBUF`).
    ///
    /// # Errors
    /// getsockopt(2) fails.
    #[doc(alias = "SO_SNDBUF")]
    pub fn send_buffer(&self) -> io::Result<usize> {
        Ok(getsockopt(&self.inner, sockopt::SndBuf)?)
    }

    /// Raises the size limit of a datagram to this many bytes; `false` if the kernel does not allow it, as in a user namespace.
    pub fn allow(&mut self, bytes: usize) -> bool {
        // Beside the datagram the kernel keeps some bytes for itself.
        let wanted = bytes + 4_096;
        // What the kernel sets is twice what it is asked for.
        let is_enough = |socket: &Self| socket.send_buffer().is_ok_and(|size| size >= wanted);
        is_enough(self) || (setsockopt(&self.inner, sockopt::SndBufForce, &wanted).is_ok() && is_enough(self))
    }

    pub(crate) fn send(&self, datagram: &[u8]) -> io::Result<()> {
        loop {
            match self.inner.send_to(datagram, &SocketAddr::new(0, 0), 0) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                Ok(_) => return Ok(()),
            }
        }
    }

    /// Reads one datagram of the kernel into the buffer, or fails with `ETIMEDOUT`.
    pub(crate) fn receive(&mut self, deadline: Deadline) -> io::Result<usize> {
        loop {
            self.buffer.clear();
            match self.inner.recv_from(&mut self.buffer, libc::MSG_DONTWAIT | libc::MSG_TRUNC) {
                // Any process may write to a netlink socket; only the kernel has port 0.
                Ok((_, sender)) if sender.port_number() != 0 => {}
                Ok((size, _)) if size > LONGEST => return Err(Errno::EMSGSIZE.into()),
                Ok((size, _)) => return Ok(size),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                Err(_) if deadline.passed() => return Err(Errno::ETIMEDOUT.into()),
                Err(_) => self.wait(deadline)?,
            }
        }
    }

    /// Waits until there is something to read, or fails with `ETIMEDOUT`.
    pub(crate) fn wait(&self, deadline: Deadline) -> io::Result<()> {
        loop {
            let timeout = PollTimeout::try_from(deadline.poll_timeout_ms()).unwrap_or(PollTimeout::MAX);
            match poll(&mut [PollFd::new(self.inner.as_fd(), PollFlags::POLLIN)], timeout) {
                Ok(0) if deadline.passed() => return Err(Errno::ETIMEDOUT.into()),
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl Drop for Socket {
    /// Where the kernel cannot be left to end it, we wait.
    fn drop(&mut self) {
        if self.ends_slowly {
            self.last = DeferredClose::of(self.inner.as_fd()).ok();
        }
    }
}

fn open(protocol: isize) -> io::Result<Socket> {
    let mut socket = netlink_sys::Socket::new(protocol)?;
    let port = socket.bind_auto()?.port_number();
    socket.set_ext_ack(true)?;
    socket.set_cap_ack(true)?;
    socket.set_netlink_get_strict_chk(true)?;
    // The forced sizes need CAP_NET_ADMIN in the first user namespace; without it the system's limit is the size.
    setsockopt(&socket, sockopt::RcvBufForce, &QUEUE).or_else(|_| setsockopt(&socket, sockopt::RcvBuf, &QUEUE))?;
    setsockopt(&socket, sockopt::SndBufForce, &QUEUE).or_else(|_| setsockopt(&socket, sockopt::SndBuf, &QUEUE))?;
    Ok(Socket {
        inner: socket,
        port,
        sequence: 0,
        missed: false,
        buffer: room(LONGEST)?,
        ends_slowly: false,
        last: None,
    })
}

/// Room for so many bytes. That there is none is an error, after which an ADD is still undone, and not the end of the process.
fn room(bytes: usize) -> io::Result<Vec<u8>> {
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(bytes).map_err(|_| Errno::ENOMEM)?;
    Ok(buffer)
}

/// The queue ran over: something that was sent to us is gone.
pub(crate) fn lost(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOBUFS)
}

pub(crate) fn timed_out(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ETIMEDOUT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_there_is_no_memory_is_an_error() {
        assert_eq!(room(usize::MAX >> 1).unwrap_err().raw_os_error(), Some(libc::ENOMEM));
        assert!(room(LONGEST).unwrap().capacity() >= LONGEST);
    }
}

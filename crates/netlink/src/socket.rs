//! The transport: one blocking socket, opened in its namespace, and the events that it receives.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use cnikit_netns::Netns;
use cnikit_process::Deadline;
use netlink_sys::SocketAddr;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, setsockopt, sockopt};
use socket2::{SockFilter, SockRef};

use crate::deferred_close::DeferredClose;
use crate::frame::frames;
use crate::{Error, Result};

/// The longest time that an answer may take, all attempts at a dump included. The kernel answers at once; the limit only prevents
/// that a call hangs.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);
/// The size of the receive buffer, which is the longest datagram that can be received, in bytes.
///
/// The kernel builds dumps in datagrams of up to 32 KiB, and its description of a single object is much shorter than that. A
/// buffer of more than 128 KiB would cost time: the allocator gets it from the kernel and returns it for each socket.
const LONGEST: usize = 64 << 10;
/// The size of the receive queue, for acknowledgements and events that wait to be read, and of the send buffer, for a large
/// transaction; in bytes.
const QUEUE: usize = 4 << 20;
/// A netlink socket of any protocol. It works on the namespace that it was opened in, whichever namespace the calling thread is
/// in.
///
/// See netlink(7). Extended acknowledgements, capped acknowledgements and strict checking of dump requests are on.
pub struct Socket {
    inner: netlink_sys::Socket,
    /// The port of this socket (`nl_pid`). Answers to our requests have it in their headers; events that other programs cause do
    /// not.
    pub(crate) port: u32,
    sequence: u32,
    /// Whether events were discarded while an answer was awaited.
    pub(crate) missed: bool,
    /// The datagram that was received last. Only the kernel writes to it, so only the pages that it fills are ever allocated.
    pub(crate) buffer: Vec<u8>,
    /// Whether closing the socket takes so long that no caller should wait for it.
    ends_slowly: bool,
    /// Whether it has a filter.
    filtered: bool,
    /// Set on drop if the kernel is to close the socket. It must be dropped after `inner`, so it is declared after it.
    last: Option<DeferredClose>,
}

/// The outcome of [`Socket::listen`].
pub(crate) enum Heard {
    /// At least one datagram of events, split into messages.
    Events(Vec<Vec<u8>>),
    /// Events were discarded, or did not fit into the queue: the caller has to read the state again.
    Lost,
    /// The deadline passed.
    Nothing,
}

impl Socket {
    /// Opens a socket in the namespace of the calling thread, for `NETLINK_ROUTE` (0), `NETLINK_NETFILTER` (12), …
    ///
    /// # Errors
    /// socket(2), bind(2) or setsockopt(2) fails: no descriptor is left, or the kernel does not support the protocol
    /// ([`Error::unsupported`]).
    #[doc(alias = "NETLINK_ROUTE")]
    pub fn here(protocol: isize) -> Result<Self> {
        open(protocol).map_err(|source| Error::new("open a netlink socket", "", source))
    }

    /// Opens a socket inside `netns`. The namespace is entered only for this, with [`Netns::enter`].
    ///
    /// # Errors
    /// The namespace cannot be entered, or an error of [`Socket::here`].
    pub fn inside(netns: &Netns, protocol: isize) -> Result<Self> {
        let failed = |source: io::Error| Error::new("open a netlink socket in", netns.path().to_string_lossy(), source);
        let outside = |error: cnikit_netns::Error| match error.errno() {
            Some(errno) => failed(io::Error::from_raw_os_error(errno)),
            None => failed(io::Error::other(error)),
        };
        let socket = netns.enter(|_| open(protocol)).map_err(outside)?.map_err(failed)?;
        netns.learn_cookie(&socket.inner);
        Ok(socket)
    }

    /// The same socket, but on drop its close is left to the kernel.
    ///
    /// Closing a netfilter socket waits until the rules that any process removed are freed, which takes 8 to 16 ms. All answers
    /// have arrived by then, so nothing depends on when the socket is closed.
    #[must_use]
    pub fn ending_slowly(mut self) -> Self {
        self.ends_slowly = true;
        self
    }

    /// The sequence number for the next message; never 0, the sequence number of events.
    pub fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1).max(1);
        self.sequence
    }

    /// From now on the kernel drops the messages to this socket that the filter does not accept; without one, none.
    ///
    /// # Errors
    /// An earlier filter cannot be removed. If the kernel refuses the new one, the socket works without it.
    #[doc(alias = "SO_ATTACH_FILTER")]
    pub(crate) fn filter(&mut self, filter: Option<&[SockFilter]>) -> io::Result<()> {
        let socket = SockRef::from(&self.inner);
        match filter {
            Some(filter) => self.filtered |= socket.attach_filter(filter).is_ok(),
            None if self.filtered => {
                socket.detach_filter()?;
                self.filtered = false;
            }
            None => {}
        }
        Ok(())
    }

    /// Subscribes to the events of a multicast group.
    #[doc(alias = "NETLINK_ADD_MEMBERSHIP")]
    pub(crate) fn join(&mut self, group: u32) -> io::Result<()> {
        self.inner.add_membership(group)
    }

    pub(crate) fn leave(&mut self, group: u32) -> io::Result<()> {
        self.inner.drop_membership(group)
    }

    /// Waits for events: messages that are not answers to our requests.
    pub(crate) fn listen(&mut self, deadline: Deadline) -> Result<Heard> {
        if std::mem::take(&mut self.missed) {
            return Ok(Heard::Lost);
        }
        match self.receive(deadline) {
            Ok(size) => Ok(Heard::Events(frames(&self.buffer[..size]).map(|frame| frame.bytes.to_vec()).collect())),
            Err(error) if lost(&error) => Ok(Heard::Lost),
            Err(error) if timed_out(&error) => Ok(Heard::Nothing),
            Err(error) => Err(Error::new("subscribe to netlink events", "", error)),
        }
    }

    /// As [`Socket::listen`], and returns `None` if there are no events and the process of this pidfd has ended.
    pub(crate) fn listen_while(&mut self, process: BorrowedFd<'_>, deadline: Deadline) -> Result<Option<Heard>> {
        let failed = |error: Errno| Error::new("subscribe to netlink events", "", error);
        loop {
            let [_, has_ended] = wait_for([self.inner.as_fd(), process], deadline).map_err(failed)?;
            match self.listen(Deadline::after(Duration::ZERO))? {
                Heard::Nothing if has_ended => return Ok(None),
                Heard::Nothing if !deadline.passed() => {}
                heard => return Ok(Some(heard)),
            }
        }
    }

    /// Discards the events received so far. If the queue is full, the kernel drops the next answer.
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

    /// The size limit of a sent datagram in bytes (`SO_SNDBUF`).
    ///
    /// # Errors
    /// getsockopt(2) fails.
    #[doc(alias = "SO_SNDBUF")]
    pub fn send_buffer(&self) -> io::Result<usize> {
        Ok(getsockopt(&self.inner, sockopt::SndBuf)?)
    }

    /// Raises the size limit of a datagram to this many bytes; `false` if the kernel does not allow it, as in a user namespace.
    pub fn allow(&mut self, bytes: usize) -> bool {
        // The limit includes some bytes that the kernel needs in addition to the datagram.
        let wanted = bytes + 4_096;
        // The kernel sets twice the requested size, so the resulting size is compared.
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

    /// Receives one datagram from the kernel into the buffer, or fails with `ETIMEDOUT`.
    pub(crate) fn receive(&mut self, deadline: Deadline) -> io::Result<usize> {
        loop {
            self.buffer.clear();
            match self.inner.recv_from(&mut self.buffer, libc::MSG_DONTWAIT | libc::MSG_TRUNC) {
                // Any process may send to a netlink socket; only the kernel has port 0.
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
        match wait_for([self.inner.as_fd()], deadline)? {
            [true] => Ok(()),
            [false] => Err(Errno::ETIMEDOUT.into()),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

impl Drop for Socket {
    /// If the close cannot be left to the kernel, it happens here and waits.
    fn drop(&mut self) {
        if self.ends_slowly {
            self.last = DeferredClose::of(self.inner.as_fd()).ok();
        }
    }
}

/// Waits until one of the descriptors can be read, or to the deadline; returns which can be.
fn wait_for<const N: usize>(descriptors: [BorrowedFd<'_>; N], deadline: Deadline) -> nix::Result<[bool; N]> {
    let mut polled = descriptors.map(|descriptor| PollFd::new(descriptor, PollFlags::POLLIN));
    loop {
        let timeout = PollTimeout::try_from(deadline.poll_timeout_ms()).unwrap_or(PollTimeout::MAX);
        match poll(&mut polled, timeout) {
            Ok(0) if !deadline.passed() => {}
            Err(Errno::EINTR) => {}
            Ok(_) => return Ok(polled.map(|one| one.any().unwrap_or(true))),
            Err(errno) => return Err(errno),
        }
    }
}

fn open(protocol: isize) -> io::Result<Socket> {
    let mut socket = netlink_sys::Socket::new(protocol)?;
    let port = socket.bind_auto()?.port_number();
    socket.set_ext_ack(true)?;
    socket.set_cap_ack(true)?;
    socket.set_netlink_get_strict_chk(true)?;
    // SO_RCVBUFFORCE and SO_SNDBUFFORCE need CAP_NET_ADMIN in the initial user namespace; without it the sizes are limited by
    // the sysctls rmem_max and wmem_max.
    setsockopt(&socket, sockopt::RcvBufForce, &QUEUE).or_else(|_| setsockopt(&socket, sockopt::RcvBuf, &QUEUE))?;
    setsockopt(&socket, sockopt::SndBufForce, &QUEUE).or_else(|_| setsockopt(&socket, sockopt::SndBuf, &QUEUE))?;
    Ok(Socket {
        inner: socket,
        port,
        sequence: 0,
        missed: false,
        buffer: room(LONGEST)?,
        ends_slowly: false,
        filtered: false,
        last: None,
    })
}

/// Allocates a buffer of this many bytes. A failed allocation is an error instead of an abort of the process, so that an ADD can
/// still be undone.
fn room(bytes: usize) -> io::Result<Vec<u8>> {
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(bytes).map_err(|_| Errno::ENOMEM)?;
    Ok(buffer)
}

/// Whether the receive queue overflowed (`ENOBUFS`): messages to this socket were lost.
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
    fn a_failed_allocation_is_an_error() {
        assert_eq!(room(usize::MAX >> 1).unwrap_err().raw_os_error(), Some(libc::ENOMEM));
        assert!(room(LONGEST).unwrap().capacity() >= LONGEST);
    }
}

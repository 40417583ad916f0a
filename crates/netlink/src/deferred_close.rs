//! Leave the last close of a descriptor to the kernel.

use std::io::IoSlice;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use nix::sys::socket::{AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socketpair};

/// Keeps a descriptor open until this value is dropped, and leaves its last close to the kernel, which does it a moment later in
/// a kernel worker. The process itself does not wait.
///
/// A descriptor that was sent over a Unix socket and not received yet is held open by the receiving socket (unix(7),
/// `SCM_RIGHTS`). Here the receiving socket is sent to itself as well. Once both ends are closed, no process can receive either
/// of them; the kernel's garbage collector finds such sockets and closes all descriptors in them. Since Linux 6.9 a kernel worker
/// does that; before, the process that closes the second end does it, and waits.
#[doc(alias = "SCM_RIGHTS")]
#[doc(alias = "unix_gc")]
pub(crate) struct DeferredClose {
    /// The receiving socket and the sending one, closed in this order: closing the second one starts the garbage collection, and
    /// by then no process may have the receiving one open.
    _ends: (OwnedFd, OwnedFd),
}

impl DeferredClose {
    pub(crate) fn of(descriptor: BorrowedFd<'_>) -> nix::Result<Self> {
        let (sender, receiver) = socketpair(AddressFamily::Unix, SockType::Datagram, None, SockFlag::SOCK_CLOEXEC)?;
        let descriptors = [descriptor.as_raw_fd(), receiver.as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&descriptors)];
        sendmsg::<()>(sender.as_raw_fd(), &[IoSlice::new(b"\n")], &rights, MsgFlags::empty(), None)?;
        Ok(Self { _ends: (receiver, sender) })
    }
}

//! A descriptor that the kernel is left to close.

use std::io::IoSlice;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use nix::sys::socket::{AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socketpair};

/// Keeps a descriptor open until it is dropped itself, and leaves the last closing to the kernel then, which does it in a thread
/// of its own and a moment later. The process that closes the descriptor does not wait.
///
/// A descriptor that was sent and not received yet is kept by the socket that it waits in. One that waits in a socket that
/// itself waits there, and that no other process has, can never be received: the kernel finds such sockets and closes all that
/// they hold. Since Linux 6.9 a kernel worker does that; before, the process that closes the other end does it, and waits.
#[doc(alias = "SCM_RIGHTS")]
#[doc(alias = "unix_gc")]
pub(crate) struct DeferredClose {
    /// The one that keeps both is closed first: the end of the other one has the kernel look, and by then no process may have
    /// this one.
    _ends: (OwnedFd, OwnedFd),
}

impl DeferredClose {
    pub(crate) fn of(descriptor: BorrowedFd<'_>) -> nix::Result<Self> {
        let (sender, keeper) = socketpair(AddressFamily::Unix, SockType::Datagram, None, SockFlag::SOCK_CLOEXEC)?;
        let kept = [descriptor.as_raw_fd(), keeper.as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&kept)];
        sendmsg::<()>(sender.as_raw_fd(), &[IoSlice::new(b"\n")], &rights, MsgFlags::empty(), None)?;
        Ok(Self { _ends: (keeper, sender) })
    }
}

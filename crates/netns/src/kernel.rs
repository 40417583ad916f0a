//! The two questions to the kernel that no safe wrapper asks.
#![expect(unsafe_code, reason = "neither this ioctl nor this socket option has a wrapper")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::ptr;

/// The type of the namespace behind `fd`, a `CLONE_NEW…` flag; see `ioctl_ns(2)`.
#[doc(alias = "NS_GET_NSTYPE")]
pub(crate) fn namespace_type(fd: BorrowedFd<'_>) -> io::Result<libc::c_int> {
    // SAFETY: the descriptor is open as long as it is borrowed, and this request has no argument.
    let kind = unsafe { libc::ioctl(fd.as_raw_fd(), libc::NS_GET_NSTYPE) };
    if kind < 0 { Err(io::Error::last_os_error()) } else { Ok(kind) }
}

/// The cookie of the namespace that the calling thread is in, asked of a socket opened for that; see socket(7).
#[doc(alias = "SO_NETNS_COOKIE")]
pub(crate) fn cookie_here() -> io::Result<u64> {
    let socket = UnixDatagram::unbound()?;
    let mut cookie = 0_u64;
    let mut length: libc::socklen_t = 8;
    // SAFETY: the socket is open; `cookie` and `length` are live and `length` is the size of `cookie`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            ptr::from_mut(&mut cookie).cast(),
            &raw mut length,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(cookie) }
}

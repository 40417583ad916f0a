//! System calls without a safe wrapper.
#![expect(unsafe_code, reason = "neither this ioctl, nor this socket option, nor these calls by number have a wrapper")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::ptr;

/// The type of the namespace behind `fd`, a `CLONE_NEW…` flag; see `ioctl_ns(2)`.
#[doc(alias = "NS_GET_NSTYPE")]
pub(crate) fn namespace_type(fd: BorrowedFd<'_>) -> io::Result<libc::c_int> {
    // SAFETY: the descriptor is open as long as it is borrowed, and this request has no argument.
    let kind = unsafe { libc::ioctl(fd.as_raw_fd(), libc::NS_GET_NSTYPE) };
    if kind < 0 { Err(io::Error::last_os_error()) } else { Ok(kind) }
}

/// The cookie of the namespace that the calling thread is in, read from a socket that is opened for this; see socket(7).
#[doc(alias = "SO_NETNS_COOKIE")]
pub(crate) fn cookie_here() -> io::Result<u64> {
    cookie_of(UnixDatagram::unbound()?.as_fd())
}

/// The cookie of the namespace that a socket of another process was created in; see `pidfd_getfd(2)`.
pub(crate) fn cookie_of_socket(pid: i32, fd: i32) -> io::Result<u64> {
    let process = descriptor(libc::SYS_pidfd_open, [pid.into(), 0, 0])?;
    let socket = descriptor(libc::SYS_pidfd_getfd, [process.as_raw_fd().into(), fd.into(), 0])?;
    cookie_of(socket.as_fd())
}

/// The kernel's file handle of a namespace (`linux/exportfs.h`, `linux/nsfs.h`), as `open_by_handle_at(2)` takes it.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    id: u64,
    namespace_type: u32,
    inode: u32,
}

/// `FILEID_NSFS` of `linux/exportfs.h`.
const NSFS_HANDLE: i32 = 0xf1;

/// Whether the network namespace with this inode number exists and has this cookie; no path to it is needed. It works since Linux
/// 6.18, where the cookie is the namespace's id. `any` is a file of any namespace; it names the file system (nsfs).
#[doc(alias = "open_by_handle_at")]
pub(crate) fn has_cookie(any: BorrowedFd<'_>, inode: u32, cookie: u64) -> io::Result<bool> {
    let namespace_type = libc::CLONE_NEWNET.cast_unsigned();
    let mut handle = Handle { bytes: 16, kind: NSFS_HANDLE, id: cookie, namespace_type, inode };
    let call = libc::SYS_open_by_handle_at;
    let place = any.as_raw_fd();
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: the handle is live and has the kernel's layout, and `bytes` is its length.
    let result = unsafe { libc::syscall(call, place, ptr::from_mut(&mut handle), flags) };
    match i32::try_from(result).ok().filter(|number| *number >= 0) {
        Some(number) => {
            // SAFETY: the kernel has just created this descriptor, and no other code has it.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
            Ok(true)
        }
        None => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ESTALE) => Ok(false),
            error => Err(error),
        },
    }
}

/// A system call with three integer arguments that returns a descriptor.
fn descriptor(call: libc::c_long, [first, second, third]: [libc::c_long; 3]) -> io::Result<OwnedFd> {
    // SAFETY: both calls that are made here take integers only, and touch no memory of ours.
    let result = unsafe { libc::syscall(call, first, second, third) };
    let number = i32::try_from(result).ok().filter(|number| *number >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the kernel has just created this descriptor, and no other code has it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// The cookie of the namespace that a socket was created in; see socket(7).
pub(crate) fn cookie_of(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut cookie = 0_u64;
    let mut length: libc::socklen_t = 8;
    // SAFETY: the socket is open; `cookie` and `length` are live and `length` is the size of `cookie`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            ptr::from_mut(&mut cookie).cast(),
            &raw mut length,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(cookie) }
}

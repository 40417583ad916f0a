//! The ioctls of `linux/if_tun.h`.
#![expect(unsafe_code, reason = "these ioctls have no safe wrapper")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

/// A setting of the device that a file is attached to.
#[derive(Clone, Copy)]
pub(crate) enum Setting {
    /// A uid.
    Owner(u32),
    /// A gid.
    Group(u32),
    /// Whether it stays when no file is attached.
    Persist(bool),
}

/// As much of the kernel's `struct ifreq` as is read here, and its whole length.
#[repr(C)]
struct Request {
    name: [u8; libc::IFNAMSIZ],
    flags: u16,
    rest: [u8; 22],
}

/// Makes a device, and attaches the file to it.
pub(crate) fn create(file: BorrowedFd<'_>, name: &str, flags: libc::c_int) -> io::Result<()> {
    let flags = u16::try_from(flags).map_err(io::Error::other)?;
    let mut request = Request { name: [0; libc::IFNAMSIZ], flags, rest: [0; 22] };
    // The last byte stays zero, and ends the name.
    if name.len() >= libc::IFNAMSIZ {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: the file is open as long as it is borrowed; the request is live and has the size of the kernel's `ifreq`, which the
    // kernel reads and writes.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, ptr::from_mut(&mut request)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Changes a setting of the device that the file is attached to.
pub(crate) fn set(file: BorrowedFd<'_>, setting: Setting) -> io::Result<()> {
    let (request, value) = match setting {
        Setting::Owner(uid) => (libc::TUNSETOWNER, uid),
        Setting::Group(gid) => (libc::TUNSETGROUP, gid),
        Setting::Persist(on) => (libc::TUNSETPERSIST, u32::from(on)),
    };
    // SAFETY: the file is open as long as it is borrowed. These requests take the number itself, not a pointer.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), request, libc::c_ulong::from(value)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_the_size_of_the_kernels() {
        assert_eq!(size_of::<Request>(), size_of::<libc::ifreq>());
    }
}

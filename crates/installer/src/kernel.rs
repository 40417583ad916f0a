//! Extended attributes, which nix has no functions for.
#![expect(unsafe_code, reason = "fgetxattr(2) and fsetxattr(2) by their C interface")]

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;

/// The attribute that holds the SELinux label of a file.
const LABEL: &std::ffi::CStr = c"security.selinux";
/// The longest label that the kernel stores is a page.
const LONGEST: usize = 4096;

/// The SELinux label of an open file; `None` if it has none, or the file system stores none.
pub(crate) fn label(file: impl AsFd) -> Result<Option<Vec<u8>>, Errno> {
    let mut buffer = vec![0_u8; LONGEST];
    // SAFETY: the call writes at most LONGEST bytes to the buffer.
    let length =
        unsafe { libc::fgetxattr(file.as_fd().as_raw_fd(), LABEL.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len()) };
    match Errno::result(length) {
        Ok(length) => {
            buffer.truncate(usize::try_from(length).unwrap_or(0));
            Ok(Some(buffer))
        }
        Err(Errno::ENODATA | Errno::EOPNOTSUPP | Errno::ENOSYS) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Sets the SELinux label of an open file.
pub(crate) fn set_label(file: &File, label: &[u8]) -> Result<(), Errno> {
    // SAFETY: the call reads the bytes of the label.
    let done = unsafe { libc::fsetxattr(file.as_raw_fd(), LABEL.as_ptr(), label.as_ptr().cast(), label.len(), 0) };
    Errno::result(done).map(drop)
}

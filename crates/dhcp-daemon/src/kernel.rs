//! Descriptors that another process has opened.
#![expect(unsafe_code, reason = "these are the numbers of descriptors, which nothing owns yet")]

use std::os::fd::{FromRawFd, OwnedFd};

/// The first descriptor that systemd passes on; see `sd_listen_fds(3)`.
const FIRST: i32 = 3;

/// The descriptor that systemd has passed on to this process. It must be taken once.
pub(crate) fn passed_on() -> OwnedFd {
    // SAFETY: systemd has opened it for this process, as the environment says, and nothing else of ours uses its number.
    unsafe { OwnedFd::from_raw_fd(FIRST) }
}

/// A descriptor that was received in a message (`SCM_RIGHTS`). It must be taken once.
pub(crate) fn received(number: i32) -> OwnedFd {
    // SAFETY: the kernel has just opened it for this process, and nothing else of ours uses its number.
    unsafe { OwnedFd::from_raw_fd(number) }
}

//! Two calls that need unsafe code.
#![expect(unsafe_code, reason = "code between fork and exec, and a system call without a wrapper")]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getpid, getppid};

use crate::image::Image;

/// Makes the child execute `image`, and makes the kernel kill it when the thread that starts it ends, for whatever reason.
///
/// That thread must live as long as the program is wanted: the signal is sent at the end of the thread, not of the process.
#[doc(alias = "PR_SET_PDEATHSIG")]
pub(crate) fn become_bound(command: &mut Command, image: Image) {
    let parent = getpid();
    // SAFETY: between fork and exec the closure makes three system calls and allocates nothing.
    unsafe { command.pre_exec(move || bind_to(parent).and_then(|()| Err(image.exec()))) };
}

/// Requests the signal, then checks that the parent had not ended before.
fn bind_to(parent: Pid) -> io::Result<()> {
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    if getppid() == parent { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
}

/// A descriptor that becomes readable when the process ends; `None` if the kernel (before Linux 5.3) does not have
/// `pidfd_open(2)` or a seccomp filter refuses it. The process must be our child and not yet reaped.
#[doc(alias = "pidfd_open")]
pub(crate) fn exit_notice(pid: Pid) -> Option<OwnedFd> {
    // SAFETY: the call takes two numbers; if it succeeds, no other code has the descriptor that it returns.
    unsafe {
        let number = libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0);
        RawFd::try_from(number).ok().filter(|number| *number >= 0).map(|number| OwnedFd::from_raw_fd(number))
    }
}

//! Calls that need unsafe code.
#![expect(unsafe_code, reason = "code between fork and exec, and a system call without a wrapper")]

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::fcntl::{OFlag, open};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::{Pid, getpid, getppid, setsid, write};

use crate::image::Image;

/// Makes the child execute `image`, and makes the kernel kill it when the thread that starts it ends, for whatever reason.
///
/// That thread must live as long as the program is wanted: the signal is sent at the end of the thread, not of the process.
#[doc(alias = "PR_SET_PDEATHSIG")]
pub(crate) fn become_bound(command: &mut Command, image: Image, label: Option<CString>) {
    let parent = getpid();
    let begin = move || {
        bind_to(parent)?;
        if let Some(label) = &label {
            set_exec_label(label)?;
        }
        Err(image.exec())
    };
    // SAFETY: between fork and exec the closure makes at most six system calls and allocates nothing.
    unsafe { command.pre_exec(begin) };
}

/// Makes the child fork again, and that child execute `image` in a session of its own. Its parent ends at once, so init adopts it.
#[doc(alias = "setsid")]
pub(crate) fn become_independent(command: &mut Command, image: Image) {
    let begin = move || {
        setsid()?;
        close_on_exec()?;
        // SAFETY: this process has one thread, the child makes one system call, and neither allocates.
        match unsafe { libc::fork() } {
            0 => Err(image.exec()),
            -1 => Err(io::Error::last_os_error()),
            // SAFETY: no destructor of the process that it is a copy of may run.
            _ => unsafe { libc::_exit(0) },
        }
    };
    // SAFETY: between fork and exec the closure makes at most four system calls and allocates nothing.
    unsafe { command.pre_exec(begin) };
}

/// Marks every descriptor but the first three to be closed by execve(2), also those that this process inherited. Before Linux 5.11
/// they stay as they are.
fn close_on_exec() -> io::Result<()> {
    // SAFETY: the call takes three numbers, and closes nothing.
    let done = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    match io::Error::last_os_error() {
        error if done < 0 && !matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL)) => Err(error),
        _ => Ok(()),
    }
}

/// Whether the kernel has `close_range(2)`, since Linux 5.9. The range is beyond all descriptors, so nothing is closed.
pub(crate) fn can_close_ranges() -> bool {
    let beyond = libc::c_uint::MAX;
    // SAFETY: the call takes three numbers.
    unsafe { libc::syscall(libc::SYS_close_range, beyond, beyond, 0) == 0 }
}

/// Forks a child that closes all descriptors but this socket, sends the datagram on it, and ends.
pub(crate) fn fork_to_send(socket: RawFd, datagram: &[u8]) -> io::Result<Pid> {
    // SAFETY: the child makes at most four system calls and allocates nothing. It has a copy of the datagram.
    unsafe {
        match libc::fork() {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                // If this fails, somebody waits a little longer at a pipe of ours.
                if socket > 0 {
                    libc::syscall(libc::SYS_close_range, 0, socket - 1, 0);
                }
                libc::syscall(libc::SYS_close_range, socket + 1, libc::c_uint::MAX, 0);
                libc::send(socket, datagram.as_ptr().cast(), datagram.len(), 0);
                // No destructor of the process that it is a copy of may run.
                libc::_exit(0)
            }
            pid => Ok(Pid::from_raw(pid)),
        }
    }
}

/// Requests the signal, then checks that the parent had not ended before.
fn bind_to(parent: Pid) -> io::Result<()> {
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    if getppid() == parent { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
}

/// Sets the SELinux label that the next execve(2) of this thread runs the program with; see setexeccon(3). Allocates nothing.
fn set_exec_label(label: &CStr) -> io::Result<()> {
    let file = open(c"/proc/thread-self/attr/exec", OFlag::O_WRONLY | OFlag::O_CLOEXEC, Mode::empty())?;
    let written = write(&file, label.to_bytes())?;
    if written == label.count_bytes() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
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

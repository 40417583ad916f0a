//! Calls that need unsafe code.
#![expect(unsafe_code, reason = "code between fork and exec, and system calls without a wrapper")]

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::ptr;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sched::{CloneFlags, clone};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, dup2_stderr, dup2_stdin, dup2_stdout, getpid, getppid, setpgid, setsid, write};

use crate::image::Image;

/// The stack of a child until it executes its program, in bytes. It needs 1,264 without optimization.
const STACK: usize = 16 << 10;

/// A program, and the streams and the label that it starts with.
pub(crate) struct Start<'a> {
    pub(crate) image: &'a Image,
    /// Its stdin, stdout and stderr: descriptors above these.
    pub(crate) streams: [BorrowedFd<'a>; 3],
    /// See [`set_exec_label`].
    pub(crate) label: Option<&'a CStr>,
}

/// Starts a child that leads a process group of its own, blocks no signal, and that the kernel kills when this thread ends, for
/// whatever reason. So this thread must live as long as the program is wanted: the signal is sent at the end of the thread, not of
/// the process.
///
/// The child has the memory of this process until execve(2), as after vfork(2), and this thread sleeps until then. A copy of the
/// page tables, which fork(2) makes, takes longer than all the rest if the process is large.
#[doc(alias = "PR_SET_PDEATHSIG")]
#[doc(alias = "vfork")]
pub(crate) fn spawn(start: &Start<'_>) -> io::Result<Pid> {
    let parent = getpid();
    let mut stack = vec![0; STACK];
    let mut failure = None;
    // No handler of this process may run in the child, on the memory that both have.
    let blocked_before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let child = Box::new(|| {
        failure = Some(start.prepare(parent).map_or_else(|error| error, |()| start.image.exec()));
        0
    });
    // SAFETY: the child makes system calls and allocates nothing. It has a stack of its own, which is there until this thread goes
    // on: when the child has ended, or executes its program.
    let spawned =
        unsafe { clone(child, &mut stack, CloneFlags::CLONE_VM | CloneFlags::CLONE_VFORK, Some(libc::SIGCHLD)) };
    blocked_before.thread_set_mask()?;
    let pid = spawned?;
    match failure {
        None => Ok(pid),
        Some(error) => reap(pid).and(Err(error)),
    }
}

impl Start<'_> {
    /// Prepares the child for execve(2), in the child. Allocates nothing.
    fn prepare(&self, parent: Pid) -> io::Result<()> {
        bind_to(parent)?;
        setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
        let [stdin, stdout, stderr] = self.streams;
        dup2_stdin(stdin)?;
        dup2_stdout(stdout)?;
        dup2_stderr(stderr)?;
        if let Some(label) = self.label {
            set_exec_label(label)?;
        }
        forget_handlers();
        Ok(SigSet::empty().thread_set_mask()?)
    }
}

/// Gives each signal that has a handler its default action, so that no handler of the parent runs from now on. `SIGPIPE` gets it,
/// too: Rust's programs ignore that signal. Other ignored signals stay ignored, as after nohup(1).
fn forget_handlers() {
    for number in 1..32 {
        let mut action = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: the kernel writes the action, and the call is made again only with what it wrote.
        unsafe {
            if libc::sigaction(number, ptr::null(), action.as_mut_ptr()) != 0 {
                continue;
            }
            let mut action = action.assume_init();
            if number == libc::SIGPIPE || ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction) {
                action.sa_sigaction = libc::SIG_DFL;
                libc::sigaction(number, &raw const action, ptr::null_mut());
            }
        }
    }
}

/// Waits until the child has ended, and returns how.
pub(crate) fn reap(pid: Pid) -> io::Result<ExitStatus> {
    let mut status = 0;
    loop {
        // SAFETY: the kernel writes one number. `nix` has a call for this that knows no real-time signals.
        let reaped = unsafe { libc::waitpid(pid.as_raw(), &raw mut status, 0) };
        match Errno::result(reaped) {
            Ok(_) => return Ok(ExitStatus::from_raw(status)),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
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

#[cfg(test)]
mod tests {
    use std::mem::discriminant;

    use nix::sys::signal::{SigHandler, signal};

    use super::*;

    extern "C" fn handler(_: libc::c_int) {}

    /// In a process of its own: these settings are those of all threads.
    #[test]
    fn what_has_a_handler_gets_its_default_action_and_what_is_ignored_stays_ignored() {
        // SAFETY: the child makes system calls, and allocates nothing. The handler does nothing.
        let pid = unsafe {
            match libc::fork() {
                0 => {
                    let before = [SigHandler::Handler(handler), SigHandler::SigIgn, SigHandler::SigIgn];
                    let after = [SigHandler::SigDfl, SigHandler::SigIgn, SigHandler::SigDfl];
                    let signals = [Signal::SIGUSR1, Signal::SIGHUP, Signal::SIGPIPE];
                    let mut is_right =
                        signals.iter().zip(before).all(|(number, action)| signal(*number, action).is_ok());
                    forget_handlers();
                    for (number, action) in signals.into_iter().zip(after) {
                        let found = signal(number, SigHandler::SigDfl);
                        is_right &= found.is_ok_and(|found| discriminant(&found) == discriminant(&action));
                    }
                    libc::_exit(i32::from(!is_right))
                }
                pid => Pid::from_raw(pid),
            }
        };
        assert_eq!(reap(pid).unwrap().code(), Some(0));
    }
}

//! A started program that has not been reaped yet.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use crate::{How, kernel};

/// A child of this process. Until it is reaped, its PID and its process group are not reused, so a signal never reaches another
/// program.
pub(crate) struct Child {
    pid: Pid,
    /// How it ended, once it is reaped.
    how: Option<How>,
    pub(crate) exit_notice: Option<OwnedFd>,
}

impl Child {
    pub(crate) fn new(pid: Pid) -> Child {
        Child { pid, how: None, exit_notice: kernel::exit_notice(pid) }
    }

    /// Whether it has ended. This does not reap it.
    pub(crate) fn has_ended(&self) -> io::Result<bool> {
        match waitid(Id::Pid(self.pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT) {
            Ok(WaitStatus::StillAlive) => Ok(false),
            // It was terminated by a real-time signal, which the wrapper cannot represent.
            Ok(_) | Err(Errno::EINVAL) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until it has ended, and reaps it if that was not done before.
    pub(crate) fn reap(&mut self) -> io::Result<How> {
        if let Some(how) = self.how {
            return Ok(how);
        }
        let status = kernel::reap(self.pid)?;
        let how = match (status.signal(), status.code()) {
            (Some(signal), _) => How::Signal(signal),
            (None, Some(code)) => How::Exit(code),
            (None, None) => return Err(io::Error::other(format!("it neither exited nor was killed: {status}"))),
        };
        self.how = Some(how);
        Ok(how)
    }

    /// Kills it and its group, and reaps it.
    #[doc(alias = "SIGKILL")]
    pub(crate) fn kill(&mut self) -> io::Result<How> {
        self.signal(Signal::SIGKILL);
        self.reap()
    }

    /// Sends a signal to the child's process group.
    pub(crate) fn signal(&self, signal: Signal) {
        // The group exists as long as the child is not reaped, so the call cannot fail.
        let _ = killpg(self.pid, signal);
    }
}

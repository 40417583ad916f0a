//! Send a datagram in a child process, which may outlive this one.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::{fs, io};

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use crate::kernel;

/// A child process that sends one datagram and ends. Dropping this does not end the child: if it has not ended by then, it outlives
/// the value, and with it perhaps this process. Init adopts it then, or the nearest subreaper (`PR_SET_CHILD_SUBREAPER`, prctl(2)).
#[derive(Debug)]
pub struct SlowSend {
    pid: Pid,
    exit_notice: OwnedFd,
}

impl SlowSend {
    /// Starts a child that sends the datagram on the socket; `None` if this kernel (before Linux 5.9) or a seccomp filter lacks
    /// the system calls for it.
    ///
    /// This is for a send(2) in which the kernel goes on working after all that matters to the caller is done. The child has no
    /// descriptor but the socket, so nobody waits for it at a pipe, and no lock stays held. Nobody learns whether its send(2)
    /// failed: the caller waits for what the datagram causes and, on [`SlowSend::exit_notice`], for the end of the child.
    ///
    /// # Errors
    /// fork(2) fails.
    #[doc(alias = "fork")]
    pub fn start(socket: BorrowedFd<'_>, datagram: &[u8]) -> io::Result<Option<Self>> {
        if !kernel::can_close_ranges() {
            return Ok(None);
        }
        let pid = kernel::fork_to_send(socket.as_raw_fd(), datagram)?;
        let Some(exit_notice) = kernel::exit_notice(pid) else {
            wait_for(pid, WaitPidFlag::empty());
            return Ok(None);
        };
        Ok(Some(Self { pid, exit_notice }))
    }

    /// The process ID of the child.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Waits until the child has ended.
    pub fn wait(self) {
        wait_for(self.pid, WaitPidFlag::empty());
    }

    /// Whether a process has ended and nobody has reaped it yet; see `proc_pid_stat(5)`. The ID may be another process's by now.
    pub fn is_unreaped(pid: Pid) -> bool {
        if kill(pid, None) == Err(Errno::ESRCH) {
            return false;
        }
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name of the program is before the state, and may have any characters.
        stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('Z'))
    }

    /// A descriptor that becomes readable when the child has ended.
    #[doc(alias = "pidfd")]
    pub fn exit_notice(&self) -> BorrowedFd<'_> {
        self.exit_notice.as_fd()
    }
}

impl Drop for SlowSend {
    /// A child that has ended by now does not remain as a zombie while this process lives.
    fn drop(&mut self) {
        wait_for(self.pid, WaitPidFlag::WNOHANG);
    }
}

fn wait_for(pid: Pid, flags: WaitPidFlag) {
    while waitpid(pid, Some(flags)) == Err(Errno::EINTR) {}
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixDatagram;

    use nix::unistd::getpid;

    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a process that is not reaped at once")]
    fn a_process_that_has_ended_and_was_not_waited_for_is_unreaped() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed());
        while !SlowSend::is_unreaped(pid) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!SlowSend::is_unreaped(pid) && !SlowSend::is_unreaped(getpid()));
    }

    #[test]
    fn the_child_sends_the_datagram_and_holds_no_other_descriptor() {
        let (mut stays, inherited) = io::pipe().unwrap();
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        let child = SlowSend::start(theirs.as_fd(), b"hello").unwrap().expect("this kernel has close_range(2)");
        drop((inherited, theirs));
        let mut text = [0; 16];
        assert_eq!(ours.recv(&mut text).unwrap(), 5);
        assert_eq!(&text[..5], b"hello");
        child.wait();
        assert_eq!(stays.read(&mut text).unwrap(), 0);
    }
}

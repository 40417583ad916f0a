//! A program that runs, or has ended and is not yet reaped.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{self, Command, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use crate::image::Image;
use crate::pipes::Pipes;
use crate::{Deadline, How, Program, kernel};

/// How long to wait before each new try to start a file that somebody has open for writing, in milliseconds.
const BUSY_PAUSES: [u64; 6] = [20, 50, 120, 300, 600, 1000];

/// Our child. While it is not reaped, its number and its group are its own: no signal can hit a stranger.
pub(crate) struct Child {
    process: process::Child,
    pid: Pid,
    pub(crate) exit_notice: Option<OwnedFd>,
}

/// Starts the program, leader of a process group of its own, its three streams in our hand.
///
/// A file that is busy (`ETXTBSY`) is being installed, or was a moment ago, and a child of the installer, just forked,
/// still holds it open: it is tried again.
#[doc(alias = "ETXTBSY")]
pub(crate) fn start(program: &Program, deadline: Deadline) -> io::Result<(Child, Pipes)> {
    let mut command = command(Image::new(program)?, program);
    let mut process = command.spawn();
    for pause in BUSY_PAUSES.map(Duration::from_millis) {
        let busy = process.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ExecutableFileBusy);
        if !busy || !deadline.pause(pause) {
            break;
        }
        process = command.spawn();
    }
    let mut process = process?;
    let pipes = Pipes::new(&mut process, program);
    let pid = Pid::from_raw(process.id().cast_signed());
    let mut child = Child { process, pid, exit_notice: kernel::exit_notice(pid) };
    match pipes {
        Ok(pipes) => Ok((child, pipes)),
        Err(error) => Err(child.kill().err().unwrap_or(error)),
    }
}

/// Arguments and environment are in the image; the standard library does all before it: streams, group, signal mask.
#[expect(clippy::disallowed_methods, reason = "this is the room")]
fn command(image: Image, program: &Program) -> Command {
    let mut command = Command::new(&program.path);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    kernel::become_bound(&mut command, image);
    command
}

impl Child {
    /// Whether it has ended. It is not reaped by the question.
    pub(crate) fn has_ended(&self) -> io::Result<bool> {
        match waitid(Id::Pid(self.pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT) {
            Ok(WaitStatus::StillAlive) => Ok(false),
            // A real-time signal ended it, for which the wrapper has no name.
            Ok(_) | Err(Errno::EINVAL) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Reaps it, when it has ended.
    pub(crate) fn reap(&mut self) -> io::Result<How> {
        let status = self.process.wait()?;
        let how = status.signal().map(How::Signal).or(status.code().map(How::Exit));
        how.ok_or_else(|| io::Error::other(format!("it neither exited nor was killed: {status}")))
    }

    /// Ends it and its group: politely, then, after `grace`, whoever of them is left. Meanwhile it is listened to.
    #[doc(alias = "SIGTERM")]
    pub(crate) fn end(&mut self, pipes: &mut Pipes, grace: Duration) -> io::Result<How> {
        self.signal(Signal::SIGTERM);
        // However that goes, it is killed now.
        let _ = pipes.serve(self, Deadline::after(grace), None);
        self.kill()
    }

    /// Kills it and its group, and reaps it.
    #[doc(alias = "SIGKILL")]
    pub(crate) fn kill(&mut self) -> io::Result<How> {
        self.signal(Signal::SIGKILL);
        self.reap()
    }

    fn signal(&self, signal: Signal) {
        // The group is our child's while it is not reaped; the call could only fail for a group of strangers.
        let _ = killpg(self.pid, signal);
    }
}

//! The three streams of a child. All are served at once, so that neither side blocks, whatever the order of reads and writes.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::pipe2;

use crate::child::Child;
use crate::{CancellationToken, Deadline, Program, Stream};

/// The interval at which the child is checked for its end, if there is no descriptor for that.
const TICK: Duration = Duration::from_millis(5);

/// Why [`Pipes::serve`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The child has ended, and all its output has been read.
    Ended,
    /// The deadline has passed.
    Late,
    /// The caller cancelled it.
    Cancelled,
    /// Its output exceeds the limit.
    TooMuch(Stream),
}

/// Our ends of the child's stdin, stdout and stderr.
pub(crate) struct Pipes {
    stdin: Outflow,
    pub(crate) stdout: Inflow,
    pub(crate) stderr: Inflow,
}

/// The rest of the child's input.
struct Outflow {
    file: Option<File>,
    bytes: Vec<u8>,
    written: usize,
}

/// The output of the child so far.
pub(crate) struct Inflow {
    file: Option<File>,
    pub(crate) bytes: Vec<u8>,
    limit: usize,
}

impl Pipes {
    /// Makes the pipes, and returns the child's ends too, whose numbers are above those of its streams. `stdin` is a file that the
    /// child has instead of a pipe.
    pub(crate) fn new(program: &Program, stdin: Option<OwnedFd>) -> io::Result<(Pipes, [OwnedFd; 3])> {
        let (their_stdin, our_stdin) = match stdin {
            Some(file) => (file, None),
            None => pipe().map(|(reader, writer)| (reader, Some(writer)))?,
        };
        let (our_stdout, their_stdout) = pipe()?;
        let (our_stderr, their_stderr) = pipe()?;
        let inflow =
            |end| Ok::<_, io::Error>(Inflow { file: Some(unblocked(end)?), bytes: Vec::new(), limit: program.limit });
        let stdin = our_stdin.map(unblocked).transpose()?;
        let pipes = Pipes {
            stdin: Outflow { file: stdin, bytes: program.stdin.clone(), written: 0 },
            stdout: inflow(our_stdout)?,
            stderr: inflow(our_stderr)?,
        };
        Ok((pipes, [their_stdin, their_stdout, their_stderr]))
    }

    /// Writes as much of stdin as fits into the pipe.
    pub(crate) fn give(&mut self) -> io::Result<()> {
        self.stdin.push()
    }

    /// Transfers bytes in both directions until the child ends, writes too much, is cancelled, or the deadline passes.
    ///
    /// It returns when the child ends, not when the streams are closed: a daemon that the child started may hold them open for
    /// ever.
    pub(crate) fn serve(
        &mut self,
        child: &Child,
        deadline: Deadline,
        cancel: Option<&CancellationToken>,
    ) -> io::Result<Stop> {
        loop {
            // Checked before the last read, so that no output is missed between the two.
            let ended = child.has_ended()?;
            self.stdin.push()?;
            for (inflow, stream) in [(&mut self.stdout, Stream::Stdout), (&mut self.stderr, Stream::Stderr)] {
                if inflow.pull()? {
                    return Ok(Stop::TooMuch(stream));
                }
            }
            if ended {
                return Ok(Stop::Ended);
            }
            if deadline.passed() {
                return Ok(Stop::Late);
            }
            if cancel.is_some_and(CancellationToken::is_cancelled) {
                return Ok(Stop::Cancelled);
            }
            self.wait(child, deadline, cancel)?;
        }
    }

    /// Waits until a stream is ready, the child has ended, the deadline passes or the caller cancels; see poll(2).
    fn wait(&self, child: &Child, deadline: Deadline, cancel: Option<&CancellationToken>) -> io::Result<()> {
        let mut all: Vec<PollFd<'_>> = Vec::new();
        if let Some(stdin) = &self.stdin.file {
            all.push(PollFd::new(stdin.as_fd(), PollFlags::POLLOUT));
        }
        for inflow in [&self.stdout, &self.stderr] {
            if let Some(file) = &inflow.file {
                all.push(PollFd::new(file.as_fd(), PollFlags::POLLIN));
            }
        }
        if let Some(exit_notice) = &child.exit_notice {
            all.push(PollFd::new(exit_notice.as_fd(), PollFlags::POLLIN));
        }
        if let Some(cancel) = cancel {
            all.push(PollFd::new(cancel.as_fd(), PollFlags::empty()));
        }
        let until = if child.exit_notice.is_some() { deadline } else { deadline.at_most(TICK) };
        let timeout = PollTimeout::try_from(until.poll_timeout_ms()).unwrap_or(PollTimeout::MAX);
        match poll(&mut all, timeout) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Closes stdout and stderr. A process that continues to write gets `SIGPIPE`.
    pub(crate) fn stop_listening(&mut self) {
        self.stdout.file = None;
        self.stderr.file = None;
    }
}

impl Outflow {
    /// Writes what fits; closes the stream when all is written, or when the child has closed its end.
    fn push(&mut self) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        while self.written < self.bytes.len() {
            match file.write(&self.bytes[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
                Err(error) => return Err(error),
            }
        }
        self.file = None;
        Ok(())
    }
}

impl Inflow {
    /// Reads what is available. Returns whether the output exceeds the limit.
    fn pull(&mut self) -> io::Result<bool> {
        let Some(file) = &mut self.file else { return Ok(false) };
        // One byte more than the limit is enough to detect that, and no more is stored.
        let room = (self.limit - self.bytes.len()).saturating_add(1);
        match file.take(room as u64).read_to_end(&mut self.bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
            Ok(_) if self.bytes.len() <= self.limit => self.file = None,
            Ok(_) => {}
        }
        let too_much = self.bytes.len() > self.limit;
        self.bytes.truncate(self.limit);
        Ok(too_much)
    }
}

/// A pipe, as its reader and its writer.
fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = pipe2(OFlag::O_CLOEXEC)?;
    Ok((above_streams(reader)?, above_streams(writer)?))
}

/// The file under a number that the streams of a child do not have: this process may have closed its own.
fn above_streams(file: OwnedFd) -> io::Result<OwnedFd> {
    if file.as_raw_fd() > libc::STDERR_FILENO { Ok(file) } else { file.try_clone() }
}

/// Sets our end of a pipe to `O_NONBLOCK`. The child's end is another file description and is not changed.
fn unblocked(end: OwnedFd) -> io::Result<File> {
    fcntl(&end, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(File::from(end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::start::start;
    use crate::{Env, How};

    #[test]
    fn an_exit_is_noticed_without_a_pidfd() {
        let program = Program::new("/bin/sh", Env::inherited(Vec::new()))
            .args(["-c", "exec >&- 2>&-; sleep 0.1; exit 5"].map(Into::into).into())
            .limit(10)
            .grace(Duration::ZERO);
        let (mut child, mut pipes) = start(&program, None, Deadline::never()).unwrap();
        assert!(child.exit_notice.take().is_some(), "this kernel has pidfd_open(2)");
        assert_eq!(pipes.serve(&child, Deadline::after(Duration::from_secs(30)), None).unwrap(), Stop::Ended);
        assert_eq!(child.reap().unwrap(), How::Exit(5));
    }
}

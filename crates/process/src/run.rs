//! Run a program from start to end.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::child::Child;
use crate::pipes::{Pipes, Stop};
use crate::start::start;
use crate::{CancellationToken, Deadline, Ended, Error, How, Labelled, Program};

/// Starts the program, writes its stdin, collects its output, and returns when it has ended, whatever its exit status.
///
/// At the deadline its process group gets `SIGTERM`, then, after [`Program::grace`], `SIGKILL`. A file that is being written
/// (`ETXTBSY`) is tried again for up to two seconds within the deadline. Call it from a thread that does not end before the
/// program.
///
/// # Errors
/// [`Error::NotStarted`] if execve(2) or clone(2) fails, [`Error::Deadline`] and [`Error::TooMuch`] if the program was terminated
/// because of the time or the size of its output, and [`Error::Lost`] if the kernel refuses to let us poll or wait for it.
pub fn run(program: &Program, deadline: Deadline) -> Result<Ended, Error> {
    begin(program, deadline)?.finish()
}

/// As [`run`], and ends the program and its group, as at the deadline, when `cancel` is cancelled.
///
/// # Errors
/// As [`run`], and [`Error::Cancelled`] if it was cancelled, before the start or while the program ran.
pub fn run_while(program: &Program, deadline: Deadline, cancel: &CancellationToken) -> Result<Ended, Error> {
    if cancel.is_cancelled() {
        return Err(Error::Cancelled { program: program.path.clone(), stderr: Vec::new() });
    }
    let running = begin(program, deadline)?;
    Running { cancel: Some(cancel.clone()), ..running }.finish()
}

/// As [`run`], under another SELinux label and with a file for its stdin.
///
/// # Errors
/// As [`run`]. [`Error::NotStarted`] also if SELinux is off, or refuses the label or the transition to it.
pub fn run_labelled(program: &Program, labelled: &Labelled<'_>, deadline: Deadline) -> Result<Ended, Error> {
    begin_as(program, Some(labelled), deadline)?.finish()
}

/// Starts the program and writes as much of its stdin as fits into the pipe at once (64 KiB, see pipe(7)). [`Running::finish`]
/// writes the rest and waits, as [`run`] does. Meanwhile the caller can do other work; the program may block until then.
///
/// # Errors
/// [`Error::NotStarted`] if execve(2) or clone(2) fails, [`Error::Lost`] if its stdin cannot be written; the program is killed
/// then.
pub fn begin(program: &Program, deadline: Deadline) -> Result<Running, Error> {
    begin_as(program, None, deadline)
}

fn begin_as(program: &Program, labelled: Option<&Labelled<'_>>, deadline: Deadline) -> Result<Running, Error> {
    let path = program.path.clone();
    let begun = Instant::now();
    let not_started = |source| Error::NotStarted { program: program.path.clone(), source };
    let (child, mut pipes) = start(program, labelled, deadline).map_err(not_started)?;
    let given = pipes.give();
    let mut running =
        Running { path, limit: program.limit, grace: program.grace, deadline, cancel: None, begun, child, pipes };
    match given {
        Ok(()) => Ok(running),
        Err(source) => {
            let source = running.child.kill().err().unwrap_or(source);
            Err(running.lost(source))
        }
    }
}

/// A program that was started; [`Running::finish`] waits for it.
#[must_use = "it is neither served nor reaped before Running::finish"]
pub struct Running {
    path: PathBuf,
    limit: usize,
    grace: Duration,
    deadline: Deadline,
    cancel: Option<CancellationToken>,
    begun: Instant,
    child: Child,
    pipes: Pipes,
}

impl Running {
    /// Writes the rest of its stdin and collects its output until it has ended or its deadline has passed.
    ///
    /// # Errors
    /// As [`run`], except [`Error::NotStarted`]; [`Error::Cancelled`] if it was started with a token.
    pub fn finish(mut self) -> Result<Ended, Error> {
        let ended = self.serve().and_then(|stop| Ok((stop, self.child.reap()?)));
        let (stop, how) = ended.map_err(|source| self.lost(source))?;
        let program = self.path;
        let limit = self.limit;
        let Pipes { stdout, stderr, .. } = self.pipes;
        let stderr = stderr.bytes;
        match stop {
            Stop::Ended => Ok(Ended { how, stdout: stdout.bytes, stderr }),
            Stop::Late => Err(Error::Deadline { program, after: self.begun.elapsed(), stderr }),
            Stop::Cancelled => Err(Error::Cancelled { program, stderr }),
            Stop::TooMuch(stream) => Err(Error::TooMuch { program, stream, limit, stderr }),
        }
    }

    /// Serves the child until it ends or has to be ended. When this returns, it does not run any more.
    fn serve(&mut self) -> io::Result<Stop> {
        let stop = self.pipes.serve(&self.child, self.deadline, self.cancel.as_ref());
        match stop {
            Ok(Stop::Ended) => {}
            Ok(Stop::Late | Stop::Cancelled) => drop(self.end()?),
            Ok(Stop::TooMuch(_)) => {
                self.pipes.stop_listening();
                self.end()?;
            }
            Err(_) => drop(self.child.kill()?),
        }
        stop
    }

    /// Ends the child and its group: with `SIGTERM`, then, after the grace period, with `SIGKILL`. Its output is read until then.
    #[doc(alias = "SIGTERM")]
    fn end(&mut self) -> io::Result<How> {
        self.child.signal(Signal::SIGTERM);
        // The child is killed after that in either case, so the result does not matter.
        let _ = self.pipes.serve(&self.child, Deadline::after(self.grace), None);
        self.child.kill()
    }

    fn lost(&self, source: io::Error) -> Error {
        Error::Lost { program: self.path.clone(), source }
    }
}

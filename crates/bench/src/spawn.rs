//! Starts a program with as little cost as possible, and measures what it takes.
#![expect(unsafe_code, reason = "wait4(2) and getrusage(2) with all that they tell")]

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawn};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, pipe2};

/// The capacity of a pipe by default, in bytes, and the largest one that the kernel allows without a privilege; see pipe(7).
const USUAL: usize = 1 << 16;
const LONG: i32 = 1 << 20;

/// A program with everything made ready, so that nothing is left to do once the clock runs.
///
/// The crate `process` makes arguments and pipes ready when it starts a program, and binds the child to its parent: the clock would
/// count that. Here `posix_spawn(3)` starts it. Its input waits in a pipe and its output fits into one, so no thread has to serve
/// the pipes while it runs.
#[derive(Debug)]
pub(crate) struct Ready {
    path: CString,
    argv: Vec<CString>,
    envp: Vec<CString>,
    stdin: OwnedFd,
    stdout: Pipe,
    stderr: Pipe,
}

#[derive(Debug)]
struct Pipe {
    ours: File,
    theirs: OwnedFd,
}

/// The cost and the output of one run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    /// From the start to the end of the wait.
    pub(crate) took: Duration,
    /// Processor time of it and of all that it waited for.
    pub(crate) processor: Duration,
    /// Page faults: those that needed no disk, and those that did.
    pub(crate) faults: (i64, i64),
    /// Exit status; -1 for a signal.
    pub(crate) status: i32,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

/// A program that runs.
#[derive(Debug)]
struct Running {
    pid: Pid,
    stdout: File,
    stderr: File,
}

impl Ready {
    /// A program with its whole environment and its input, which has to fit into a pipe.
    pub(crate) fn new(words: &[String], env: &[(String, String)], input: &[u8]) -> io::Result<Ready> {
        let argv = words.iter().map(|word| Ok(CString::new(word.as_str())?)).collect::<io::Result<Vec<_>>>()?;
        let envp = env.iter().map(|(key, value)| Ok(CString::new(format!("{key}={value}"))?));
        let (stdin, mut filled) = pipe()?;
        if input.len() > USUAL {
            fcntl(&filled, FcntlArg::F_SETPIPE_SZ(LONG))?;
        }
        filled.write_all(input)?;
        Ok(Ready {
            path: argv.first().cloned().unwrap_or_default(),
            argv,
            envp: envp.collect::<io::Result<Vec<_>>>()?,
            stdin,
            stdout: Pipe::new()?,
            stderr: Pipe::new()?,
        })
    }

    /// The same with a larger pipe, because nothing reads the output while the program runs.
    pub(crate) fn talkative(self) -> io::Result<Ready> {
        fcntl(&self.stdout.ours, FcntlArg::F_SETPIPE_SZ(LONG))?;
        Ok(self)
    }

    /// Runs it in the calling thread's network namespace.
    pub(crate) fn run(self) -> io::Result<Run> {
        let began = Instant::now();
        let mut run = self.start()?.wait()?;
        run.took = began.elapsed();
        Ok(run)
    }

    fn start(self) -> io::Result<Running> {
        let mut streams = PosixSpawnFileActions::init()?;
        for (theirs, number) in [(&self.stdin, 0), (&self.stdout.theirs, 1), (&self.stderr.theirs, 2)] {
            streams.add_dup2(theirs.as_raw_fd(), number)?;
        }
        let pid = posix_spawn(self.path.as_c_str(), &streams, &attributes()?, &self.argv, &self.envp)?;
        Ok(Running { pid, stdout: self.stdout.ours, stderr: self.stderr.ours })
    }
}

/// Runs all programs at once. Returns the time until all had ended, and the cost of each.
pub(crate) fn at_once(all: Vec<Ready>) -> io::Result<(Duration, Vec<Run>)> {
    let began = Instant::now();
    let running: Vec<_> = all.into_iter().map(Ready::start).collect::<io::Result<_>>()?;
    let ended: Vec<_> = running.into_iter().map(Running::reap).collect::<io::Result<_>>()?;
    let took = began.elapsed();
    Ok((took, ended.into_iter().map(|(run, streams)| heard(run, streams)).collect::<io::Result<_>>()?))
}

/// The processor time of this process and of all children that it has waited for; see getrusage(2).
pub(crate) fn processor_time() -> Duration {
    [libc::RUSAGE_SELF, libc::RUSAGE_CHILDREN].into_iter().map(used).sum()
}

fn used(by: libc::c_int) -> Duration {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to a value of the right type on this stack; zeroes are a valid `rusage`.
    let usage = unsafe {
        libc::getrusage(by, usage.as_mut_ptr());
        usage.assume_init()
    };
    duration(usage.ru_utime) + duration(usage.ru_stime)
}

/// Waits for a child's end; see wait4(2).
fn reap(child: Pid) -> io::Result<Run> {
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: both pointers are to values of the right type on this stack; zeroes are a valid `rusage`.
    let (pid, usage) = unsafe {
        let pid = libc::wait4(child.as_raw(), &raw mut status, 0, usage.as_mut_ptr());
        (pid, usage.assume_init())
    };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Run {
        processor: duration(usage.ru_utime) + duration(usage.ru_stime),
        faults: (usage.ru_minflt, usage.ru_majflt),
        status: if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -1 },
        ..Run::default()
    })
}

impl Running {
    fn wait(self) -> io::Result<Run> {
        let (run, streams) = self.reap()?;
        heard(run, streams)
    }

    fn reap(self) -> io::Result<(Run, [File; 2])> {
        Ok((reap(self.pid)?, [self.stdout, self.stderr]))
    }
}

/// The output in the pipes. A descendant may hold the pipes open, so this does not wait for their end.
fn heard(mut run: Run, [stdout, stderr]: [File; 2]) -> io::Result<Run> {
    run.stdout = waiting(stdout)?;
    run.stderr = waiting(stderr)?;
    Ok(run)
}

fn waiting(mut stream: File) -> io::Result<Vec<u8>> {
    fcntl(&stream, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        _ => Ok(bytes),
    }
}

impl Pipe {
    fn new() -> io::Result<Pipe> {
        let (ours, theirs) = pipe()?;
        Ok(Pipe { ours: ours.into(), theirs: theirs.into() })
    }
}

/// A reading and a writing end.
fn pipe() -> io::Result<(OwnedFd, File)> {
    let (reading, writing) = pipe2(OFlag::O_CLOEXEC)?;
    Ok((reading, writing.into()))
}

/// The program inherits only what a runtime passes on: std ignores `SIGPIPE` in this process, but not in the program.
fn attributes() -> nix::Result<PosixSpawnAttr> {
    let mut attributes = PosixSpawnAttr::init()?;
    attributes.set_sigdefault(&SigSet::from(Signal::SIGPIPE))?;
    attributes.set_flags(PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF)?;
    Ok(attributes)
}

fn duration(time: libc::timeval) -> Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::from_secs(seconds) + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or_default())
}

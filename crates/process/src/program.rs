//! The program to run, and how it ended.

use std::ffi::OsString;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::Env;

/// A program and everything that it is given. It inherits our working directory, and of our open descriptors only those that this
/// process inherited itself.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Program {
    /// The file. It is not searched for, and never interpreted by a shell.
    pub path: PathBuf,
    /// The arguments after `argv[0]`, which is the path.
    pub args: Vec<OsString>,
    /// Its environment.
    pub env: Env,
    /// The input; the program does not have to read it.
    pub stdin: Vec<u8>,
    /// How many bytes it may write to stdout, and as many to stderr. If it writes more, it is terminated, and that is an error.
    pub limit: usize,
    /// The time between `SIGTERM` and `SIGKILL` when it has to be ended.
    pub grace: Duration,
}

impl Program {
    /// A program without arguments and input, which may write 1 MiB and gets one second to end.
    pub fn new(path: impl Into<PathBuf>, env: Env) -> Self {
        let grace = Duration::from_secs(1);
        Self { path: path.into(), args: Vec::new(), env, stdin: Vec::new(), limit: 1 << 20, grace }
    }

    /// Sets the field `args`.
    #[must_use]
    pub fn args(mut self, args: Vec<OsString>) -> Self {
        self.args = args;
        self
    }

    /// Sets the field `stdin`.
    #[must_use]
    pub fn stdin(mut self, stdin: Vec<u8>) -> Self {
        self.stdin = stdin;
        self
    }

    /// Sets the field `limit`.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Sets the field `grace`.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }
}

/// A program that runs under an SELinux label of its own, with an open file for its stdin.
#[derive(Clone, Copy, Debug)]
pub struct Labelled<'a> {
    /// `argv[0]`: a binary of several programs knows by it which one it is.
    pub name: &'a str,
    /// The label, as setexeccon(3) takes it. The kernel refuses one that its policy does not have, and a transition to one that it
    /// does not allow.
    pub label: &'a str,
    /// The file that the program has as its stdin; [`Program::stdin`] is not used.
    pub stdin: BorrowedFd<'a>,
}

/// The end of a program that ended by itself, and its output.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ended {
    /// Its exit status, or the signal that ended it.
    pub how: How,
    /// All that it wrote to stdout.
    pub stdout: Vec<u8>,
    /// All that it wrote to stderr.
    pub stderr: Vec<u8>,
}

/// The way a program ended; see wait(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// It exited with this status.
    Exit(i32),
    /// It was terminated by this signal.
    Signal(i32),
}

impl How {
    /// Whether the exit status is 0.
    pub fn is_success(self) -> bool {
        self == Self::Exit(0)
    }
}

/// `exit status 1`, `signal 9 (SIGKILL)`.
impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Exit(status) => write!(f, "exit status {status}"),
            Self::Signal(number) => match Signal::try_from(number) {
                Ok(signal) => write!(f, "signal {number} ({signal})"),
                Err(_) => write!(f, "signal {number}"),
            },
        }
    }
}

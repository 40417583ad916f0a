//! What to run, and how it ended.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::Env;

/// A program and all that it is given. It inherits our working directory, and of what is open here only that which we
/// inherited open ourselves.
#[derive(Clone, Debug)]
pub struct Program {
    /// The file; it is not searched for, and no shell is asked to make sense of it.
    pub path: PathBuf,
    /// The arguments after its own name.
    pub args: Vec<OsString>,
    /// Its environment.
    pub env: Env,
    /// What it can read; it need not.
    pub stdin: Vec<u8>,
    /// The bytes that it may write to stdout, and to stderr; more is an error, and it is ended.
    pub limit: usize,
    /// How long it has, when it is to end, from `SIGTERM` to `SIGKILL`.
    pub grace: Duration,
}

/// A program that has come to its own end, and what it wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// This signal ended it.
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

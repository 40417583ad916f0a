//! The error type of this crate.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A program that did not end by itself. It does not run any more.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The kernel did not start it; see execve(2).
    NotStarted {
        /// The program's file.
        program: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// It was still running at the deadline, and was terminated.
    Deadline {
        /// The program's file.
        program: PathBuf,
        /// How long it had run.
        after: Duration,
        /// What it had written to stderr, including what it wrote while it was being ended.
        stderr: Vec<u8>,
    },
    /// The caller cancelled it: it was terminated, or not even started.
    Cancelled {
        /// The program's file.
        program: PathBuf,
        /// What it had written to stderr, including what it wrote while it was being ended.
        stderr: Vec<u8>,
    },
    /// It wrote more than the limit, and was terminated.
    TooMuch {
        /// The program's file.
        program: PathBuf,
        /// The stream that it wrote to.
        stream: Stream,
        /// The limit, in bytes.
        limit: usize,
        /// The beginning of what it wrote to stderr.
        stderr: Vec<u8>,
    },
    /// The kernel refused to let us poll, read or wait for it, and it was killed.
    Lost {
        /// The program's file.
        program: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

impl Error {
    /// The program's file.
    pub fn program(&self) -> &Path {
        match self {
            Self::NotStarted { program, .. }
            | Self::Deadline { program, .. }
            | Self::Cancelled { program, .. }
            | Self::TooMuch { program, .. }
            | Self::Lost { program, .. } => program,
        }
    }

    /// What the program had written to stderr before it was ended; empty if it was not started, or if its output was lost.
    pub fn stderr(&self) -> &[u8] {
        match self {
            Self::Deadline { stderr, .. } | Self::Cancelled { stderr, .. } | Self::TooMuch { stderr, .. } => stderr,
            Self::NotStarted { .. } | Self::Lost { .. } => &[],
        }
    }
}

/// One of the two output streams of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stream {
    /// File descriptor 1.
    Stdout,
    /// File descriptor 2.
    Stderr,
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotStarted { program, source } => write!(f, "cannot start {}: {source}", program.display()),
            Self::Deadline { program, after, .. } => {
                write!(f, "{} did not finish in {:.1} s and was ended", program.display(), after.as_secs_f64())
            }
            Self::Cancelled { program, .. } => write!(f, "{} was ended: the caller cancelled it", program.display()),
            Self::TooMuch { program, stream, limit, .. } => {
                write!(f, "{} wrote more than {limit} bytes to {stream} and was ended", program.display())
            }
            Self::Lost { program, source } => {
                write!(f, "cannot watch {}, which was ended: {source}", program.display())
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NotStarted { source, .. } | Self::Lost { source, .. } => Some(source),
            Self::Deadline { .. } | Self::Cancelled { .. } | Self::TooMuch { .. } => None,
        }
    }
}

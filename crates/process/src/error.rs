//! Why there is no [`crate::Ended`].

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// A program that did not come to its own end. It runs no more.
#[derive(Debug)]
pub enum Error {
    /// The kernel did not start it; see execve(2).
    NotStarted {
        /// The file.
        program: PathBuf,
        /// The kernel's word.
        source: io::Error,
    },
    /// It was still running at the deadline, and was ended.
    Deadline {
        /// The file.
        program: PathBuf,
        /// How long it had run.
        after: Duration,
        /// What it had written to stderr, also while it was being ended.
        stderr: Vec<u8>,
    },
    /// The caller wanted no more, and it was ended, or not even started.
    Cancelled {
        /// The file.
        program: PathBuf,
        /// What it had written to stderr, also while it was being ended.
        stderr: Vec<u8>,
    },
    /// It wrote more than it may, and was ended.
    TooMuch {
        /// The file.
        program: PathBuf,
        /// Where to.
        stream: Stream,
        /// The bytes that it may write.
        limit: usize,
        /// The beginning of what it wrote to stderr.
        stderr: Vec<u8>,
    },
    /// The kernel would not let us watch it or talk to it, and it was ended.
    Lost {
        /// The file.
        program: PathBuf,
        /// The kernel's word.
        source: io::Error,
    },
}

impl Error {
    /// What the program had written to stderr before it was ended; empty if it was not started, or if its output was lost.
    pub fn stderr(&self) -> &[u8] {
        match self {
            Self::Deadline { stderr, .. } | Self::Cancelled { stderr, .. } | Self::TooMuch { stderr, .. } => stderr,
            Self::NotStarted { .. } | Self::Lost { .. } => &[],
        }
    }
}

/// One of the two streams that a program writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
            Self::Cancelled { program, .. } => write!(f, "{} was ended: the caller gave up", program.display()),
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

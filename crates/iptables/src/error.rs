//! Errors of the programs of iptables.

use std::fmt;
use std::path::PathBuf;

use cnikit_process::How;

/// The result of the functions of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a program of iptables could not be run, or did not do what it was started for.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The program is not installed.
    Missing {
        /// The name of the program.
        program: String,
    },
    /// The program could not be started, or was killed at its deadline.
    Process(cnikit_process::Error),
    /// The program failed.
    Failed {
        /// The file, with its arguments.
        program: String,
        /// Its exit status.
        how: How,
        /// What it wrote to stderr, on one line.
        stderr: String,
    },
    /// Another program has added rules that iptables cannot express, so that iptables does not print the table.
    Incompatible {
        /// The file.
        program: PathBuf,
        /// The table.
        table: &'static str,
    },
    /// The program succeeded, but did not print a chain that the kernel has.
    Hidden {
        /// The table.
        table: &'static str,
        /// The chain that was not printed, or was printed without its rules.
        chain: String,
    },
    /// The program succeeded before it had read all of its input or printed all of its output.
    Unread {
        /// The file, with its arguments.
        program: String,
    },
    /// The kernel could not be asked for the state of `nf_tables`.
    Netlink(cnikit_netlink::Error),
}

/// The exit status of the programs for a resource that may be available the next time (`RESOURCE_PROBLEM` of xtables).
const RESOURCE_PROBLEM: i32 = 4;

impl Error {
    /// Whether the error is a property of this host, so that it makes no sense to try again.
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::Missing { .. } | Self::Incompatible { .. } => true,
            Self::Failed { how: How::Exit(status), .. } => *status != RESOURCE_PROBLEM,
            Self::Failed { .. } | Self::Process(_) | Self::Hidden { .. } | Self::Unread { .. } | Self::Netlink(_) => {
                false
            }
        }
    }

    /// Whether a program says that the kernel lacks a table, a match or a target, and could not load its module.
    pub fn lacks_feature(&self) -> bool {
        let Self::Failed { stderr, .. } = self else { return false };
        ["missing kernel module", "do you need to insmod"].iter().any(|said| stderr.contains(said))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { program } => write!(f, "there is no {program} on this machine"),
            Self::Process(error) => write!(f, "{error}"),
            Self::Failed { program, how, stderr } => write!(f, "{program}: {how}: {stderr}"),
            Self::Incompatible { program, table } => {
                let program = program.display();
                write!(f, "{program} does not show its table {table}: something in it was not made by iptables")
            }
            Self::Hidden { table, chain } => {
                write!(f, "iptables did not print chain {chain} of table {table}, which exists")
            }
            Self::Unread { program } => write!(f, "{program}: it succeeded before it had read and written everything"),
            Self::Netlink(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Process(error) => Some(error),
            Self::Netlink(error) => Some(error),
            _ => None,
        }
    }
}

impl From<cnikit_netlink::Error> for Error {
    fn from(error: cnikit_netlink::Error) -> Self {
        Self::Netlink(error)
    }
}

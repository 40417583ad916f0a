//! Why iptables could not be asked, or did not do it.

use std::fmt;
use std::path::PathBuf;

use cnikit_process::How;

/// What is wrong with the programs of iptables, or with what they were to do.
#[derive(Debug)]
pub enum Error {
    /// It is not installed: no file of this name is where programs are.
    Missing {
        /// The name of the program.
        program: String,
    },
    /// It was started, or was to be, and did not come to its own end.
    Process(cnikit_process::Error),
    /// It said no.
    Failed {
        /// The file, with its arguments.
        program: String,
        /// Its exit status.
        how: How,
        /// What it wrote to stderr.
        said: String,
    },
    /// It does not understand what somebody else put into the table, and will not touch it.
    Incompatible {
        /// The file.
        program: PathBuf,
        /// The table.
        table: &'static str,
    },
    /// It showed less than what stands there, and took that for no failure.
    Hidden {
        /// The table.
        table: &'static str,
        /// The chain that it did not show, or without its rules.
        chain: String,
    },
    /// It could not read what it was to do, and took that for the end of it.
    Unread {
        /// The file, with its arguments.
        program: String,
    },
    /// `nf_tables` could not be asked what stands there.
    Netlink(cnikit_netlink::Error),
}

/// What the programs exit with when they could not get hold of something that they may get the next time.
const RESOURCE_PROBLEM: i32 = 4;

impl Error {
    /// It cannot be used here at all: a fact of this host, and no mishap that may be over the next time.
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::Missing { .. } | Self::Incompatible { .. } => true,
            Self::Failed { how: How::Exit(status), .. } => *status != RESOURCE_PROBLEM,
            Self::Failed { .. } | Self::Process(_) | Self::Hidden { .. } | Self::Unread { .. } | Self::Netlink(_) => {
                false
            }
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { program } => write!(f, "there is no {program} on this machine"),
            Self::Process(error) => write!(f, "{error}"),
            Self::Failed { program, how, said } => write!(f, "{program}: {how}: {said}"),
            Self::Incompatible { program, table } => {
                let program = program.display();
                write!(f, "{program} does not show its table {table}: something in it was not made by iptables")
            }
            Self::Hidden { table, chain } => {
                write!(f, "iptables did not show chain {chain} of table {table}, which stands there")
            }
            Self::Unread { program } => write!(f, "{program}: it succeeded before it had read and told all"),
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

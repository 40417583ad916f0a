//! The error type of this crate.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use cnikit_process as process;
use cnikit_types::CniError;

use crate::tail::tail;

/// Another plugin could not be executed, died, refused, or did not finish in time.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The configured name is not a valid plugin name.
    Name {
        /// The name.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// No directory of `CNI_PATH` has a plugin of that name.
    NotFound {
        /// The plugin's name.
        name: String,
        /// The directories.
        path: Vec<String>,
        /// Files of that name that are not executable.
        unusable: Vec<PathBuf>,
        /// Executable files of that name that were found by a relative path that other users can change, each with the reason.
        untrusted: Vec<String>,
    },
    /// The kernel did not start it; see execve(2).
    NotStarted {
        /// The plugin's file.
        plugin: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// It reported an error object: its code, message and details, with the end of its stderr added to the details.
    Refused(CniError),
    /// It ended without success and without an error object.
    Died {
        /// The plugin's file.
        plugin: PathBuf,
        /// `exit status 2`, `signal 11 (SIGSEGV)`, or why it was terminated.
        how: String,
        /// The end of what it wrote to stdout.
        stdout: String,
        /// The end of what it wrote to stderr.
        stderr: String,
    },
    /// The caller cancelled it, and it was terminated with all the processes that it had started.
    Cancelled {
        /// The plugin's file.
        plugin: PathBuf,
        /// The end of what it wrote to stderr.
        stderr: String,
    },
    /// It was still running at the deadline, and was terminated.
    Deadline {
        /// The plugin's file.
        plugin: PathBuf,
        /// How long it had run, in seconds.
        seconds: u64,
        /// The end of what it wrote to stderr.
        stderr: String,
    },
}

impl Error {
    /// What to do about it, in a sentence; `None` if the plugin's own error says it.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Name { .. } => "set `type` to the file name of a plugin in a directory of CNI_PATH".into(),
            Self::NotFound { untrusted, .. } if !untrusted.is_empty() => {
                "use only absolute directories in CNI_PATH that only root can write to".into()
            }
            Self::NotFound { unusable, .. } => match unusable.first() {
                Some(file) => format!("chmod +x {}", file.display()),
                None => "install it there, or add its directory to CNI_PATH".into(),
            },
            Self::NotStarted { plugin, .. } => {
                format!(
                    "{} must be an executable program for this machine, and its interpreter must exist",
                    plugin.display()
                )
            }
            Self::Refused(_) => return None,
            Self::Died { .. } => "this is a defect of that plugin: report it with this text, then DEL".into(),
            Self::Cancelled { .. } => "DEL: what the plugin had made may still exist".into(),
            Self::Deadline { .. } => "find out why that plugin waits, then try again".into(),
        })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name { name, why } if name.is_empty() => write!(f, "{why}"),
            Self::Name { why, .. } => write!(f, "{why}; it is found on CNI_PATH by a plain name, never by a path"),
            Self::NotFound { name, path, unusable, untrusted } => not_found(f, name, path, unusable, untrusted),
            Self::NotStarted { plugin, source } => not_started(f, plugin, source),
            Self::Refused(error) => write!(f, "{error}"),
            Self::Died { plugin, how, stdout, stderr } => {
                write!(f, "plugin {} died without an error object: {how}", plugin.display())?;
                write_stream(f, "stdout", stdout)?;
                write_stream(f, "stderr", stderr)
            }
            Self::Cancelled { plugin, stderr } => {
                write!(f, "plugin {} was ended: the caller cancelled it", plugin.display())?;
                write_stream(f, "stderr", stderr)
            }
            Self::Deadline { plugin, seconds, stderr } => {
                write!(f, "plugin {} did not finish in {seconds} s and was ended", plugin.display())?;
                write_stream(f, "stderr", stderr)
            }
        }
    }
}

fn not_found(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    path: &[String],
    unusable: &[PathBuf],
    untrusted: &[String],
) -> fmt::Result {
    write!(f, "failed to find plugin \"{name}\" in path [{}]", path.join(" "))?;
    for why in untrusted {
        write!(f, ": {why}")?;
    }
    match unusable.first() {
        Some(file) => write!(f, ": {} is not executable", file.display()),
        None => Ok(()),
    }
}

fn not_started(f: &mut fmt::Formatter<'_>, plugin: &Path, source: &io::Error) -> fmt::Result {
    write!(f, "cannot start plugin {}: {source}", plugin.display())?;
    if source.kind() == io::ErrorKind::NotFound && plugin.exists() {
        write!(f, ", reported for its interpreter or loader, because the file itself exists")?;
    }
    Ok(())
}

fn write_stream(f: &mut fmt::Formatter<'_>, stream: &str, text: &str) -> fmt::Result {
    if text.is_empty() { Ok(()) } else { write!(f, "; {stream}: {text}") }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NotStarted { source, .. } => Some(source),
            Self::Refused(error) => Some(error),
            Self::Name { .. }
            | Self::NotFound { .. }
            | Self::Died { .. }
            | Self::Cancelled { .. }
            | Self::Deadline { .. } => None,
        }
    }
}

impl From<process::Error> for Error {
    fn from(error: process::Error) -> Self {
        let how = error.to_string();
        let stderr = tail(error.stderr());
        match error {
            process::Error::NotStarted { program: plugin, source } => Self::NotStarted { plugin, source },
            process::Error::Cancelled { program: plugin, .. } => Self::Cancelled { plugin, stderr },
            process::Error::Deadline { program: plugin, after, .. } => {
                Self::Deadline { plugin, seconds: after.as_secs(), stderr }
            }
            other => {
                let plugin = other.program().to_owned();
                Self::Died { plugin, how, stdout: String::new(), stderr }
            }
        }
    }
}

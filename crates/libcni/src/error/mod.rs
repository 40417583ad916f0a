//! Errors of the runtime side, and failures of plugins.

pub(crate) mod config_error;

use std::fmt;
use std::path::{Path, PathBuf};

use cnikit_types::{CniError, code};
use nix::errno::Errno;

use crate::ConfigError;

/// The code of a plugin that is missing, could not be started, died, or did not reply: it gave no code of its own.
const PLUGIN_FAILED: u32 = 103;

/// An error of the runtime side, or of plugins.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// No file of the directory has a network with that name.
    NoNetwork {
        /// The name.
        name: String,
        /// The directory.
        dir: PathBuf,
        /// Files that could not be read: the network may be in one of them.
        skipped: Vec<ConfigError>,
    },
    /// The directory has no configuration file, or does not exist.
    NoConfigurations {
        /// The directory.
        dir: PathBuf,
    },
    /// The configuration cannot be used, or the directory cannot be listed.
    Configuration(Box<ConfigError>),
    /// The directory cannot be watched: the kernel's error, and a hint.
    Watch(String),
    /// A container id, network name or interface name that the specification does not allow.
    Name(String),
    /// The configuration's version has no CHECK; 0.4.0 and later have.
    NoCheck {
        /// The version of the configuration.
        version: String,
    },
    /// The cached result could not be written, read or removed.
    Cache(String),
    /// Plugins failed: one, or on DEL all that did, in the order in which they were called.
    Plugins(Vec<Failure>),
    /// Another call held the container or the network until the deadline.
    Busy(String),
    /// The caller cancelled the call.
    Cancelled,
    /// Fewer networks are loaded than are required.
    TooFew {
        /// How many are loaded.
        found: usize,
        /// How many are required.
        wanted: usize,
    },
    /// Several errors, each with its context, in the order in which they occurred.
    Several(Vec<ErrorContext>),
}

/// An error and its context.
#[derive(Debug)]
#[non_exhaustive]
pub struct ErrorContext {
    /// What was being done, such as `failed to delete stale attachment c1 eth0`.
    pub what: String,
    /// Why it failed.
    pub error: Error,
}

impl ErrorContext {
    /// What was being done, and why it failed.
    pub fn new(what: impl Into<String>, error: Error) -> ErrorContext {
        ErrorContext { what: what.into(), error }
    }
}

/// The failure of one plugin, and its position in the list.
#[derive(Debug)]
#[non_exhaustive]
pub struct Failure {
    /// `ADD`, `CHECK`, `DEL`, `GC`, `STATUS`, `VERSION`, `RESTORE` or `PLAN`.
    pub verb: &'static str,
    /// The network's name.
    pub network: Box<str>,
    /// The interface; empty for a verb without an attachment.
    pub ifname: Box<str>,
    /// The plugin's type.
    pub plugin: String,
    /// Its position in the list, from 1.
    pub position: usize,
    /// How many plugins the list has.
    pub of: usize,
    /// How it failed.
    pub kind: FailureKind,
}

/// How a plugin failed.
#[derive(Debug)]
pub enum FailureKind {
    /// It could not be found or started, did not reply, or returned an error.
    Call(Box<cnikit_invoke::Error>),
    /// It succeeded, but its output cannot be parsed: the reason, the plugin's file, and the end of the output.
    InvalidOutput(String),
    /// It does not support the version of the configuration: the rest of a sentence with that version and those it supports.
    UnsupportedVersion(String),
}

impl FailureKind {
    /// What to do about it, in a sentence; `None` if the plugin's own error says it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Call(error) => error.hint(),
            Self::InvalidOutput(_) => {
                Some("check whether that program is a CNI plugin; if it is, report this as a defect".to_owned())
            }
            Self::UnsupportedVersion(_) => {
                Some("set `cniVersion` to one of these, or install a newer plugin".to_owned())
            }
        }
    }
}

impl Failure {
    /// The plugin's own error code, if it gave one.
    pub fn code(&self) -> Option<u32> {
        match &self.kind {
            FailureKind::Call(error) => match &**error {
                cnikit_invoke::Error::Refused(error) => Some(error.code),
                _ => None,
            },
            FailureKind::InvalidOutput(_) | FailureKind::UnsupportedVersion(_) => None,
        }
    }

    /// The text of a plugin's error object. The details of our plugins begin with plugin, verb, network, container and interface,
    /// which the failure names already: they are left out.
    fn text_of(&self, object: &CniError) -> String {
        let call = format!("{} {}, network {}", self.plugin, self.verb, self.network);
        let details = object.details.as_deref().unwrap_or_default();
        let Some(rest) = details.strip_prefix(&call) else { return object.to_string() };
        match rest.split_once("; ") {
            Some((_, rest)) => format!("{}; {rest}", object.msg),
            None => object.msg.clone(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoNetwork { name, dir, skipped } => {
                write!(f, "no net configuration with name \"{name}\" in {}", dir.display())?;
                for file in skipped {
                    write!(f, "; skipped: {file}")?;
                }
                Ok(())
            }
            Self::NoConfigurations { dir } => write!(f, "no net configurations found in {}", dir.display()),
            Self::Configuration(error) => error.fmt(f),
            Self::Name(why) | Self::Cache(why) | Self::Watch(why) => f.write_str(why),
            Self::Busy(why) => write!(f, "{why}; hint: try again"),
            Self::Cancelled => f.write_str("cancelled by the caller; hint: run DEL for this attachment"),
            Self::TooFew { found, wanted } => {
                write!(f, "{found} networks are loaded, {wanted} are required; hint: put their configurations in place")
            }
            Self::Several(errors) => write_lines(f, errors),
            Self::NoCheck { version } => {
                write!(f, "configuration version \"{version}\" does not support the CHECK command (0.4.0 and later do)")
            }
            Self::Plugins(failures) => write_lines(f, failures),
        }
    }
}

/// Writes each on a line of its own.
fn write_lines(f: &mut fmt::Formatter<'_>, all: &[impl fmt::Display]) -> fmt::Result {
    for (index, one) in all.iter().enumerate() {
        if index > 0 {
            f.write_str("\n")?;
        }
        one.fmt(f)?;
    }
    Ok(())
}

impl Error {
    /// The error for a directory that cannot be watched; see inotify(7).
    pub(crate) fn of_watch(dir: &Path, errno: Errno) -> Self {
        let hint = match errno {
            Errno::EMFILE => "raise fs.inotify.max_user_instances, or the limit of open files",
            Errno::ENOSPC => "raise fs.inotify.max_user_watches",
            _ => "restart the program that watches; until then read the directory again from time to time",
        };
        Self::Watch(format!("{}: cannot be watched: {errno}; hint: {hint}", dir.display()))
    }

    /// The code for the specification's error object: a plugin's own if it gave one, of several errors that of the first.
    pub fn code(&self) -> u32 {
        match self {
            Self::NoNetwork { .. } | Self::NoConfigurations { .. } => code::INVALID_CONFIG,
            Self::Configuration(error) => error.code,
            Self::Name(_) => code::INVALID_ENVIRONMENT,
            Self::NoCheck { .. } => code::INCOMPATIBLE_VERSION,
            Self::Cache(_) | Self::Watch(_) => code::IO,
            Self::Plugins(failures) => failures.first().and_then(Failure::code).unwrap_or(PLUGIN_FAILED),
            Self::Busy(_) | Self::Cancelled => code::TRY_AGAIN,
            Self::TooFew { .. } => code::UNAVAILABLE,
            Self::Several(errors) => errors.first().map_or(PLUGIN_FAILED, |first| first.error.code()),
        }
    }

    /// Whether the same call may succeed later (code 11).
    pub fn is_retryable(&self) -> bool {
        self.code() == code::TRY_AGAIN
    }

    /// The failures of all plugins, also those inside [`Error::Several`].
    pub fn failures(&self) -> Vec<&Failure> {
        match self {
            Self::Plugins(failures) => failures.iter().collect(),
            Self::Several(errors) => errors.iter().flat_map(|one| one.error.failures()).collect(),
            _ => Vec::new(),
        }
    }

    /// Several errors as one; `Ok` if there are none. A single one without context is returned as it is.
    pub(crate) fn of(mut errors: Vec<ErrorContext>) -> Result<(), Self> {
        match errors.len() {
            0 => Ok(()),
            1 if errors[0].what.is_empty() => Err(errors.remove(0).error),
            _ => Err(Self::Several(errors)),
        }
    }
}

impl From<Error> for ErrorContext {
    /// Converts an error without adding a context.
    fn from(error: Error) -> Self {
        Self { what: String::new(), error }
    }
}

impl fmt::Display for ErrorContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.what.is_empty() { self.error.fmt(f) } else { write!(f, "{}: {}", self.what, self.error) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.verb == "DEL" { "delete".to_owned() } else { self.verb.to_lowercase() };
        let Self { plugin, network, position, of, .. } = self;
        write!(f, "plugin type=\"{plugin}\" name=\"{network}\" ({position} of {of}) failed ({verb})")?;
        if self.ifname.is_empty() {
            f.write_str(": ")?;
        } else {
            write!(f, " on {}: ", self.ifname)?;
        }
        match &self.kind {
            FailureKind::Call(error) => match &**error {
                cnikit_invoke::Error::Refused(object) => f.write_str(&self.text_of(object))?,
                error => write!(f, "{error}")?,
            },
            FailureKind::InvalidOutput(text) => write!(f, "its answer cannot be parsed: {text}")?,
            FailureKind::UnsupportedVersion(text) => write!(f, "it {text}")?,
        }
        // PLAN is an extension of ours, so a plugin does not have to support it.
        if self.verb != "PLAN"
            && let Some(hint) = self.kind.hint()
        {
            write!(f, "; hint: {hint}")?;
        }
        match self.code() {
            Some(code) => write!(f, " (code {code})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Plugins(failures) => failures.first().map(|failure| failure as _),
            Self::Configuration(error) => Some(&**error),
            Self::Several(errors) => errors.first().map(|first| &first.error as _),
            _ => None,
        }
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            FailureKind::Call(error) => Some(&**error),
            FailureKind::InvalidOutput(_) | FailureKind::UnsupportedVersion(_) => None,
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Self::Plugins(vec![failure])
    }
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        Self::Configuration(Box::new(error))
    }
}

impl From<cnikit_store::Error> for Error {
    fn from(error: cnikit_store::Error) -> Self {
        Self::Cache(format!("cached results: {error}"))
    }
}

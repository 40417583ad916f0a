//! Why a network could not be set up, checked or taken down.

pub(crate) mod config_error;

use std::fmt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use crate::ConfigError;

use cnikit_types::code;

/// A plugin that is missing, could not be started, died, or did not answer: it gave no code of its own.
const NOT_DONE: u32 = 103;

/// What went wrong on the runtime's side, or in the plugins.
#[derive(Debug)]
pub enum Error {
    /// No file of the directory has a network of that name.
    NoNetwork {
        /// The name that was looked for.
        name: String,
        /// The directory.
        dir: PathBuf,
        /// Files that could not be read: it may be one of these.
        skipped: Vec<ConfigError>,
    },
    /// The directory has no file of a network, or is not there.
    NoConfigurations {
        /// The directory.
        dir: PathBuf,
    },
    /// The wanted configuration cannot be used, or the directory not be listed.
    Configuration(Box<ConfigError>),
    /// The directory cannot be watched: what the kernel said, and the hint.
    Watch(String),
    /// A container id, network name or interface name breaks the specification's rule.
    Name(String),
    /// The configuration's version has no CHECK: it exists since 0.4.0.
    NoCheck {
        /// The version of the configuration.
        version: String,
    },
    /// The result could not be kept, read or forgotten.
    Cache(String),
    /// Plugins failed: one, or on DEL all that did, in the order in which they were asked.
    Plugins(Vec<Failure>),
    /// Somebody else was at work on the container or the network until the deadline.
    Busy(String),
    /// The caller has given up.
    Cancelled,
    /// Fewer networks are there than were asked for.
    TooFew {
        /// How many there are.
        found: usize,
        /// How many are wanted.
        wanted: usize,
    },
    /// Several failures, each told with what it is about, in the order in which they came.
    Several(Vec<ErrorContext>),
}

/// A failure and what it is about.
#[derive(Debug)]
pub struct ErrorContext {
    /// What was being done, such as `failed to delete stale attachment c1 eth0`.
    pub what: String,
    /// Why it failed.
    pub why: Error,
}

/// One plugin's failure, and where in the list it stands.
#[derive(Debug)]
pub struct Failure {
    /// `ADD`, `CHECK`, `DEL`, `GC`, `STATUS`, `VERSION`, `RESTORE` or `PLAN`.
    pub verb: &'static str,
    /// The network's name.
    pub network: Box<str>,
    /// The interface; empty where the verb is about none.
    pub ifname: Box<str>,
    /// The plugin's type.
    pub plugin: String,
    /// Its place in the list, from 1.
    pub position: usize,
    /// How many plugins the list has.
    pub of: usize,
    /// What happened.
    pub why: FailureKind,
}

/// How a plugin failed.
#[derive(Debug)]
pub enum FailureKind {
    /// It could not be found, did not answer, or refused.
    NotDone(Box<cnikit_invoke::Error>),
    /// It succeeded, but its answer cannot be read: why, with its file and the end of what it said.
    Garbled(String),
    /// It `does not speak` the version of the configuration: which one that is, and what it speaks.
    Unspoken(String),
}

impl FailureKind {
    /// What to do about it, in a sentence; `None` if the plugin itself has said.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NotDone(error) => error.hint(),
            Self::Garbled(_) => Some("see whether that program is a CNI plugin; if it is, report this".to_owned()),
            Self::Unspoken(_) => Some("set `cniVersion` to one of these, or install a newer plugin".to_owned()),
        }
    }
}

impl Failure {
    /// The plugin's own error code, if it gave one.
    pub fn code(&self) -> Option<u32> {
        match &self.why {
            FailureKind::NotDone(error) => match &**error {
                cnikit_invoke::Error::Refused(error) => Some(error.code),
                _ => None,
            },
            FailureKind::Garbled(_) | FailureKind::Unspoken(_) => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoNetwork { name, dir, skipped } => {
                write!(f, "no net configuration with name \"{name}\" in {}", dir.display())?;
                skipped.iter().try_for_each(|file| write!(f, "; passed over: {file}"))
            }
            Self::NoConfigurations { dir } => write!(f, "no net configurations found in {}", dir.display()),
            Self::Configuration(defect) => defect.fmt(f),
            Self::Name(why) | Self::Cache(why) | Self::Watch(why) => f.write_str(why),
            Self::Busy(why) => write!(f, "somebody else is at work: {why}; hint: try again"),
            Self::Cancelled => f.write_str("cancelled by the caller; hint: DEL"),
            Self::TooFew { found, wanted } => {
                write!(f, "{found} networks are loaded, {wanted} are wanted; hint: put their configurations in place")
            }
            Self::Several(all) => {
                let lines: Vec<String> = all.iter().map(ToString::to_string).collect();
                f.write_str(&lines.join("\n"))
            }
            Self::NoCheck { version } => {
                write!(f, "configuration version \"{version}\" does not support the CHECK command (0.4.0 and later do)")
            }
            Self::Plugins(failures) => {
                let lines: Vec<String> = failures.iter().map(ToString::to_string).collect();
                f.write_str(&lines.join("\n"))
            }
        }
    }
}

impl Error {
    /// Why a directory cannot be watched; see inotify(7).
    pub(crate) fn of_watch(dir: &Path, errno: Errno) -> Self {
        let hint = match errno {
            Errno::EMFILE => "raise fs.inotify.max_user_instances, or the limit of open files",
            Errno::ENOSPC => "raise fs.inotify.max_user_watches",
            _ => "restart whoever watches; until then read the directory again from time to time",
        };
        Self::Watch(format!("{}: cannot be watched: {errno}; hint: {hint}", dir.display()))
    }

    /// The code of the specification's error object for it: a plugin's own if one gave any, of several the first.
    pub fn code(&self) -> u32 {
        match self {
            Self::NoNetwork { .. } | Self::NoConfigurations { .. } => code::INVALID_CONFIG,
            Self::Configuration(defect) => defect.code,
            Self::Name(_) => code::INVALID_ENVIRONMENT,
            Self::NoCheck { .. } => code::INCOMPATIBLE_VERSION,
            Self::Cache(_) | Self::Watch(_) => code::IO,
            Self::Plugins(failures) => failures.first().map_or(NOT_DONE, |failure| failure.code().unwrap_or(NOT_DONE)),
            Self::Busy(_) | Self::Cancelled => code::TRY_AGAIN,
            Self::TooFew { .. } => code::UNAVAILABLE,
            Self::Several(all) => all.first().map_or(NOT_DONE, |told| told.why.code()),
        }
    }

    /// Whether the same call may succeed when it is repeated later (code 11).
    pub fn is_retryable(&self) -> bool {
        self.code() == code::TRY_AGAIN
    }

    /// The failures of all plugins, at any depth.
    pub fn failures(&self) -> Vec<&Failure> {
        match self {
            Self::Plugins(failures) => failures.iter().collect(),
            Self::Several(all) => all.iter().flat_map(|told| told.why.failures()).collect(),
            _ => Vec::new(),
        }
    }

    /// One error of several; `Ok` if there are none, and the error itself if there is but one that says what it is about.
    pub(crate) fn of(mut all: Vec<ErrorContext>) -> Result<(), Self> {
        match all.len() {
            0 => Ok(()),
            1 if all[0].what.is_empty() => Err(all.remove(0).why),
            _ => Err(Self::Several(all)),
        }
    }
}

impl fmt::Display for ErrorContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.what.is_empty() { write!(f, "{}", self.why) } else { write!(f, "{}: {}", self.what, self.why) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.verb == "DEL" { "delete".to_owned() } else { self.verb.to_lowercase() };
        let (plugin, network) = (&self.plugin, &self.network);
        write!(f, "plugin type=\"{plugin}\" name=\"{network}\" ({} of {}) failed ({verb})", self.position, self.of)?;
        if self.ifname.is_empty() {
            f.write_str(": ")?;
        } else {
            write!(f, " on {}: ", self.ifname)?;
        }
        match &self.why {
            FailureKind::NotDone(error) => write!(f, "{error}")?,
            FailureKind::Garbled(text) => write!(f, "its answer cannot be read: {text}")?,
            FailureKind::Unspoken(text) => write!(f, "it {text}")?,
        }
        // Nobody has to know our own question.
        let hint = self.why.hint().filter(|_| self.verb != "PLAN");
        hint.map_or(Ok(()), |hint| write!(f, "; hint: {hint}"))?;
        self.code().map_or(Ok(()), |code| write!(f, " (code {code})"))
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Plugins(failures) => failures.first().map(|failure| failure as _),
            Self::Configuration(defect) => Some(&**defect),
            Self::Several(all) => all.first().map(|told| &told.why as _),
            _ => None,
        }
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.why {
            FailureKind::NotDone(error) => Some(&**error),
            FailureKind::Garbled(_) | FailureKind::Unspoken(_) => None,
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Self::Plugins(vec![failure])
    }
}

impl From<ConfigError> for Error {
    fn from(defect: ConfigError) -> Self {
        Self::Configuration(Box::new(defect))
    }
}

impl From<cnikit_store::Error> for Error {
    fn from(error: cnikit_store::Error) -> Self {
        Self::Cache(format!("kept results: {error}"))
    }
}

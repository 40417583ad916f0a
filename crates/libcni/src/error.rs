//! Why a network could not be set up, checked or taken down.

use std::fmt;
use std::path::PathBuf;

/// What went wrong on the runtime's side, or in the plugins.
#[derive(Debug)]
pub enum Error {
    /// No file of the directory has a network of that name.
    NoNetwork {
        /// The name that was looked for.
        name: String,
        /// The directory.
        dir: PathBuf,
        /// Files that could not be read, each with the reason: it may be one of these.
        passed_over: Vec<String>,
    },
    /// The configuration cannot be used; file and reason.
    Configuration {
        /// The file, or the directory that could not be listed.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
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
}

/// One plugin's failure, and where in the list it stands.
#[derive(Debug)]
pub struct Failure {
    /// `ADD`, `CHECK`, `DEL` or `PLAN`.
    pub verb: &'static str,
    /// The plugin's type.
    pub plugin: String,
    /// Its place in the list, from 1.
    pub position: usize,
    /// How many plugins the list has.
    pub of: usize,
    /// What happened.
    pub why: Why,
}

/// How a plugin failed.
#[derive(Debug)]
pub enum Why {
    /// It could not be found, did not answer, or refused.
    NotDone(Box<cnikit_invoke::Error>),
    /// It succeeded, but its answer cannot be read.
    Garbled(String),
}

impl Failure {
    /// The plugin's own error code, if it gave one.
    pub fn code(&self) -> Option<u32> {
        let Why::NotDone(error) = &self.why else { return None };
        if let cnikit_invoke::Error::Refused(error) = &**error { Some(error.code) } else { None }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoNetwork { name, dir, passed_over } => {
                write!(f, "no net configuration with name \"{name}\" in {}", dir.display())?;
                passed_over.iter().try_for_each(|file| write!(f, "; passed over: {file}"))
            }
            Self::Configuration { path, why } => write!(f, "{}: {why}", path.display()),
            Self::Name(why) | Self::Cache(why) => f.write_str(why),
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

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.verb == "DEL" { "delete".to_owned() } else { self.verb.to_lowercase() };
        write!(f, "plugin type=\"{}\" ({} of {}) failed ({verb}): ", self.plugin, self.position, self.of)?;
        match &self.why {
            Why::NotDone(error) => {
                write!(f, "{error}")?;
                error.remedy().map_or(Ok(()), |remedy| write!(f, "; remedy: {remedy}"))?;
            }
            Why::Garbled(text) => write!(f, "its answer cannot be read: {text}")?,
        }
        self.code().map_or(Ok(()), |code| write!(f, " (code {code})"))
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Plugins(failures) => failures.first().map(|failure| failure as _),
            _ => None,
        }
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.why {
            Why::NotDone(error) => Some(&**error),
            Why::Garbled(_) => None,
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Self::Plugins(vec![failure])
    }
}

impl From<cnikit_store::Error> for Error {
    fn from(error: cnikit_store::Error) -> Self {
        Self::Cache(format!("kept results: {error}"))
    }
}

//! Errors of a command, and its exit status.

use serde_json::{Map, Value, json};

/// Exit status: the command failed.
const FAILED: u8 = 1;
/// Exit status: the command succeeded, and something that it found needs attention.
const FOUND: u8 = 3;

/// The error of a command, and the exit status of the process.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit status.
    pub(crate) status: u8,
    /// The message; empty if everything has been printed already.
    pub(crate) text: String,
    /// The failures of plugins, for programs.
    pub(crate) details: Vec<Value>,
    /// What the command did despite the failure: members that are added to the JSON document of the error.
    done: Box<Map<String, Value>>,
}

/// The result of most functions of this crate.
pub(crate) type Result<T = (), E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// The command failed.
    pub(crate) fn new(text: impl Into<String>) -> Failure {
        Failure { status: FAILED, text: text.into(), details: Vec::new(), done: Box::default() }
    }

    /// The command succeeded and printed its output; something that it found needs attention.
    pub(crate) fn found() -> Failure {
        Failure { status: FOUND, ..Failure::new("") }
    }

    /// Adds what the command did despite the failure, so that this and the error are one document.
    pub(crate) fn beside(self, done: Value) -> Failure {
        let Value::Object(done) = done else { return self };
        Failure { done: Box::new(done), ..self }
    }

    /// Several failures as one, each on a line of its own.
    pub(crate) fn of(all: Vec<Failure>) -> Failure {
        let mut texts = Vec::new();
        let mut details = Vec::new();
        for failure in all {
            texts.push(failure.text);
            details.extend(failure.details);
        }
        Failure { details, ..Failure::new(texts.join("\n")) }
    }

    /// The failure as a document.
    pub(crate) fn to_json(&self) -> Value {
        let mut error = json!({"message": self.text, "status": self.status});
        if !self.details.is_empty() {
            error["plugins"] = self.details.clone().into();
        }
        let mut document = self.done.clone();
        document.insert("error".to_owned(), error);
        Value::Object(*document)
    }
}

impl From<String> for Failure {
    fn from(text: String) -> Failure {
        Failure::new(text)
    }
}

impl From<&str> for Failure {
    fn from(text: &str) -> Failure {
        Failure::new(text)
    }
}

impl From<cnikit_libcni::Error> for Failure {
    fn from(error: cnikit_libcni::Error) -> Failure {
        let details = error.failures().into_iter().map(detail).collect();
        let hint = match &error {
            cnikit_libcni::Error::NoConfigurations { .. } => {
                "; hint: write one with `cnitool init`, or set `--conf-dir`"
            }
            cnikit_libcni::Error::NoNetwork { skipped, .. } if skipped.is_empty() => {
                "; hint: run `cnitool config explain`"
            }
            _ => "",
        };
        Failure { details, ..Failure::new(format!("{error}{hint}")) }
    }
}

impl From<cnikit_reservations::Error> for Failure {
    fn from(error: cnikit_reservations::Error) -> Failure {
        Failure::new(error.to_string())
    }
}

impl From<cnikit_netns::Error> for Failure {
    fn from(error: cnikit_netns::Error) -> Failure {
        Failure::new(error.to_string())
    }
}

impl From<cnikit_netlink::Error> for Failure {
    fn from(error: cnikit_netlink::Error) -> Failure {
        Failure::new(error.to_string())
    }
}

impl From<cnikit_store::Error> for Failure {
    fn from(error: cnikit_store::Error) -> Failure {
        Failure::new(error.to_string())
    }
}

/// The failure of one plugin as a document.
fn detail(failure: &cnikit_libcni::Failure) -> Value {
    json!({
        "plugin": failure.plugin,
        "position": failure.position,
        "verb": failure.verb,
        "code": failure.code(),
        "message": failure.to_string(),
    })
}

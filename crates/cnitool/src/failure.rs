//! Why a command did not do what it was asked.

use serde_json::{Map, Value, json};

/// Exit status: it could not be done.
const FAILED: u8 = 1;
/// Exit status: it was done, and something was found that wants attention.
const FOUND: u8 = 3;

/// What is told, and the status that the process ends with.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit status.
    pub(crate) status: u8,
    /// Complete; empty if all has been said already.
    pub(crate) text: String,
    /// More for programs.
    pub(crate) details: Vec<Value>,
    /// What was done all the same, for programs: members beside the error.
    done: Box<Map<String, Value>>,
}

/// What most of this crate returns.
pub(crate) type Result<T = (), E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// It could not be done.
    pub(crate) fn new(text: impl Into<String>) -> Failure {
        Failure { status: FAILED, text: text.into(), details: Vec::new(), done: Box::default() }
    }

    /// It was done, and said; what was found wants attention.
    pub(crate) fn found() -> Failure {
        Failure { status: FOUND, ..Failure::new("") }
    }

    /// With what was done all the same: it and the error are one document.
    pub(crate) fn beside(self, done: Value) -> Failure {
        let Value::Object(done) = done else { return self };
        Failure { done: Box::new(done), ..self }
    }

    /// One failure of several, each in a line of its own.
    pub(crate) fn of(all: Vec<Failure>) -> Failure {
        let texts: Vec<String> = all.iter().map(|failure| failure.text.clone()).collect();
        let details = all.into_iter().flat_map(|failure| failure.details).collect();
        Failure { details, ..Failure::new(texts.join("\n")) }
    }

    /// As a program reads it.
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
        Failure { details, ..Failure::new(error.to_string()) }
    }
}

impl From<cnikit_reservations::Error> for Failure {
    fn from(refusal: cnikit_reservations::Error) -> Failure {
        Failure::new(refusal.to_string())
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

/// One plugin's failure, taken apart.
fn detail(failure: &cnikit_libcni::Failure) -> Value {
    json!({
        "plugin": failure.plugin,
        "position": failure.position,
        "verb": failure.verb,
        "code": failure.code(),
        "message": failure.to_string(),
    })
}

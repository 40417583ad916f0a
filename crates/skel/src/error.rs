//! Errors, their codes and the table that gives an error its code.
//!
//! Like anyhow's, [`Error`] does not implement `std::error::Error`, so that `?` converts the error of every library. One table
//! ([`Error::from`]) gives the CNI code, another the hint; a library chooses neither.

use std::error::Error as StdError;
use std::fmt;

use cnikit_invoke as invoke;
use cnikit_types::{CniError, ReadError, Wrong, limit};

use crate::hint::{self, causes};

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The codes of an error object: the specification's below 100, ours from 100.
pub mod code {
    pub use cnikit_types::code::*;

    /// The kernel or a file system refused an operation; the text has its words.
    pub const SYSTEM: u32 = 100;
    /// A name, an address, a rule or the attachment itself belongs to another attachment or program.
    pub const CONFLICT: u32 = 101;
    /// CHECK found something that is not as it was made.
    pub const DRIFT: u32 = 102;
    /// A delegated plugin is missing, could not be started, or died without an answer.
    pub const DELEGATE: u32 = 103;
    /// This attachment already holds an address: nothing was allocated, nothing may be released.
    pub const HOLDS_ALREADY: u32 = 104;
    /// A defect in the plugin itself.
    pub const DEFECT: u32 = 199;
}

/// One error, on its way to becoming the error object on stdout.
///
/// `?` converts every [`std::error::Error`] into one, so it cannot be one itself. [`Error::object`] makes a [`CniError`] of it,
/// which is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Error {
    /// The code of the error object ([`code`]).
    pub code: u32,
    /// What failed, and its cause.
    pub msg: String,
    /// More of it: the other errors, a delegate's details.
    pub details: Vec<String>,
    /// What the reader can do about it.
    pub hint: Option<String>,
}

impl Error {
    /// An error with a code and a text.
    pub fn new(code: u32, msg: impl Into<String>) -> Error {
        Error { code, msg: msg.into(), details: Vec::new(), hint: None }
    }

    /// An error about a value of the configuration (code 7).
    pub fn config(msg: impl Into<String>) -> Error {
        Error::new(code::INVALID_CONFIG, msg)
    }

    /// An error about a `CNI_*` variable that is missing or invalid (code 4).
    pub fn environment(msg: impl Into<String>) -> Error {
        Error::new(code::INVALID_ENVIRONMENT, msg)
    }

    /// An error about an object of another owner that is in the way (code 101).
    pub fn conflict(msg: impl Into<String>) -> Error {
        Error::new(code::CONFLICT, msg)
    }

    /// The same error, with a hint: what to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Error {
        self.hint = Some(hint.into());
        self
    }

    /// The same error, with what was being done in front of its text.
    #[must_use]
    pub fn context(mut self, what: impl fmt::Display) -> Error {
        self.msg = format!("{what}: {}", self.msg);
        self
    }

    /// The same error with one more detail.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<String>) -> Error {
        self.details.push(detail.into());
        self
    }

    /// The error object: details and hint joined into `details`.
    pub fn object(&self, version: &str) -> CniError {
        let mut details = self.details.clone();
        if let Some(hint) = &self.hint {
            details.push(format!("hint: {hint}"));
        }
        CniError {
            cni_version: Some(version.to_owned()),
            code: self.code,
            msg: limit::shortened(self.msg.clone()),
            details: (!details.is_empty()).then(|| details.join("; ")),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.msg)?;
        for detail in &self.details {
            write!(f, "; {detail}")?;
        }
        match &self.hint {
            Some(hint) => write!(f, "; hint: {hint}"),
            None => Ok(()),
        }
    }
}

impl<E: StdError + 'static> From<E> for Error {
    fn from(error: E) -> Error {
        match causes(&error).find_map(|cause| cause.downcast_ref::<CniError>()) {
            Some(object) => {
                Error { details: object.details.iter().cloned().collect(), ..Error::new(object.code, &object.msg) }
            }
            None => Error { hint: hint::of(&error), ..Error::new(code_of(&error), text(&error)) },
        }
    }
}

/// The code of a library's error.
fn code_of(error: &(dyn StdError + 'static)) -> u32 {
    causes(error).find_map(known).unwrap_or(code::SYSTEM)
}

fn known(cause: &(dyn StdError + 'static)) -> Option<u32> {
    if let Some(read) = cause.downcast_ref::<ReadError>() {
        return Some(if read.what == Wrong::Type { code::DECODE } else { code::INVALID_CONFIG });
    }
    if cause.is::<serde_json::Error>() {
        return Some(code::DECODE);
    }
    match cause.downcast_ref::<invoke::Error>()? {
        invoke::Error::Name { .. } => Some(code::INVALID_CONFIG),
        _ => Some(code::DELEGATE),
    }
}

/// The text of an error and of its causes. A cause is left out if the text has its words already, apart from the error number.
fn text(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    for cause in causes(error).skip(1) {
        let cause = cause.to_string();
        let words = cause.split_once(" (os error ").map_or(cause.as_str(), |(words, _)| words);
        if !text.contains(words) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// The errors of steps of which every one has to run, whatever failed before it.
#[derive(Default, Debug)]
pub struct Errors(Vec<Error>);

impl Errors {
    /// Adds the error of one step if it failed; returns whether it succeeded.
    pub fn note<E: Into<Error>>(&mut self, step: Result<(), E>) -> bool {
        match step {
            Ok(()) => true,
            Err(error) => {
                self.0.push(error.into());
                false
            }
        }
    }

    /// Whether there is no error so far.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether an error is temporary ([`code::TRY_AGAIN`]): another process held a lock, for example.
    pub fn any_to_try_again(&self) -> bool {
        self.0.iter().any(|error| error.code == code::TRY_AGAIN)
    }

    /// One error that reports all; the code is the first one's.
    ///
    /// # Errors
    /// There is at least one error: the first one, with its code, and the others in its details.
    pub fn finish(self) -> Result<()> {
        let mut errors = self.0.into_iter();
        let Some(mut all) = errors.next() else { return Ok(()) };
        for error in errors.by_ref().take(limit::NAMED) {
            all = all.detail(format!("also: {error}"));
        }
        match errors.count() {
            0 => Err(all),
            more => Err(all.detail(format!("and {more} more errors"))),
        }
    }
}

impl FromIterator<Result<()>> for Errors {
    fn from_iter<T: IntoIterator<Item = Result<()>>>(steps: T) -> Errors {
        let mut errors = Errors::default();
        for step in steps {
            errors.note(step);
        }
        errors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_and_text_of_a_delegate_are_passed_on() {
        let said = CniError { cni_version: None, code: 11, msg: "full".into(), details: Some("256 taken".into()) };
        let error = Error::from(invoke::Error::Refused(said));
        assert_eq!((error.code, error.to_string().as_str()), (11, "full; 256 taken"));
    }

    #[test]
    fn an_operating_system_error_has_its_text() {
        let error = Error::from(std::io::Error::from_raw_os_error(28));
        assert_eq!(error.code, code::SYSTEM);
        assert!(error.msg.contains("No space left on device"), "{}", error.msg);
    }

    /// An error with this text, whose cause is the kernel's EEXIST.
    #[derive(Debug)]
    struct Because(&'static str, std::io::Error);

    impl fmt::Display for Because {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl StdError for Because {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            Some(&self.1)
        }
    }

    #[test]
    fn the_text_of_the_kernel_is_not_repeated() {
        let of = |text| Error::from(Because(text, std::io::Error::from_raw_os_error(17))).msg;
        assert_eq!(of("create br0: File exists"), "create br0: File exists");
        assert_eq!(of("create br0: File exists (os error 17)"), "create br0: File exists (os error 17)");
        assert_eq!(of("create br0"), "create br0: File exists (os error 17)");
    }

    #[test]
    fn every_step_that_failed_is_reported_under_the_first_ones_code() {
        let errors: Errors = [Err(Error::new(11, "one")), Ok(()), Err(Error::new(7, "two"))].into_iter().collect();
        let error = errors.finish().unwrap_err();
        assert_eq!((error.code, error.to_string().as_str()), (11, "one; also: two"));
    }

    #[test]
    fn the_kind_of_an_error_decides_its_code() {
        let json = serde_json::from_str::<u8>("x").unwrap_err();
        assert_eq!(Error::from(json).code, code::DECODE);
        assert_eq!(Error::from(ReadError::value("no such mode")).code, code::INVALID_CONFIG);
        let number = cnikit_types::NetConf::parse(br#"{"mtu":"x"}"#).unwrap().read::<Mtu>().unwrap_err();
        assert_eq!(Error::from(number).code, code::DECODE);
        let source = std::io::Error::from_raw_os_error(2);
        assert_eq!(Error::from(invoke::Error::NotStarted { plugin: "/x".into(), source }).code, code::DELEGATE);
        assert_eq!(Error::conflict("taken").code, code::CONFLICT);
        assert_eq!(Error::environment("missing").code, code::INVALID_ENVIRONMENT);
    }

    #[derive(Debug, serde::Deserialize)]
    struct Mtu {
        #[serde(rename = "mtu")]
        _mtu: u32,
    }

    #[test]
    fn one_temporary_error_among_others_is_worth_another_try() {
        let of = |codes: &[u32]| -> Errors { codes.iter().map(|code| Err(Error::new(*code, "no"))).collect() };
        assert!(of(&[code::SYSTEM, code::TRY_AGAIN]).any_to_try_again());
        assert!(!of(&[code::SYSTEM, code::CONFLICT]).any_to_try_again());
        let mut errors = Errors::default();
        assert!(errors.note::<Error>(Ok(())) && errors.is_empty());
        assert!(!errors.note(Err(Error::new(code::SYSTEM, "no"))) && !errors.is_empty());
    }
}

//! Converts errors of the libraries into errors of CNI.

use cnikit::{Error, code};
use cnikit_reservations::ErrorKind;

/// The error of the reservations, with its code.
pub(crate) fn refused(error: cnikit_reservations::Error) -> Error {
    let code = match error.kind {
        ErrorKind::Value => code::INVALID_CONFIG,
        ErrorKind::Exhausted | ErrorKind::Busy => code::TRY_AGAIN,
        ErrorKind::HoldsAlready => code::HOLDS_ALREADY,
        ErrorKind::Drift => code::DRIFT,
        ErrorKind::Disk => code::SYSTEM,
    };
    // The library's text for a missing reservation is the one of upstream's host-local.
    let text = error.text.strip_prefix("host-local: ").unwrap_or(&error.text);
    with_hint(Error::new(code, text), error.hint)
}

/// The error of a file of the node.
pub(crate) fn unreadable(error: cnikit_pool::Error) -> Error {
    with_hint(Error::new(code::SYSTEM, error.text), error.hint)
}

/// The error with this hint, or without one.
pub(crate) fn with_hint(mut error: Error, hint: Option<String>) -> Error {
    error.hint = hint;
    error
}

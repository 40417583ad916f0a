//! Converts errors of the reservations into errors of CNI.

use cnikit::{Error, code};
use cnikit_reservations::ErrorKind;

/// The error with its code.
pub(crate) fn refused(error: cnikit_reservations::Error) -> Error {
    let code = match error.kind {
        ErrorKind::Value => code::INVALID_CONFIG,
        ErrorKind::Exhausted | ErrorKind::Busy => code::TRY_AGAIN,
        ErrorKind::HoldsAlready => code::HOLDS_ALREADY,
        ErrorKind::Drift => code::DRIFT,
        ErrorKind::Disk => code::SYSTEM,
    };
    let mut refused = Error::new(code, error.text);
    refused.hint = error.hint;
    refused
}

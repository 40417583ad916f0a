//! What a refusal of the store is in CNI's words.

use cnikit::{Error, code};
use cnikit_reservations::{Kind, Refusal};

/// The table: which refusal has which code.
pub(crate) fn refused(refusal: Refusal) -> Error {
    let code = match refusal.kind {
        Kind::Value => code::INVALID_CONFIG,
        Kind::Exhausted | Kind::Busy => code::TRY_AGAIN,
        Kind::HoldsAlready => code::HOLDS_ALREADY,
        Kind::Drift => code::DRIFT,
        Kind::Disk => code::SYSTEM,
    };
    Error { remedy: refusal.remedy, ..Error::new(code, refusal.text) }
}

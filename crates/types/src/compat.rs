//! The shapes that a result had in older versions: up on reading, down on writing, one file a shape.
//!
//! | versions | file | what is different |
//! |---|---|---|
//! | 0.1.0, 0.2.0 | `v0_2` | `ip4` and `ip6` instead of lists, no interfaces |
//! | 0.3.0, 0.3.1, 0.4.0 | `v0_4` | `ips[].version`, `dns` always there, fewer members of interfaces |
//! | 1.0.0, 1.1.0 | `v1` | the shape of [`CniResult`] |
//!
//! Between versions of one shape everything survives.

mod object;
mod v0_2;
mod v0_4;
mod v1;

use serde_json::Value;

use crate::{CniResult, ReadError, Version};

/// Reads a document of `version` as an answer.
pub(crate) fn up(version: Version, value: &Value) -> Result<CniResult, ReadError> {
    match version {
        Version::V0_1_0 | Version::V0_2_0 => v0_2::up(value),
        Version::V0_3_0 | Version::V0_3_1 | Version::V0_4_0 => v0_4::up(value),
        Version::V1_0_0 | Version::V1_1_0 => v1::up(value),
    }
}

/// Writes an answer as a document of `version`.
pub(crate) fn down(version: Version, answer: &CniResult) -> Value {
    let object = match version {
        Version::V0_1_0 | Version::V0_2_0 => v0_2::down(answer),
        Version::V0_3_0 | Version::V0_3_1 | Version::V0_4_0 => v0_4::down(answer),
        Version::V1_0_0 | Version::V1_1_0 => v1::down(answer),
    };
    object.dated(version)
}

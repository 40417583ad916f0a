//! Convert results from and to the shapes of older versions, with one file per shape.
//!
//! | versions | file | difference |
//! |---|---|---|
//! | 0.1.0, 0.2.0 | `v0_2` | `ip4` and `ip6` instead of lists, no interfaces |
//! | 0.3.0, 0.3.1, 0.4.0 | `v0_4` | `ips[].version`, `dns` always present, fewer members of interfaces |
//! | 1.0.0, 1.1.0 | `v1` | the shape of [`CniResult`] |
//!
//! A conversion between versions of one shape loses nothing.

mod object;
mod v0_2;
mod v0_4;
mod v1;

use serde_json::Value;

use crate::{CniResult, ReadError, Version, member};

impl CniResult {
    /// Parses a result of any version and converts it to the newest one; `null` is an empty result.
    ///
    /// The shape is that of the document's `cniVersion`, or that of `fallback` if this key is missing or empty. The version is
    /// returned with the result.
    ///
    /// # Errors
    /// `cniVersion` was never published ([`Wrong::Value`](crate::Wrong::Value)) or is not a text, or a key of the result has the
    /// wrong type or an invalid value. The error's path names the key.
    pub fn read(value: &Value, fallback: Version) -> Result<(Version, CniResult), ReadError> {
        let version = version(value, fallback)?;
        Ok((version, up(version, value)?))
    }

    /// The result as a document of `version`, without what that version cannot express.
    ///
    /// It never fails. 0.1.0 and 0.2.0 have one address per family; without any address only `dns` is left.
    pub fn write(&self, version: Version) -> Value {
        down(version, self)
    }
}

fn version(value: &Value, fallback: Version) -> Result<Version, ReadError> {
    let own = value.as_object().and_then(|object| member::lookup(object, "cniVersion"));
    let Some((key, own)) = own else { return Ok(fallback) };
    let text = own.as_str().ok_or_else(|| ReadError::wrong_type("expected a string such as \"1.1.0\"").under(key))?;
    if text.is_empty() {
        return Ok(fallback);
    }
    Version::exact(text).ok_or_else(|| ReadError::value(format!("unsupported CNI result version {text:?}")).under(key))
}

/// Reads a document of `version` as a result.
fn up(version: Version, value: &Value) -> Result<CniResult, ReadError> {
    match version {
        Version::V0_1_0 | Version::V0_2_0 => v0_2::up(value),
        Version::V0_3_0 | Version::V0_3_1 | Version::V0_4_0 => v0_4::up(value),
        Version::V1_0_0 | Version::V1_1_0 => v1::up(value),
    }
}

/// Writes a result as a document of `version`.
fn down(version: Version, result: &CniResult) -> Value {
    let object = match version {
        Version::V0_1_0 | Version::V0_2_0 => v0_2::down(result),
        Version::V0_3_0 | Version::V0_3_1 | Version::V0_4_0 => v0_4::down(result),
        Version::V1_0_0 | Version::V1_1_0 => v1::down(result),
    };
    object.dated(version)
}

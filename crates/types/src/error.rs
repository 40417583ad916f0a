//! The error object of the protocol.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The error that a plugin prints when it fails (specification, section 5, Error).
///
/// Reading is tolerant: upstream writes no `cniVersion`, and a missing code or text is 0 or empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CniError {
    /// The version of the configuration.
    #[serde(rename = "cniVersion", skip_serializing_if = "Option::is_none")]
    pub cni_version: Option<String>,
    /// The error code, see [`code`].
    pub code: u32,
    /// A short description of the failure.
    pub msg: String,
    /// A longer description.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<String>,
}

impl fmt::Display for CniError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.details.as_deref() {
            None | Some("") => f.write_str(&self.msg),
            Some(details) => write!(f, "{}: {details}", self.msg),
        }
    }
}

impl std::error::Error for CniError {}

/// The error codes of the specification; a plugin's own codes start at 100.
pub mod code {
    /// The plugin does not support the version of the configuration.
    pub const INCOMPATIBLE_VERSION: u32 = 1;
    /// A key of the configuration is not supported; the text names it and its value.
    pub const UNSUPPORTED_FIELD: u32 = 2;
    /// The container is unknown or does not exist any more: the runtime need not send a DEL.
    pub const UNKNOWN_CONTAINER: u32 = 3;
    /// A `CNI_*` variable is missing or invalid; the text names it.
    pub const INVALID_ENVIRONMENT: u32 = 4;
    /// Reading or writing failed.
    pub const IO: u32 = 5;
    /// Something could not be decoded.
    pub const DECODE: u32 = 6;
    /// A value of the configuration is invalid.
    pub const INVALID_CONFIG: u32 = 7;
    /// `CNI_NETNS` cannot be used: it is the host's own namespace.
    pub const INVALID_NETNS: u32 = 8;
    /// A temporary failure: the runtime may try again later.
    pub const TRY_AGAIN: u32 = 11;
    /// STATUS: the plugin cannot serve an ADD.
    pub const UNAVAILABLE: u32 = 50;
    /// STATUS: as [`UNAVAILABLE`], and running containers may have lost connectivity.
    pub const LIMITED: u32 = 51;
}

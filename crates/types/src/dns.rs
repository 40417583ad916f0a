//! The DNS configuration of a container.

use serde::Deserialize;
use serde_json::{Map, Value};

/// The `dns` of a configuration or a result, the same in every version (specification, section 5).
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Dns {
    /// Addresses of name servers, in order of preference.
    pub nameservers: Vec<String>,
    /// The local domain, for short names; empty if there is none.
    pub domain: String,
    /// Domains to search for short names, in order of preference.
    pub search: Vec<String>,
    /// Options for the resolver.
    pub options: Vec<String>,
    /// Members that are not in the specification.
    #[serde(rename = "*")]
    pub extra: Map<String, Value>,
}

impl Dns {
    /// Whether all its lists and texts are empty.
    pub fn is_empty(&self) -> bool {
        *self == Dns::default()
    }
}

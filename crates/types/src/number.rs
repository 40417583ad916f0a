//! How `serde_json` represents a number whose text it preserves.

/// How `serde_json` hands over a number that no machine type holds: as an object with this one key.
pub(crate) const NUMBER: &str = "$serde_json::private::Number";

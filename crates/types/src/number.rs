//! How `serde_json` represents a number whose text it preserves.

/// The only key of the object as which `serde_json` passes a number that fits in no machine type.
pub(crate) const NUMBER: &str = "$serde_json::private::Number";

//! Deserialize a [`Value`] to a type, tolerantly, with errors that have a path and a category.

mod error;
mod fields;
mod node;
mod reader;

pub use error::{ReadError, Wrong};
pub use fields::field_names;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use node::Node;
use reader::Reader;

/// The field name under which a struct receives the members that match no other field.
///
/// Used as `#[serde(rename = "*", default)] extra: Map<String, Value>` instead of serde's `flatten`, which would make keys
/// case-sensitive.
pub(crate) const REST: &str = "*";

/// Reads `value` as a `T`.
///
/// - Struct fields match keys in any letter case; the last one in the document counts, and objects are merged.
/// - A member that is `null` is absent, so `#[serde(default)]` applies; a `null` document is an empty one.
/// - Unknown keys are ignored; a field renamed to `*`, of type `Map<String, Value>`, receives them.
/// - Integers must be written as integers: `5.0` and `1e3` are [`Wrong::Type`]; one that does not fit is [`Wrong::Value`].
/// - A `null` in a list is [`Wrong::Type`], unless the elements are [`Value`] or `Option`.
/// - [`Value`], `Map<String, Value>` and `Number` receive everything unchanged, numbers of any size too.
///
/// `serde(flatten)`, `serde(untagged)` and internally tagged enums work, but match keys exactly, because serde buffers their
/// members.
///
/// # Errors
/// The first member that has another JSON type than `T` expects ([`Wrong::Type`]), that has an invalid value, or that `T`
/// requires and the document lacks ([`Wrong::Value`]). [`ReadError::path`] names it.
pub fn read<T: DeserializeOwned>(value: &Value) -> Result<T, ReadError> {
    T::deserialize(Reader::root(Node::from(value)))
}

/// Reads an object as [`read()`] reads a value.
pub(crate) fn read_object<T: DeserializeOwned>(object: &Map<String, Value>) -> Result<T, ReadError> {
    T::deserialize(Reader::root(Node::Object(object)))
}

//! The view of a value that the deserializer uses.

use serde::de::{Error, Expected, Unexpected};
use serde_json::{Map, Number, Value};

use super::ReadError;

/// A borrowed view of a value, with one variant per JSON type, so that an object need not be wrapped into a [`Value`].
#[derive(Clone, Copy)]
pub(super) enum Node<'a> {
    Null,
    Bool(bool),
    Number(&'a Number),
    Text(&'a str),
    List(&'a [Value]),
    Object(&'a Map<String, Value>),
}

impl<'a> From<&'a Value> for Node<'a> {
    fn from(value: &'a Value) -> Node<'a> {
        match value {
            Value::Null => Node::Null,
            Value::Bool(value) => Node::Bool(*value),
            Value::Number(number) => Node::Number(number),
            Value::String(text) => Node::Text(text),
            Value::Array(list) => Node::List(list),
            Value::Object(object) => Node::Object(object),
        }
    }
}

impl Node<'_> {
    pub(super) fn unexpected(&self) -> Unexpected<'_> {
        match self {
            Node::Null => Unexpected::Unit,
            Node::Bool(value) => Unexpected::Bool(*value),
            Node::Number(number) => Unexpected::Other(number.as_str()),
            Node::Text(text) => Unexpected::Str(text),
            Node::List(_) => Unexpected::Seq,
            Node::Object(_) => Unexpected::Map,
        }
    }

    pub(super) fn wrong_type(&self, expected: &dyn Expected) -> ReadError {
        ReadError::invalid_type(self.unexpected(), expected)
    }
}

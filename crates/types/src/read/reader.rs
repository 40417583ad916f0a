//! The deserializer.

use std::iter;

use serde::{
    Deserializer,
    de::{Error, IntoDeserializer, Visitor, value},
    forward_to_deserialize_any,
};
use serde_json::{Number, Value};

use super::{
    ReadError,
    members::{Elements, Members},
    node::Node,
};
use crate::document::NUMBER;

/// Reads one node; it lends nothing to the type read, so it may stand on a merged copy as well as on the document.
pub(super) struct Reader<'a> {
    node: Node<'a>,
    /// The document itself, where `null` counts as an empty object or list.
    root: bool,
}

impl<'a> Reader<'a> {
    pub(super) fn root(node: Node<'a>) -> Reader<'a> {
        Reader { node, root: true }
    }

    pub(super) fn inner(value: &'a Value) -> Reader<'a> {
        Reader { node: Node::from(value), root: false }
    }

    fn integer<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        let Node::Number(number) = self.node else { return Err(self.node.wrong_type(&visitor)) };
        match (number.as_u64(), number.as_i64()) {
            (Some(value), _) => visitor.visit_u64(value),
            (None, Some(value)) => visitor.visit_i64(value),
            (None, None) if is_integer(number.as_str()) => {
                Err(ReadError::invalid_value(self.node.unexpected(), &visitor))
            }
            (None, None) => Err(self.node.wrong_type(&visitor)),
        }
    }

    fn text<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match self.node {
            Node::Text(text) => visitor.visit_str(text),
            other => Err(other.wrong_type(&visitor)),
        }
    }
}

/// Hands a number over so that nothing of it is lost: as a machine type if that prints the same, else in `serde_json`'s wrapping.
fn any_number<'de, V: Visitor<'de>>(number: &Number, visitor: V) -> Result<V::Value, ReadError> {
    let text = number.as_str();
    match (number.as_u64(), number.as_i64(), number.as_f64().and_then(Number::from_f64)) {
        (Some(value), ..) => visitor.visit_u64(value),
        (_, Some(value), _) if value.to_string() == text => visitor.visit_i64(value),
        (.., Some(float)) if float.as_str() == text => visitor.visit_f64(float.as_f64().unwrap_or_default()),
        _ => visitor.visit_map(value::MapDeserializer::new(iter::once((NUMBER, text)))),
    }
}

impl<'de> Deserializer<'de> for Reader<'_> {
    type Error = ReadError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match self.node {
            Node::Null => visitor.visit_unit(),
            Node::Bool(value) => visitor.visit_bool(value),
            Node::Number(number) => any_number(number, visitor),
            Node::Text(text) => visitor.visit_str(text),
            Node::List(list) => visitor.visit_seq(Elements::of(list)),
            Node::Object(object) => visitor.visit_map(Members::all(object)),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match self.node {
            Node::Bool(value) => visitor.visit_bool(value),
            other => Err(other.wrong_type(&visitor)),
        }
    }

    fn deserialize_i8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.integer(visitor)
    }

    fn deserialize_i16<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.integer(visitor)
    }

    fn deserialize_i32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.integer(visitor)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.integer(visitor)
    }

    fn deserialize_u8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.integer(visitor)
    }

    fn deserialize_u16<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.integer(visitor)
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.integer(visitor)
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.integer(visitor)
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match self.node {
            Node::Number(number) => visitor.visit_f64(number.as_f64().unwrap_or(f64::INFINITY)),
            other => Err(other.wrong_type(&visitor)),
        }
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.text(visitor)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.text(visitor)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.text(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match self.node {
            Node::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, ReadError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match self.node {
            Node::List(list) => visitor.visit_seq(Elements::of(list)),
            Node::Null if self.root => visitor.visit_seq(Elements::of(&[])),
            other => Err(other.wrong_type(&"a list")),
        }
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, ReadError> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match self.node {
            Node::Object(object) => visitor.visit_map(Members::all(object)),
            Node::Null if self.root => visitor.visit_map(Members::none()),
            other => Err(other.wrong_type(&"an object")),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        match self.node {
            Node::Object(object) => visitor.visit_map(Members::of(object, fields)),
            Node::Null if self.root => visitor.visit_map(Members::none()),
            other => Err(other.wrong_type(&"an object")),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        match self.node {
            Node::Text(text) => visitor.visit_enum(IntoDeserializer::<ReadError>::into_deserializer(text)),
            other => Err(other.wrong_type(&"a text")),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! { i128 u128 bytes byte_buf unit unit_struct identifier }
}

fn is_integer(text: &str) -> bool {
    text.strip_prefix('-').unwrap_or(text).bytes().all(|byte| byte.is_ascii_digit())
}

//! The deserializer.

use std::{borrow::Cow, iter};

use serde::{
    Deserializer,
    de::{DeserializeSeed, Error, IntoDeserializer, MapAccess, SeqAccess, Visitor, value},
    forward_to_deserialize_any,
};
use serde_json::{Map, Number, Value};

use super::{REST, ReadError, node::Node};
use crate::{member, number::NUMBER};

/// Deserializes one node. The type that is read borrows nothing from it, so the node may be part of a merged copy as well as of the
/// document.
pub(super) struct Reader<'a> {
    node: Node<'a>,
    /// Whether it is the document itself, for which `null` counts as an empty object or list.
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

/// Passes a number to a visitor without loss: as a machine type if that prints the same text, otherwise in `serde_json`'s
/// representation.
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

/// The elements of a list; adds the index of an element to its error.
struct Elements<'a> {
    list: iter::Enumerate<std::slice::Iter<'a, Value>>,
}

impl<'a> Elements<'a> {
    fn of(list: &'a [Value]) -> Elements<'a> {
        Elements { list: list.iter().enumerate() }
    }
}

impl<'de> SeqAccess<'de> for Elements<'_> {
    type Error = ReadError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, ReadError> {
        let Some((index, value)) = self.list.next() else { return Ok(None) };
        seed.deserialize(Reader::inner(value)).map(Some).map_err(|error| error.at(index))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.list.len())
    }
}

/// One member: the name of the field, and the key in the document.
struct Member<'a> {
    name: &'a str,
    key: &'a str,
    value: Cow<'a, Value>,
}

/// The members of an object; adds the key of a member to its error.
struct Members<'a> {
    left: std::vec::IntoIter<Member<'a>>,
    current: Option<Member<'a>>,
}

impl<'a> Members<'a> {
    fn new(members: Vec<Member<'a>>) -> Members<'a> {
        Members { left: members.into_iter(), current: None }
    }

    fn none() -> Members<'a> {
        Members::new(Vec::new())
    }

    /// Every member under its own key.
    fn all(object: &'a Map<String, Value>) -> Members<'a> {
        Members::new(object.iter().map(|(key, value)| Member { name: key, key, value: Cow::Borrowed(value) }).collect())
    }

    /// The members that match the fields of a struct, in any letter case, and the others if the struct has a field [`REST`].
    fn of(object: &'a Map<String, Value>, fields: &'static [&'static str]) -> Members<'a> {
        let mut members = Vec::with_capacity(fields.len());
        for field in fields.iter().filter(|field| **field != REST) {
            if let Some((key, value)) = member::lookup(object, field) {
                members.push(Member { name: field, key, value });
            }
        }
        if fields.contains(&REST) {
            members.push(Member { name: REST, key: REST, value: rest(object, fields) });
        }
        Members::new(members)
    }
}

/// The members that match no field.
fn rest<'a>(object: &Map<String, Value>, fields: &[&str]) -> Cow<'a, Value> {
    let mut others = Map::new();
    for (key, value) in object {
        if !fields.iter().any(|field| *field != REST && member::is_key(key, field)) {
            others.insert(key.clone(), value.clone());
        }
    }
    Cow::Owned(Value::Object(others))
}

impl<'de> MapAccess<'de> for Members<'_> {
    type Error = ReadError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, ReadError> {
        self.current = self.left.next();
        let Some(member) = &self.current else { return Ok(None) };
        let name = IntoDeserializer::<ReadError>::into_deserializer(member.name);
        seed.deserialize(name).map(Some).map_err(|error| error.under(member.key))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, ReadError> {
        let member = self.current.take().ok_or_else(|| ReadError::value("a value was asked for before its key"))?;
        seed.deserialize(Reader::inner(&member.value)).map_err(|error| error.under(member.key))
    }
}

//! The parts of a list or an object on their way into a type.

use std::{borrow::Cow, iter};

use serde::de::{DeserializeSeed, IntoDeserializer, MapAccess, SeqAccess};
use serde_json::{Map, Value};

use super::{REST, ReadError, reader::Reader};
use crate::member;

/// The elements of a list, each error with its index.
pub(super) struct Elements<'a> {
    list: iter::Enumerate<std::slice::Iter<'a, Value>>,
}

impl<'a> Elements<'a> {
    pub(super) fn of(list: &'a [Value]) -> Elements<'a> {
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

/// One member on its way into a type: the name that the type knows, the key that the document has.
struct Member<'a> {
    name: &'a str,
    key: &'a str,
    value: Cow<'a, Value>,
}

/// The members of an object, each error with its key.
pub(super) struct Members<'a> {
    left: std::vec::IntoIter<Member<'a>>,
    current: Option<Member<'a>>,
}

impl<'a> Members<'a> {
    fn new(members: Vec<Member<'a>>) -> Members<'a> {
        Members { left: members.into_iter(), current: None }
    }

    pub(super) fn none() -> Members<'a> {
        Members::new(Vec::new())
    }

    /// Every member under its own key.
    pub(super) fn all(object: &'a Map<String, Value>) -> Members<'a> {
        Members::new(object.iter().map(|(key, value)| Member { name: key, key, value: Cow::Borrowed(value) }).collect())
    }

    /// The members that the fields of a struct name, in any case; and the others, if it asks for them.
    pub(super) fn of(object: &'a Map<String, Value>, fields: &'static [&'static str]) -> Members<'a> {
        let named = fields.iter().filter(|field| **field != REST).filter_map(|field| {
            let (key, value) = member::lookup(object, field)?;
            Some(Member { name: field, key, value })
        });
        let rest = fields.contains(&REST).then(|| Member { name: REST, key: REST, value: rest(object, fields) });
        Members::new(named.chain(rest).collect())
    }
}

/// The members that no field names.
fn rest<'a>(object: &Map<String, Value>, fields: &[&str]) -> Cow<'a, Value> {
    let is_named = |key: &String| fields.iter().any(|field| *field != REST && member::is_key(key, field));
    let others = object.iter().filter(|(key, _)| !is_named(key));
    Cow::Owned(Value::Object(others.map(|(key, value)| (key.clone(), value.clone())).collect()))
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

//! From JSON text to a [`Value`], as Go's decoder reads it, since configurations in the field lean on that.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::member::insert_last;

/// How `serde_json` hands over a number that no machine type holds: as an object with this one key.
pub(crate) const NUMBER: &str = "$serde_json::private::Number";

/// Reads one JSON document.
///
/// Of several members with exactly the same key the last wins and stands where it was written last, so that the order
/// still tells which of two spellings came later; objects under one key are merged member by member, and a later `null`
/// keeps the earlier value. Numbers keep their text. Bytes that are not UTF-8 become U+FFFD. A byte order mark, trailing
/// text, and nesting deeper than 128 are errors.
pub fn parse(bytes: &[u8]) -> Result<Value, serde_json::Error> {
    let text = String::from_utf8_lossy(bytes);
    let mut deserializer = serde_json::Deserializer::from_str(&text);
    let value = Document.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

struct Document;

impl<'de> DeserializeSeed<'de> for Document {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Document {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(Document)? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = members.next_key::<String>()? {
            let value = members.next_value_seed(Document)?;
            if let Some(number) = number(&object, &key, &value) {
                return Ok(number.into());
            }
            insert_last(&mut object, key, value);
        }
        Ok(object.into())
    }
}

/// The number that `serde_json` wrapped into an object, if this first member is one.
fn number(object: &Map<String, Value>, key: &str, value: &Value) -> Option<Number> {
    (object.is_empty() && key == NUMBER).then(|| value.as_str()?.parse().ok()).flatten()
}

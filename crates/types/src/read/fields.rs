//! The names of the fields of a type that is deserialized from an object.

use std::fmt;

use serde::de::{DeserializeOwned, Deserializer, Error, Visitor};
use serde::forward_to_deserialize_any;

/// The names of the fields of `T`, with their aliases, as serde knows them: of the struct that `T` is, wraps transparently or is
/// converted from. `None` if `T` is read from no struct, for example from a map.
pub fn field_names<T: DeserializeOwned>() -> Option<&'static [&'static str]> {
    let mut names = None;
    // It always fails: nothing is read.
    let _ = T::deserialize(Asked(&mut names));
    names
}

/// A deserializer that remembers what it is asked for, and has nothing.
struct Asked<'a>(&'a mut Option<&'static [&'static str]>);

/// The error that ends a question.
#[derive(Debug)]
struct NothingRead;

impl fmt::Display for NothingRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nothing is read")
    }
}

impl std::error::Error for NothingRead {}

impl Error for NothingRead {
    fn custom<T: fmt::Display>(_text: T) -> NothingRead {
        NothingRead
    }
}

impl<'de> Deserializer<'de> for Asked<'_> {
    type Error = NothingRead;

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, NothingRead> {
        Err(NothingRead)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, NothingRead> {
        *self.0 = Some(fields);
        Err(NothingRead)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, NothingRead> {
        visitor.visit_newtype_struct(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct seq tuple
        tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    #[expect(dead_code, reason = "only the names of the fields are looked at")]
    struct Keys {
        one_key: u32,
        #[serde(default, alias = "second")]
        two: Option<String>,
    }

    #[derive(Deserialize)]
    struct Wrapped(#[expect(dead_code, reason = "as above")] Keys);

    #[derive(Deserialize)]
    #[serde(try_from = "Keys")]
    struct Checked;

    impl TryFrom<Keys> for Checked {
        type Error = String;

        fn try_from(_: Keys) -> Result<Checked, String> {
            Ok(Checked)
        }
    }

    #[test]
    fn the_names_are_found_through_wrappers_and_conversions() {
        for names in [field_names::<Keys>(), field_names::<Wrapped>(), field_names::<Checked>()] {
            assert_eq!(names, Some(["oneKey", "second", "two"].as_slice()));
        }
        assert_eq!(field_names::<BTreeMap<String, u32>>(), None);
    }
}

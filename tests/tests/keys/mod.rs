//! The keys that a type accepts, read from the type itself: its `Deserialize` passes the names of its fields to the deserializer.

use std::fmt;

use cnikit::{KeySource, Sources};
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor,
};

/// A key, as a page writes it.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    /// Names separated by dots, with `[]` after each list; or the place that only a runtime writes to.
    pub(crate) path: String,
    /// Its JSON type in words; empty if it is unknown.
    pub(crate) kind: String,
}

impl Key {
    /// A key that is in no struct: the plugin reads it at this path.
    pub(crate) fn elsewhere(path: &str) -> Key {
        Key { path: path.to_owned(), kind: String::new() }
    }
}

/// The keys of a plugin: those of its type, and the `CNI_ARGS` that it accepts. A key with sources has the paths of its sources,
/// and a path at the top only if that is one of them.
pub(crate) fn of_plugin<T: DeserializeOwned>(sources: Sources, args: Option<&[&str]>) -> Vec<Key> {
    let mut keys = Vec::new();
    collect::<T>(&mut Vec::new(), "", &mut keys);
    for (name, places) in sources {
        // The key and those below it.
        let of = |key: &Key| {
            key.path.strip_prefix(*name).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        let moved: Vec<Key> = keys.extract_if(.., |key| of(key)).collect();
        let place = |place: &KeySource| match place {
            KeySource::Key => Some((*name).to_owned()),
            KeySource::CniArg(_) => None,
            elsewhere => Some(elsewhere.to_string()),
        };
        for Key { path, kind } in &moved {
            let rest = &path[name.len()..];
            let placed = places.iter().filter_map(place).map(|place| place + rest);
            keys.extend(placed.map(|path| Key { path, kind: kind.clone() }));
        }
    }
    keys.extend(args.into_iter().flatten().map(|name| Key { path: format!("CNI_ARGS {name}"), kind: "string".into() }));
    keys
}

/// The keys below a path. Of `ipam` a main plugin reads the type only: the other keys are the IPAM plugin's. `args` is defined by
/// the protocol, as `runtimeConfig` is.
fn collect<T: DeserializeOwned>(path: &mut Vec<&'static str>, prefix: &str, keys: &mut Vec<Key>) {
    let Found { what: What::Struct(fields), .. } = asked::<T>(path) else { return };
    for field in fields.iter().copied().filter(|field| *field != "*") {
        path.push(field);
        let found = asked::<T>(path);
        let name = format!("{prefix}{field}");
        if !["args", "args.cni"].contains(&name.as_str()) {
            keys.push(Key { path: name.clone(), kind: found.to_string() });
        }
        if field != "ipam" {
            collect::<T>(path, &format!("{name}{}.", "[]".repeat(found.lists)), keys);
        }
        path.pop();
    }
}

/// The value at the end of a path.
#[derive(Clone, Copy, Debug)]
struct Found {
    what: What,
    /// In so many lists.
    lists: usize,
}

#[derive(Clone, Copy, Debug)]
enum What {
    /// An object with these keys.
    Struct(&'static [&'static str]),
    /// A value of this JSON type.
    Value(&'static str),
    /// The type accepts anything, or stopped by itself.
    Untold,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.what {
            What::Struct(_) => "object",
            What::Value(word) => word,
            What::Untold => return Ok(()),
        };
        (0..self.lists).try_for_each(|n| f.write_str(if n == 0 { "list of " } else { "lists of " }))?;
        write!(f, "{word}{}", if self.lists > 0 { "s" } else { "" })
    }
}

fn asked<T: DeserializeOwned>(path: &[&'static str]) -> Found {
    match T::deserialize(Probe { path }) {
        Err(Stopped(found)) => found,
        Ok(_) => Found { what: What::Untold, lists: 0 },
    }
}

/// A deserializer without input: it follows a path through the fields that the type requests, and stops with the request at its
/// end.
#[derive(Clone, Copy)]
struct Probe<'a> {
    path: &'a [&'static str],
}

#[derive(Debug)]
struct Stopped(Found);

impl Probe<'_> {
    fn stop<T>(what: What) -> Result<T, Stopped> {
        Err(Stopped(Found { what, lists: 0 }))
    }
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stopped at {:?}", self.0)
    }
}

impl de::StdError for Stopped {}

impl de::Error for Stopped {
    fn custom<T: fmt::Display>(_: T) -> Stopped {
        Stopped(Found { what: What::Untold, lists: 0 })
    }
}

/// The methods that want one JSON type.
macro_rules! stop_with {
    ($($word:literal: $($method:ident)*;)*) => {
        $($(fn $method<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Stopped> {
            Probe::stop(What::Value($word))
        })*)*
    };
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = Stopped;

    stop_with! {
        "boolean": deserialize_bool;
        "integer": deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_u8 deserialize_u16
            deserialize_u32 deserialize_u64;
        "number": deserialize_f32 deserialize_f64;
        "string": deserialize_char deserialize_str deserialize_string deserialize_identifier;
        "object": deserialize_map;
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Stopped> {
        match self.path {
            [] => Probe::stop(What::Struct(fields)),
            [key, below @ ..] => visitor.visit_map(One { key: Some(key), value: Probe { path: below } }),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stopped> {
        let is_end = self.path.is_empty();
        let deeper = |Stopped(found)| Stopped(Found { lists: found.lists + usize::from(is_end), ..found });
        visitor.visit_seq(One { key: None, value: self }).map_err(deeper)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stopped> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Stopped> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Stopped> {
        Probe::stop(What::Value("string"))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Stopped> {
        Probe::stop(What::Untold)
    }

    serde::forward_to_deserialize_any! { bytes byte_buf unit unit_struct tuple tuple_struct ignored_any }
}

/// An object of one member, or a list of one element.
struct One<'a> {
    key: Option<&'static str>,
    value: Probe<'a>,
}

impl<'de> MapAccess<'de> for One<'_> {
    type Error = Stopped;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Stopped> {
        match self.key.take() {
            Some(key) => seed.deserialize(IntoDeserializer::<Stopped>::into_deserializer(key)).map(Some),
            None => Ok(None),
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Stopped> {
        seed.deserialize(self.value)
    }
}

impl<'de> SeqAccess<'de> for One<'_> {
    type Error = Stopped;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Stopped> {
        seed.deserialize(self.value).map(Some)
    }
}

//! The configuration that a plugin receives.

use std::fmt;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::document::Duplicate;
use crate::{ReadError, document, limit, member, read};

/// A plugin's configuration of any version; its format is the same in all of them (specification, section 1).
///
/// It has all members of the document, so it can be passed to another plugin. Keys match in any letter case, and `null` counts
/// as absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NetConf(pub Map<String, Value>);

/// The keys of a plugin's configuration that the specification names (sections 1 and 3), and those that a runtime adds (sections 2
/// and 4). Keys with a `/` are extensions of CNI too, such as `cni.dev/valid-attachments`.
const OF_CNI: [&str; 12] = [
    "cniVersion",
    "name",
    "type",
    "capabilities",
    "runtimeConfig",
    "args",
    "prevResult",
    "ipMasq",
    "ipam",
    "dns",
    "disableCheck",
    "disableGC",
];

/// The error for a text that is not a configuration.
#[derive(Debug)]
pub enum ParseError {
    /// It is not JSON.
    Json(serde_json::Error),
    /// It is JSON, but not an object; the word is its JSON type.
    NotAnObject(&'static str),
}

impl NetConf {
    /// Parses a configuration from JSON text, by the rules of [`document::parse`]. The document `null` is an empty object.
    ///
    /// # Errors
    /// [`ParseError::Json`] if the text is not JSON or exceeds a limit of [`document::parse`], [`ParseError::NotAnObject`] if
    /// it is JSON of another type.
    pub fn parse(stdin: &[u8]) -> Result<NetConf, ParseError> {
        NetConf::of(document::parse(stdin).map_err(ParseError::Json)?)
    }

    /// As [`NetConf::parse`], and lists the keys that one object has more than once, which most likely is a mistake of the
    /// author. Members that only programs write are not searched: `prevResult`, and those whose keys begin with `cni.dev/`.
    ///
    /// # Errors
    /// As [`NetConf::parse`]. A duplicate key is not an error.
    pub fn parse_with_duplicates(stdin: &[u8]) -> Result<(NetConf, Vec<Duplicate>), ParseError> {
        let is_of_programs = |key: &str| member::is_key(key, "prevResult") || key.starts_with("cni.dev/");
        let (value, duplicates) = document::parse_with_duplicates(stdin, is_of_programs).map_err(ParseError::Json)?;
        Ok((NetConf::of(value)?, duplicates))
    }

    fn of(document: Value) -> Result<NetConf, ParseError> {
        match document {
            Value::Object(object) => Ok(NetConf(object)),
            Value::Null => Ok(NetConf::default()),
            other => Err(ParseError::NotAnObject(kind(&other))),
        }
    }

    /// The value of `key`, in any letter case; the last one if there are several.
    pub fn get(&self, key: &str) -> Option<&Value> {
        find(&self.0, &[key])
    }

    /// The value at the end of `path`, one key per level. Objects under several spellings of one key are merged.
    pub fn at(&self, path: &[&str]) -> Option<&Value> {
        find(&self.0, path)
    }

    /// Checks the size of each list and object in it.
    ///
    /// # Errors
    /// The first one that has more than [`limit::MEMBERS`] members.
    pub fn check_size(&self) -> Result<(), ReadError> {
        limit::check_object(&self.0)
    }

    /// The value of `key` if it is a text.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_str()
    }

    /// Whether `key` is present in any spelling, even with the value `null`.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.0.keys().any(|own| member::is_key(own, key))
    }

    /// Sets `key` to `value` and removes every other spelling of the key.
    pub fn set(&mut self, key: &str, value: Value) {
        put(&mut self.0, key, value);
    }

    /// Sets the end of `path` to `value`, and creates the objects on the way; an empty path changes nothing.
    pub fn set_at(&mut self, path: &[&str], value: Value) {
        put_at(&mut self.0, path, value);
    }

    /// Removes the end of `path`, in every spelling of its keys. Returns whether there was a value other than `null`.
    pub fn remove_at(&mut self, path: &[&str]) -> bool {
        remove_at(&mut self.0, path)
    }

    /// The keys of the configuration that neither CNI nor `T` knows: no field has the name, in any letter case, and it is no key of
    /// the specification. Empty if `T` is read from no struct.
    pub fn unknown_keys<T: DeserializeOwned>(&self) -> Vec<&str> {
        let Some(fields) = read::field_names::<T>() else { return Vec::new() };
        if fields.contains(&read::REST) {
            return Vec::new();
        }
        let is_known =
            |key: &str| fields.iter().chain(&OF_CNI).any(|name| member::is_key(key, name)) || key.contains('/');
        self.0.keys().map(String::as_str).filter(|key| !is_known(key)).collect()
    }

    /// Reads the whole configuration as a `T`, see [`read()`](crate::read()).
    ///
    /// # Errors
    /// As [`read()`](crate::read()).
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, ReadError> {
        read::read_object(&self.0)
    }

    /// Reads the value at the end of `path` as a `T`; `None` if there is no such value.
    ///
    /// # Errors
    /// As [`read()`](crate::read()). The error's path begins with `path`.
    pub fn read_at<T: DeserializeOwned>(&self, path: &[&str]) -> Result<Option<T>, ReadError> {
        let Some(value) = self.at(path) else { return Ok(None) };
        match read::read(value) {
            Ok(read) => Ok(Some(read)),
            Err(error) => Err(path.iter().rev().fold(error, |error: ReadError, key| error.under(key))),
        }
    }

    /// The network's `name`.
    pub fn name(&self) -> Option<&str> {
        self.text("name")
    }

    /// The plugin's `type`.
    pub fn plugin_type(&self) -> Option<&str> {
        self.text("type")
    }

    /// The value of `ipam.type`; `None` if it is missing or empty, as in `"ipam": {}`, which some configurations have.
    pub fn ipam_type(&self) -> Option<&str> {
        self.at(&["ipam", "type"])?.as_str().filter(|text| !text.is_empty())
    }

    /// The configuration as compact JSON, for another plugin's stdin.
    pub fn to_vec(&self) -> Vec<u8> {
        Value::Object(self.0.clone()).to_string().into_bytes()
    }
}

/// The value at the end of `path`. The last spelling of a key is searched first; an earlier one counts only if both are objects,
/// which are merged.
fn find<'a>(object: &'a Map<String, Value>, path: &[&str]) -> Option<&'a Value> {
    let (key, below) = path.split_first()?;
    for (_, value) in member::spellings(object, key).rev() {
        match value {
            value if below.is_empty() => return Some(value),
            Value::Object(inner) => match find(inner, below) {
                None => {}
                found => return found,
            },
            _ => return None,
        }
    }
    None
}

fn put(object: &mut Map<String, Value>, key: &str, value: Value) {
    object.retain(|own, _| !member::is_key(own, key));
    object.insert(key.to_owned(), value);
}

fn put_at(object: &mut Map<String, Value>, path: &[&str], value: Value) {
    match path {
        [] => {}
        [key] => put(object, key, value),
        [key, below @ ..] => {
            let mut inner = match member::lookup(object, key).map(|(_, value)| value.into_owned()) {
                Some(Value::Object(inner)) => inner,
                _ => Map::new(),
            };
            put_at(&mut inner, below, value);
            put(object, key, inner.into());
        }
    }
}

fn remove_at(object: &mut Map<String, Value>, path: &[&str]) -> bool {
    let mut removed = false;
    match path {
        [] => {}
        [key] => object.retain(|own, value| {
            let is_meant = member::is_key(own, key);
            removed |= is_meant && !value.is_null();
            !is_meant
        }),
        [key, below @ ..] => {
            for (own, value) in object.iter_mut() {
                if let Value::Object(inner) = value
                    && member::is_key(own, key)
                {
                    removed |= remove_at(inner, below);
                }
            }
        }
    }
    removed
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParseError::Json(error) => error.fmt(f),
            ParseError::NotAnObject(kind) => write!(f, "expected an object, found {kind}"),
        }
    }
}

impl std::error::Error for ParseError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ParseError::Json(error) => Some(error),
            ParseError::NotAnObject(_) => None,
        }
    }
}

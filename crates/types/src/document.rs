//! Parse JSON text to a [`Value`] as Go's decoder does, because existing configurations depend on its rules.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::limit;
use crate::member::gathered;
use crate::number::NUMBER;

/// Parses one JSON document.
///
/// Of several members with exactly the same key the last one counts, at its position, so that the order still shows which of two
/// spellings came later. Objects under one key are merged member by member, and a later `null` does not replace the earlier value.
/// Numbers keep their text. Bytes that are not UTF-8 become U+FFFD.
///
/// # Errors
/// The text is not JSON, is empty, has a byte order mark or trailing text, is nested deeper than 128 levels, or has more than
/// [`limit::VALUES`] values. The error has line and column.
pub fn parse(bytes: &[u8]) -> Result<Value, serde_json::Error> {
    read(bytes, None, |_| true)
}

/// Parses a document that a program wrote, by the rules of `serde_json`: of several members with one key the last one counts.
///
/// # Errors
/// The text is not JSON, or has more than [`limit::VALUES`] values.
pub fn parse_plainly(bytes: &[u8]) -> Result<Value, serde_json::Error> {
    limit::check_text(bytes).map_err(serde_json::Error::custom)?;
    let text = std::str::from_utf8(bytes).map_err(serde_json::Error::custom)?;
    // The deserializer of `Value` is not used: with the feature `raw_value` of serde_json it parses the string under a private key
    // as JSON, and the values in that string were not counted.
    read_text(text, Document { merges: false, duplicates: None, ignored: |_| true, path: None })
}

/// A key that one object of a document has more than once, in exactly the same spelling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Duplicate {
    /// The path of the object, such as `ipam.ranges[0][1]`; empty for the document itself.
    pub object: String,
    /// The key.
    pub key: String,
}

/// The maximum number of listed duplicates; one is enough to refuse a document.
const MOST_DUPLICATES: usize = 20;

/// As [`parse`], and lists the first 20 duplicate keys, in the order of the document. Members of the document itself whose key
/// is `ignored` are not searched. Keys that begin with `_` or `//` are not listed: people write comments in JSON with them.
///
/// # Errors
/// As [`parse`]. A duplicate key is not an error.
pub fn parse_with_duplicates(
    bytes: &[u8],
    ignored: fn(&str) -> bool,
) -> Result<(Value, Vec<Duplicate>), serde_json::Error> {
    let duplicates = RefCell::new(Vec::new());
    let value = read(bytes, Some(&duplicates), ignored)?;
    Ok((value, duplicates.into_inner()))
}

fn read(
    bytes: &[u8],
    duplicates: Option<&RefCell<Vec<Duplicate>>>,
    ignored: fn(&str) -> bool,
) -> Result<Value, serde_json::Error> {
    limit::check_text(bytes).map_err(serde_json::Error::custom)?;
    read_text(&String::from_utf8_lossy(bytes), Document { merges: true, duplicates, ignored, path: None })
}

/// Parses a text. The input is always a `str`: with a second type of input the compiler would inline less of the parser into both.
fn read_text(text: &str, document: Document<'_>) -> Result<Value, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = document.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

/// Whether a key is a comment: it begins with `_` or `//`.
pub fn is_remark(key: &str) -> bool {
    key.starts_with('_') || key.starts_with("//")
}

/// Deserializes the value at a path.
#[derive(Clone, Copy)]
struct Document<'a> {
    /// Whether objects under one key are merged, as Go's decoder does; otherwise the last one counts.
    merges: bool,
    /// The list of duplicate keys; `None` if they are not searched.
    duplicates: Option<&'a RefCell<Vec<Duplicate>>>,
    /// Whether a member of the document itself, given by its key, is not searched for duplicates.
    ignored: fn(&str) -> bool,
    path: Option<&'a Path<'a>>,
}

/// A path as a linked list that begins with its last step.
struct Path<'a> {
    last: Step<'a>,
    parent: Option<&'a Path<'a>>,
}

/// One step of a path.
enum Step<'a> {
    Key(&'a str),
    Index(usize),
}

impl Document<'_> {
    fn list_duplicate(&self, key: &str) {
        let Some(duplicates) = self.duplicates else { return };
        let mut duplicates = duplicates.borrow_mut();
        if duplicates.len() < MOST_DUPLICATES && !is_remark(key) {
            let object = self.path.map(Path::to_string).unwrap_or_default();
            duplicates.push(Duplicate { object, key: key.to_owned() });
        }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        match (&self.last, self.parent) {
            (Step::Index(index), _) => write!(f, "[{index}]"),
            (Step::Key(key), None) => f.write_str(key),
            (Step::Key(key), Some(_)) => write!(f, ".{key}"),
        }
    }
}

/// The words with which upstream's tuning refuses a duplicate sysctl, and in addition the key.
impl fmt::Display for Duplicate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.object.is_empty() { "" } else { " " };
        write!(f, "duplicated{separator}{} keys are not allowed: {:?} is given more than once", self.object, self.key)
    }
}

impl<'de> DeserializeSeed<'de> for Document<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Document<'_> {
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
        loop {
            let path = Path { last: Step::Index(values.len()), parent: self.path };
            let Some(value) = list.next_element_seed(Document { path: Some(&path), ..self })? else { break };
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        // Set at the first key that comes again: the number of members before it, and the members from it on. `object` has all
        // keys.
        let mut again: Option<(usize, Vec<(String, Value)>)> = None;
        while let Some(key) = members.next_key::<String>()? {
            let path = Path { last: Step::Key(&key), parent: self.path };
            let is_ignored = self.path.is_none() && (self.ignored)(&key);
            let duplicates = if is_ignored { None } else { self.duplicates };
            let value = members.next_value_seed(Document { duplicates, path: Some(&path), ..self })?;
            if let Some(number) = number(&object, &key, &value) {
                return Ok(number.into());
            }
            if !self.merges {
                object.insert(key, value);
                continue;
            }
            if again.is_none() && object.contains_key(&key) {
                again = Some((object.len(), Vec::new()));
            }
            let Some((_, members)) = &mut again else {
                object.insert(key, value);
                continue;
            };
            if !object.contains_key(&key) {
                object.insert(key.clone(), Value::Null);
            } else if duplicates.is_some() {
                self.list_duplicate(&key);
            }
            members.push((key, value));
        }
        Ok(match again {
            Some((count, members)) => gathered(object.into_iter().take(count).chain(members)).into(),
            None => object.into(),
        })
    }
}

/// The number that `serde_json` represents as an object, if this first member is that of such an object.
fn number(object: &Map<String, Value>, key: &str, value: &Value) -> Option<Number> {
    (object.is_empty() && key == NUMBER).then(|| value.as_str()?.parse().ok()).flatten()
}

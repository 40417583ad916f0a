//! Find the members of an object by name, in any letter case.
//!
//! The rules are those of Go's decoder, because upstream's plugins read the same document with it. If it accepted a key as `ips`
//! that we do not, a request would be ignored.
//!
//! The last member of a name counts, `null` never replaces a value, and objects under one name are merged member by member.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use serde_json::{Map, Value};

/// Whether a key matches a name, in any letter case. As for Go's decoder, the long s (U+017F) is an s and the Kelvin sign (U+212A)
/// is a k.
pub fn is_key(key: &str, name: &str) -> bool {
    let folded = |letter: char| match letter {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        other => other.to_ascii_lowercase(),
    };
    key.eq_ignore_ascii_case(name) || (!key.is_ascii() && key.chars().map(folded).eq(name.chars().map(folded)))
}

/// The values of one key that count: one value, or the objects to be merged.
struct Values {
    /// The position of the last value in the document.
    place: usize,
    counting: Vec<Value>,
}

/// An object of these members. A repeated key is at its last position. The time is linear in the number of members, however often a
/// key is repeated.
pub(crate) fn gathered(members: impl IntoIterator<Item = (String, Value)>) -> Map<String, Value> {
    let mut keys: HashMap<String, Values> = HashMap::new();
    for (place, (key, value)) in members.into_iter().enumerate() {
        match keys.entry(key) {
            Entry::Vacant(vacant) => {
                vacant.insert(Values { place, counting: vec![value] });
            }
            Entry::Occupied(_) if value.is_null() => {}
            Entry::Occupied(mut earlier) => {
                let earlier = earlier.get_mut();
                if !(value.is_object() && earlier.counting.last().is_some_and(Value::is_object)) {
                    earlier.counting.clear();
                }
                earlier.counting.push(value);
                earlier.place = place;
            }
        }
    }
    let mut keys: Vec<(String, Values)> = keys.into_iter().collect();
    keys.sort_unstable_by_key(|(_, values)| values.place);
    keys.into_iter().map(|(key, values)| (key, merged(values.counting))).collect()
}

/// A single value unchanged, several objects merged into one.
fn merged(mut values: Vec<Value>) -> Value {
    if values.len() == 1 {
        return values.pop().unwrap_or_default();
    }
    let mut members = Vec::new();
    for value in values {
        if let Value::Object(object) = value {
            members.extend(object);
        }
    }
    gathered(members).into()
}

/// The value of `name` in all its spellings, with the key of the last one: the last value that is not null, or the merged objects.
pub(crate) fn lookup<'a>(object: &'a Map<String, Value>, name: &str) -> Option<(&'a str, Cow<'a, Value>)> {
    let mut found = spellings(object, name).rev();
    let (key, last) = found.next()?;
    let mut counting = vec![last];
    if last.is_object() {
        counting.extend(found.map(|(_, value)| value).take_while(|value| value.is_object()));
    }
    if counting.len() == 1 {
        return Some((key, Cow::Borrowed(last)));
    }
    counting.reverse();
    Some((key, Cow::Owned(merged(counting.into_iter().cloned().collect()))))
}

/// The members whose key is `name` in any spelling, without those that are null, in the order of the document.
pub(crate) fn spellings<'a>(
    object: &'a Map<String, Value>,
    name: &str,
) -> impl DoubleEndedIterator<Item = (&'a str, &'a Value)> {
    object
        .iter()
        .filter(move |(key, value)| is_key(key, name) && !value.is_null())
        .map(|(key, value)| (key.as_str(), value))
}

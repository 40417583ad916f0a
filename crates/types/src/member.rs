//! Keys in any case: which members of an object belong to which name.
//!
//! Go's decoder is the measure, for another plugin reads the same document with it: a key that it takes for `ips` and we do not
//! would have something requested that we never see.
//!
//! Two documents' rules meet here: the last member wins, and a `null` never takes anything away. Objects that stand under
//! one name are merged member by member.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use serde_json::{Map, Value};

/// Whether this key is meant by this name: whatever the case of its letters, and for Go's decoder the long s (U+017F) is an s
/// and the Kelvin sign (U+212A) a k.
pub fn is_key(key: &str, name: &str) -> bool {
    let folded = |letter: char| match letter {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        other => other.to_ascii_lowercase(),
    };
    key.eq_ignore_ascii_case(name) || (!key.is_ascii() && key.chars().map(folded).eq(name.chars().map(folded)))
}

/// All values of one key, in which only what counts is kept: one value, or objects that are merged.
struct Values {
    /// Where the last of them is in the document.
    place: usize,
    counting: Vec<Value>,
}

/// An object of these members. A key that comes again is where it comes last. The time does not grow faster than the number of
/// members, however often a key comes.
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

/// One value as it is, several objects as one.
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

/// What the spellings of `name` amount to: the last that is not null, or the objects merged.
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

/// The members whose key is `name` in some spelling, without nulls, in the order of the document.
pub(crate) fn spellings<'a>(
    object: &'a Map<String, Value>,
    name: &str,
) -> impl DoubleEndedIterator<Item = (&'a str, &'a Value)> {
    object
        .iter()
        .filter(move |(key, value)| is_key(key, name) && !value.is_null())
        .map(|(key, value)| (key.as_str(), value))
}

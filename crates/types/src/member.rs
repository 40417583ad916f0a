//! Keys in any case: which members of an object belong to which name.
//!
//! Two documents' rules meet here: the last member wins, and a `null` never takes anything away. Objects that stand under
//! one name are merged member by member.

use std::borrow::Cow;

use serde_json::{Map, Value};

/// Puts `value` where `key` stands in exactly this spelling, and moves the key to the end.
pub(crate) fn insert_last(object: &mut Map<String, Value>, key: String, value: Value) {
    match (object.get(&key), &value) {
        (Some(_), Value::Null) => return,
        (Some(Value::Object(_)), Value::Object(_)) => {}
        _ => {
            object.shift_remove(&key);
            object.insert(key, value);
            return;
        }
    }
    if let (Some(mut earlier), Value::Object(later)) = (object.shift_remove(&key), value) {
        if let Value::Object(earlier) = &mut earlier {
            merge(earlier, later);
        }
        object.insert(key, earlier);
    }
}

/// Lays the members of `later` over those of `earlier`.
pub(crate) fn merge(earlier: &mut Map<String, Value>, later: Map<String, Value>) {
    for (key, value) in later {
        insert_last(earlier, key, value);
    }
}

/// What the spellings of `name` amount to: the last that is not null, or the objects merged.
pub(crate) fn lookup<'a>(object: &'a Map<String, Value>, name: &str) -> Option<(&'a str, Cow<'a, Value>)> {
    spellings(object, name).fold(None, |found, (key, value)| Some((key, over(found.map(|(_, value)| value), value))))
}

/// The members whose key is `name` in some spelling, without nulls, in the order of the document.
pub(crate) fn spellings<'a>(
    object: &'a Map<String, Value>,
    name: &str,
) -> impl DoubleEndedIterator<Item = (&'a str, &'a Value)> {
    object
        .iter()
        .filter(move |(key, value)| key.eq_ignore_ascii_case(name) && !value.is_null())
        .map(|(key, value)| (key.as_str(), value))
}

/// `later` laid over `earlier`: merged if both are objects, else `later` alone.
fn over<'a>(earlier: Option<Cow<'a, Value>>, later: &'a Value) -> Cow<'a, Value> {
    match (earlier, later) {
        (Some(earlier), Value::Object(later)) if earlier.is_object() => {
            let mut whole = earlier.into_owned();
            if let Value::Object(earlier) = &mut whole {
                merge(earlier, later.clone());
            }
            Cow::Owned(whole)
        }
        _ => Cow::Borrowed(later),
    }
}

//! A JSON object as text: the positions of its members, and the same text with some of them replaced. All other bytes are
//! preserved.

use std::fmt;
use std::ops::Range;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// One member of an object.
pub(crate) struct Member<'t> {
    pub(crate) key: String,
    /// The value as it is written.
    pub(crate) value: &'t str,
    /// The range of key and value in the object's text: from the key's opening quote to the end of the value.
    pub(crate) range: Range<usize>,
}

/// The keys and values of an object in their order, including several with the same key.
struct Entries<'t>(Vec<(String, &'t RawValue)>);

impl<'t> Deserialize<'t> for Entries<'t> {
    fn deserialize<D: Deserializer<'t>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntriesVisitor)
    }
}

struct EntriesVisitor;

impl<'t> Visitor<'t> for EntriesVisitor {
    type Value = Entries<'t>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'t>>(self, mut map: A) -> Result<Entries<'t>, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Entries(entries))
    }
}

/// The members of an object in their order; none if the text is not a JSON object.
pub(crate) fn members(object: &str) -> Vec<Member<'_>> {
    let Ok(Entries(entries)) = serde_json::from_str(object) else { return Vec::new() };
    let mut members = Vec::new();
    let mut end = 0;
    for (key, raw) in entries {
        let value = raw.get();
        // Before the key there is only a brace or a comma, and white space.
        let start = end + object[end..].find('"').unwrap_or_default();
        end = offset(object, value) + value.len();
        members.push(Member { key, value, range: start..end });
    }
    members
}

/// The elements of a list as they are written; none if the text is not a JSON list.
pub(crate) fn elements(list: &str) -> Vec<&str> {
    let elements: Vec<&RawValue> = serde_json::from_str(list).unwrap_or_default();
    elements.into_iter().map(RawValue::get).collect()
}

/// The value of a key, which is matched exactly; the last one if there are several.
pub(crate) fn value<'t>(object: &'t str, key: &str) -> Option<&'t str> {
    members(object).into_iter().rev().find(|member| member.key == key).map(|member| member.value)
}

/// The offset of a part of a text in the whole text.
pub(crate) fn offset(text: &str, part: &str) -> usize {
    part.as_ptr().addr().saturating_sub(text.as_ptr().addr())
}

/// The object without the members whose key `is_removed`, and with `more` after the others.
pub(crate) fn spliced(object: &str, is_removed: impl Fn(&str) -> bool, more: &[(&str, String)]) -> String {
    let members = members(object);
    if members.is_empty() && more.is_empty() {
        return object.to_owned();
    }
    let head = match members.first() {
        Some(first) => first.range.start,
        None => object.find('{').map_or(0, |brace| brace + 1),
    };
    let tail = match members.last() {
        Some(last) => last.range.end,
        None => object.rfind('}').unwrap_or(0),
    };
    let mut text = object[..head].to_owned();
    let mut is_first = true;
    let mut previous_end = head;
    for member in &members {
        if !is_removed(&member.key) {
            if !is_first {
                // The comma before it, with the white space around that.
                text.push_str(&object[previous_end..member.range.start]);
            }
            text.push_str(&object[member.range.clone()]);
            is_first = false;
        }
        previous_end = member.range.end;
    }
    for (key, value) in more {
        if !is_first {
            text.push(',');
        }
        text.extend(["\"", key, "\":", value]);
        is_first = false;
    }
    text.push_str(&object[tail..]);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const ODD: &str = "{ \"a\" : [1, {\"b\": \",}\"} ],\n\t\"q\\\"u\":\"\\\\\" , \"\\u0063\":1.50e+400,\"d\":{ } }";

    #[test]
    fn an_object_without_changes_keeps_its_bytes() {
        assert_eq!(spliced(ODD, |_| false, &[]), ODD);
        for empty in ["{}", "{ }", "\n{\n}\n"] {
            assert_eq!(spliced(empty, |_| true, &[]), empty);
        }
    }

    #[test]
    fn members_are_removed_and_added_with_their_commas() {
        let cases = [
            ("a", "{ \"q\\\"u\":\"\\\\\" , \"\\u0063\":1.50e+400,\"d\":{ },\"x\":1 }"),
            ("c", "{ \"a\" : [1, {\"b\": \",}\"} ],\n\t\"q\\\"u\":\"\\\\\",\"d\":{ },\"x\":1 }"),
            ("d", "{ \"a\" : [1, {\"b\": \",}\"} ],\n\t\"q\\\"u\":\"\\\\\" , \"\\u0063\":1.50e+400,\"x\":1 }"),
        ];
        for (key, expected) in cases {
            assert_eq!(spliced(ODD, |found| found == key, &[("x", "1".to_owned())]), expected, "{key}");
        }
        assert_eq!(spliced(ODD, |_| true, &[("x", "1".into()), ("y", "2".into())]), "{ \"x\":1,\"y\":2 }");
        assert_eq!(spliced("{ }", |_| true, &[("x", "1".into())]), "{\"x\":1}");
    }

    #[test]
    fn values_and_elements_are_found_as_they_are_written() {
        assert_eq!(value(ODD, "a"), Some("[1, {\"b\": \",}\"} ]"));
        assert_eq!(value(ODD, "q\"u"), Some("\"\\\\\""));
        assert_eq!(value(r#"{"a": 1, "a": 2}"#, "a"), Some("2"));
        assert_eq!(value(ODD, "A"), None);
        assert_eq!(elements("[1, {\"b\": \",}\"} ]"), ["1", "{\"b\": \",}\"}"]);
        assert_eq!(elements(" [ ] "), [""; 0]);
    }

    #[test]
    fn a_member_is_found_at_its_key_also_among_several_of_that_key() {
        let object = " {\"a\" :\t1 , \"a\":\"\\\"\", \"\\\"\\\\\": {}}";
        let found: Vec<&str> = members(object).into_iter().map(|member| &object[member.range]).collect();
        assert_eq!(found, ["\"a\" :\t1", "\"a\":\"\\\"\"", "\"\\\"\\\\\": {}"]);
        for text in ["", "[1]", "{\"a\":}", "{\"a\": 1} x", "{\"a\": 1", "1"] {
            assert!(members(text).is_empty(), "{text}");
        }
    }
}

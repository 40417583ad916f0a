//! A JSON object as it stands in a file, with members taken out and others put behind: what is left alone keeps its bytes.

use std::ops::Range;

/// Where the items of the outermost object or list stand, without the white space around them. The text is JSON.
pub(crate) fn items(text: &str) -> Vec<Range<usize>> {
    let (mut found, mut depth, mut begun) = (Vec::new(), 0, 0);
    let (mut quoted, mut escaped) = (false, false);
    let mut end = |from: usize, to: usize| {
        let item = text[from..to].trim();
        let start = from + text[from..to].len() - text[from..to].trim_start().len();
        if !item.is_empty() {
            found.push(start..start + item.len());
        }
    };
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b'{' | b'[' => {
                depth += 1;
                begun = if depth == 1 { at + 1 } else { begun };
            }
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    end(begun, at);
                }
                if depth <= 0 {
                    break;
                }
            }
            b',' if depth == 1 => {
                end(begun, at);
                begun = at + 1;
            }
            _ => {}
        }
    }
    found
}

/// The texts of a list's items.
pub(crate) fn elements(list: &str) -> Vec<&str> {
    items(list).into_iter().map(|place| &list[place]).collect()
}

/// The text that stands under a key, spelt exactly so; the last of several.
pub(crate) fn member<'a>(object: &'a str, key: &str) -> Option<&'a str> {
    let found = items(object).into_iter().rev().map(|place| &object[place]);
    found.filter(|item| key_of(item).as_deref() == Some(key)).find_map(|item| Some(item[key_end(item)?..].trim_start()))
}

/// The object without the members of some keys, however they are spelt, and with others behind.
pub(crate) fn spliced(object: &str, without: impl Fn(&str) -> bool, more: &[(&str, String)]) -> String {
    let places = items(object);
    if places.is_empty() && more.is_empty() {
        return object.to_owned();
    }
    let (mut text, mut kept, mut before) = (String::new(), 0, None::<Range<usize>>);
    text.push_str(&object[..places.first().map_or(object.find('{').map_or(0, |at| at + 1), |first| first.start)]);
    for place in &places {
        let item = &object[place.clone()];
        if !key_of(item).is_some_and(|key| without(&key)) {
            // Its comma, and the white space around that, as they stand before it.
            text.push_str(before.filter(|_| kept > 0).map_or("", |before| &object[before.end..place.start]));
            text.push_str(item);
            kept += 1;
        }
        before = Some(place.clone());
    }
    for (key, value) in more {
        let comma = if kept > 0 { "," } else { "" };
        text.extend([comma, "\"", key, "\":", value]);
        kept += 1;
    }
    text.push_str(&object[places.last().map_or(object.rfind('}').unwrap_or(0), |last| last.end)..]);
    text
}

/// Behind the colon of a member.
pub(crate) fn key_end(item: &str) -> Option<usize> {
    let mut escaped = false;
    let close = item.bytes().enumerate().skip(1).find(|(_, byte)| {
        let is_end = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        is_end
    });
    let close = close?.0;
    Some(close + 1 + item[close + 1..].find(':')? + 1)
}

pub(crate) fn key_of(item: &str) -> Option<String> {
    let (quoted, _) = item[..key_end(item)?].rsplit_once(':')?;
    serde_json::from_str(quoted.trim_end()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ODD: &str = "{ \"a\" : [1, {\"b\": \",}\"} ],\n\t\"q\\\"u\":\"\\\\\" , \"\\u0063\":1.50e+400,\"d\":{ } }";

    #[test]
    fn what_nobody_touches_keeps_its_bytes() {
        assert_eq!(spliced(ODD, |_| false, &[]), ODD);
        for empty in ["{}", "{ }", "\n{\n}\n"] {
            assert_eq!(spliced(empty, |_| true, &[]), empty);
        }
    }

    #[test]
    fn members_go_and_come_with_their_commas() {
        let cases = [
            ("a", "{ \"q\\\"u\":\"\\\\\" , \"\\u0063\":1.50e+400,\"d\":{ },\"x\":1 }"),
            ("c", "{ \"a\" : [1, {\"b\": \",}\"} ],\n\t\"q\\\"u\":\"\\\\\",\"d\":{ },\"x\":1 }"),
            ("d", "{ \"a\" : [1, {\"b\": \",}\"} ],\n\t\"q\\\"u\":\"\\\\\" , \"\\u0063\":1.50e+400,\"x\":1 }"),
        ];
        for (key, left) in cases {
            assert_eq!(spliced(ODD, |found| found == key, &[("x", "1".to_owned())]), left, "{key}");
        }
        assert_eq!(spliced(ODD, |_| true, &[("x", "1".into()), ("y", "2".into())]), "{ \"x\":1,\"y\":2 }");
        assert_eq!(spliced("{ }", |_| true, &[("x", "1".into())]), "{\"x\":1}");
    }

    #[test]
    fn a_member_and_the_elements_of_a_list_are_found_as_they_stand() {
        assert_eq!(member(ODD, "a"), Some("[1, {\"b\": \",}\"} ]"));
        assert_eq!(member(ODD, "q\"u"), Some("\"\\\\\""));
        assert_eq!(member(r#"{"a": 1, "a": 2}"#, "a"), Some("2"));
        assert_eq!(member(ODD, "A"), None);
        assert_eq!(elements("[1, {\"b\": \",}\"} ]"), ["1", "{\"b\": \",}\"}"]);
        assert_eq!(elements(" [ ] "), [""; 0]);
    }
}

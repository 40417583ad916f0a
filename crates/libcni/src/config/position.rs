//! The positions of keys and of syntax errors in a configuration file.

use crate::SourceLocation;
use crate::config::json_text::{elements, members, offset};

/// A position. The numbers fit, because a file in which they do not is too large to be read.
fn location(line: usize, column: usize) -> SourceLocation {
    let fit = |number| u32::try_from(number).unwrap_or(u32::MAX);
    SourceLocation { line: fit(line), column: fit(column) }
}

/// The position of a byte of the text.
fn of_offset(text: &str, offset: usize) -> SourceLocation {
    let before = text.get(..offset).unwrap_or(text);
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    location(before.matches('\n').count() + 1, before[start..].chars().count() + 1)
}

/// The position that `serde_json` reports, whose columns count bytes.
pub(crate) fn of_syntax(text: &str, error: &serde_json::Error) -> SourceLocation {
    let line = text.split('\n').nth(error.line().saturating_sub(1)).unwrap_or_default();
    let read = &line.as_bytes()[..error.column().min(line.len())];
    let is_start = |byte: &&u8| **byte & 0b1100_0000 != 0b1000_0000;
    location(error.line().max(1), read.iter().filter(is_start).count().max(1))
}

/// The position of the key at the end of a path such as `plugins[0].ipam.subnet`; of the last part that exists.
///
/// The text is a document that could be parsed. If several members have the same key, the last one is used.
pub(crate) fn of_key(text: &str, path: &str) -> SourceLocation {
    of_offset(text, offset_of(text, path))
}

/// The first part of a path: a member of an object, or an element of a list.
struct Part<'t, 'p> {
    /// The offset of the member's key, or of the element itself.
    offset: usize,
    value: &'t str,
    /// The rest of the path.
    rest: &'p str,
}

/// The offset of the last part of the path that exists.
fn offset_of(text: &str, path: &str) -> usize {
    const WHITE_SPACE: [char; 4] = [' ', '\t', '\n', '\r'];
    let mut value = text.trim_start_matches(WHITE_SPACE).trim_end_matches(WHITE_SPACE);
    let mut here = offset(text, value);
    let mut rest = path;
    while !rest.is_empty() {
        let found = if value.starts_with('{') { member(value, rest) } else { element(value, rest) };
        let Some(part) = found else { break };
        here = offset(text, value) + part.offset;
        value = part.value;
        rest = part.rest;
    }
    here
}

/// The member that the path goes through: the one with the longest key that matches, of several with that key the last.
fn member<'t, 'p>(object: &'t str, path: &'p str) -> Option<Part<'t, 'p>> {
    let mut longest = 0;
    let mut found = None;
    for member in members(object) {
        let Some(rest) = below(path, &member.key) else { continue };
        if member.key.len() >= longest {
            longest = member.key.len();
            found = Some(Part { offset: member.range.start, value: member.value, rest });
        }
    }
    found
}

/// The element that the path names first, such as `[3]`.
fn element<'t, 'p>(list: &'t str, path: &'p str) -> Option<Part<'t, 'p>> {
    let (index, rest) = path.strip_prefix('[')?.split_once(']')?;
    let index: usize = index.parse().ok()?;
    let value = *elements(list).get(index)?;
    Some(Part { offset: offset(list, value), value, rest: rest.strip_prefix('.').unwrap_or(rest) })
}

/// The rest of a path after `key`, if the path goes through it.
fn below<'p>(path: &'p str, key: &str) -> Option<&'p str> {
    let rest = path.strip_prefix(key)?;
    match rest.as_bytes().first() {
        None | Some(b'[') => Some(rest),
        Some(b'.') => Some(&rest[1..]),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{
  "name": "net", "é": {"x": 1, "y]": "\"}"},
  "plugins": [
    {"type": "a", "capabilities": {"io.kubernetes.cri": true}},
    {"type": "b",
     "ipam": {"ranges": [[{"subnet": "10.0.0.0/8"}, {}], []], "ranges\u0032": 0}, "type": "c"}
  ]
}
"#;

    #[test]
    fn a_key_is_found_at_any_depth() {
        let places = [
            ("", 1, 1),
            ("name", 2, 3),
            ("é", 2, 18),
            ("é.x", 2, 24),
            ("é.y]", 2, 32),
            ("plugins", 3, 3),
            ("plugins[0]", 4, 5),
            ("plugins[0].capabilities.io.kubernetes.cri", 4, 36),
            ("plugins[1].ipam.ranges[0][0].subnet", 6, 28),
            ("plugins[1].ipam.ranges[0][1]", 6, 53),
            ("plugins[1].ipam.ranges[1]", 6, 58),
            ("plugins[1].ipam.ranges2", 6, 63),
        ];
        for (path, line, column) in places {
            assert_eq!(of_key(TEXT, path), SourceLocation { line, column }, "{path}");
        }
    }

    #[test]
    fn the_last_of_two_members_with_one_key_is_located() {
        assert_eq!(of_key(TEXT, "plugins[1].type"), SourceLocation { line: 6, column: 83 });
    }

    #[test]
    fn a_missing_key_is_located_where_it_would_be() {
        for (path, line, column) in [
            ("cniVersion", 1, 1),
            ("plugins[7].type", 3, 3),
            ("plugins[0].ipam.type", 4, 5),
            ("name.x", 2, 3),
            ("plugins[1].ipam.ranges[0][1].subnet", 6, 53),
        ] {
            assert_eq!(of_key(TEXT, path), SourceLocation { line, column }, "{path}");
        }
    }

    #[test]
    fn keys_are_located_in_invalid_documents_without_a_panic() {
        for text in ["", "{", "{\"", "{\"a\\", "[", "[1", "{\"a\"", "{\"a\":", "}", "{\"a\":}", "[,,]", "\u{feff}{}"] {
            for path in ["a", "[2]", "a.b", "", "[x]", "[1].a"] {
                of_key(text, path);
            }
        }
    }

    #[test]
    fn a_place_of_syntax_counts_characters() {
        let text = "{\n  \"é\": x}";
        let error = serde_json::from_str::<serde_json::Value>(text).unwrap_err();
        assert_eq!(of_syntax(text, &error), SourceLocation { line: 2, column: 8 });
    }
}

//! Escape text from other programs for a terminal or a log.

use std::borrow::Cow;
use std::fmt::Write as _;

/// The text without control characters for a terminal: each control character and each character that changes the direction of
/// writing is replaced by its JSON escape, such as `\u001b`. Line feeds and tabs stay.
///
/// The meaning of a JSON document does not change: only its keys and strings can have such characters, and there the escape is
/// equivalent.
pub fn printable(text: &str) -> Cow<'_, str> {
    // Nearly every text is of these bytes, which is decided faster than by character.
    let is_simple = |byte: &u8| matches!(byte, b' '..=b'~' | b'\n' | b'\t');
    let (pieces, rest) = text.as_bytes().as_chunks();
    let are_simple = pieces.iter().all(|piece| are_visible(*piece) || piece.iter().all(is_simple));
    if are_simple && rest.iter().all(is_simple) || !text.chars().any(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        if is_obeyed(letter) {
            // Writing to a String cannot fail.
            let _ = write!(escaped, "\\u{:04x}", u32::from(letter));
        } else {
            escaped.push(letter);
        }
    }
    Cow::Owned(escaped)
}

/// Whether all bytes are from a space to a tilde. Otherwise a highest bit is set: that of a byte above 127, of 127 with one added,
/// or of a byte below a space with a space subtracted.
fn are_visible(bytes: [u8; 8]) -> bool {
    let each = |byte| u64::from_ne_bytes([byte; 8]);
    let all = u64::from_ne_bytes(bytes);
    (all | all.wrapping_add(each(1)) | all.wrapping_sub(each(b' '))) & each(0x80) == 0
}

/// Control characters, line and paragraph separators, and marks, embeddings, overrides and isolates of bidirectional text.
fn is_obeyed(letter: char) -> bool {
    match letter {
        '\n' | '\t' => false,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        _ => letter.is_control(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_other_text_is_unchanged() {
        for plain in ["", "eth0", "two\nlines\tand a tab", "Grüße, 日本語, עברית"] {
            assert!(matches!(printable(plain), Cow::Borrowed(same) if same == plain), "{plain}");
        }
        assert_eq!(printable("\x1b[2J\r\x07\x7f\u{9b}1m"), "\\u001b[2J\\u000d\\u0007\\u007f\\u009b1m");
        assert_eq!(printable("a\u{202e}b\u{2066}c\u{200f}"), "a\\u202eb\\u2066c\\u200f");
    }

    #[test]
    fn a_byte_at_any_place_among_others_is_escaped_or_not_as_it_is_alone() {
        for byte in 0..0x80_u8 {
            let alone = printable(str::from_utf8(&[byte]).unwrap()).into_owned();
            for place in 0..20 {
                for neighbour in [" ", "~"] {
                    let (before, after) = (neighbour.repeat(place), neighbour.repeat(19 - place));
                    let text = format!("{before}{}{after}", char::from(byte));
                    assert_eq!(printable(&text), format!("{before}{alone}{after}"), "{byte} at {place}");
                }
            }
        }
    }

    #[test]
    fn a_json_document_stays_the_same_document() {
        let value = serde_json::json!({"\u{7f}": ["\u{9b}31m\u{202e}", "\x1b\n"]});
        let text = serde_json::to_string_pretty(&value).unwrap();
        let escaped = printable(&text);
        assert!(escaped.chars().all(|letter| letter == '\n' || !is_obeyed(letter)), "{escaped}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).unwrap(), value);
    }
}

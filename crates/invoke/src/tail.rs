//! The last lines of a plugin's output, for error messages: a program usually reports there why it failed.

/// How many bytes of it an error contains.
const TAIL_BYTES: usize = 2000;

/// The last lines as text, for any bytes; empty if there is only white space.
pub fn tail(bytes: &[u8]) -> String {
    let bytes = bytes.trim_ascii();
    let Some(start) = bytes.len().checked_sub(TAIL_BYTES + 1) else {
        return String::from_utf8_lossy(bytes).into_owned();
    };
    let text = String::from_utf8_lossy(&bytes[start..]);
    // The cut may have split a character.
    format!("… {}", text.trim_start_matches('\u{fffd}'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_text_is_returned_without_its_line_end() {
        assert_eq!(tail(b"  no such device\n"), "no such device");
        assert_eq!(tail(b" \n"), "");
    }

    #[test]
    fn a_long_text_is_cut_at_a_character_boundary_at_its_start() {
        let text = format!("{}the reason", "ü".repeat(5000));
        for shift in 0..3 {
            let tail = tail(&text.as_bytes()[shift..]);
            assert!(tail.starts_with("… ü") && tail.ends_with("üthe reason") && tail.len() < TAIL_BYTES + 8, "{tail}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_marked_as_such() {
        assert_eq!(tail(b"a\xffb"), "a\u{fffd}b");
    }
}

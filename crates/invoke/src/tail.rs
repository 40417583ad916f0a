//! The end of what a plugin wrote, for people: there it says why it gave up.

/// How much of it goes into an error, in bytes.
const KEPT: usize = 2000;

/// The last lines as text, for any bytes; empty if there is only white space.
pub fn tail(bytes: &[u8]) -> String {
    let bytes = bytes.trim_ascii();
    let Some(start) = bytes.len().checked_sub(KEPT + 1) else {
        return String::from_utf8_lossy(bytes).into_owned();
    };
    let text = String::from_utf8_lossy(&bytes[start..]);
    // The cut may have gone through a letter.
    format!("… {}", text.trim_start_matches('\u{fffd}'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_text_is_kept_whole_without_its_line_end() {
        assert_eq!(tail(b"  no such device\n"), "no such device");
        assert_eq!(tail(b" \n"), "");
    }

    #[test]
    fn of_a_long_text_the_end_is_kept_whatever_its_letters() {
        let text = format!("{}the reason", "ü".repeat(5000));
        for shift in 0..3 {
            let tail = tail(&text.as_bytes()[shift..]);
            assert!(tail.starts_with("… ü") && tail.ends_with("üthe reason") && tail.len() < KEPT + 8, "{tail}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_marked_as_such() {
        assert_eq!(tail(b"a\xffb"), "a\u{fffd}b");
    }
}

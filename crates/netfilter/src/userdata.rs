//! Comments, which the kernel keeps for user space as opaque bytes: type, length, value.

use std::borrow::Cow;

use crate::{Error, Result};

/// The type of a comment, in a table's, a chain's and a rule's user data alike.
#[doc(alias = "NFTNL_UDATA_RULE_COMMENT")]
const COMMENT: u8 = 0;
/// The longest comment that nft(8) takes, in bytes.
const LONGEST: usize = 128;

/// A comment as user data.
///
/// # Errors
/// A comment that nft(8) would not take, or that it could not read again from its own listing.
pub(crate) fn encode(comment: &str) -> Result<Vec<u8>> {
    let refused = |why: &str| Err(Error::ours("encode the comment", format!("`{comment}`"), why));
    if comment.len() > LONGEST {
        return refused("it is longer than 128 bytes");
    }
    if comment.contains(|letter: char| letter == '"' || letter.is_control()) {
        return refused("it has a quotation mark or a control character");
    }
    // The NUL belongs to the value.
    let length = u8::try_from(comment.len() + 1).unwrap_or(u8::MAX);
    Ok([&[COMMENT, length], comment.as_bytes(), &[0]].concat())
}

/// The comment in user data. What is not UTF-8, such as a letter that somebody cut in half, is replaced.
pub(crate) fn comment(mut userdata: &[u8]) -> Option<Cow<'_, str>> {
    while let [kind, length, rest @ ..] = userdata {
        let (value, next) = rest.split_at_checked(usize::from(*length))?;
        if *kind == COMMENT {
            let value = value.strip_suffix(&[0]).unwrap_or(value);
            return Some(String::from_utf8_lossy(value));
        }
        userdata = next;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_is_a_type_a_length_and_a_string_with_its_nul() {
        assert_eq!(encode("k, n").unwrap(), *b"\x00\x05k, n\x00");
        assert_eq!(comment(b"\x00\x05k, n\x00").as_deref(), Some("k, n"));
    }

    #[test]
    fn the_longest_comment_comes_back_whole_and_a_longer_one_is_refused() {
        let longest = "x".repeat(128);
        assert_eq!(comment(&encode(&longest).unwrap()).as_deref(), Some(longest.as_str()));
        assert!(encode(&format!("{longest}x")).is_err());
    }

    #[test]
    fn a_comment_is_found_behind_what_else_there_is() {
        assert_eq!(comment(b"\x01\x02ab\x00\x02k\x00").as_deref(), Some("k"));
    }

    #[test]
    fn what_is_cut_off_is_no_comment() {
        assert_eq!(comment(b""), None);
        assert_eq!(comment(b"\x00"), None);
        assert_eq!(comment(b"\x00\x05k"), None);
    }

    #[test]
    fn a_letter_that_was_cut_in_half_is_replaced() {
        assert_eq!(comment(b"\x00\x03k\xc3\x00").as_deref(), Some("k\u{fffd}"));
    }
}

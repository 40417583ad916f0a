//! User data of tables, chains, sets and rules: comments and owners.
//!
//! The kernel stores user data as opaque bytes. nft(8) writes fields there, each with a type, a length and a value.

use std::borrow::Cow;

use crate::{Error, Result};

/// The type of a comment, in a table's, a chain's and a rule's user data alike.
#[doc(alias = "NFTNL_UDATA_RULE_COMMENT")]
const COMMENT: u8 = 0;
/// The type of our own field in a rule's user data: the owner. nft(8) and libnftnl use 0 and 1, and ignore other types.
const OWNER: u8 = 0xc7;
/// The types of the fields in a set's user data: the byte order of its keys, the type of a concatenation, the comment.
#[doc(alias = "NFTNL_UDATA_SET_KEYBYTEORDER")]
const KEY_ORDER: u8 = 0;
#[doc(alias = "NFTNL_UDATA_SET_KEY_TYPEOF")]
const KEY_PARTS: u8 = 3;
#[doc(alias = "NFTNL_UDATA_SET_COMMENT")]
const SET_COMMENT: u8 = 7;
/// The value that nft(8) writes for a concatenation: nested fields with the type and the content of the expression.
const PARTS: [u8; 8] = [0, 4, 13, 0, 0, 0, 1, 0];
/// The length of the longest comment that nft(8) accepts, in bytes.
pub const LONGEST_COMMENT: usize = 128;
/// The length of the longest owner, in bytes: it fits into the 256 bytes of a rule's user data beside the longest comment.
#[doc(alias = "NFT_USERDATA_MAXLEN")]
const LONGEST_OWNER: usize = 256 - (LONGEST_COMMENT + 3) - 2;

/// Encodes a comment.
///
/// # Errors
/// A comment that nft(8) does not accept, or that it could not read again from its own listing.
pub(crate) fn encode(comment: &str) -> Result<Vec<u8>> {
    let refused = |why: &str| Err(Error::ours("encode the comment", format!("`{comment}`"), why));
    if comment.len() > LONGEST_COMMENT {
        return refused("it is longer than 128 bytes");
    }
    if comment.contains(|letter: char| letter == '"' || letter.is_control()) {
        return refused("it has a quotation mark or a control character");
    }
    // The terminating NUL is part of the value.
    let length = u8::try_from(comment.len() + 1).unwrap_or(u8::MAX);
    Ok([&[COMMENT, length], comment.as_bytes(), &[0]].concat())
}

/// The byte order of a set's keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// The parts of a concatenation have their own.
    Mixed = 0,
    Host = 1,
    Network = 2,
}

/// Encodes the user data of a set: the byte order of its keys, and its comment.
///
/// # Errors
/// As [`encode`].
pub(crate) fn of_set(order: Order, comment: Option<&str>) -> Result<Vec<u8>> {
    let mut userdata = vec![KEY_ORDER, 4];
    userdata.extend((order as u32).to_ne_bytes());
    if order == Order::Mixed {
        userdata.extend([KEY_PARTS, 8]);
        userdata.extend(PARTS);
    }
    if let Some(comment) = comment {
        let mut field = encode(comment)?;
        field[0] = SET_COMMENT;
        userdata.extend(field);
    }
    Ok(userdata)
}

/// Encodes the user data of a rule: its comment and its owner.
///
/// # Errors
/// As [`encode`]; an owner that is too long: truncated, it could be equal to another one.
pub(crate) fn of_rule(comment: Option<&str>, owner: Option<&str>) -> Result<Vec<u8>> {
    let mut userdata = match comment {
        Some(comment) => encode(comment)?,
        None => Vec::new(),
    };
    let Some(owner) = owner else { return Ok(userdata) };
    match u8::try_from(owner.len()) {
        Ok(length) if owner.len() <= LONGEST_OWNER => userdata.extend([OWNER, length]),
        _ => return Err(Error::ours("encode the owner", format!("`{owner}`"), "it is longer than 123 bytes")),
    }
    userdata.extend(owner.as_bytes());
    Ok(userdata)
}

/// The comment and the owner in the user data of a rule.
pub(crate) struct Label<'a> {
    pub(crate) comment: Option<&'a str>,
    pub(crate) owner: Option<&'a str>,
}

/// Reads the comment in user data. Bytes that are not UTF-8, such as a truncated letter, are replaced.
pub(crate) fn comment(userdata: &[u8]) -> Option<Cow<'_, str>> {
    let value = field(userdata, COMMENT)?;
    Some(String::from_utf8_lossy(value.strip_suffix(&[0]).unwrap_or(value)))
}

/// Reads the owner in the user data of a rule; `None` if it names none.
pub(crate) fn owner(userdata: &[u8]) -> Option<Cow<'_, str>> {
    field(userdata, OWNER).map(String::from_utf8_lossy)
}

/// The value of the first field of this type.
fn field(mut userdata: &[u8], field_type: u8) -> Option<&[u8]> {
    while let [kind, length, rest @ ..] = userdata {
        let (value, next) = rest.split_at_checked(usize::from(*length))?;
        if *kind == field_type {
            return Some(value);
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
    fn a_comment_is_found_behind_other_user_data() {
        assert_eq!(comment(b"\x01\x02ab\x00\x02k\x00").as_deref(), Some("k"));
    }

    #[test]
    fn the_longest_owner_fits_beside_the_longest_comment() {
        let comment_of = "x".repeat(LONGEST_COMMENT);
        let owner_of = "o".repeat(LONGEST_OWNER);
        let both = of_rule(Some(&comment_of), Some(&owner_of)).unwrap();
        assert_eq!(both.len(), 256);
        assert_eq!(comment(&both).as_deref(), Some(comment_of.as_str()));
        assert_eq!(owner(&both).as_deref(), Some(owner_of.as_str()));
        assert!(of_rule(None, Some(&format!("{owner_of}o"))).is_err());
        assert_eq!(owner(&encode("k").unwrap()), None);
    }

    #[test]
    fn a_truncated_comment_is_none() {
        assert_eq!(comment(b""), None);
        assert_eq!(comment(b"\x00"), None);
        assert_eq!(comment(b"\x00\x05k"), None);
    }

    #[test]
    fn a_letter_that_was_cut_in_half_is_replaced() {
        assert_eq!(comment(b"\x00\x03k\xc3\x00").as_deref(), Some("k\u{fffd}"));
    }
}

//! Comments, which the kernel keeps for user space as opaque bytes: type, length, value.

use std::borrow::Cow;

use crate::{Error, Result};

/// The type of a comment, in a table's, a chain's and a rule's user data alike.
#[doc(alias = "NFTNL_UDATA_RULE_COMMENT")]
const COMMENT: u8 = 0;
/// The type of our own field in a rule's user data: whose it is. nft(8) and libnftnl know 0 and 1, and pass over others.
const OWNER: u8 = 0xc7;
/// The types of a set's user data: in which order the bytes of its keys are, that they have several parts, its comment.
#[doc(alias = "NFTNL_UDATA_SET_KEYBYTEORDER")]
const KEY_ORDER: u8 = 0;
#[doc(alias = "NFTNL_UDATA_SET_KEY_TYPEOF")]
const KEY_PARTS: u8 = 3;
#[doc(alias = "NFTNL_UDATA_SET_COMMENT")]
const SET_COMMENT: u8 = 7;
/// What nft(8) calls a key of several parts: type and content of the expression, of which the type of the set says the rest.
const PARTS: [u8; 8] = [0, 4, 13, 0, 0, 0, 1, 0];
/// The longest comment that nft(8) takes, in bytes.
pub const LONGEST_COMMENT: usize = 128;
/// What fits beside the longest comment into the 256 bytes that the kernel keeps of a rule, in bytes.
#[doc(alias = "NFT_USERDATA_MAXLEN")]
const LONGEST_OWNER: usize = 256 - (LONGEST_COMMENT + 3) - 2;

/// A comment as user data.
///
/// # Errors
/// A comment that nft(8) would not take, or that it could not read again from its own listing.
pub(crate) fn encode(comment: &str) -> Result<Vec<u8>> {
    let refused = |why: &str| Err(Error::ours("encode the comment", format!("`{comment}`"), why));
    if comment.len() > LONGEST_COMMENT {
        return refused("it is longer than 128 bytes");
    }
    if comment.contains(|letter: char| letter == '"' || letter.is_control()) {
        return refused("it has a quotation mark or a control character");
    }
    // The NUL belongs to the value.
    let length = u8::try_from(comment.len() + 1).unwrap_or(u8::MAX);
    Ok([&[COMMENT, length], comment.as_bytes(), &[0]].concat())
}

/// In which order the bytes of a set's keys are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// The parts have several.
    Mixed = 0,
    Host = 1,
    Network = 2,
}

/// What a set bears: in which order its keys are shown, and its comment.
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
    if let Some(mut comment) = comment.map(encode).transpose()? {
        comment[0] = SET_COMMENT;
        userdata.extend(comment);
    }
    Ok(userdata)
}

/// What a rule bears: its comment, and whose it is.
///
/// # Errors
/// As [`encode`]; an owner that is too long, which would be taken for another if it were cut.
pub(crate) fn of_rule(comment: Option<&str>, owner: Option<&str>) -> Result<Vec<u8>> {
    let mut userdata = comment.map(encode).transpose()?.unwrap_or_default();
    if let Some(owner) = owner {
        let length = u8::try_from(owner.len()).ok().filter(|length| usize::from(*length) <= LONGEST_OWNER);
        let too_long = || Error::ours("encode the owner", format!("`{owner}`"), "it is longer than 123 bytes");
        userdata.extend([OWNER, length.ok_or_else(too_long)?]);
        userdata.extend(owner.as_bytes());
    }
    Ok(userdata)
}

/// The texts in the user data of a rule.
pub(crate) struct Label<'a> {
    pub(crate) comment: Option<&'a str>,
    pub(crate) owner: Option<&'a str>,
}

/// The comment in user data. What is not UTF-8, such as a letter that somebody cut in half, is replaced.
pub(crate) fn comment(userdata: &[u8]) -> Option<Cow<'_, str>> {
    let value = field(userdata, COMMENT)?;
    Some(String::from_utf8_lossy(value.strip_suffix(&[0]).unwrap_or(value)))
}

/// Whose a rule is, if its user data say so.
pub(crate) fn owner(userdata: &[u8]) -> Option<Cow<'_, str>> {
    field(userdata, OWNER).map(String::from_utf8_lossy)
}

fn field(mut userdata: &[u8], wanted: u8) -> Option<&[u8]> {
    while let [kind, length, rest @ ..] = userdata {
        let (value, next) = rest.split_at_checked(usize::from(*length))?;
        if *kind == wanted {
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
    fn a_comment_is_found_behind_what_else_there_is() {
        assert_eq!(comment(b"\x01\x02ab\x00\x02k\x00").as_deref(), Some("k"));
    }

    #[test]
    fn an_owner_stands_beside_the_longest_comment_and_the_kernel_takes_both() {
        let (comment_of, owner_of) = ("x".repeat(LONGEST_COMMENT), "o".repeat(LONGEST_OWNER));
        let both = of_rule(Some(&comment_of), Some(&owner_of)).unwrap();
        assert_eq!(both.len(), 256);
        assert_eq!(comment(&both).as_deref(), Some(comment_of.as_str()));
        assert_eq!(owner(&both).as_deref(), Some(owner_of.as_str()));
        assert!(of_rule(None, Some(&format!("{owner_of}o"))).is_err());
        assert_eq!(owner(&encode("k").unwrap()), None);
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

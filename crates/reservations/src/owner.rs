//! The owner of a reserved address, and the content of the file that names the owner.

use std::fmt;

/// The attachment that holds an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// The container's id.
    pub container: String,
    /// The interface's name; `None` in the files of old releases of upstream.
    pub ifname: Option<String>,
}

impl Owner {
    /// The attachment of a container's interface.
    pub fn new(container: impl Into<String>, ifname: impl Into<String>) -> Owner {
        Owner { container: container.into(), ifname: Some(ifname.into()) }
    }

    /// The same container without the interface, as old releases of upstream write it.
    pub(crate) fn without_ifname(&self) -> Owner {
        Owner { container: self.container.clone(), ifname: None }
    }

    /// The content of the file of an address that this owner holds.
    pub(crate) fn content(&self) -> String {
        match &self.ifname {
            Some(ifname) => format!("{}\r\n{ifname}", self.container),
            None => self.container.clone(),
        }
    }

    /// The number in the index. Equal owners have equal numbers; two different owners rarely have the same one.
    pub(crate) fn number(&self) -> u64 {
        number(self.content().as_bytes())
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.ifname {
            Some(ifname) => write!(f, "{}/{ifname}", self.container),
            None => f.write_str(&self.container),
        }
    }
}

/// The content of an address's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// The content names this owner.
    Of(Owner),
    /// The content is empty or has NUL bytes, which no implementation writes: it did not reach the disk before its writer was
    /// killed or the power was cut.
    Lost,
    /// The content is anything else. The address counts as taken.
    Unreadable,
}

impl Content {
    /// Parses a file's content: `ID CR LF IFNAME`, or `ID` alone. White space before and after it is ignored.
    pub(crate) fn parse(bytes: &[u8]) -> Content {
        if bytes.is_empty() || bytes.contains(&0) {
            return Content::Lost;
        }
        let Ok(text) = str::from_utf8(bytes) else { return Content::Unreadable };
        let owner = match text.trim().split_once("\r\n") {
            Some((container, ifname)) => Owner::new(container, ifname),
            None => Owner { container: text.trim().to_owned(), ifname: None },
        };
        if is_id(&owner.container) && owner.ifname.as_deref().is_none_or(is_ifname) {
            Content::Of(owner)
        } else {
            Content::Unreadable
        }
    }
}

/// Whether the text is a valid container ID by the CNI specification.
fn is_id(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.chars().all(|letter| letter.is_ascii_alphanumeric() || "_.-".contains(letter))
}

/// Whether the text is a valid interface name.
fn is_ifname(text: &str) -> bool {
    !text.is_empty() && !text.contains(|letter: char| letter == '/' || letter.is_whitespace() || letter.is_control())
}

/// A hash: FNV-1a, followed by half of the finalizer of `MurmurHash3`, which mixes the bits. The index is a file, so the numbers
/// must be the same in every release.
pub(crate) fn number(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in bytes {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_are_read_whatever_white_space_surrounds_them() {
        assert_eq!(Content::parse(b"c1\r\neth0"), Content::Of(Owner::new("c1", "eth0")));
        assert_eq!(Content::parse(b" c1\r\neth0\r\n"), Content::Of(Owner::new("c1", "eth0")));
        assert_eq!(Content::parse(b"c1\n"), Content::Of(Owner::new("c1", "eth0").without_ifname()));
    }

    #[test]
    fn lost_content_differs_from_unreadable_content() {
        for lost in [&b""[..], &[0; 12], b"c1\r\0\0\0\0", b"\0c1"] {
            assert_eq!(Content::parse(lost), Content::Lost, "{lost:?}");
        }
        for garbage in ["c1\neth0", "c1\r\neth0\r\nmore", "two words", " ", "c1\r\na/b", "c1\r\na b", "c1\r\na\u{1}"] {
            assert_eq!(Content::parse(garbage.as_bytes()), Content::Unreadable, "{garbage:?}");
        }
        assert_eq!(Content::parse(&[0xff, 0xfe]), Content::Unreadable);
    }

    #[test]
    fn the_number_of_an_owner_never_changes_between_releases() {
        assert_eq!(Owner::new("c1", "eth0").number(), number(b"c1\r\neth0"));
        assert_ne!(Owner::new("c1", "eth0").number(), Owner::new("c1", "eth0").without_ifname().number());
        assert_eq!(number(b"c1\r\neth0"), 10_601_942_880_066_872_099);
    }
}

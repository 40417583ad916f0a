//! The alias of a link, which names its attachment.
//!
//! The alias has two hashes, which are compared, and then as much of the tag in clear text as fits, for people.

use std::collections::BTreeSet;

use cnikit_netlink::{Link, Mac};
use cnikit_plan::GcContext;
use cnikit_skel::AttachmentId;
use sha2::{Digest, Sha256};

/// The longest alias in bytes. The kernel takes 255 with the terminating zero (`IFALIASZ`).
const LONGEST: usize = 254;
/// The prefix of all marks.
pub const MARK: &str = "cnikit:";

/// The attachment that a link belongs to, according to its alias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AliasOwner {
    /// This tag's.
    This,
    /// Another tag's.
    Another,
    /// The alias has no tag: the link is of no attachment, or of an implementation that writes no alias.
    Unknown,
}

/// The alias of a link of this tag.
#[doc(alias = "ifalias")]
pub fn of(tag: &AttachmentId) -> String {
    cut(format!("{} {tag}", mark_of(tag)), LONGEST)
}

/// The alias of a host end that is a bridge port: the tag, and the MAC of the container's end. The container cannot change it
/// there.
pub fn of_port(tag: &AttachmentId, mac: Mac) -> String {
    let mac = format!(" {mac}");
    cut(format!("{} {tag}", mark_of(tag)), LONGEST - mac.len()) + &mac
}

/// The MAC that the alias of a port records for the other end.
pub(crate) fn recorded_mac(port: &Link) -> Option<Mac> {
    let alias = port.alias.as_deref()?;
    mark(alias)?;
    alias.rsplit(' ').next()?.parse().ok()
}

/// The clear text of the alias: network, container and interface, as far as they fit.
pub fn clear_text(port: &Link) -> Option<&str> {
    let alias = port.alias.as_deref()?;
    mark(alias)?;
    alias.split(' ').nth(1)
}

/// Cuts a text to at most so many bytes, at the end of a character.
pub fn cut(mut text: String, longest: usize) -> String {
    text.truncate(text.floor_char_boundary(longest));
    text
}

/// Compares the alias of a link with a tag.
pub fn owner(link: &Link, tag: &AttachmentId) -> AliasOwner {
    match link.alias.as_deref().and_then(mark) {
        None => AliasOwner::Unknown,
        Some(found) if of(tag).starts_with(found) => AliasOwner::This,
        Some(_) => AliasOwner::Another,
    }
}

/// The marks of a network and of its valid attachments, by which GC finds stale links and rules.
pub struct Marks {
    network: String,
    valid: BTreeSet<String>,
}

impl Marks {
    /// The marks for this GC.
    pub fn of(context: &GcContext) -> Marks {
        let valid = context.tags().map(|tag| mark_of(&tag)).collect();
        Marks { network: network_mark(&context.network), valid }
    }

    /// Whether the alias of this link has a tag of the network that is not valid any more.
    pub fn is_stale(&self, link: &Link) -> bool {
        link.alias.as_deref().is_some_and(|alias| self.is_stale_text(alias))
    }

    /// Whether this text, such as the comment of a rule, begins with such a tag.
    pub fn is_stale_text(&self, text: &str) -> bool {
        match mark(text) {
            Some(mark) => mark.starts_with(&self.network) && !self.valid.contains(mark),
            None => false,
        }
    }
}

/// The two hashes of an alias, if a plugin of this project wrote it.
pub fn mark(alias: &str) -> Option<&str> {
    let mark = alias.split(' ').next()?;
    (mark.starts_with(MARK) && mark.len() == MARK.len() + 17 + 32).then_some(mark)
}

/// The two hashes of a tag.
pub fn mark_of(tag: &AttachmentId) -> String {
    format!("{}{}", network_mark(&tag.network), hex(&tag.hash()[..16]))
}

/// The prefix of the marks of all tags of a network.
pub fn network_mark(network: &str) -> String {
    format!("{MARK}{}:", hex(&Sha256::digest(network.as_bytes())[..8]))
}

/// Bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = vec![0; 2 * bytes.len()];
    for (pair, byte) in text.chunks_exact_mut(2).zip(bytes) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    String::from_utf8(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(network: &str, container: &str) -> AttachmentId {
        AttachmentId { network: network.into(), container: container.into(), ifname: "eth0".into() }
    }

    fn link(alias: &str) -> Link {
        let mut link = Link::default();
        link.alias = Some(alias.to_owned());
        link
    }

    #[test]
    fn an_alias_has_both_hashes_within_the_kernels_limit() {
        let alias = of(&tag(&"n".repeat(300), "c"));
        assert_eq!(alias.len(), LONGEST);
        assert_eq!(mark(&alias).map(str::len), Some(56));
    }

    #[test]
    fn the_alias_of_a_port_records_the_mac_of_the_other_end_whatever_the_names() {
        let mac = Mac([2, 0, 0, 0, 0, 7]);
        for network in ["n".to_owned(), "n".repeat(300)] {
            let tag = tag(&network, "c");
            let ours = link(&of_port(&tag, mac));
            assert!(ours.alias.as_ref().is_some_and(|alias| alias.len() <= LONGEST));
            assert_eq!(owner(&ours, &tag), AliasOwner::This);
            assert_eq!((recorded_mac(&ours), clear_text(&ours).map(|text| &text[..1])), (Some(mac), Some("n")));
            assert_eq!(recorded_mac(&link(&of(&tag))), None, "an older version records none");
            assert_eq!(recorded_mac(&link(&format!("other {mac}"))), None);
        }
    }
    /// Links of containers that run have such aliases: their form stays as it is.
    #[test]
    fn a_mark_is_the_hash_of_the_network_and_that_of_the_tag() {
        // `printf n | sha256sum`
        assert_eq!(network_mark("n"), "cnikit:1b16b1df538ba12d:");
        let tag = tag("n", "c");
        assert_eq!(mark_of(&tag), format!("cnikit:1b16b1df538ba12d:{}", hex(&tag.hash()[..16])));
        assert_eq!(mark(&of(&tag)), Some(&*mark_of(&tag)));
        assert_eq!(hex(&[0, 0x1f, 0xf0, 0xff]), "001ff0ff");
    }

    #[test]
    fn a_text_is_no_mark_unless_it_begins_as_one_and_has_its_length() {
        let ours = mark_of(&tag("n", "c"));
        for other in [&ours.replace("cnikit", "upkeep"), &ours[..ours.len() - 1], &format!("{ours}0"), "cnikit:", ""] {
            assert_eq!(mark(other), None, "{other}");
        }
    }

    #[test]
    fn a_link_belongs_to_the_tag_of_its_alias_and_without_one_to_nobody_known() {
        let ours = tag("n", "c");
        for (alias, owned) in [
            (of(&ours), AliasOwner::This),
            (mark_of(&ours), AliasOwner::This),
            (of(&tag("n", "d")), AliasOwner::Another),
            (of(&tag("m", "c")), AliasOwner::Another),
            ("cnikit:".to_owned(), AliasOwner::Unknown),
            (String::new(), AliasOwner::Unknown),
        ] {
            assert_eq!(owner(&link(&alias), &ours), owned, "{alias}");
        }
        assert_eq!(owner(&Link::default(), &ours), AliasOwner::Unknown);
        assert_eq!((clear_text(&link("other text")), clear_text(&link(&of(&ours)))), (None, Some(&*ours.to_string())));
    }

    #[test]
    fn a_tag_of_the_network_is_stale_unless_it_is_valid() {
        let marks = Marks { network: network_mark("n"), valid: BTreeSet::from([mark_of(&tag("n", "valid"))]) };
        for (alias, is_stale) in [
            (of(&tag("n", "gone")), true),
            (mark_of(&tag("n", "gone")), true),
            (of(&tag("n", "valid")), false),
            (of(&tag("m", "gone")), false),
            (network_mark("n"), false),
        ] {
            assert_eq!((marks.is_stale(&link(&alias)), marks.is_stale_text(&alias)), (is_stale, is_stale), "{alias}");
        }
        assert!(!marks.is_stale(&Link::default()));
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        for (longest, cut_text) in [(0, ""), (1, "a"), (2, "a"), (3, "aß"), (9, "aß")] {
            assert_eq!(cut("aß".to_owned(), longest), cut_text, "{longest}");
        }
    }
}

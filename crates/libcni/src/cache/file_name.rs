//! The name of an attachment's file in the cache.

use crate::Attachment;

/// The longest file name of ext4 and nearly all other file systems, less what the store adds to the name of a temporary file.
pub(crate) const LONGEST: usize = 255 - ".".len() - ".new".len();

/// The file name of an attachment.
pub(crate) fn of(network: &str, attachment: &Attachment) -> String {
    from_parts(network, &attachment.container_id, &attachment.ifname)
}

/// The file name from its three parts. Parts with dashes are ambiguous: `a-b` and `c` give the name that `a` and `b-c` give.
pub(crate) fn from_parts(network: &str, container_id: &str, ifname: &str) -> String {
    format!("{network}-{container_id}-{ifname}")
}

/// Whether it is the file name of network, container and interface.
pub(crate) fn is_of_parts(name: &str, [network, container_id, ifname]: [&str; 3]) -> bool {
    let after_network = name.strip_prefix(network).and_then(|rest| rest.strip_prefix('-'));
    let after_container = after_network.and_then(|rest| rest.strip_prefix(container_id)?.strip_prefix('-'));
    after_container == Some(ifname)
}

/// Whether a file can have this name.
pub(crate) fn is_valid(name: &str) -> bool {
    !name.contains(['/', '\0']) && name.len() <= LONGEST
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_that_of_its_parts_only() {
        assert!(is_of_parts("a-b-c", ["a", "b", "c"]) && is_of_parts("a-b-c-d", ["a-b", "c", "d"]));
        for parts in
            [["a", "b", "d"], ["a", "b-c", ""], ["a", "bb", "c"], ["b", "b", "c"], ["a", "b", "cc"], ["", "", ""]]
        {
            assert!(!is_of_parts("a-b-c", parts), "{parts:?}");
        }
    }

    #[test]
    fn a_name_without_a_slash_and_not_too_long_is_valid() {
        for (name, valid) in [
            ("net-c1-eth0".to_owned(), true),
            ("a/b".to_owned(), false),
            ("a\0b".to_owned(), false),
            ("n".repeat(LONGEST), true),
            ("n".repeat(LONGEST + 1), false),
        ] {
            assert_eq!(is_valid(&name), valid, "{name}");
        }
        assert_eq!(LONGEST, 250);
    }
}

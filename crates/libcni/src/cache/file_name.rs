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

/// Whether a file can have this name.
pub(crate) fn is_valid(name: &str) -> bool {
    !name.contains(['/', '\0']) && name.len() <= LONGEST
}

#[cfg(test)]
mod tests {
    use super::*;

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

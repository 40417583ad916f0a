//! The identity of an attachment.

use std::fmt;

use sha2::{Digest, Sha256};

/// The identity of an attachment: network, container and interface. All state is stored under it.
///
/// It is never an address, and never a name alone. So state can be found and removed when nothing else is known any more, and never
/// belongs to two attachments.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttachmentId {
    /// The network's `name`.
    pub network: String,
    /// `CNI_CONTAINERID`.
    pub container: String,
    /// `CNI_IFNAME`.
    pub ifname: String,
}

impl AttachmentId {
    /// The hash of the tag, 32 bytes, which is used where the clear text is too long.
    pub fn hash(&self) -> [u8; 32] {
        let mut sha = Sha256::new();
        for part in [&self.network, &self.container, &self.ifname] {
            sha.update(part.as_bytes());
            sha.update([0]); // none of the three parts can contain a zero byte, so two tags never have the same input
        }
        sha.finalize().into()
    }
}

/// `NETWORK/CONTAINER/IFNAME`.
impl fmt::Display for AttachmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.network, self.container, self.ifname)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(network: &str, container: &str) -> AttachmentId {
        AttachmentId { network: network.into(), container: container.into(), ifname: "eth0".into() }
    }

    #[test]
    fn tags_that_read_alike_when_joined_have_different_hashes() {
        assert_ne!(tag("ab", "c").hash(), tag("a", "bc").hash());
        assert_eq!(tag("ab", "c").hash(), tag("ab", "c").hash());
    }
}

//! Whose state something is.

use std::fmt;

use sha2::{Digest, Sha256};

/// The key of all state: which network, which container, which interface.
///
/// Never an address, never a name alone: what is kept under this key can be found and removed when nothing else is
/// known any more, and never belongs to two.
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
    /// 32 bytes that stand for this tag wherever the clear text is too long.
    pub fn hash(&self) -> [u8; 32] {
        let mut sha = Sha256::new();
        for part in [&self.network, &self.container, &self.ifname] {
            sha.update(part.as_bytes());
            sha.update([0]); // none of the three can hold one, so two tags never run together
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

//! What a plugin's name is on a node: a small file of its own, the launcher, which executes `cni-plugins` beside it.
//!
//! Hard links to one binary would be one file: `cp` over one of them writes through to all. See docs/adr/0023-launchers.md.

/// The binary of all plugins, in the directory of the launchers.
pub const PROGRAM: &str = "cni-plugins";

/// The bytes by which a launcher is recognised. They change only if launchers do something else.
pub const MARK: [u8; 28] = *b"cnikit launcher: cni-plugins";

/// The longest launcher, in bytes. A longer file is none.
pub const MAX_LENGTH: u64 = 1 << 20;

/// Whether a file with this content is a launcher.
pub fn is_launcher(content: &[u8]) -> bool {
    content.windows(MARK.len()).any(|window| window == MARK)
}

//! The launcher: a small program that is installed under each plugin's name and executes `cni-plugins` in the same directory.
//!
//! Hard links to one binary would be one file: `cp` over one of them writes through to all. See docs/adr/0023-launchers.md.

/// The binary of all plugins, in the directory of the launchers.
pub const PROGRAM: &str = "cni-plugins";

/// The bytes by which a launcher is recognised. They change only if launchers do something else.
pub const MARK: [u8; 28] = *b"cnikit launcher: cni-plugins";

/// The longest launcher, in bytes: with glibc for PowerPC it has 1.2 MB. A longer file is none. scripts/release reads this line.
pub const MAX_LENGTH: u64 = 1 << 21;

/// Whether a file with this content is a launcher.
pub fn is_launcher(content: &[u8]) -> bool {
    content.windows(MARK.len()).any(|window| window == MARK)
}

//! Whose plugins a node has.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::mixed::Release;
use crate::{built, install_into, remove_at_exit};

/// Whose plugins stand in a node's `/opt/cni/bin`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maker {
    /// Ours, installed over the reference's by `scripts/install`: what we do not have stays theirs.
    Ours(Release),
    /// The reference's alone: what fails with these too is the scene's fault.
    Theirs(Release),
}

impl Maker {
    /// Where they are.
    pub fn bin(self) -> PathBuf {
        static UPGRADED: [OnceLock<PathBuf>; 2] = [OnceLock::new(), OnceLock::new()];
        match self {
            Maker::Theirs(release) => release.bin(),
            Maker::Ours(release) => {
                UPGRADED[usize::from(release == Release::Newest)].get_or_init(|| upgraded(&release.bin())).clone()
            }
        }
    }

    /// `ours` or `reference`, for the names of tests.
    pub fn name(self) -> &'static str {
        match self {
            Maker::Ours(_) => "ours",
            Maker::Theirs(_) => "reference",
        }
    }

    /// Are they ours?
    pub fn is_ours(self) -> bool {
        matches!(self, Maker::Ours(_))
    }
}

/// The reference's plugins, copied, and ours installed over them.
fn upgraded(theirs: &Path) -> PathBuf {
    let dir = tempfile::tempdir_in(built()).unwrap().keep();
    remove_at_exit(&dir);
    // Not by us: what another thread starts meanwhile would hold the files open for writing.
    let copied = Command::new("cp").arg("-r").arg(theirs).arg(dir.join("bin")).status();
    assert!(copied.expect("cp can be started").success(), "{} cannot be copied", theirs.display());
    install_into(&dir);
    dir.join("bin")
}

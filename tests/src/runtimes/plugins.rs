//! Whose plugins a node has.

use std::path::PathBuf;

use crate::installed;
use crate::mixed::UpstreamRelease;

/// Whose plugins stand in a node's `/opt/cni/bin`, and nobody else's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maker {
    /// Ours.
    Ours,
    /// The reference's: what fails with these too is the scene's fault.
    Theirs(UpstreamRelease),
}

impl Maker {
    /// Where they are.
    pub fn bin(self) -> PathBuf {
        match self {
            Maker::Theirs(release) => release.bin(),
            Maker::Ours => installed().to_owned(),
        }
    }

    /// `ours` or `reference`, for the names of tests.
    pub fn name(self) -> &'static str {
        match self {
            Maker::Ours => "ours",
            Maker::Theirs(_) => "reference",
        }
    }

    /// Are they ours?
    pub fn is_ours(self) -> bool {
        self == Maker::Ours
    }
}

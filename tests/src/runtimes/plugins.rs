//! The plugins that a node has installed.

use std::path::PathBuf;

use crate::installed;
use crate::mixed::UpstreamRelease;

/// The plugins in a node's `/opt/cni/bin`, all of one maker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maker {
    /// Ours.
    Ours,
    /// Upstream's. If a test fails with these too, the test is wrong.
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

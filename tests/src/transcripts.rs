//! Recorded requests of real runtimes. Their origin is in `tests/transcripts/README.md`, their format in
//! `cnikit_testkit::transcripts`.

use std::path::Path;

use cnikit_testkit::transcripts::{Transcript, read};

/// The scenes of a runtime.
pub fn scenes(of: &str) -> Vec<Transcript> {
    let all = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("transcripts"));
    all.into_iter().filter(|scene| scene.name.starts_with(of)).collect()
}

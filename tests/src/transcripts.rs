//! What real runtimes sent. `tests/transcripts/README.md` says whence it is, `cnikit_testkit::transcripts` in what form.

use std::path::Path;

use cnikit_testkit::transcripts::{RecordedScene, read};

/// The scenes of a runtime.
pub fn scenes(of: &str) -> Vec<RecordedScene> {
    let all = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("transcripts"));
    all.into_iter().filter(|scene| scene.name.starts_with(of)).collect()
}

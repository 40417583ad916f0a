//! The files that `scripts/release` makes, on a Debian that debootstrap made: `scripts/test packages` starts this program, in
//! namespaces of its own, and names the files in `CNIKIT_RELEASE` and `CNIKIT_NEWER_RELEASE`.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]
#![expect(clippy::disallowed_methods, reason = "it runs the programs that a user installs with")]

mod archives;
mod debian;
mod debian_root;

use std::path::{Path, PathBuf};
use std::process::Command;

/// This version, and a newer one with the same programs.
const RELEASES: [&str; 2] = ["CNIKIT_RELEASE", "CNIKIT_NEWER_RELEASE"];

/// The directory with the files of a release.
fn release(which: usize) -> PathBuf {
    let dir = std::env::var_os(RELEASES[which])
        .unwrap_or_else(|| panic!("`scripts/test packages` names the files of the release"));
    dir.into()
}

/// The one file of a release whose name begins and ends so.
fn file(which: usize, begin: &str, end: &str) -> PathBuf {
    let entries = std::fs::read_dir(release(which)).unwrap().map(|entry| entry.unwrap().path());
    let is_it = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.starts_with(begin) && name.ends_with(end)
    };
    let found: Vec<PathBuf> = entries.filter(is_it).collect();
    assert_eq!(found.len(), 1, "{begin}…{end}: {found:?}");
    found[0].clone()
}

/// Runs a shell line in a directory. Returns whether it succeeded, and its output.
fn try_sh(dir: &Path, line: &str) -> (bool, String) {
    let printed = Command::new("bash").args(["-euc", line]).current_dir(dir).output().unwrap();
    let text = [printed.stdout, printed.stderr].concat();
    (printed.status.success(), String::from_utf8_lossy(&text).into_owned())
}

fn sh(dir: &Path, line: &str) -> String {
    let (succeeded, printed) = try_sh(dir, line);
    assert!(succeeded, "{line}: {printed}");
    printed
}

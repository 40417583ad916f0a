//! The files that `scripts/release` makes: `scripts/test packages` names them in `CNIKIT_RELEASE` and `CNIKIT_NEWER_RELEASE`.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::runtimes::PODMAN_CONF;

/// This version, and a newer one with the same programs.
const RELEASES: [&str; 2] = ["CNIKIT_RELEASE", "CNIKIT_NEWER_RELEASE"];

/// The directory with the files of a release: 0 is this version, 1 the newer one.
pub fn release(which: usize) -> PathBuf {
    let dir = std::env::var_os(RELEASES[which])
        .unwrap_or_else(|| panic!("`scripts/test packages` names the files of the release"));
    dir.into()
}

/// The kinds of files that were made of this version, as `scripts/release --only` takes them.
pub fn kinds() -> String {
    std::env::var("CNIKIT_RELEASE_ONLY").unwrap_or_else(|_| panic!("`scripts/test packages` names the kinds of files"))
}

/// The one file of a release whose name begins and ends so.
pub fn file(which: usize, begin: &str, end: &str) -> PathBuf {
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
pub fn try_sh(dir: &Path, line: &str) -> (bool, String) {
    let printed = Command::new("bash").args(["-euc", line]).current_dir(dir).output().unwrap();
    let text = [printed.stdout, printed.stderr].concat();
    (printed.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// The same; the line has to succeed. Returns its output.
pub fn sh(dir: &Path, line: &str) -> String {
    let (succeeded, printed) = try_sh(dir, line);
    assert!(succeeded, "{line}: {printed}");
    printed
}

/// Podman with a storage of its own, in which our image is.
pub struct Podman {
    dir: TempDir,
    /// The name of the image.
    pub image: String,
}

impl Podman {
    /// Loads the image.
    pub fn new(archive: &Path) -> Podman {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("containers.conf"), PODMAN_CONF).unwrap();
        let mut podman = Podman { dir, image: String::new() };
        podman.call(&format!("load --input '{}'", archive.display()));
        let printed = podman.call("images --format '{{.Repository}}:{{.Tag}}'");
        podman.image = printed.trim().into();
        podman
    }

    fn line(&self, line: &str) -> String {
        let dir = self.dir.path().display();
        format!(
            "CONTAINERS_CONF='{dir}/containers.conf' podman --root '{dir}/storage' --runroot '{dir}/run' --storage-driver vfs {line}"
        )
    }

    fn call(&self, line: &str) -> String {
        sh(self.dir.path(), &self.line(line))
    }

    /// Runs the image against a node's root directory.
    pub fn run(&self, root: &Path, flags: &str, command: &str) -> String {
        let volume = format!("--volume '{}:/host'", root.display());
        self.call(&format!("run --rm --network none {volume} {flags} {} {command} --root /host", self.image))
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        let line = format!("{}; umount storage/* 2>/dev/null || true", self.line("rmi --all --force"));
        // A failed test has failed already; the mounts go away with the namespace.
        let _ = try_sh(self.dir.path(), &line);
    }
}

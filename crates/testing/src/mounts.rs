//! Mounts in a mount namespace of the test's own.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use nix::mount::{MsFlags, mount};

/// Mounts an empty directory in memory.
pub(crate) fn mount_tmpfs(path: &Path) {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("tmpfs"), path, Some("tmpfs"), flags, Some("mode=0755"))
        .unwrap_or_else(|error| panic!("failed to mount a tmpfs on {}: {error}", path.display()));
}

/// Mounts what is below `from` on `to` too.
pub(crate) fn bind(from: &Path, to: &Path) {
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)
        .unwrap_or_else(|error| panic!("failed to mount {} on {}: {error}", from.display(), to.display()));
}

/// Replaces a directory by one in memory with links to what it contained, except for the entries that are called like one of
/// `hidden`. The real directory is mounted on `real`. So the machine needs no mount points, and nothing that is created there
/// stays.
pub(crate) fn hide_entries(directory: &Path, real: &Path, hidden: &[&str]) {
    bind(directory, real);
    mount_tmpfs(directory);
    for entry in fs::read_dir(real).unwrap() {
        let name = entry.unwrap().file_name();
        if !hidden.iter().any(|one| name == *one) {
            symlink(real.join(&name), directory.join(&name)).unwrap();
        }
    }
}

/// The directory of running programs, which is empty and in memory before any other is made private.
pub(crate) const RUN: &str = "/run";

/// The directory itself, or if it does not exist the closest one above it.
fn closest(directory: &Path) -> &Path {
    directory.ancestors().find(|one| one.is_dir()).unwrap_or_else(|| Path::new("/"))
}

/// Whether [`settle_in`](crate::settle_in) can make a directory private: its path is absolute, and the closest directory above it
/// that exists is not `/`, which cannot be replaced.
pub fn can_be_private(directory: &Path) -> bool {
    directory.is_absolute() && closest(directory) != Path::new("/")
}

/// Makes a directory empty, and whatever is created in it is in memory. If it does not exist, the closest one above it is replaced
/// by a directory in memory, with the real one mounted below `real`, which is below [`RUN`].
pub(crate) fn make_private(directory: &Path, real: &Path) {
    if directory.starts_with(RUN) {
        return fs::create_dir_all(directory).unwrap();
    }
    let parent = closest(directory);
    if parent == directory {
        return mount_tmpfs(directory);
    }
    let real = real.join(directory.to_string_lossy().replace('/', "-"));
    fs::create_dir_all(&real).unwrap();
    hide_entries(parent, &real, &[]);
    fs::create_dir_all(directory).unwrap();
}

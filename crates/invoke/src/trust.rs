//! Which users can change what a path leads to.

use std::ffi::OsString;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf, absolute};

use nix::errno::Errno;
use nix::unistd::geteuid;

/// Mode bits by which a group, or any user, may write.
const WRITE_BY_OTHERS: u32 = 0o022;
/// Mode bit by which any user may write.
const WRITE_BY_ANYONE: u32 = 0o002;
/// In a directory with this bit only the owner of an entry can remove or rename it.
const STICKY: u32 = 0o1000;
/// The kernel's limit on symbolic links in one path.
const MOST_LINKS: usize = 40;

/// Makes the relative directories of a `CNI_PATH` absolute, from the present working directory. Empty entries stay empty.
///
/// For a runtime: the plugins that it starts do not trust a relative directory that other users can change.
#[doc(alias = "CNI_PATH")]
pub fn absolute_path(path: &str) -> String {
    let entries: Vec<String> = path.split(':').map(absolute_entry).collect();
    entries.join(":")
}

/// An entry that has no absolute form in a `CNI_PATH` stays relative: the working directory is gone, or has a colon in its name.
fn absolute_entry(entry: &str) -> String {
    if entry.is_empty() || entry.starts_with('/') {
        return entry.to_owned();
    }
    match absolute(entry).ok().and_then(|path| path.into_os_string().into_string().ok()) {
        Some(path) if !path.contains(':') => path,
        _ => entry.to_owned(),
    }
}

/// Lists the directories and symbolic links that decide where an absolute path leads, from the root to its end. Those on the
/// way of a link's target are included.
///
/// # Errors
/// lstat(2) or readlink(2) of a part fails, or there are more than 40 links (`ELOOP`).
pub fn parts_on_the_way(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut at = PathBuf::from("/");
    let mut parts = vec![at.clone()];
    let mut links = 0;
    let mut ahead: Vec<OsString> = reversed_names(path);
    while let Some(name) = ahead.pop() {
        if name == "/" {
            at = PathBuf::from("/");
            continue;
        }
        if name == ".." {
            at.pop();
            continue;
        }
        let part = at.join(name);
        parts.push(part.clone());
        if !part.symlink_metadata()?.is_symlink() {
            at = part;
            continue;
        }
        links += 1;
        if links > MOST_LINKS {
            return Err(Errno::ELOOP.into());
        }
        ahead.extend(reversed_names(&part.read_link()?));
    }
    Ok(parts)
}

fn reversed_names(path: &Path) -> Vec<OsString> {
    let names = path.components().rev().filter(|component| *component != Component::CurDir);
    names.map(|component| component.as_os_str().to_owned()).collect()
}

/// The absolute directory of a file if only root and the caller can change what the path leads to; otherwise the reason.
///
/// Each file, directory and symbolic link on the way from the root to the plugin has to belong to root or to the caller. No file
/// and no directory may be writable by a group or by any user, except a sticky directory above the last one, such as `/tmp`.
pub(crate) fn trusted_directory(file: &Path) -> Result<PathBuf, String> {
    let unknown = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
    let directory = file.parent().unwrap_or(file);
    let resolved = directory.canonicalize().map_err(|error| unknown(directory, error))?;
    let way = absolute(file).and_then(|path| parts_on_the_way(&path)).map_err(|error| unknown(file, error))?;
    for part in &way {
        let metadata = part.symlink_metadata().map_err(|error| unknown(part, error))?;
        if let Some(why) = distrust(&metadata, metadata.is_dir() && *part != resolved) {
            return Err(format!("{} {why}", part.display()));
        }
    }
    Ok(resolved)
}

/// Why users other than root and the caller can change this file, directory or link; `None` if they cannot.
fn distrust(metadata: &Metadata, may_be_sticky: bool) -> Option<String> {
    if metadata.uid() != 0 && metadata.uid() != geteuid().as_raw() {
        return Some(format!("belongs to user {}", metadata.uid()));
    }
    is_writable_by_others(metadata, may_be_sticky).then(|| "can be written by other users".to_owned())
}

/// Whether the group or any user may write to a file or directory. The mode of a symbolic link is ignored. `may_be_sticky`: a
/// sticky directory does not count, because only an entry's owner can replace the entry.
pub fn is_writable_by_others(metadata: &Metadata, may_be_sticky: bool) -> bool {
    let is_sticky = may_be_sticky && metadata.mode() & STICKY != 0;
    metadata.mode() & WRITE_BY_OTHERS != 0 && !metadata.is_symlink() && !is_sticky
}

/// The first of these that any user may write to: the plugin's file, its directory, and, where the file is a symbolic link, the
/// directory of its target.
pub fn writable_by_anyone(plugin: &Path) -> Option<PathBuf> {
    let target = plugin.canonicalize().ok();
    let paths = [Some(plugin), plugin.parent(), target.as_deref().and_then(Path::parent)];
    let mut paths = paths.into_iter().flatten();
    paths.find(|path| path.metadata().is_ok_and(|found| found.mode() & WRITE_BY_ANYONE != 0)).map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_links_and_directories_of_a_path_are_checked() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        let at = |name: &str| top.join(name);
        for name in ["one", "two", "three"] {
            std::fs::create_dir(at(name)).unwrap();
        }
        std::fs::write(at("three/file"), "").unwrap();
        std::os::unix::fs::symlink("../two/link", at("one/link")).unwrap();
        std::os::unix::fs::symlink(at("three"), at("two/link")).unwrap();
        std::os::unix::fs::symlink("loop", at("loop")).unwrap();
        let way = parts_on_the_way(&at("./one/link/file")).unwrap();
        for name in ["one", "one/link", "two", "two/link", "three", "three/file"] {
            assert!(way.contains(&at(name)), "{name}: {way:?}");
        }
        assert_eq!((&*way[0], way.last()), (Path::new("/"), Some(&at("three/file"))));
        assert_eq!(parts_on_the_way(&at("loop")).unwrap_err().raw_os_error(), Some(Errno::ELOOP as i32));
        assert_eq!(parts_on_the_way(&at("gone/file")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn relative_entries_become_absolute_and_absolute_entries_stay() {
        let here = std::env::current_dir().unwrap();
        let here = here.to_str().unwrap();
        assert_eq!(absolute_path("./bin::/opt/cni/bin:."), format!("{here}/bin::/opt/cni/bin:{here}"));
        assert_eq!(absolute_path(""), "");
    }
}

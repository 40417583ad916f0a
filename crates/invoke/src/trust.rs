//! Who can change what a path leads to.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf, absolute};

use nix::unistd::geteuid;

/// Mode bits by which a group, or any user, may write.
const WRITE_BY_OTHERS: u32 = 0o022;
/// Mode bit by which any user may write.
const WRITE_BY_ANYONE: u32 = 0o002;
/// In a directory with this bit only the owner of an entry can remove or rename it.
const STICKY: u32 = 0o1000;

/// A `CNI_PATH` whose relative directories were made absolute, from the working directory of now. Empty entries stay empty.
///
/// For a runtime: the plugins that it starts trust no relative directory of another user.
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

/// The absolute directory of a file if only root and the caller can change what the path leads to; else why that is not so.
///
/// Each file and directory from the root to the plugin has to belong to root or to the caller. None may be writable by a group or
/// by any user, except a sticky directory above the last one, such as `/tmp`.
pub(crate) fn trusted_directory(file: &Path) -> Result<PathBuf, String> {
    let unknown = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    let directory = file.parent().unwrap_or(file);
    let resolved = directory.canonicalize().map_err(|error| unknown(directory, error))?;
    let target = file.canonicalize().map_err(|error| unknown(file, error))?;
    for path in [&target, &resolved] {
        for (depth, part) in path.ancestors().enumerate() {
            let metadata = part.metadata().map_err(|error| unknown(part, error))?;
            if let Some(why) = distrust(&metadata, depth > 0 && part != resolved) {
                return Err(format!("{} {why}", part.display()));
            }
        }
    }
    Ok(resolved)
}

/// Why others than root and the caller can change this file or directory, if they can.
fn distrust(metadata: &Metadata, may_be_sticky: bool) -> Option<String> {
    if metadata.uid() != 0 && metadata.uid() != geteuid().as_raw() {
        return Some(format!("belongs to user {}", metadata.uid()));
    }
    let is_sticky = may_be_sticky && metadata.mode() & STICKY != 0;
    (metadata.mode() & WRITE_BY_OTHERS != 0 && !is_sticky).then(|| "can be written by other users".to_owned())
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
    fn relative_entries_become_absolute_and_the_others_stay() {
        let here = std::env::current_dir().unwrap();
        let here = here.to_str().unwrap();
        assert_eq!(absolute_path("./bin::/opt/cni/bin:."), format!("{here}/bin::/opt/cni/bin:{here}"));
        assert_eq!(absolute_path(""), "");
    }
}

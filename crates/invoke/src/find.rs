//! Find the file of a plugin by name.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use cnikit_types::check_plugin_name;

use crate::Error;
use crate::trust::trusted_directory;

/// The first executable file `<directory>/<name>` in the directories of `path`, a `CNI_PATH`; symbolic links are followed.
///
/// Unlike in upstream, the search continues after a file that is not executable.
///
/// A relative directory is used only if no other user can change what it leads to: the working directory may be an attacker's.
/// Its plugin is returned with an absolute path. A runtime whose operator configured a relative directory makes it absolute
/// first ([`absolute_path`](crate::absolute_path)).
///
/// # Errors
/// [`Error::Name`] if `name` is not a plain name; no directory is searched then. [`Error::NotStarted`] if there is no plugin
/// and the kernel refused to say whether one file exists. [`Error::NotFound`] otherwise; it names files that are not
/// executable, and those that a relative path leads to and other users can change.
#[doc(alias = "CNI_PATH")]
pub fn find(name: &str, path: &str) -> Result<PathBuf, Error> {
    if let Err(why) = check_plugin_name(name) {
        return Err(Error::Name { name: name.to_owned(), why });
    }
    // An empty part would mean the working directory, which the configuration did not choose.
    let directories: Vec<&str> = path.split(':').filter(|part| !part.is_empty()).collect();
    let mut unusable = Vec::new();
    let mut untrusted = Vec::new();
    let mut unreadable = None;
    for file in directories.iter().map(|directory| Path::new(directory).join(name)) {
        match file.metadata() {
            Ok(metadata) if is_executable(&metadata) && file.is_absolute() => return Ok(file),
            Ok(metadata) if is_executable(&metadata) => match trusted_directory(&file) {
                Ok(directory) => return Ok(directory.join(name)),
                Err(why) => untrusted.push(format!("{} has a relative path, and {why}", file.display())),
            },
            Ok(metadata) if metadata.is_file() => unusable.push(file),
            Err(source) if !is_absence(&source) => unreadable = unreadable.or(Some((file, source))),
            _ => {}
        }
    }
    if let Some((plugin, source)) = unreadable {
        return Err(Error::NotStarted { plugin, source });
    }
    let path = directories.into_iter().map(str::to_owned).collect();
    Err(Error::NotFound { name: name.to_owned(), path, unusable, untrusted })
}

/// Whether the error says that there is no such file, and not that this could not be determined.
fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn is_executable(metadata: &Metadata) -> bool {
    metadata.is_file() && metadata.permissions().mode() & 0o111 != 0
}

//! Reads a configuration file without waiting for another program.

use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::OFlag;

use crate::ConfigError;

/// The largest file that is read: no plugin reads a longer configuration on stdin.
const LIMIT: u64 = 16 << 20;

/// The file under a name, by its type.
enum Opened {
    File(File),
    Other(FileType),
}

/// The content of a regular file; symbolic links are followed.
///
/// A file of any other type is an error, and is not opened: opening a FIFO would wait for its writer, and opening a device may have
/// any effect.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, ConfigError> {
    let file = match open(path) {
        Ok(Opened::File(file)) => file,
        Ok(Opened::Other(kind)) => {
            let message = format!("is {}, not a file", word(kind));
            return Err(ConfigError::of_file(path, message, "remove it, or give it another name"));
        }
        Err(error) => return Err(not_opened(path, &error)),
    };
    let mut bytes = Vec::new();
    if let Err(error) = file.take(LIMIT + 1).read_to_end(&mut bytes) {
        let hint = "read the kernel's messages about the disk (dmesg)";
        return Err(ConfigError::of_file(path, format!("cannot be read: {error}"), hint));
    }
    if bytes.len() as u64 > LIMIT {
        let message = format!("is larger than {} MiB: plugins do not read longer configurations", LIMIT >> 20);
        return Err(ConfigError::of_file(path, message, "remove it, or give it another name"));
    }
    Ok(bytes)
}

/// Opens a regular file. Its type is checked before and after, because the name may have been replaced meanwhile.
fn open(path: &Path) -> io::Result<Opened> {
    let before = fs::metadata(path)?;
    if !before.is_file() {
        return Ok(Opened::Other(before.file_type()));
    }
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    let kind = file.metadata()?.file_type();
    Ok(if kind.is_file() { Opened::File(file) } else { Opened::Other(kind) })
}

fn word(kind: FileType) -> &'static str {
    match kind {
        kind if kind.is_dir() => "a directory",
        kind if kind.is_fifo() => "a FIFO",
        kind if kind.is_socket() => "a socket",
        _ => "a device",
    }
}

/// The error for a file that could not be opened.
fn not_opened(path: &Path, error: &io::Error) -> ConfigError {
    match (error.kind(), fs::read_link(path)) {
        (io::ErrorKind::NotFound, Ok(target)) => {
            let message = format!("is a link to {}, which is not there", target.display());
            ConfigError::of_file(path, message, "create the target of the link, or remove the link")
        }
        (io::ErrorKind::NotFound, Err(_)) => ConfigError::of_file(path, "is not there any more", "try again"),
        (io::ErrorKind::PermissionDenied, _) => {
            let hint = "allow the user that runs this to read it, with chmod or chown";
            ConfigError::of_file(path, format!("cannot be read: {error}"), hint)
        }
        _ => ConfigError::of_file(path, format!("cannot be read: {error}"), "remove it, or put a file there"),
    }
}

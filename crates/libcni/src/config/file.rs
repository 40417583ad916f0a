//! Reads a file that anybody may have put there, without ever waiting for it.

use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::OFlag;

use crate::ConfigError;

/// More than this no plugin would read on stdin.
const LIMIT: u64 = 16 << 20;

/// All of a regular file; symbolic links are followed.
///
/// Whatever else stands under the name is refused unread: opening a FIFO would wait for its writer, and a device may do
/// anything.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, ConfigError> {
    let wrong = |why: String, hint: &str| Err(ConfigError::of_file(path, why, hint));
    let opened =
        fs::metadata(path).and_then(|found| if found.is_file() { open(path) } else { Ok((found.file_type(), None)) });
    let file = match opened {
        Ok((_, Some(file))) => file,
        Ok((kind, None)) => {
            return wrong(format!("is {}, not a file", word(kind)), "remove it, or give it another name");
        }
        Err(error) => return Err(absent(path, &error)),
    };
    let mut bytes = Vec::new();
    match file.take(LIMIT + 1).read_to_end(&mut bytes) {
        Err(error) => wrong(format!("cannot be read: {error}"), "see what the kernel says about its disk (dmesg)"),
        Ok(_) if bytes.len() as u64 > LIMIT => wrong(
            format!("is larger than {} MiB: no plugin would read so long a configuration", LIMIT >> 20),
            "remove it, or give it another name",
        ),
        Ok(_) => Ok(bytes),
    }
}

/// The file itself if it is a regular one: it may have become another between the look and the opening.
fn open(path: &Path) -> io::Result<(FileType, Option<File>)> {
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    let kind = file.metadata()?.file_type();
    Ok((kind, kind.is_file().then_some(file)))
}

fn word(kind: FileType) -> &'static str {
    match kind {
        kind if kind.is_dir() => "a directory",
        kind if kind.is_fifo() => "a FIFO",
        kind if kind.is_socket() => "a socket",
        _ => "a device",
    }
}

/// Why it could not be opened.
fn absent(path: &Path, error: &io::Error) -> ConfigError {
    let wrong = |why: String, hint: &str| ConfigError::of_file(path, why, hint);
    match (error.kind(), fs::read_link(path)) {
        (io::ErrorKind::NotFound, Ok(target)) => wrong(
            format!("is a link to {}, which is not there", target.display()),
            "make what it leads to, or remove it",
        ),
        (io::ErrorKind::NotFound, Err(_)) => wrong("is not there any more".to_owned(), "try again"),
        (io::ErrorKind::PermissionDenied, _) => {
            wrong(format!("cannot be read: {error}"), "let whoever runs this read it, as chmod and chown do")
        }
        _ => wrong(format!("cannot be read: {error}"), "remove it, or put a file there"),
    }
}

//! Read files of other programs by path.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::OFlag;

use crate::Error;

/// Reads a regular file of at most `limit` bytes. Symbolic links are followed; a pipe does not block.
///
/// # Errors
/// open(2), fstat(2) or read(2) fails, or the path leads to a longer file or to anything but a regular file
/// ([`Error::is_garbage`]).
pub fn read(path: impl AsRef<Path>, limit: usize) -> Result<Vec<u8>, Error> {
    let path = path.as_ref();
    let failed = |operation| move |source: io::Error| Error::new(operation, path, source);
    let garbage = |text| Error::new("read", path, io::Error::new(io::ErrorKind::InvalidData, text));
    let file =
        OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path).map_err(failed("open"))?;
    if !file.metadata().map_err(failed("look at"))?.is_file() {
        return Err(garbage("not a regular file"));
    }
    let mut content = Vec::new();
    file.take(limit as u64 + 1).read_to_end(&mut content).map_err(failed("read"))?;
    if content.len() > limit { Err(garbage("longer than expected")) } else { Ok(content) }
}

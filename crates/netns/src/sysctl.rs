//! Kernel settings of the namespace that the calling thread is in: `/proc/sys/net`, see sysctl(8).
//!
//! The kernel shows each thread the settings of its own namespace, hence the [`Inside`]. Keys are written as paths
//! below `/proc/sys`, `net/ipv6/conf/eth0.1/accept_ra`: with dots as separators the name of that link would be torn.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::{Error, Inside};

/// What [`set`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The value was in effect; nothing was written.
    Already,
    /// It was written; before it, this was in effect.
    From(String),
}

/// The value of `key`, without the line end.
///
/// An absent setting ([`Error::is_absent`]) is an error like any other: whether that is well, the caller knows.
pub fn read(_: &Inside, key: &str) -> Result<String, Error> {
    let file = File::open(file_of(key)?);
    file.and_then(|file| value_in(&file)).map_err(|source| Error::new("read the sysctl", key, source))
}

/// Sees to it that `key` has `value`. A setting that is right already needs no right to write it.
pub fn set(inside: &Inside, key: &str, value: &str) -> Result<Change, Error> {
    let opened = OpenOptions::new().read(true).write(true).open(file_of(key)?);
    let old = match &opened {
        Ok(file) => value_in(file).map_err(|source| Error::new("read the sysctl", key, source))?,
        Err(_) => read(inside, key)?,
    };
    if old.split_whitespace().eq(value.split_whitespace()) {
        return Ok(Change::Already);
    }
    // One write, since the kernel takes each as a whole; the line end lets an empty value be written too.
    let line = format!("{value}\n");
    opened.and_then(|file| file.write_all_at(line.as_bytes(), 0)).map_err(|source| cannot_set(key, value, source))?;
    Ok(Change::From(old))
}

/// All that is in it, without the line end. These files tell no length, and all that they have is read at once.
pub(crate) fn value_in(mut file: &File) -> io::Result<String> {
    let (mut bytes, mut part) = (Vec::new(), [0; 512]);
    loop {
        let length = file.read(&mut part)?;
        bytes.extend_from_slice(&part[..length]);
        if length < part.len() {
            let text = String::from_utf8(bytes).map_err(io::Error::other)?;
            return Ok(text.trim_end().to_owned());
        }
    }
}

fn cannot_set(key: &str, value: &str, source: io::Error) -> Error {
    Error::new("set the sysctl", format!("{key} to \"{}\"", value.escape_debug()), source)
}

/// Where `key` stands, if it is one: below `net/`, and not by any way round about.
fn file_of(key: &str) -> Result<PathBuf, Error> {
    let plain = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
    if key.starts_with("net/") && key.split('/').all(plain) {
        return Ok(Path::new("/proc/sys").join(key));
    }
    Err(Error::refused(
        "take",
        format!("\"{}\" for a sysctl", key.escape_debug()),
        "it must be a path like net/ipv4/ip_forward",
    ))
}

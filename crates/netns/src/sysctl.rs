//! Sysctls of the namespace that the calling thread is in: `/proc/sys/net`, see sysctl(8).
//!
//! The kernel shows each thread the settings of its own namespace, so [`Inside`] is required. Keys are paths below `/proc/sys`,
//! `net/ipv6/conf/eth0.1/accept_ra`: with dots as separators the name of that link would be split.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::net::Ipv6Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::sys::stat::Mode;

use crate::{Error, Inside};

/// What [`set`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SysctlChange {
    /// The value was in effect; nothing was written.
    Already,
    /// It was written; this is the value before.
    From(String),
}

/// The value of `key`, without the line end.
///
/// # Errors
/// The key is not a path below `net/`, the setting does not exist ([`Error::is_absent`]), or open(2) or read(2) fails.
pub fn read(_: &Inside, key: &str) -> Result<String, Error> {
    let path = path_of(key)?;
    read_of(key, |flags| open_at(AT_FDCWD, &path, flags))
}

/// Gives `key` the value `value`. A setting that already has it needs no permission to write.
///
/// # Errors
/// As [`read`], and a file that cannot be written: the kernel refuses the value (`EINVAL`), or `/proc/sys` is mounted read-only
/// (`EROFS`).
pub fn set(_: &Inside, key: &str, value: &str) -> Result<SysctlChange, Error> {
    let path = path_of(key)?;
    let open = |flags| open_at(AT_FDCWD, &path, flags);
    let opened = open(OFlag::O_RDWR);
    let old = match &opened {
        Ok(file) => value_in(file).map_err(|source| Error::new("read the sysctl", key, source))?,
        Err(_) => read_of(key, open)?,
    };
    if same(&old, value) {
        return Ok(SysctlChange::Already);
    }
    opened.and_then(|file| write(&file, value)).map_err(|source| cannot_set(key, value, source))?;
    Ok(SysctlChange::From(old))
}

/// Whether the kernel has IPv6. It has none if it was built or booted without it (`ipv6.disable=1`), in all namespaces.
///
/// # Errors
/// stat(2) fails for another reason than that the directory does not exist.
#[doc(alias = "ipv6.disable")]
pub fn has_ipv6() -> Result<bool, Error> {
    let directory = Path::new(NET).join("ipv6");
    directory.try_exists().map_err(|source| Error::new("find", directory.to_string_lossy(), source))
}

/// The settings of the namespace that the calling thread is in, below one descriptor of `/proc/sys/net`, for keys that come from a
/// configuration. No key leads out of it, and no symbolic link is followed in any part of a key.
#[derive(Debug)]
pub struct Tree<'a> {
    net: OwnedFd,
    inside: PhantomData<&'a Inside>,
}

/// The directory that contains all settings.
const NET: &str = "/proc/sys/net";

impl<'a> Tree<'a> {
    /// Opens `/proc/sys/net` of the namespace that the calling thread is in.
    ///
    /// # Errors
    /// `/proc` is not mounted, or no descriptor is free.
    pub fn open(_: &'a Inside) -> Result<Tree<'a>, Error> {
        let opened = openat(AT_FDCWD, NET, OFlag::O_PATH | STEP, Mode::empty());
        Ok(Tree { net: opened.map_err(|errno| Error::new("open", NET, errno))?, inside: PhantomData })
    }

    /// The value of `key`; `None` if the setting exists but has no readable value: it is write-only, such as
    /// `net/ipv4/route/flush`, or was never written, such as `stable_secret`.
    ///
    /// # Errors
    /// The key is not below `net/` or leads through a symbolic link, the setting does not exist ([`Error::is_absent`]), or
    /// openat(2) or read(2) fails.
    pub fn read(&self, key: &str) -> Result<Option<String>, Error> {
        path_of(key)?;
        let read = || read_of(key, |flags| self.open_below(key, flags));
        match read() {
            Err(error) if error.errno() == Some(libc::EACCES) && self.is_write_only(key) => Ok(None),
            // Only a setting that was never written fails with EIO twice.
            Err(error) if error.errno() == Some(libc::EIO) => match read() {
                Err(again) if again.errno() == error.errno() => Ok(None),
                read => read.map(Some),
            },
            read => read.map(Some),
        }
    }

    /// Gives `key` the value `value`. A setting that already has it needs no permission to write.
    ///
    /// # Errors
    /// As [`Tree::read`], and a file that cannot be written: the kernel refuses the value (`EINVAL`), or `/proc/sys` is mounted
    /// read-only (`EROFS`).
    pub fn set(&self, key: &str, value: &str) -> Result<(), Error> {
        path_of(key)?;
        // A setting that can be read and written needs a single walk.
        if let Ok(file) = self.open_below(key, OFlag::O_RDWR)
            && let Ok(old) = value_in(&file)
        {
            let written = if same(&old, value) { Ok(()) } else { write(&file, value) };
            return written.map_err(|source| cannot_set(key, value, source));
        }
        if self.read(key)?.is_some_and(|old| same(&old, value)) {
            return Ok(());
        }
        let file = self.open_below(key, OFlag::O_WRONLY);
        file.and_then(|file| write(&file, value)).map_err(|source| cannot_set(key, value, source))
    }

    fn is_write_only(&self, key: &str) -> bool {
        let found = self.open_below(key, OFlag::O_PATH).and_then(|file| file.metadata());
        found.is_ok_and(|found| found.mode() & 0o444 == 0)
    }

    /// Opens `key` step by step, each step from the directory before. `openat2(2)` does the same with `RESOLVE_BENEATH` and
    /// `RESOLVE_NO_SYMLINKS`, but older kernels and seccomp filters refuse it.
    fn open_below(&self, key: &str, flags: OFlag) -> io::Result<File> {
        let mut parts = key.split('/').skip(1).peekable();
        let mut place: Option<OwnedFd> = None;
        while let Some(part) = parts.next() {
            let from = place.as_ref().unwrap_or(&self.net);
            if parts.peek().is_none() {
                return open_at(from, part, flags | OFlag::O_NOFOLLOW);
            }
            place = Some(openat(from, part, OFlag::O_PATH | STEP, Mode::empty())?);
        }
        Err(io::ErrorKind::InvalidInput.into())
    }
}

/// The flags to open a directory on the path of a key.
const STEP: OFlag = OFlag::O_DIRECTORY.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

fn open_at(from: impl AsFd, path: &str, flags: OFlag) -> io::Result<File> {
    let path = CString::new(path)?;
    Ok(openat(from, path.as_c_str(), flags | OFlag::O_CLOEXEC, Mode::empty())?.into())
}

fn read_of(key: &str, open: impl Fn(OFlag) -> io::Result<File>) -> Result<String, Error> {
    open(OFlag::O_RDONLY).and_then(|file| value_in(&file)).map_err(|source| Error::new("read the sysctl", key, source))
}

/// Writes the value with one write(2), because the kernel handles each write as a complete value. Of a list longer than a page it
/// returns a short count, and accepts the rest in the next write. The newline makes it possible to write an empty value.
fn write(file: &File, value: &str) -> io::Result<()> {
    file.write_all_at(format!("{value}\n").as_bytes(), 0)
}

/// Whether both texts mean the same to the kernel. It reads numbers in base 10, 8 (`0…`) and 16 (`0x…`) and prints all in base 10,
/// with its own white space between them. It prints lists of numbers as ranges, and addresses and keys in full.
pub fn same(one: &str, other: &str) -> bool {
    let words = |text: &str| text.split_whitespace().map(Word::read).collect::<Vec<_>>();
    one == other || words(one) == words(other)
}

/// One word of a value.
#[derive(PartialEq)]
enum Word {
    Number(i128),
    /// Sorted, with adjacent ranges merged.
    Ranges(Vec<(i128, i128)>),
    /// A value of `stable_secret`.
    Address(Ipv6Addr),
    /// A value of `tcp_fastopen_key`; each key has four groups of hexadecimal digits.
    Keys(Vec<Vec<u32>>),
    Text(String),
}

impl Word {
    fn read(word: &str) -> Word {
        let ranges = || word.split(',').map(range).collect::<Option<Vec<_>>>();
        let keys = || word.split(',').map(key).collect::<Option<Vec<_>>>();
        let number = number(word).map(Word::Number);
        number
            .or_else(|| ranges().map(|ranges| Word::Ranges(joined(ranges))))
            .or_else(|| word.parse().ok().map(Word::Address))
            .or_else(|| keys().map(Word::Keys))
            .unwrap_or_else(|| Word::Text(word.to_owned()))
    }
}

fn key(text: &str) -> Option<Vec<u32>> {
    let plain = |group: &&str| group.chars().all(|digit| digit.is_ascii_hexdigit());
    let group = |group: &str| Some(group).filter(plain).and_then(|group| u32::from_str_radix(group, 16).ok());
    text.split('-').map(group).collect::<Option<Vec<_>>>().filter(|groups| groups.len() == 4)
}

fn number(word: &str) -> Option<i128> {
    let (sign, digits) = word.strip_prefix('-').map_or((1, word), |digits| (-1, digits));
    let (digits, radix) = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None if digits.len() > 1 && digits.starts_with('0') => (&digits[1..], 8),
        None => (digits, 10),
    };
    let plain = !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(radix));
    plain.then(|| i128::from_str_radix(digits, radix).ok()).flatten().map(|number| sign * number)
}

fn range(text: &str) -> Option<(i128, i128)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some((number(first)?, number(last)?))
}

fn joined(mut ranges: Vec<(i128, i128)>) -> Vec<(i128, i128)> {
    ranges.sort_unstable();
    let mut joined: Vec<(i128, i128)> = Vec::new();
    for (first, last) in ranges {
        match joined.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
            _ => joined.push((first, last)),
        }
    }
    joined
}

/// The whole content, without the newline at the end. Files of `/proc/sys` have no length. Some return as much as the buffer holds,
/// truncated, and nothing at a later offset, such as `ip_local_reserved_ports`. So if the buffer is full, the file is read again
/// from the start into a larger one.
pub(crate) fn value_in(file: &File) -> io::Result<String> {
    let mut room = vec![0; 512];
    loop {
        let length = file.read_at(&mut room, 0)?;
        if length < room.len() {
            room.truncate(length);
            let text = String::from_utf8(room).map_err(io::Error::other)?;
            return Ok(text.trim_end().to_owned());
        }
        room.resize(room.len() * 16, 0); // the kernel ends the loop: from 4 MiB on it returns ENOMEM
    }
}

fn cannot_set(key: &str, value: &str, source: io::Error) -> Error {
    Error::new("set the sysctl", format!("{key} to \"{}\"", value.escape_debug()), source)
}

/// The path of `key` in `/proc/sys`, if it is a valid key: below `net/`, without `.`, `..` and empty parts.
fn path_of(key: &str) -> Result<String, Error> {
    let plain = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
    if key.starts_with("net/") && key.split('/').all(plain) {
        return Ok(format!("/proc/sys/{key}"));
    }
    Err(Error::refused(
        "take",
        format!("\"{}\" for a sysctl", key.escape_debug()),
        "it must be a path like net/ipv4/ip_forward",
    ))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn values_are_alike_that_mean_the_same() {
        for (one, other) in [
            ("1", "1"),
            ("1", " 1\n"),
            ("1 2", "1\t2"),
            ("16", "0x10"),
            ("0X1f", "31"),
            ("010", "8"),
            ("-1", "-0x1"),
            ("1,2,3,9", "1-3,9"),
            ("3,1-2", "1-3"),
            ("cubic", "cubic"),
            ("bbr  cubic", "bbr cubic"),
            ("", "\n"),
            ("FD00::1", "fd00:0000:0000:0000:0000:0000:0000:0001"),
            ("A-0b-00c-D", "0000000a-0000000b-0000000c-0000000d"),
            ("1-2-3-4,5-6-7-A", "00000001-00000002-00000003-00000004,00000005-00000006-00000007-0000000a"),
        ] {
            assert!(same(one, other), "{one:?} {other:?}");
        }
        let plain = [("1", "2"), ("1", "1 1"), ("08", "8"), ("+1", "1"), ("1-3", "1,3"), ("", "0"), ("a", "A")];
        let longer = [("fd00::1", "fd00::2"), ("a-b-c-d", "a-b-c-e"), ("a-b-c", "A-B-C"), ("+a-b-c-d", "a-b-c-d")];
        for (one, other) in plain.into_iter().chain(longer) {
            assert!(!same(one, other), "{one:?} {other:?}");
        }
    }

    fn tree_of(dir: &Path) -> Tree<'static> {
        let net = openat(AT_FDCWD, dir, OFlag::O_PATH | STEP, Mode::empty()).unwrap();
        Tree { net, inside: PhantomData }
    }

    #[test]
    fn no_symbolic_link_is_followed_and_no_key_leads_out() {
        let dir = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret"), "1\n").unwrap();
        fs::create_dir_all(dir.path().join("ipv4/conf/eth0.7")).unwrap();
        fs::write(dir.path().join("ipv4/conf/eth0.7/arp_notify"), "0\n").unwrap();
        symlink(outside.path(), dir.path().join("away")).unwrap();
        symlink(outside.path().join("secret"), dir.path().join("ipv4/file")).unwrap();
        let tree = tree_of(dir.path());
        assert_eq!(tree.read("net/ipv4/conf/eth0.7/arp_notify").unwrap().as_deref(), Some("0"));
        tree.set("net/ipv4/conf/eth0.7/arp_notify", "1").unwrap();
        assert_eq!(tree.read("net/ipv4/conf/eth0.7/arp_notify").unwrap().as_deref(), Some("1"));
        for key in ["net/away/secret", "net/ipv4/file", "net/../secret", "net/ipv4/../away/secret", "net", "kernel/x"] {
            assert!(tree.read(key).is_err() && tree.set(key, "2").is_err(), "{key}");
        }
        assert_eq!(fs::read_to_string(outside.path().join("secret")).unwrap(), "1\n");
    }

    #[test]
    fn a_write_only_sysctl_can_be_set() {
        let read = |inside: &Inside| {
            let tree = Tree::open(inside).unwrap();
            let flush = tree.read("net/ipv4/route/flush");
            tree.set("net/ipv4/route/flush", "1").unwrap();
            let secret = tree.read("net/ipv6/conf/lo/stable_secret");
            tree.set("net/ipv6/conf/lo/stable_secret", "fd00::1").unwrap();
            let later = tree.read("net/ipv6/conf/lo/stable_secret");
            [flush, secret, later].map(Result::unwrap)
        };
        let [flush, secret, later] = crate::make::anonymous().unwrap().enter(read).unwrap();
        assert_eq!((flush, secret), (None, None));
        assert!(later.is_some_and(|text| text.starts_with("fd00")));
    }
}

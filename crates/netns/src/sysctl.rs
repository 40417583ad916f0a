//! Kernel settings of the namespace that the calling thread is in: `/proc/sys/net`, see sysctl(8).
//!
//! The kernel shows each thread the settings of its own namespace, hence the [`Inside`]. Keys are written as paths
//! below `/proc/sys`, `net/ipv6/conf/eth0.1/accept_ra`: with dots as separators the name of that link would be torn.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::net::Ipv6Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};

use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::sys::stat::Mode;

use crate::{Error, Inside};

/// What [`set`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SysctlChange {
    /// The value was in effect; nothing was written.
    Already,
    /// It was written; before it, this was in effect.
    From(String),
}

/// The value of `key`, without the line end.
///
/// # Errors
/// A key that is not a path below `net/`, a setting that does not exist ([`Error::is_absent`]), and whatever open(2) or read(2)
/// returns.
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

/// The settings of the namespace that the calling thread is in, by one descriptor of `/proc/sys/net`: for keys that somebody
/// else has chosen. No key leads out of it, and no symbolic link is followed, wherever it stands.
#[derive(Debug)]
pub struct Tree<'a> {
    net: OwnedFd,
    inside: PhantomData<&'a Inside>,
}

/// What all settings are below.
const NET: &str = "/proc/sys/net";

impl<'a> Tree<'a> {
    /// Opens `/proc/sys/net` of the namespace that the calling thread is in.
    ///
    /// # Errors
    /// `/proc` is not mounted, or no descriptor is left.
    pub fn open(_: &'a Inside) -> Result<Tree<'a>, Error> {
        let opened = openat(AT_FDCWD, NET, OFlag::O_PATH | STEP, Mode::empty());
        Ok(Tree { net: opened.map_err(|errno| Error::new("open", NET, errno))?, inside: PhantomData })
    }

    /// The value of `key`; `None` if the setting exists and has no value that can be read: it can only be written, as
    /// `net/ipv4/route/flush`, or was never written, as `stable_secret`.
    ///
    /// # Errors
    /// A key that is not below `net/` or that leads through a symbolic link, a setting that does not exist
    /// ([`Error::is_absent`]), and whatever openat(2) or read(2) returns.
    pub fn read(&self, key: &str) -> Result<Option<String>, Error> {
        path_of(key)?;
        let read = || read_of(key, |flags| self.open_below(key, flags));
        match read() {
            Err(error) if error.errno() == Some(libc::EACCES) && self.is_write_only(key) => Ok(None),
            // What was never written fails again, and nothing else.
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
        // One walk, where it can be read and written.
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

    /// Step by step, each from the directory before it: what `openat2(2)` does with `RESOLVE_BENEATH` and `RESOLVE_NO_SYMLINKS`,
    /// on kernels and under filters that do not know it too.
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

/// How a directory on the way is opened.
const STEP: OFlag = OFlag::O_DIRECTORY.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

fn open_at(from: impl AsFd, path: &str, flags: OFlag) -> io::Result<File> {
    let path = CString::new(path)?;
    Ok(openat(from, path.as_c_str(), flags | OFlag::O_CLOEXEC, Mode::empty())?.into())
}

fn read_of(key: &str, open: impl Fn(OFlag) -> io::Result<File>) -> Result<String, Error> {
    open(OFlag::O_RDONLY).and_then(|file| value_in(&file)).map_err(|source| Error::new("read the sysctl", key, source))
}

/// One write, since the kernel takes each as a whole; of a list longer than a page it says how far it came, and takes the rest
/// next. The line end lets an empty value be written too.
fn write(file: &File, value: &str) -> io::Result<()> {
    file.write_all_at(format!("{value}\n").as_bytes(), 0)
}

/// Do both texts say the same to the kernel? It reads numbers in base 10, 8 (`0…`) and 16 (`0x…`), and writes all in base 10,
/// with its own blanks between them; of lists of numbers it makes ranges, and it writes addresses and keys out.
pub fn same(one: &str, other: &str) -> bool {
    let words = |text: &str| text.split_whitespace().map(Word::read).collect::<Vec<_>>();
    one == other || words(one) == words(other)
}

/// One word of a value.
#[derive(PartialEq)]
enum Word {
    Number(i128),
    /// Of which none touches the next.
    Ranges(Vec<(i128, i128)>),
    /// Of `stable_secret`.
    Address(Ipv6Addr),
    /// Of `tcp_fastopen_key`, each of four groups of hexadecimal digits.
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

/// All that is in it, without the line end. These files tell no length; some give as much as there is room for, cut, and have
/// nothing to say from there on, as `ip_local_reserved_ports`. So one that fills the room is read again, whole, into more.
pub(crate) fn value_in(file: &File) -> io::Result<String> {
    let mut room = vec![0; 512];
    loop {
        let length = file.read_at(&mut room, 0)?;
        if length < room.len() {
            room.truncate(length);
            let text = String::from_utf8(room).map_err(io::Error::other)?;
            return Ok(text.trim_end().to_owned());
        }
        room.resize(room.len() * 16, 0); // the kernel ends it: from 4 MiB on it gives ENOMEM
    }
}

fn cannot_set(key: &str, value: &str, source: io::Error) -> Error {
    Error::new("set the sysctl", format!("{key} to \"{}\"", value.escape_debug()), source)
}

/// Where `key` stands, if it is one: below `net/`, and not by any way round about.
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
    fn what_nobody_can_read_can_be_set() {
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

//! What a file is that has a name of ours.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

use cnikit_launcher::{MAX_LENGTH, is_launcher};
use cnikit_store::Directory;
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

use crate::whole::is_whole;

/// The mode of programs.
pub(crate) const PROGRAM_MODE: u32 = 0o755;
/// A word in each binary of ours, of any version.
const WORD: &[u8] = b"cnikit";
/// The longest binary in which it is looked for.
const LONGEST_BINARY: u64 = 1 << 27;

/// What has the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Nothing.
    Missing,
    /// The file that belongs there.
    Current,
    /// A whole file of another version of cnikit, or one with another mode.
    OtherVersion,
    /// A file that cannot be executed: it is empty, half-written, or has no permission to be executed.
    Broken,
    /// A whole file of another program, or a link.
    Foreign,
    /// A directory.
    Directory,
}

impl Standing {
    /// What is reported.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Standing::Missing => "it is missing",
            Standing::Current => "it is as it should be",
            Standing::OtherVersion => "it is of another version of cnikit, or has another mode",
            Standing::Broken => "it is empty, half-written or not executable",
            Standing::Foreign => "it is another program's",
            Standing::Directory => "it is a directory",
        }
    }
}

/// The kind of file that a name has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// A plugin's name.
    Launcher,
    /// `cni-plugins` or `cnitool`.
    Binary,
}

/// One state of a file: while it is written, it differs from one look to the next.
pub(crate) type Fingerprint = Option<(u64, u64, i64, i64, i64, i64)>;

/// What a file is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Observed {
    pub(crate) standing: Standing,
    pub(crate) fingerprint: Fingerprint,
}

/// Device and inode of files of version 0.1, of which each plugin's name was a hard link.
pub(crate) type Linked = Vec<(u64, u64)>;

/// The name that version 0.1 gave its next binary until all names were links to it.
pub(crate) const NEXT: &str = ".cnikit-next";

/// The files of version 0.1 that plugins' names can be hard links of.
pub(crate) fn linked(directory: &Directory, binary: &str) -> Result<Linked, String> {
    let mut found = Vec::new();
    for name in [binary, NEXT] {
        if let Opened::File(file) = open(directory, name)? {
            let facts = file.metadata().map_err(|error| error.to_string())?;
            if facts.nlink() > 1 {
                found.push((facts.dev(), facts.ino()));
            }
        }
    }
    Ok(found)
}

enum Opened {
    Nothing,
    Link,
    File(File),
}

fn open(directory: &Directory, name: &str) -> Result<Opened, String> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    match openat(directory, name, flags, Mode::empty()) {
        Ok(file) => Ok(Opened::File(file.into())),
        Err(Errno::ENOENT) => Ok(Opened::Nothing),
        Err(Errno::ELOOP | Errno::ENXIO) => Ok(Opened::Link),
        Err(errno) => Err(format!("open {}: {errno}", directory.path().join(name).display())),
    }
}

/// Looks at a name that should have this content.
pub(crate) fn look(
    directory: &Directory,
    name: &str,
    role: Role,
    wanted: &[u8],
    linked: &Linked,
) -> Result<Observed, String> {
    let without = |standing| Ok(Observed { standing, fingerprint: None });
    let file = match open(directory, name)? {
        Opened::Nothing => return without(Standing::Missing),
        Opened::Link => return without(Standing::Foreign),
        Opened::File(file) => file,
    };
    let failed = |error: std::io::Error| format!("read {}: {error}", directory.path().join(name).display());
    let facts = file.metadata().map_err(failed)?;
    if facts.is_dir() {
        return without(Standing::Directory);
    }
    if !facts.is_file() {
        return without(Standing::Foreign);
    }
    let times = [facts.mtime(), facts.mtime_nsec(), facts.ctime(), facts.ctime_nsec()];
    let fingerprint = Some((facts.ino(), facts.len(), times[0], times[1], times[2], times[3]));
    let standing = if linked.contains(&(facts.dev(), facts.ino())) && role == Role::Launcher {
        Standing::OtherVersion
    } else {
        standing_of(&file, facts.len(), facts.mode() & 0o7777, role, wanted).map_err(failed)?
    };
    Ok(Observed { standing, fingerprint })
}

fn standing_of(file: &File, length: u64, mode: u32, role: Role, wanted: &[u8]) -> std::io::Result<Standing> {
    let is_executable = mode & 0o111 != 0;
    if !is_executable || !is_whole(file, length) {
        return Ok(Standing::Broken);
    }
    let longest = match role {
        Role::Launcher => MAX_LENGTH,
        Role::Binary => LONGEST_BINARY,
    };
    if length > longest {
        return Ok(Standing::Foreign);
    }
    let mut content = vec![0; usize::try_from(length).unwrap_or(0)];
    match file.read_exact_at(&mut content, 0) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(Standing::Broken),
        Err(error) => return Err(error),
    }
    if content == wanted {
        return Ok(if mode == PROGRAM_MODE { Standing::Current } else { Standing::OtherVersion });
    }
    let is_ours = match role {
        Role::Launcher => is_launcher(&content),
        Role::Binary => has_word(&content),
    };
    Ok(if is_ours { Standing::OtherVersion } else { Standing::Foreign })
}

fn has_word(content: &[u8]) -> bool {
    content.windows(WORD.len()).any(|window| window == WORD)
}

/// Whether a file is of this project, whatever its version: a launcher, or a hard link of version 0.1.
pub(crate) fn is_ours(directory: &Directory, name: &str, linked: &Linked) -> Result<bool, String> {
    let found = look(directory, name, Role::Launcher, &[], linked)?.standing;
    Ok(found == Standing::OtherVersion)
}

/// Whether a binary, `cni-plugins` or `cnitool`, is ours. One that has no word of ours, or is a link, is not.
pub(crate) fn is_our_binary(directory: &Directory, name: &str) -> Result<bool, String> {
    let Opened::File(file) = open(directory, name)? else { return Ok(false) };
    let failed = |error: std::io::Error| format!("read {}: {error}", directory.path().join(name).display());
    let facts = file.metadata().map_err(failed)?;
    if !facts.is_file() || facts.len() > LONGEST_BINARY {
        return Ok(false);
    }
    let mut content = vec![0; usize::try_from(facts.len()).unwrap_or(0)];
    file.read_exact_at(&mut content, 0).map_err(failed)?;
    Ok(has_word(&content))
}

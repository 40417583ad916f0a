//! Puts one file in place: a complete temporary file in the same directory, then one rename.

use std::fs::{File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use cnikit_store::Directory;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, fsync, linkat, unlinkat};

use crate::kernel;

/// The beginning and the end of the names of temporary files. No runtime reads such a name: it has a dot in front, and ends like no
/// network list.
const TEMPORARY: [&str; 2] = [".cnikit-tmp-", ".new"];
/// The directory of the files that were replaced.
pub(crate) const KEPT: &str = ".replaced-by-cnikit";
/// The longest file of another program that is copied where it cannot get a second name.
const LONGEST_COPY: usize = 1 << 30;

/// A complete file under a temporary name, on the disk. Unless it gets its name, it is removed.
#[derive(Debug)]
pub(crate) struct Staged<'a> {
    directory: &'a Directory,
    name: String,
    temporary: String,
    is_placed: bool,
}

/// Writes a file under a temporary name. It gets the SELinux label of the file that it will replace, otherwise the directory's.
pub(crate) fn stage<'a>(directory: &'a Directory, name: &str, content: &[u8], mode: u32) -> Result<Staged<'a>, String> {
    let temporary = format!("{}{name}{}", TEMPORARY[0], TEMPORARY[1]);
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        format!("{what} {}: {error}", directory.path().join(&temporary).display())
    };
    remove(directory, &temporary)?;
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let file = openat(directory, temporary.as_str(), flags, Mode::from_bits_truncate(0o600));
    let mut file = File::from(file.map_err(|errno| failed("create", &errno))?);
    let staged = Staged { directory, name: name.to_owned(), temporary: temporary.clone(), is_placed: false };
    file.write_all(content).map_err(|error| failed("write", &error))?;
    file.set_permissions(Permissions::from_mode(mode)).map_err(|error| failed("chmod", &error))?;
    copy_label(directory, name, &file)?;
    file.sync_all().map_err(|error| failed("sync", &error))?;
    Ok(staged)
}

impl Staged<'_> {
    /// Renames it over the file of its name.
    pub(crate) fn place(mut self) -> Result<(), String> {
        renameat(self.directory, self.temporary.as_str(), self.directory, self.name.as_str())
            .map_err(|errno| format!("rename {} to {}: {errno}", self.shown(&self.temporary).display(), self.name))?;
        self.is_placed = true;
        Ok(())
    }

    fn shown(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        if !self.is_placed {
            // What cannot be removed now is removed by the next run.
            let _ = unlinkat(self.directory, self.temporary.as_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
}

/// Opens a file to read it; `None` if it does not exist or is no regular file.
fn open(directory: &Directory, name: &str) -> Result<Option<File>, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    match openat(directory, name, flags, Mode::empty()) {
        Ok(file) => Ok(Some(file.into())),
        Err(Errno::ENOENT | Errno::ELOOP | Errno::ENXIO) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Without the right label SELinux would not let the runtime execute the file. A container's files have a label of their own.
fn copy_label(directory: &Directory, name: &str, file: &File) -> Result<(), String> {
    let failed = |errno: Errno| format!("SELinux label of {}: {errno}", directory.path().join(name).display());
    let wanted = match open(directory, name).map_err(failed)? {
        Some(replaced) => kernel::label(&replaced).map_err(failed)?,
        None => kernel::label(directory).map_err(failed)?,
    };
    let Some(wanted) = wanted else { return Ok(()) };
    let own = kernel::label(file).map_err(failed)?;
    if own.as_deref().map(type_of) == Some(type_of(&wanted)) {
        return Ok(());
    }
    kernel::set_label(file, &wanted).map_err(failed)
}

/// The type in a label, `user:role:type:level`: it alone decides who may execute a file.
fn type_of(label: &[u8]) -> &[u8] {
    label.split(|byte| *byte == b':').nth(2).unwrap_or(label)
}

/// Opens the directory of replaced files; makes it if asked to.
pub(crate) fn kept_directory(directory: &Directory, make: bool) -> Result<Option<Directory>, String> {
    let path = directory.path().join(KEPT);
    let failed = |errno: Errno| format!("open directory {}: {errno}", path.display());
    if make {
        match mkdirat(directory, KEPT, Mode::from_bits_truncate(0o755)) {
            Ok(()) => fsync(directory).map_err(failed)?,
            Err(Errno::EEXIST) => {}
            Err(errno) => return Err(failed(errno)),
        }
    }
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    match openat(directory, KEPT, flags, Mode::empty()) {
        Ok(file) => Directory::of_descriptor(file, path).map(Some).map_err(|error| error.to_string()),
        Err(Errno::ENOENT) if !make => Ok(None),
        Err(errno) => Err(failed(errno)),
    }
}

/// Gives a file a second name in the directory of replaced files, before another file gets its name.
pub(crate) fn keep(directory: &Directory, name: &str) -> Result<(), String> {
    let Some(kept) = kept_directory(directory, true)? else { return Ok(()) };
    let temporary = format!("{}{name}{}", TEMPORARY[0], TEMPORARY[1]);
    let failed = |errno: Errno| format!("keep {} in {KEPT}: {errno}", directory.path().join(name).display());
    remove(&kept, &temporary)?;
    match linkat(directory, name, &kept, temporary.as_str(), AtFlags::empty()) {
        Ok(()) => {}
        // Some file systems have no hard links.
        Err(Errno::EPERM | Errno::EOPNOTSUPP | Errno::EXDEV | Errno::EMLINK) => {
            return copy(directory, name, &kept);
        }
        Err(errno) => return Err(failed(errno)),
    }
    renameat(&kept, temporary.as_str(), &kept, name).map_err(failed)?;
    // A rename of one name of a file over another one of its names does nothing.
    remove(&kept, &temporary)?;
    fsync(&kept).map_err(failed)
}

fn copy(directory: &Directory, name: &str, kept: &Directory) -> Result<(), String> {
    let Some((content, _)) = directory.read(name, LONGEST_COPY).map_err(|error| error.to_string())? else {
        return Ok(());
    };
    let failed = |errno: Errno| format!("keep {} in {KEPT}: {errno}", directory.path().join(name).display());
    let flags = AtFlags::AT_SYMLINK_NOFOLLOW;
    let mode = nix::sys::stat::fstatat(directory, name, flags).map_err(failed)?.st_mode & 0o7777;
    stage(kept, name, &content, mode)?.place()?;
    fsync(kept).map_err(failed)
}

/// Removes a file; its absence is not an error.
pub(crate) fn remove(directory: &Directory, name: &str) -> Result<bool, String> {
    directory.remove(name).map_err(|error| error.to_string())
}

/// Removes the temporary files that a killed run left. The caller has the lock.
pub(crate) fn remove_temporaries(directory: &Directory) -> Result<(), String> {
    for name in temporaries(directory)? {
        remove(directory, &name)?;
    }
    Ok(())
}

/// The names of temporary files. Those of version 0.1 end otherwise.
pub(crate) fn temporaries(directory: &Directory) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    for name in directory.list().map_err(|error| error.to_string())? {
        if let Ok(name) = name.into_string()
            && name.starts_with(TEMPORARY[0])
        {
            found.push(name);
        }
    }
    Ok(found)
}

/// Writes the names of a directory to the disk.
pub(crate) fn sync(directory: &Directory) -> Result<(), String> {
    fsync(directory).map_err(|errno| format!("sync {}: {errno}", directory.path().display()))
}

/// Gives a file a second name in its own directory.
pub(crate) fn keep_beside(directory: &Directory, name: &str, second: &str) -> Result<(), String> {
    let temporary = format!("{}{second}{}", TEMPORARY[0], TEMPORARY[1]);
    let failed = |errno: Errno| format!("keep {} as {second}: {errno}", directory.path().join(name).display());
    remove(directory, &temporary)?;
    linkat(directory, name, directory, temporary.as_str(), AtFlags::empty()).map_err(failed)?;
    renameat(directory, temporary.as_str(), directory, second).map_err(failed)?;
    remove(directory, &temporary)?;
    Ok(())
}

/// Whether a replaced file of this name is kept.
pub(crate) fn is_kept(directory: &Directory, name: &str) -> Result<bool, String> {
    let Some(kept) = kept_directory(directory, false)? else { return Ok(false) };
    Ok(kept.facts(name).map_err(|error| error.to_string())?.is_some())
}

/// Renames a kept file over its name; returns whether there was one.
pub(crate) fn put_back(directory: &Directory, name: &str) -> Result<bool, String> {
    let Some(kept) = kept_directory(directory, false)? else { return Ok(false) };
    match renameat(&kept, name, directory, name) {
        Ok(()) => Ok(true),
        Err(Errno::ENOENT) => Ok(false),
        Err(errno) => Err(format!("put back {}: {errno}", directory.path().join(name).display())),
    }
}

/// Removes the directory of replaced files, if nothing is in it.
pub(crate) fn remove_kept_directory(directory: &Directory) -> Result<(), String> {
    match unlinkat(directory, KEPT, UnlinkatFlags::RemoveDir) {
        Ok(()) | Err(Errno::ENOENT | Errno::ENOTEMPTY | Errno::EEXIST) => Ok(()),
        Err(errno) => Err(format!("remove {}: {errno}", directory.path().join(KEPT).display())),
    }
}

/// Renames a file within its directory.
pub(crate) fn rename(directory: &Directory, from: &str, to: &str) -> Result<(), String> {
    renameat(directory, from, directory, to)
        .map_err(|errno| format!("rename {} to {to}: {errno}", directory.path().join(from).display()))
}

//! Removes the plugins, and puts back what they replaced.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use cnikit_launcher::PROGRAM;
use cnikit_process::Deadline;
use cnikit_store::Directory;
use nix::fcntl::AtFlags;
use nix::sys::stat::fstatat;

use crate::attachments;
use crate::flags::Flags;
use crate::install::{LOCK, Locked, TOOL_KEPT, Uninterrupted, Waiting, withdraw_list};
use crate::network_list::{RECORD, Record};
use crate::node::Places;
use crate::place::{self, KEPT};
use crate::root::{Absent, Root, Trust};
use crate::sources::TOOL;
use crate::standing::{Linked, NEXT, is_our_binary, is_ours, linked};

/// How long launchers that were started before their names were removed have to execute the binary.
const GRACE: Duration = Duration::from_secs(1);
/// The longest time that one of them is waited for.
const LONGEST_GRACE: Duration = Duration::from_secs(10);

/// A directory of plugins in which cnikit is installed.
struct Installed {
    directory: Directory,
    /// The names that are ours.
    names: Vec<String>,
    /// The names of kept files.
    kept: Vec<String>,
}

/// Uninstalls; returns what was done, line by line.
pub(crate) fn uninstall(flags: &Flags) -> Result<Vec<String>, String> {
    let root = Root::open(&flags.root, flags.trusted)?;
    let places = Places::find(&root, flags)?;
    let waiting = Waiting { limit: flags.wait, is_given_up: &|| false };
    let mut lines = Vec::new();
    let mut installed = Vec::new();
    for path in &places.plugins {
        if let Some(directory) = root.directory(path, Absent::Report, Trust::OwnerOnly)? {
            installed.extend(survey(directory)?);
        }
    }
    let mut networks = match &places.networks {
        Some(path) => root.directory(path, Absent::Report, Trust::OwnerOnly)?,
        None => None,
    };
    let record = match &networks {
        Some(directory) => Record::read(directory)?,
        None => None,
    };
    if let Some(directory) = &networks
        && record.is_none()
        && !has_remains(directory)?
    {
        networks = None;
    }
    if installed.is_empty() && networks.is_none() {
        let dirs: Vec<String> = places.plugins.iter().map(|path| root.shown(path).display().to_string()).collect();
        return Err(format!("cnikit is not installed in {}", dirs.join(" or ")));
    }
    let mut directories: Vec<&Directory> = installed.iter().map(|one| &one.directory).collect();
    directories.extend(&networks);
    let _locked = Locked::take(directories, &waiting)?;
    if !flags.is_forced {
        refuse_orphans(&root, flags, &installed)?;
    }
    let _uninterrupted = Uninterrupted::begin()?;
    // First the list: without it the runtime starts no container with plugins that are about to go.
    if let Some(directory) = &networks {
        remove_list(directory, record.as_ref(), &mut lines)?;
    }
    for one in &installed {
        remove_plugins(one, &mut lines)?;
    }
    if let Some(path) = &places.tools
        && let Some(directory) = root.directory(path, Absent::Report, Trust::GroupToo)?
    {
        remove_tool(&directory, &mut lines)?;
    }
    Ok(lines)
}

fn remove_list(directory: &Directory, record: Option<&Record>, lines: &mut Vec<String>) -> Result<(), String> {
    place::remove_temporaries(directory)?;
    if let Some(record) = record {
        let shown = directory.path().join(&record.name);
        if withdraw_list(directory, record)? {
            lines.push(format!("removed {}", shown.display()));
        } else {
            lines.push(format!("{} was changed since: it stays", shown.display()));
        }
        place::remove(directory, RECORD)?;
    }
    place::remove_kept_directory(directory)?;
    place::sync(directory)
}

/// What is ours in a directory; `None` if cnikit is not installed there.
fn survey(directory: Directory) -> Result<Option<Installed>, String> {
    let of_0_1 = linked(&directory, PROGRAM)?;
    let mut names = Vec::new();
    let mut has_binary = false;
    for name in directory.list().map_err(|error| error.to_string())? {
        let Ok(name) = name.into_string() else { continue };
        if name == PROGRAM || name == NEXT {
            has_binary = true;
        } else if !name.starts_with('.') && is_ours(&directory, &name, &of_0_1)? {
            names.push(name);
        }
    }
    names.sort();
    let kept = kept_names(&directory)?;
    let is_installed = has_binary || !names.is_empty() || !kept.is_empty() || has_remains(&directory)?;
    Ok(is_installed.then_some(Installed { directory, names, kept }))
}

/// Whether a run that was killed has left something.
fn has_remains(directory: &Directory) -> Result<bool, String> {
    let has_lock = directory.facts(LOCK).map_err(|error| error.to_string())?.is_some();
    Ok(has_lock || !place::temporaries(directory)?.is_empty() || place::kept_directory(directory, false)?.is_some())
}

fn kept_names(directory: &Directory) -> Result<Vec<String>, String> {
    let Some(kept) = place::kept_directory(directory, false)? else { return Ok(Vec::new()) };
    place::remove_temporaries(&kept)?;
    let mut names = Vec::new();
    for name in kept.list().map_err(|error| error.to_string())? {
        names.extend(name.into_string().ok());
    }
    names.sort();
    Ok(names)
}

/// Refuses if attachments would be left that no plugin can delete.
fn refuse_orphans(root: &Root, flags: &Flags, installed: &[Installed]) -> Result<(), String> {
    let mut lost = BTreeSet::new();
    for one in installed {
        lost.extend(one.names.iter().filter(|name| !one.kept.contains(name)).cloned());
    }
    for one in installed {
        for name in lost.clone() {
            let is_left = one.kept.contains(&name)
                || (!one.names.contains(&name)
                    && one.directory.facts(&name).map_err(|error| error.to_string())?.is_some());
            if is_left {
                lost.remove(&name);
            }
        }
    }
    if lost.is_empty() {
        return Ok(());
    }
    let cached = attachments::find(root, &flags.cache_dirs)?;
    let orphans: Vec<&str> = cached.iter().filter(|one| one.needs_any(&lost)).map(|one| one.text.as_str()).collect();
    if orphans.is_empty() {
        return Ok(());
    }
    let plugins: Vec<&str> = lost.iter().map(String::as_str).collect();
    Err(format!(
        "no plugin would be left to delete these attachments (network, container, interface):\n  {}\n\
         lost would be {}; hint: delete the containers, or install other plugins first, or use --force",
        orphans.join("\n  "),
        plugins.join(" ")
    ))
}

fn remove_plugins(one: &Installed, lines: &mut Vec<String>) -> Result<(), String> {
    let directory = &one.directory;
    place::remove_temporaries(directory)?;
    // It may have changed while this waited for the lock.
    let of_0_1 = linked(directory, PROGRAM)?;
    let started = identities(directory, &one.names);
    let mut has_changed = false;
    for name in kept_names(directory)? {
        let shown = directory.path().join(&name);
        if is_free(directory, &name, &of_0_1)? {
            place::put_back(directory, &name)?;
            lines.push(format!("put back {}", shown.display()));
            has_changed = true;
        } else {
            lines.push(format!(
                "{} was replaced since: it stays, and what was there before cnikit stays in {}",
                shown.display(),
                directory.path().join(KEPT).display()
            ));
        }
    }
    for name in &one.names {
        if is_ours(directory, name, &of_0_1)? {
            place::remove(directory, name)?;
            lines.push(format!("removed {}", directory.path().join(name).display()));
            has_changed = true;
        }
    }
    place::sync(directory)?;
    if has_changed {
        wait_for_launchers(&started);
    }
    place::remove(directory, NEXT)?;
    if !place::put_back(directory, PROGRAM)? {
        place::remove(directory, PROGRAM)?;
    }
    place::remove_kept_directory(directory)?;
    place::sync(directory)?;
    lines.push(format!("cnikit is removed from {}", directory.path().display()));
    Ok(())
}

/// Whether a kept file can get its name back: nothing has it, or our file, or the kept file itself.
fn is_free(directory: &Directory, name: &str, of_0_1: &Linked) -> Result<bool, String> {
    if name == PROGRAM {
        return Ok(false);
    }
    let failed = |error: cnikit_store::Error| error.to_string();
    let Some(found) = directory.facts(name).map_err(failed)? else { return Ok(true) };
    if let Some(kept) = place::kept_directory(directory, false)?
        && kept.facts(name).map_err(failed)?.is_some_and(|facts| facts.inode == found.inode)
    {
        // Two names of one file: a rename would leave both.
        place::remove(directory, name)?;
        return Ok(true);
    }
    is_ours(directory, name, of_0_1)
}

/// Device and inode of files.
fn identities(directory: &Directory, names: &[String]) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    for name in names {
        if let Ok(facts) = fstatat(directory, name.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
            found.push(identity(facts.st_dev, facts.st_ino));
        }
    }
    found
}

/// The type of an inode number has 32 bits on some processors.
fn identity<I: Into<u64>>(device: u64, inode: I) -> (u64, u64) {
    (device, inode.into())
}

/// A launcher that was started before its name was removed still has to execute the binary, which takes it microseconds.
fn wait_for_launchers(started: &[(u64, u64)]) {
    let deadline = Deadline::after(LONGEST_GRACE);
    let is_running = || {
        let Ok(processes) = std::fs::read_dir("/proc") else { return false };
        for process in processes.flatten() {
            if let Ok(program) = std::fs::metadata(process.path().join("exe"))
                && started.contains(&(program.dev(), program.ino()))
            {
                return true;
            }
        }
        false
    };
    // Processes of other containers, and those that are about to execute it, are not seen.
    while deadline.pause(GRACE) && is_running() {}
}

fn remove_tool(directory: &Directory, lines: &mut Vec<String>) -> Result<(), String> {
    let shown = directory.path().join(TOOL);
    if directory.facts(TOOL_KEPT).map_err(|error| error.to_string())?.is_some() {
        place::rename(directory, TOOL_KEPT, TOOL)?;
        lines.push(format!("put back {}", shown.display()));
    } else if is_our_binary(directory, TOOL)? {
        place::remove(directory, TOOL)?;
        lines.push(format!("removed {}", shown.display()));
    }
    place::sync(directory)
}

//! Moves this process into namespaces of its own, so that the plugin cannot change the machine's network.

use std::fs;
use std::path::{Path, PathBuf};

use cnikit_testkit::{namespaces_hint, settle_in};
use nix::mount::{MsFlags, mount};
use nix::sched::CloneFlags;
use nix::unistd::{getegid, geteuid};

/// Moves this process, which has one thread, into new namespaces: network, mount, and without root a user namespace in which it is
/// root (`user_namespaces(7)`). `/run` and these directories of state are empty there.
///
/// # Errors
/// The machine does not allow it, or a directory of state would have to be made in `/`, which cannot be replaced by a private one.
pub(crate) fn enter(state: &[PathBuf]) -> Result<(), String> {
    if let Some(one) = state.iter().find(|one| !is_possible(one)) {
        let why = "it does not exist, and neither does any directory above it";
        return Err(format!("--state {}: {why}; hint: create it, or name one below /run or /var", one.display()));
    }
    let uid = geteuid();
    let gid = getegid();
    let mut flags = CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS;
    if !uid.is_root() {
        flags |= CloneFlags::CLONE_NEWUSER;
    }
    #[expect(
        clippy::disallowed_methods,
        reason = "it is no plugin: it makes the namespaces that plugins are tested in"
    )]
    nix::sched::unshare(flags).map_err(|error| format!("new namespaces: {error}; hint: {}", namespaces_hint()))?;
    if !uid.is_root() {
        let maps = [("uid_map", format!("0 {uid} 1")), ("gid_map", format!("0 {gid} 1"))];
        for (file, text) in [("setgroups", "deny".to_owned())].into_iter().chain(maps) {
            let path = Path::new("/proc/self").join(file);
            fs::write(&path, text).map_err(|error| format!("write {}: {error}", path.display()))?;
        }
    }
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>)
        .map_err(|error| format!("make / private: {error}"))?;
    settle_in(state);
    Ok(())
}

fn is_possible(state: &Path) -> bool {
    state.is_absolute() && (state.is_dir() || state.ancestors().find(|parent| parent.is_dir()) != Some(Path::new("/")))
}

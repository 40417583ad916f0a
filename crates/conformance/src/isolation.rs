//! Moves this process into namespaces of its own, so that the plugin cannot change the machine's network.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use nix::sched::CloneFlags;
use nix::unistd::{getegid, geteuid};

/// Moves this process, which has one thread, into new namespaces: network, mount, and without root a user namespace in which it is
/// root (`user_namespaces(7)`). `/run` and these directories of state are empty there.
///
/// # Errors
/// The machine does not allow it.
pub(crate) fn enter(state: &[PathBuf]) -> Result<(), String> {
    let (uid, gid) = (geteuid(), getegid());
    let mut flags = CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS;
    if !uid.is_root() {
        flags |= CloneFlags::CLONE_NEWUSER;
    }
    #[expect(
        clippy::disallowed_methods,
        reason = "it is not a plugin: it makes the namespaces that plugins are tested in"
    )]
    nix::sched::unshare(flags).map_err(|error| {
        let hint = "run it as root, or allow user namespaces: the sysctls user.max_user_namespaces, \
                    kernel.unprivileged_userns_clone and kernel.apparmor_restrict_unprivileged_userns";
        format!("new namespaces: {error}; hint: {hint}")
    })?;
    if !uid.is_root() {
        for (file, text) in
            [("setgroups", "deny".to_owned()), ("uid_map", format!("0 {uid} 1")), ("gid_map", format!("0 {gid} 1"))]
        {
            let path = Path::new("/proc/self").join(file);
            fs::write(&path, text).map_err(|error| format!("write {}: {error}", path.display()))?;
        }
    }
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>)
        .map_err(|error| format!("make / private: {error}"))?;
    cover(Path::new("/run"))?;
    // As the first `ip netns add` makes it; otherwise that of one test would appear in the snapshots of another.
    let netns = Path::new("/run/netns");
    fs::create_dir_all(netns).map_err(|error| format!("create {}: {error}", netns.display()))?;
    bind(netns, netns, MsFlags::MS_BIND)?;
    mount(None::<&str>, netns, None::<&str>, MsFlags::MS_SHARED, None::<&str>)
        .map_err(|error| format!("share {}: {error}", netns.display()))?;
    state.iter().try_for_each(|dir| make_private(dir))
}

/// Mounts an empty directory in memory over this one.
fn cover(dir: &Path) -> Result<(), String> {
    mount(Some("tmpfs"), dir, Some("tmpfs"), MsFlags::empty(), Some("mode=0755"))
        .map_err(|error| format!("mount a tmpfs over {}: {error}", dir.display()))
}

fn bind(from: &Path, to: &Path, flags: MsFlags) -> Result<(), String> {
    mount(Some(from), to, None::<&str>, flags, None::<&str>)
        .map_err(|error| format!("mount {} over {}: {error}", from.display(), to.display()))
}

/// Makes a directory empty for this process. If it does not exist, it is created in a copy in memory of its closest parent, whose
/// entries stay visible.
fn make_private(dir: &Path) -> Result<(), String> {
    if dir.is_dir() {
        return cover(dir);
    }
    let parent = dir.ancestors().find(|parent| parent.is_dir()).unwrap_or_else(|| Path::new("/"));
    let real = Path::new("/run").join(format!("real-{}", dir.display().to_string().replace('/', "-")));
    let failed = |error: io::Error| format!("make {} private: {error}", parent.display());
    fs::create_dir_all(&real).map_err(failed)?;
    bind(parent, &real, MsFlags::MS_BIND | MsFlags::MS_REC)?;
    cover(parent)?;
    for entry in fs::read_dir(&real).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let place = parent.join(entry.file_name());
        let kind = entry.file_type().map_err(failed)?;
        if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(entry.path()).map_err(failed)?, place).map_err(failed)?;
            continue;
        }
        if kind.is_dir() {
            fs::create_dir(&place).map_err(failed)?;
        } else {
            fs::write(&place, "").map_err(failed)?;
        }
        bind(&entry.path(), &place, MsFlags::MS_BIND | MsFlags::MS_REC)?;
    }
    fs::create_dir_all(dir).map_err(failed)
}

//! Make and remove namespaces, for tools and tests; whoever only works in one gets it from its runtime.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process;

use nix::mount::{MntFlags, MsFlags};
use nix::sched::CloneFlags;

use crate::visit::{HERE, on_a_thread};
use crate::{Error, Netns};

/// Makes a namespace and mounts it on `path`, a new file, as `ip netns add` does. It lives until [`remove`].
#[doc(alias = "ip netns add")]
pub fn fresh(path: &Path) -> Result<Netns, Error> {
    let failed = |source| Error::new("make the network namespace", path.display().to_string(), source);
    OpenOptions::new().write(true).create_new(true).mode(0o444).open(path).map_err(failed)?;
    let mounted = on_a_thread(|| leave_for_a_new_one().and_then(|()| mount_here_on(path)));
    match mounted.map_err(failed).and_then(|()| Netns::open(path)) {
        Ok(netns) => Ok(netns),
        Err(error) => {
            // The first error is the one to tell; that the way back fails too would only hide it.
            let _ = remove(path);
            Err(error)
        }
    }
}

/// Makes a namespace that has no name and ends with the last clone of what is returned.
///
/// Its path is `/proc/PID/fd/N`, by which programs that we start find it as well.
#[doc(alias = "unshare")]
pub fn anonymous() -> Result<Netns, Error> {
    let made = on_a_thread(|| leave_for_a_new_one().and_then(|()| File::open(HERE)));
    let file = made.map_err(|source| Error::new("make", "a network namespace", source))?;
    let path = PathBuf::from(format!("/proc/{}/fd/{}", process::id(), file.as_raw_fd()));
    Ok(Netns::held(file.into(), path))
}

/// Removes what [`fresh`] or `ip netns add` made. The namespace itself lives on while anything else holds it.
///
/// A file that has content and is no mount is not ours: an error, and it stays.
#[doc(alias = "ip netns delete")]
pub fn remove(path: &Path) -> Result<(), Error> {
    unmount(path)
        .and_then(|()| fs::remove_file(path))
        .map_err(|source| Error::new("remove the network namespace", path.display().to_string(), source))
}

fn unmount(path: &Path) -> io::Result<()> {
    match nix::mount::umount2(path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
        // An empty file without a mount is what a kill half-way through `fresh`, or a reboot, leaves.
        Err(nix::Error::EINVAL) if fs::symlink_metadata(path)?.len() == 0 => Ok(()),
        result => Ok(result?),
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the room")]
fn leave_for_a_new_one() -> io::Result<()> {
    Ok(nix::sched::unshare(CloneFlags::CLONE_NEWNET)?)
}

fn mount_here_on(path: &Path) -> io::Result<()> {
    Ok(nix::mount::mount(Some(HERE), path, None::<&str>, MsFlags::MS_BIND, None::<&str>)?)
}

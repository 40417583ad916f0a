//! Make and remove namespaces, for tools and tests. A plugin gets its namespace from the runtime.

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

/// Creates a namespace and mounts it on `path`, a new file, as `ip netns add` does. It exists until [`remove`].
///
/// # Errors
/// `path` exists or cannot be created, unshare(2) or mount(2) fails (both need `CAP_SYS_ADMIN`), or the kernel refuses a
/// thread. The file is removed then.
#[doc(alias = "ip netns add")]
pub fn fresh(path: &Path) -> Result<Netns, Error> {
    let failed = |source| Error::new("make the network namespace", path.display().to_string(), source);
    OpenOptions::new().write(true).create_new(true).mode(0o444).open(path).map_err(failed)?;
    let mounted = on_a_thread(|| unshare_netns().and_then(|()| mount_own_on(path)));
    match mounted.map_err(failed).and_then(|()| Netns::open(path)) {
        Ok(netns) => Ok(netns),
        Err(error) => {
            // The first error is the one to report; an error of the clean-up would only hide it.
            let _ = remove(path);
            Err(error)
        }
    }
}

/// Creates a namespace without a name, which ends with the last clone of the returned value.
///
/// Its path is `/proc/PID/fd/N`, which programs that this process starts can open too.
///
/// # Errors
/// unshare(2) fails (it needs `CAP_SYS_ADMIN`), or the kernel refuses a thread or a descriptor.
#[doc(alias = "unshare")]
pub fn anonymous() -> Result<Netns, Error> {
    let made = on_a_thread(|| unshare_netns().and_then(|()| File::open(HERE)));
    let file = made.map_err(|source| Error::new("make", "a network namespace", source))?;
    let path = PathBuf::from(format!("/proc/{}/fd/{}", process::id(), file.as_raw_fd()));
    Ok(Netns::held(file.into(), path))
}

/// Removes the file and the mount that [`fresh`] or `ip netns add` made. The namespace itself exists as long as anything else
/// holds it.
///
/// # Errors
/// `path` does not exist, or umount(2) or unlink(2) fails. A file that has content and is not a mount point does not belong to a
/// namespace: that is an error, and the file is not removed.
#[doc(alias = "ip netns delete")]
pub fn remove(path: &Path) -> Result<(), Error> {
    unmount(path)
        .and_then(|()| fs::remove_file(path))
        .map_err(|source| Error::new("remove the network namespace", path.display().to_string(), source))
}

fn unmount(path: &Path) -> io::Result<()> {
    match nix::mount::umount2(path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
        // An empty file without a mount remains after a reboot, or after a kill in the middle of `fresh`.
        Err(nix::Error::EINVAL) if fs::symlink_metadata(path)?.len() == 0 => Ok(()),
        result => Ok(result?),
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the room")]
fn unshare_netns() -> io::Result<()> {
    Ok(nix::sched::unshare(CloneFlags::CLONE_NEWNET)?)
}

fn mount_own_on(path: &Path) -> io::Result<()> {
    Ok(nix::mount::mount(Some(HERE), path, None::<&str>, MsFlags::MS_BIND, None::<&str>)?)
}

//! An open network namespace.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, fstat};
use nix::sys::statfs::{NSFS_MAGIC, fstatfs};

use crate::visit::{HERE, visit};
use crate::{Error, Inside, kernel};

/// A network namespace, kept alive by an open file. Clones share that file.
#[derive(Clone, Debug)]
pub struct Netns {
    held: Arc<Held>,
    path: PathBuf,
}

/// The file, and the cookie once it was read: a namespace keeps its cookie as long as it exists.
#[derive(Debug)]
struct Held {
    file: OwnedFd,
    cookie: OnceLock<u64>,
}

impl Netns {
    /// Opens the namespace at `path`, a bind mount like those of `ip netns` or a `/proc/PID/ns/net`.
    ///
    /// The type of the file is checked before the file is opened, so that a pipe does not block and no device is disturbed.
    /// [`crate::find()`] distinguishes the errors.
    ///
    /// # Errors
    /// There is no file at `path` ([`Error::is_absent`]), it may not be opened, or it is something else: a plain file, a
    /// directory, a namespace of another type.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let failed = |source: io::Error| Error::new("open the network namespace", path.display().to_string(), source);
        let place = locate(path).map_err(failed)?;
        check_file_system(&place).map_err(failed)?;
        let file = reopen(&place).map_err(failed)?;
        check_type(file.as_fd()).map_err(failed)?;
        Ok(Self::held(file.into(), path.to_owned()))
    }

    /// The namespace that the calling thread is in.
    ///
    /// # Errors
    /// As [`Netns::open`]: `/proc` is not mounted, or no descriptor is free.
    pub fn own() -> Result<Self, Error> {
        Self::open(format!("/proc/self/task/{}/ns/net", nix::unistd::gettid()))
    }

    /// A placeholder for the namespace at `path`, for callers that never enter it; `path` is not opened. To enter it is an error.
    ///
    /// # Errors
    /// `/dev/null` cannot be opened.
    pub fn unopened(path: impl AsRef<Path>) -> Result<Self, Error> {
        let failed = |source: io::Error| Error::new("open", "/dev/null".to_owned(), source);
        let file = File::open("/dev/null").map_err(failed)?;
        Ok(Self::held(file.into(), path.as_ref().to_owned()))
    }

    pub(crate) fn held(file: OwnedFd, path: PathBuf) -> Self {
        Self { held: Arc::new(Held { file, cookie: OnceLock::new() }), path }
    }

    /// The path by which it was opened; by now it may lead to something else.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether both are the same namespace; `false` if fstat(2) fails.
    ///
    /// Equal device and inode numbers are proof, because both namespaces exist while they are compared.
    pub fn is(&self, other: &Netns) -> bool {
        match (fstat(&self.held.file), fstat(&other.held.file)) {
            (Ok(one), Ok(other)) => (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino),
            _ => false,
        }
    }

    /// Whether this is the namespace that the calling thread is in.
    ///
    /// Equal device and inode numbers are proof, because both namespaces exist while they are compared.
    ///
    /// # Errors
    /// fstat(2) fails, or the link to the calling thread's namespace in `/proc` cannot be read.
    pub fn is_own(&self) -> Result<bool, Error> {
        let failed =
            |errno: nix::Error| Error::new("identify the network namespace", self.path.display().to_string(), errno);
        let this = fstat(&self.held.file).map_err(failed)?;
        let own = fs::metadata(HERE).map_err(|source| Error::new("identify", HERE, source))?;
        Ok((wide(this.st_dev), wide(this.st_ino)) == (own.dev(), own.ino()))
    }

    /// The kernel's number of this namespace, which is unique until the next boot (`SO_NETNS_COOKIE`, Linux 5.14).
    ///
    /// With [`crate::boot_id`] it identifies a namespace; the path and the inode number do not.
    ///
    /// # Errors
    /// The namespace cannot be entered ([`Netns::enter`]), or the kernel does not support cookies.
    #[doc(alias = "SO_NETNS_COOKIE")]
    pub fn cookie(&self) -> Result<u64, Error> {
        if let Some(cookie) = self.held.cookie.get() {
            return Ok(*cookie);
        }
        let cookie = self.enter(|_| kernel::cookie_here())?.map_err(|source| {
            let operation = "read the cookie (SO_NETNS_COOKIE, since Linux 5.14) of the network namespace";
            Error::new(operation, self.path.display().to_string(), source)
        })?;
        Ok(*self.held.cookie.get_or_init(|| cookie))
    }

    /// Reads the cookie from a socket that was opened inside the namespace, so that [`Netns::cookie`] does not have to enter it. An
    /// error is left to that.
    #[doc(alias = "SO_NETNS_COOKIE")]
    pub fn learn_cookie(&self, socket: impl AsFd) {
        if self.held.cookie.get().is_none()
            && let Ok(cookie) = kernel::cookie_of(socket.as_fd())
        {
            let _ = self.held.cookie.set(cookie); // another thread may have set the same
        }
    }

    /// The cookie ([`Netns::cookie`]) as text, or device and inode number if the kernel does not support cookies (before Linux
    /// 5.14). No other namespace has the same name while this value exists.
    ///
    /// # Errors
    /// The namespace cannot be entered, or it cannot be identified. A kernel without cookies is not an error.
    pub fn name_while_held(&self) -> Result<String, Error> {
        // If the calling thread is in this namespace, it does not have to enter it.
        let cookie = if self.held.cookie.get().is_none() && self.is_own()? {
            kernel::cookie_here().map_err(|source| Error::new("read the cookie of", HERE, source))
        } else {
            self.cookie()
        };
        self.named_by(cookie)
    }

    fn named_by(&self, cookie: Result<u64, Error>) -> Result<String, Error> {
        match cookie {
            Ok(cookie) => Ok(cookie.to_string()),
            Err(error) if error.errno() == Some(libc::ENOPROTOOPT) => {
                let failed = |errno: nix::Error| {
                    Error::new("identify the network namespace", self.path.display().to_string(), errno)
                };
                let found = fstat(&self.held.file).map_err(failed)?;
                Ok(format!("{}-{}", found.st_dev, found.st_ino))
            }
            Err(error) => Err(error),
        }
    }

    /// Since when the namespace has been held without interruption, by a bind mount, an open file or anything else: nanoseconds
    /// since the epoch, modulo 2^64. Its inode on nsfs is created when it is first held, and freed when nothing holds it any more.
    ///
    /// # Errors
    /// fstat(2) fails.
    pub fn held_since(&self) -> Result<u64, Error> {
        let failed = |errno| Error::new("inspect the network namespace", self.path.display().to_string(), errno);
        let found = fstat(&self.held.file).map_err(failed)?;
        let (seconds, nanoseconds): (i64, i64) = (wide(found.st_ctime), wide(found.st_ctime_nsec));
        Ok(seconds.wrapping_mul(1_000_000_000).wrapping_add(nanoseconds).cast_unsigned())
    }

    /// The inode number, and [`Netns::held_since`]: for kernels without cookies ([`Netns::cookie`]).
    ///
    /// What has both numbers of a namespace is that namespace, and was held all the time. What has another inode number is another
    /// namespace. What has the same inode number and is held since later may be either.
    ///
    /// # Errors
    /// fstat(2) fails.
    pub fn hold(&self) -> Result<(u64, u64), Error> {
        let failed = |errno| Error::new("inspect the network namespace", self.path.display().to_string(), errno);
        let found = fstat(&self.held.file).map_err(failed)?;
        Ok((wide(found.st_ino), self.held_since()?))
    }

    /// Runs `work` inside the namespace and returns what it returned. See setns(2).
    ///
    /// If the process has other threads, a new thread enters, runs `work` and ends. If the calling thread is the only one, it
    /// enters itself and has returned to its own namespace when this returns. A panic of `work` continues in the caller, outside.
    ///
    /// # Errors
    /// The namespace cannot be entered: setns(2) fails (it needs `CAP_SYS_ADMIN`), or no thread can be started. `work` has not
    /// run then.
    #[doc(alias = "setns")]
    pub fn enter<T: Send>(&self, work: impl FnOnce(&Inside) -> T + Send) -> Result<T, Error> {
        visit(&self.held.file, work)
            .map_err(|source| Error::new("enter the network namespace", self.path.display().to_string(), source))
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.held.file.as_fd()
    }
}

/// Opens `path` with `O_PATH`, which does not open the file itself. The standard library's options are not used: with musl they
/// take `O_PATH` for an access mode, and drop it.
fn locate(path: &Path) -> io::Result<File> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    Ok(open(path.as_c_str(), OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?.into())
}

/// Returns an error if the file is not on nsfs, by the magic of its file system. The file has not been opened for reading.
fn check_file_system(place: &File) -> io::Result<()> {
    let magic = fstatfs(place)?.filesystem_type();
    if magic == NSFS_MAGIC {
        return Ok(());
    }
    let sort = if place.metadata()?.is_dir() { "a directory" } else { "a file" };
    Err(not_a_netns(&format!("it is {sort} (file system {:#x})", magic.0)))
}

/// Opens for reading the file that [`locate`] found, even if its path leads to another one by now.
///
/// Without `/proc` the kernel's error would be "no such file", as if the namespace did not exist.
fn reopen(place: &File) -> io::Result<File> {
    File::open(format!("/proc/thread-self/fd/{}", place.as_raw_fd()))
        .map_err(|error| io::Error::other(format!("it exists, but cannot be opened by way of /proc: {error}")))
}

/// Returns an error if the namespace is of another type than network.
fn check_type(file: BorrowedFd<'_>) -> io::Result<()> {
    match kernel::namespace_type(file)? {
        libc::CLONE_NEWNET => Ok(()),
        other => Err(not_a_netns(&format!("it is a namespace of another type: {}", type_name(other)))),
    }
}

fn not_a_netns(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

/// The name that `/proc/PID/ns` and lsns(8) use for a type of namespace.
fn type_name(kind: libc::c_int) -> &'static str {
    match kind {
        libc::CLONE_NEWNS => "mnt",
        libc::CLONE_NEWCGROUP => "cgroup",
        libc::CLONE_NEWUTS => "uts",
        libc::CLONE_NEWIPC => "ipc",
        libc::CLONE_NEWUSER => "user",
        libc::CLONE_NEWPID => "pid",
        _ => "unknown",
    }
}

/// A number of the C library, whose type has 32 bits on some processors.
fn wide<N: Into<W>, W>(number: N) -> W {
    number.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_cookie_and_where_the_kernel_has_none_device_and_inode() {
        let own = Netns::own().unwrap();
        assert_eq!(own.name_while_held().unwrap(), kernel::cookie_here().unwrap().to_string());
        let refused = |errno: i32| Err(Error::new("read", HERE, io::Error::from_raw_os_error(errno)));
        let found = fs::metadata(HERE).unwrap();
        assert_eq!(own.named_by(refused(libc::ENOPROTOOPT)).unwrap(), format!("{}-{}", found.dev(), found.ino()));
        assert_eq!(own.named_by(refused(libc::EMFILE)).unwrap_err().errno(), Some(libc::EMFILE), "and nothing else is");
    }
}

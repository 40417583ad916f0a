//! Make TAP devices: the ioctls of `/dev/net/tun`.
//!
//! A TAP device is an interface whose other end is a file: a program, such as a virtual machine monitor, opens `/dev/net/tun`,
//! attaches to the device by its name, and reads and writes Ethernet frames. See `Documentation/networking/tuntap.rst` of the
//! kernel.
//!
//! - [`NewTap::create`] makes a device in the namespace that the caller is inside.
//! - [`Tap`] holds it. Until [`Tap::persist`], the kernel destroys the device when the [`Tap`] is dropped or its process ends.
//! - [`available`] checks that devices can be made.
//!
//! Design decision: an existing device is never attached to. Without `IFF_TUN_EXCL` the kernel would hand over an existing device
//! of the same name, with its owner, its alias and its addresses.
//!
//! # Example
//!
//! ```no_run
//! use cnikit_netns::Netns;
//! use cnikit_tun::NewTap;
//!
//! let wanted = NewTap { name: "tap0".to_owned(), multi_queue: false, vnet_hdr: false };
//! let tap = Netns::open("/run/netns/guest")?.enter(|inside| wanted.create(inside))??;
//! tap.set_owner(107)?;
//! tap.persist()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod kernel;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};

use cnikit_netns::Inside;

pub use error::Error;
use kernel::Setting;

/// The file by which TAP devices are made and attached to.
pub const NODE: &str = "/dev/net/tun";
/// Its device number: `MISC_MAJOR` and `TUN_MINOR` of the kernel's `miscdevice.h`.
const NUMBER: (u32, u32) = (10, 200);

/// A TAP device to be made. Frames have no packet information in front of them (`IFF_NO_PI`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTap {
    /// Its name.
    pub name: String,
    /// Several files may attach to it at the same time, each with a queue of its own. It cannot be changed later.
    #[doc(alias = "IFF_MULTI_QUEUE")]
    pub multi_queue: bool,
    /// Frames have a `virtio_net_hdr` in front of them. Each program that attaches to the device chooses this anew.
    #[doc(alias = "IFF_VNET_HDR")]
    pub vnet_hdr: bool,
}

/// A TAP device that this process has made, with a queue of it.
#[derive(Debug)]
pub struct Tap {
    file: File,
    name: String,
}

impl NewTap {
    /// Makes the device, which is down at first, in the namespace that the caller is inside. The kernel takes the namespace in
    /// which `/dev/net/tun` is opened; what is done with the file later has its effect there too.
    ///
    /// # Errors
    /// The name is taken ([`Error::exists`]) or is not one that the kernel accepts, `/dev/net/tun` cannot be opened
    /// ([`Error::no_device`]), or `CAP_NET_ADMIN` is missing.
    #[doc(alias = "TUNSETIFF")]
    pub fn create(&self, inside: &Inside) -> Result<Tap, Error> {
        let tap = self.open(inside)?;
        self.create_on(tap.file.as_fd())?;
        Ok(tap)
    }

    /// Opens `/dev/net/tun`. The device is made by [`NewTap::create_on`], in this process or in another one that has the file.
    ///
    /// # Errors
    /// As [`available`].
    pub fn open(&self, _inside: &Inside) -> Result<Tap, Error> {
        Ok(Tap { file: open()?, name: self.name.clone() })
    }

    /// Makes the device on an open `/dev/net/tun`. It gets the SELinux label of this process.
    ///
    /// # Errors
    /// As [`NewTap::create`].
    pub fn create_on(&self, file: BorrowedFd<'_>) -> Result<(), Error> {
        let failed = |source: io::Error| Error::new("create tap", &self.name, source);
        // The kernel would choose a number for `%d`.
        if self.name.contains('%') {
            return Err(failed(io::Error::from_raw_os_error(libc::EINVAL)));
        }
        let mut flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_TUN_EXCL;
        if self.multi_queue {
            flags |= libc::IFF_MULTI_QUEUE;
        }
        if self.vnet_hdr {
            flags |= libc::IFF_VNET_HDR;
        }
        kernel::create(file, &self.name, flags).map_err(failed)
    }
}

impl Tap {
    /// Lets this user attach to the device without `CAP_NET_ADMIN`; 0 is root. If a group is set too, a user has to be both the
    /// owner and a member of the group. If neither is set, every user may.
    ///
    /// # Errors
    /// The kernel refuses the number: -1, or one that has no meaning in the caller's user namespace.
    #[doc(alias = "TUNSETOWNER")]
    pub fn set_owner(&self, uid: u32) -> Result<(), Error> {
        self.set(Setting::Owner(uid), "set owner of tap")
    }

    /// Lets the members of this group attach to the device; see [`Tap::set_owner`].
    ///
    /// # Errors
    /// As [`Tap::set_owner`].
    #[doc(alias = "TUNSETGROUP")]
    pub fn set_group(&self, gid: u32) -> Result<(), Error> {
        self.set(Setting::Group(gid), "set group of tap")
    }

    /// Makes the device stay when no file is attached to it any more.
    ///
    /// # Errors
    /// The device is gone (`EBADFD`).
    #[doc(alias = "TUNSETPERSIST")]
    pub fn persist(&self) -> Result<(), Error> {
        self.set(Setting::Persist(true), "make persistent tap")
    }

    fn set(&self, setting: Setting, operation: &'static str) -> Result<(), Error> {
        kernel::set(self.file.as_fd(), setting).map_err(|source| Error::new(operation, &self.name, source))
    }
}

/// The open `/dev/net/tun`, for the process that makes the device.
impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Checks that `/dev/net/tun` can be opened. The kernel loads its module if needed.
///
/// # Errors
/// It cannot ([`Error::no_device`]), or it is another file.
pub fn available() -> Result<(), Error> {
    open().map(drop)
}

/// Opens `/dev/net/tun`. Another file at that path is refused.
fn open() -> Result<File, Error> {
    let failed = |source: io::Error| Error::new("open", NODE, source);
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW | libc::O_CLOEXEC);
    let file = options.open(NODE).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    let number = (libc::major(found.rdev()), libc::minor(found.rdev()));
    if found.file_type().is_char_device() && number == NUMBER {
        return Ok(file);
    }
    let (major, minor) = NUMBER;
    let why = format!("it is not the character device {major}:{minor}");
    Err(failed(io::Error::new(io::ErrorKind::InvalidInput, why)))
}

//! Open, create, enter and identify Linux network namespaces, and read and write the sysctls inside them.
//!
//! Parts, in reading order:
//!
//! - [`Netns`]: an open namespace, with its identity; [`find()`] opens one by path and distinguishes what can be wrong with
//!   the path.
//! - [`Netns::enter`] and [`Inside`]: run code inside a namespace. Only code that runs inside has an [`Inside`].
//! - [`sysctl`]: settings below `/proc/sys`, which need an [`Inside`].
//! - [`NetnsScan`]: which namespaces are still in use by any process of the machine.
//!
//! Design decision: a namespace is identified by its cookie ([`Netns::cookie`], `SO_NETNS_COOKIE`) and the boot
//! ([`boot_id`]), never by its path or inode number. A path can lead to another namespace later, and the kernel reuses
//! inode numbers at once.
//!
//! # Example
//!
//! Read a sysctl inside a namespace, if it exists:
//!
//! ```
//! use cnikit_netns::{NetnsLookup, find, sysctl};
//!
//! match find("/run/netns/blue") {
//!     NetnsLookup::Present(netns) => {
//!         let forwarding = netns.enter(|inside| sysctl::read(inside, "net/ipv4/ip_forward"))??;
//!         println!("net.ipv4.ip_forward = {forwarding}");
//!     }
//!     NetnsLookup::Gone => println!("there is no such namespace"),
//!     other => println!("it cannot be used: {other:?}"),
//! }
//! assert!(matches!(find("/proc/self/ns/mnt"), NetnsLookup::NotNetns { .. }));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod boot;
mod error;
mod find;
mod inside;
mod kernel;
pub mod make;
mod mounted;
mod netns;
mod scan;
pub mod sysctl;
mod visit;

pub use boot::{boot_id, machine_id};
pub use error::Error;
pub use find::{NetnsLookup, find};
pub use inside::Inside;
pub use mounted::{mounted, of_processes};
pub use netns::Netns;
pub use scan::{NetnsScan, NetnsStatus, Scope};
pub use visit::{disregard_thread, is_only_thread};

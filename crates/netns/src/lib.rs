//! Open, make, enter and recognise a network namespace; sysctl, which needs to be inside.
//!
//! [`Netns::enter`] lets work run inside; no other thread of the process is ever in the wrong place for it, and the calling
//! one is where it was when that returns or panics. What must run inside takes an [`Inside`], which only a thread that is
//! there can hold.
//!
//! A namespace has no name. Its path may be dangling, or meanwhile lead to another one, and its inode number is given
//! to a newcomer at once; what tells one from another until the next boot ([`boot_id`]) is [`Netns::cookie`].

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

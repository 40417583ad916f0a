//! Addresses reserved in files, one a file, in a directory that other programs share.
//!
//! The directory is the reference's host-local's: a file an address, in it who holds it; `last_reserved_ip.N`; `lock`. All
//! that is true stands there, and whoever takes the lock may change it. Beside it lies an index, which knows who holds what
//! without reading every file: ADD and DEL cost the same with none and with 65,000 reserved. It is believed only while it
//! is known to be complete, and a hit only if the file agrees; lost, torn or outrun by others, it is made anew.
//!
//! [`Store`] is the door: `acquire`, `release`, `give_back`, `confirm`, `sweep`, `health` for a plugin; `survey` and `reclaim`
//! for who looks after a node.
#![forbid(unsafe_code)]

mod allocation;
mod allocator;
mod boot;
mod error;
mod files;
mod index;
mod ledger;
mod owner;
mod range;
mod range_set;
mod record;
mod request;
mod survey;

pub use allocator::{Health, Store, TIMEOUT};
pub use boot::Boot;
pub use error::{Error, ErrorKind};
pub use owner::Owner;
pub use range::{Range, RangeConfig};
pub use range_set::RangeSet;
pub use request::{Allocation, AllocationRequest};
pub use survey::{Holder, Reservation};

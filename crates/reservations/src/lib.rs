//! Reserve addresses in files, in the format of upstream's host-local: both can use one directory at the same time.
//!
//! Parts, in reading order:
//!
//! - [`Store`]: reserve and release addresses: `acquire`, `release`, `give_back`, `confirm`, `sweep`, `health` for a
//!   plugin, `survey` and `reclaim` for tools.
//! - [`LockedStore`]: the same store while its lock is held, for callers that have more to read under it.
//! - [`CoolingFile`]: released addresses, if they are not to be given again for a while.
//! - [`RangeConfig`] and the range sets made from it: the addresses of a network.
//! - [`Error`]: why an address could not be reserved, with a hint.
//!
//! Design decision: the files are the truth, one per address with its owner as content, and any program that holds the lock
//! may change them. An index beside the directory makes ADD and DEL take the same time with no and with 65,000
//! reservations. It is used only if the directory has not changed since the index was written, and an entry only if its
//! file agrees; otherwise the index is rebuilt.
//!
//! # Example
//!
//! Reserve an address, and release it:
//!
//! ```
//! use std::time::Duration;
//!
//! use cnikit_reservations::{AllocationRequest, Owner, RangeConfig, RangeSet, Store, TIMEOUT};
//!
//! # let dir = tempfile::tempdir().unwrap();
//! let store = Store {
//!     data_dir: dir.path().to_owned(),
//!     network: "pods".to_owned(),
//!     boot: None,
//!     cooling: None,
//!     timeout: TIMEOUT,
//!     log: |warning| eprintln!("{warning}"),
//! };
//! let range = RangeConfig { subnet: "10.1.0.0/24".parse().ok(), ..RangeConfig::default() };
//! let owner = Owner::new("container-1", "eth0");
//! let request = AllocationRequest {
//!     owner: owner.clone(),
//!     sets: vec![RangeSet::try_from(&[range][..])?],
//!     wanted: Vec::new(),
//!     cooldown: Duration::ZERO,
//! };
//! let allocations = store.acquire(&request)?;
//! assert_eq!(allocations[0].address.to_string(), "10.1.0.2/24", "10.1.0.1 is the gateway");
//! assert!(dir.path().join("pods/10.1.0.2").exists());
//! assert_eq!(store.release(&owner)?, [allocations[0].address.ip()]);
//! # Ok::<(), cnikit_reservations::Error>(())
//! ```
#![forbid(unsafe_code)]

mod allocation;
mod allocator;
mod boot;
mod cooling;
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

pub use allocator::{Health, LockedStore, Store, TIMEOUT};
pub use boot::Boot;
pub use cooling::CoolingFile;
pub use error::{Error, ErrorKind};
pub use owner::Owner;
pub use range::{Range, RangeConfig};
pub use range_set::RangeSet;
pub use request::{Allocation, AllocationRequest};
pub use survey::{Holder, Reservation};

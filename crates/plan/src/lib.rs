//! The resources that an attachment needs, as data, and the engine that makes, verifies and removes them.
//!
//! Parts, in reading order:
//!
//! - [`Resource`]: one thing that an attachment needs. It can be made, compared, restored and described.
//! - [`Plan`]: resources in the order in which they are made.
//! - [`preflight`], [`apply`], [`verify`]: check, make and compare a plan. [`release`], [`sweep`]: remove resources for DEL and GC.
//! - [`Kind`]: the type of a resource, with the functions that remove it by tag.
//! - [`ApplyContext`], [`ReleaseContext`], [`GcContext`]: the data and sockets that a verb passes to resources and kinds.
//!
//! Design decision: ADD, CHECK and PLAN use plans; DEL and GC use kinds. By the time of a DEL the configuration may have
//! changed or be gone, so everything is found by the attachment's tag.
//!
//! # Example
//!
//! A new type of resource, and a plan with it:
//!
//! ```
//! use std::fmt;
//!
//! use cnikit_netlink::LinkChange;
//! use cnikit_plan::{ApplyContext, Drifts, Kind, Made, Plan, Resource};
//! use cnikit_skel::{Journal, Result};
//!
//! /// The length of the transmit queue of the container's interface.
//! struct QueueLength {
//!     ifname: String,
//!     packets: u32,
//! }
//!
//! impl Resource for QueueLength {
//!     fn kind(&self) -> Kind {
//!         Kind::goes_with_link("queue length")
//!     }
//!
//!     fn ensure(&self, context: &ApplyContext, _: &mut Journal) -> Result<Made> {
//!         let container = context.container()?;
//!         let index = container.link(&self.ifname)?.index;
//!         container.change(index, &LinkChange::default().tx_queue_length(self.packets))?;
//!         Ok(Made::nothing())
//!     }
//!
//!     fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
//!         let found = context.container()?.link(&self.ifname)?.tx_queue_length;
//!         drifts.compare("the queue length", self.packets, found);
//!         Ok(())
//!     }
//! }
//!
//! impl fmt::Display for QueueLength {
//!     fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
//!         write!(f, "queue length of {}: {}", self.ifname, self.packets)
//!     }
//! }
//!
//! let plan = Plan::of(QueueLength { ifname: "eth0".to_owned(), packets: 500 });
//! assert_eq!(plan.lines(), ["queue length of eth0: 500"]);
//! ```
#![forbid(unsafe_code)]

mod context;
mod engine;
mod list;
mod resource;
mod restore;
mod restore_batch;
mod shared;

pub use context::{ApplyContext, GcContext, ReleaseContext, may_be_there};
pub use engine::{apply, begin_release, preflight, release, sweep, verify};
pub use list::Plan;
pub use resource::{Drifts, Kind, Made, Resource};
pub use restore::{RestorePlan, restore, restore_all};
pub use restore_batch::{BatchPart, RestoreBatch, RestoreOutcome};
pub use shared::Shared;

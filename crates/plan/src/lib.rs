//! What an attachment needs, as data, and the engine that makes it, compares it and removes it.
//!
//! Parts, in reading order:
//!
//! - [`Resource`]: one thing that an attachment needs. It can be made, compared, restored and described.
//! - [`Plan`]: resources in the order in which they are made.
//! - [`engine`]: applies, verifies, restores and releases.
//! - [`Kind`]: the type of a resource, with the functions that remove it by tag.
//! - [`ApplyContext`], [`ReleaseContext`], [`GcContext`]: the sockets and facts that a verb gives to resources and kinds.
//!
//! Design decision: ADD, CHECK and PLAN use plans; DEL and GC use kinds. By the time of a DEL the configuration may have
//! changed or be gone, so everything is found by the attachment's tag.
#![forbid(unsafe_code)]

mod context;
pub mod engine;
mod list;
mod resource;
mod restore_batch;

pub use context::{ApplyContext, GcContext, ReleaseContext, may_be_there};
pub use engine::{apply, begin_release, preflight, release, restore, sweep, verify};
pub use list::Plan;
pub use resource::{Drifts, Kind, Made, Resource};
pub use restore_batch::{Decide, MakeAll, RestoreBatch, RestorePlan, Wanted, restore_all};

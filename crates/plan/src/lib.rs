//! What is wanted, and what carries it out.
//!
//! A [`Plan`] is a list of [`Resource`]s, values that say one thing each; the [`engine`] makes them true, compares them with
//! what is, or says them in words. DEL and GC do not look at plans: by then the configuration may have changed, so they
//! walk the plugin's [`Kind`]s and find everything by tag.
//!
//! This crate knows no kind. It stands between the protocol (which must not know netlink) and the kinds.
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

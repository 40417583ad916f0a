//! What is wanted, and what carries it out.
//!
//! A [`Plan`] is a list of [`Resource`]s, values that say one thing each; the [`engine`] makes them true, compares them with
//! what is, or says them in words. DEL and GC do not look at plans: by then the configuration may have changed, so they
//! walk the plugin's [`Kind`]s and find everything by tag.
//!
//! This crate knows no kind. It stands between the protocol (which must not know netlink) and the kinds.
#![forbid(unsafe_code)]

pub mod engine;
mod list;
mod resource;
mod scene;
mod together;

pub use engine::{apply, begin_release, judge, release, restore, sweep, verify};
pub use list::Plan;
pub use resource::{Drifts, Kind, Made, Resource};
pub use scene::{Remains, Scene, Stale, may_be_there};
pub use together::{Decide, MakeAll, Planned, Together, Wanted, restore_all};

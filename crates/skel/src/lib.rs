//! The CNI protocol, so that a plugin need not know it.
//!
//! A plugin is a type that implements [`Plugin`]; [`main`] does the rest: environment and stdin become a typed request
//! ([`request`]), everything that can be judged is judged before anything is touched, what is made is noted in a
//! [`Journal`] so that any failure undoes it, and exactly one JSON document leaves on stdout ([`reply`]).
//!
//! The straight line of a call is [`serve()`]: read that first.
#![forbid(unsafe_code)]

pub mod about;
pub mod delegate;
pub mod error;
mod hint;
pub mod input;
pub mod journal;
pub mod log;
pub mod node;
mod panic;
pub mod plugin;
pub mod registry;
pub mod reply;
pub mod request;
pub mod restore_batch;
pub mod serve;
pub mod sources;
pub mod tag;

pub use cnikit_netns::NetnsLookup;
pub use delegate::{Delegate, holds_already};
pub use error::{Error, Errors, Result, code};
pub use input::Input;
pub use journal::{Journal, Undo};
pub use node::NodePolicy;
pub use plugin::{DryRunReport, Plugin};
pub use registry::{Entry, Plugins, dispatch};
pub use request::{Add, AttachmentSpec, Call, Check, Del, DryRun, Gc, Request, Status, ValidAttachments};
pub use restore_batch::{RestoreEntry, each_by_itself};
pub use serve::{main, serve};
pub use sources::{KeySource, Sources};
pub use tag::AttachmentId;

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
pub mod input;
pub mod journal;
pub mod listed;
pub mod log;
pub mod node;
mod panic;
pub mod plugin;
pub mod registry;
mod remedy;
pub mod reply;
pub mod request;
pub mod serve;
pub mod sources;
pub mod tag;

pub use cnikit_netns::Found;
pub use delegate::{Delegate, holds_already};
pub use error::{Error, Errors, Result, code};
pub use input::Input;
pub use journal::{Journal, Undo};
pub use listed::{Listed, each_by_itself};
pub use node::NodePolicy;
pub use plugin::{Outline, Plugin};
pub use registry::{Entry, Plugins, dispatch};
pub use request::{Add, Attachment, Call, Check, Del, Gc, Preview, Request, Status, Valid};
pub use serve::{main, serve};
pub use sources::{Said, Sources};
pub use tag::Tag;

//! The CNI protocol for plugins: sections 2, 4 and 5 of the specification.
//!
//! Parts, in reading order:
//!
//! - [`serve()`]: the path of a call, from the environment to the exit status.
//! - [`Request`]: environment and stdin as a typed, validated request.
//! - [`Plugin`]: what a plugin implements; [`main`] is its `main` function.
//! - [`Journal`]: the steps that undo what a call has made.
//! - [`Delegate`]: other plugins that a plugin runs, such as its IPAM plugin.
//! - [`Error`]: an error and its code; an error or a result is the one JSON document on stdout.
//!
//! Design decision: a plugin is a type whose fields are its configuration. A value of it exists only if the configuration
//! is valid, so the methods of a verb have no invalid input to handle. DEL and GC get the type alone, because the
//! configuration may be invalid by then.
//!
//! # Example
//!
//! A plugin that passes on the result of the plugins before it, called in this process:
//!
//! ```
//! use cnikit_skel::{Add, Del, Input, Journal, Plugin, Result, serve};
//! use cnikit_types::CniResult;
//!
//! #[derive(serde::Deserialize)]
//! struct PassOn {}
//!
//! impl Plugin for PassOn {
//!     fn add(&self, add: &Add, _: &mut Journal) -> Result<CniResult> {
//!         Ok(add.prev.clone().unwrap_or_default())
//!     }
//!
//!     fn del(_: &Del) -> Result<()> {
//!         Ok(())
//!     }
//! }
//!
//! let mut input = Input::new("DEL", r#"{"cniVersion": "1.1.0", "name": "pods", "type": "pass-on"}"#);
//! input.container_id = "container-1".to_owned();
//! input.ifname = "eth0".to_owned();
//! input.path = "/opt/cni/bin".to_owned();
//! let mut stdout = Vec::new();
//! assert_eq!(serve::<PassOn>("pass-on", input, &[], &mut stdout), 0);
//! assert!(stdout.is_empty(), "DEL has no result");
//! ```
//!
//! A plugin's program is `fn main() -> ExitCode { cnikit_skel::main::<PassOn>() }`.
#![forbid(unsafe_code)]

pub mod about;
mod delegate;
mod entry;
mod error;
mod hint;
mod input;
mod journal;
pub mod log;
mod node;
mod panic;
mod plugin;
mod policy;
mod registry;
mod reply;
mod request;
mod restore_batch;
mod serve;
mod sources;
mod tag;
mod traits;

pub use cnikit_netns::NetnsLookup;
pub use delegate::{Delegate, holds_already};
pub use entry::{Command, Entry, Plugins, Role, Serve};
pub use error::{Error, Errors, Result, code};
pub use input::{Input, LogLevel, Observe, Stdin};
pub use journal::{Journal, Undo, each_by_itself};
pub use plugin::{DryRunReport, Plugin, UnknownKeys};
pub use policy::NodePolicy;
pub use registry::dispatch;
pub use request::{Add, AttachmentSpec, Call, Check, Del, DryRun, Gc, Request, RestoreEntry, Status, ValidSet};
pub use serve::{main, serve};
pub use sources::{KeySource, Sources};
pub use tag::AttachmentId;

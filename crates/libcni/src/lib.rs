//! The runtime side of CNI: load network lists, run their plugins, and cache results between ADD and DEL.
//!
//! Parts, in reading order:
//!
//! - [`load()`] and [`NetworkList`]: a network's configuration, found by name.
//! - [`Attachment`]: container, namespace, interface, arguments and capabilities of a call.
//! - [`Runtime`]: runs each verb for an attachment.
//! - [`Cache`]: the results of ADD, in upstream's directory and format, so that upstream's libcni and this one can delete
//!   attachments of each other.
//! - [`Networks`]: several networks of one container, with one [`Merged`] result.
//! - [`NetworkSelector`], [`Watcher`], [`Validator`]: select the networks of a directory that a runtime uses, report changes
//!   of the selection, and validate the files.
//!
//! Design decision: an attachment is recorded before its first plugin runs, and the record stays until every plugin's DEL
//! has succeeded. So a runtime that is killed leaks nothing, and a failing plugin does not stop the DEL of the others.
//!
//! Other differences from upstream's libcni: a plugin gets its configuration byte for byte as it is in the file. A file that
//! cannot be read is skipped with a warning, unless it is the requested one. Calls for one container run one after another,
//! and no other call runs in a network during its GC.
//!
//! `docs/runtime-authors.md` is the guide.
//!
//! # Example
//!
//! Attach a container to a network and detach it again. Programs in `/opt/cni/bin` would be called without the executor,
//! which replaces the plugin by a function:
//!
//! ```
//! use std::sync::Arc;
//!
//! use cnikit_libcni::{Attachment, Cache, InProcess, NetworkList, Runtime};
//!
//! # let state = tempfile::tempdir()?;
//! let list = NetworkList::parse(br#"{"cniVersion": "1.1.0", "name": "pods", "plugins": [{"type": "mine"}]}"#)?;
//! let mine = InProcess::default().with_served("mine", |call, stdout| {
//!     if call.environment.command == "ADD" {
//!         stdout.extend(br#"{"cniVersion": "1.1.0", "ips": [{"address": "10.1.0.5/24"}]}"#);
//!     }
//!     0
//! });
//! let runtime = Runtime { executor: Arc::new(mine), ..Runtime::new("/opt/cni/bin", Cache::below(state.path())) };
//!
//! let attachment = Attachment::new("container-1", "/run/netns/container-1");
//! let result = runtime.add(&list, &attachment)?;
//! assert_eq!(result["ips"][0]["address"], "10.1.0.5/24");
//! assert_eq!(runtime.cache.attachments()?.len(), 1);
//! runtime.del(&list, &attachment)?;
//! assert!(runtime.cache.attachments()?.is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod attachment;
mod cache;
mod config;
mod directory;
mod error;
mod runtime;

pub use attachment::Attachment;
pub use attachment::capability::Pod;
pub use cache::entry::CacheMetadata;
pub use cache::record::{CachedAttachment, State};
pub use cache::results::Cache;
pub use cache::summary::AttachmentSummary;
pub use cnikit_invoke::{Environment, Error as PluginError, PluginOutput};
pub use cnikit_process::{CancellationToken, Deadline};
pub use cnikit_types::{Bandwidth, IpRange, PortMapping, PortProtocol, RuntimeDns, ValidAttachment};
pub use config::list::{ListedPlugin, NetworkList};
pub use config::load::{EXTENSIONS, NetworkFile, conf_files, list_from_file, load};
pub use directory::plugin_keys::{PluginKey, PluginKeys};
pub use directory::select::{NetworkSelector, Reason, Selection, SelectionPolicy, SkippedFile};
pub use directory::subnets::RoutedSubnet;
pub use directory::validate::{Finding, Severity, Validator};
pub use directory::value_type::{StringForm, UnknownType, ValueType};
pub use directory::watch::Watcher;
pub use error::config_error::{ConfigError, SourceLocation};
pub use error::{Error, ErrorContext, Failure, FailureKind};
#[cfg(feature = "async")]
pub use runtime::background::Background;
pub use runtime::executor::{Executor, Function, InProcess, PluginCall, ProgramExecutor};
pub use runtime::handle::{Runtime, TraceContext, Warnings};
pub use runtime::limit::Slots;
pub use runtime::merged::{Merged, MergedInterface};
pub use runtime::networks::{Network, Networks};
pub use runtime::restore::Restored;
pub use runtime::verbs::PlannedSteps;

/// The page for authors of runtimes, so that its examples are run.
#[cfg(all(doctest, feature = "async"))]
#[doc = include_str!("../../../docs/runtime-authors.md")]
struct RuntimeAuthors;

//! The runtime side of CNI: network lists, chains of plugins, results kept between ADD and DEL.
//!
//! [`load()`] finds a [`NetworkList`] by its name, a [`Runtime`] carries out every verb of an [`Attachment`] with it,
//! and its [`Cache`] keeps what ADD answered, in the place and the form in which the reference keeps it, so that either
//! can delete what the other added. [`Networks`] is all that one container gets: many networks, each with its
//! interface, and one result.
//!
//! A [`NetworkSelector`] says which networks of a directory a runtime uses, as containerd, CRI-O or cri-dockerd choose them, a
//! [`Watcher`] when that changes, and a [`Validator`] what is wrong there. What is wrong in a file is a [`ConfigError`]:
//! line, column, key, hint.
//!
//! What differs from the reference on purpose: A plugin reads its configuration as it stands in the file, byte for
//! byte. A file that cannot be read is passed over with a warning unless it is the one that is wanted. DEL goes on
//! after a plugin failed, so that one broken plugin strands nothing of the others, goes by what ADD was given, and what
//! is kept stays until all have succeeded. What an ADD is about to do is noted before its first plugin runs, so that a
//! runtime that is killed leaks nothing. One container is worked on by one caller at a time, and GC has its network for
//! itself.
//!
//! `docs/runtime-authors.md` is the guide.
#![forbid(unsafe_code)]

mod cache;
mod config;
mod error;
mod runtime;

pub use cache::Cache;
pub use cache::entry::CacheMetadata;
pub use cache::record::{CachedAttachment, State};
pub use cache::summary::AttachmentSummary;
pub use cnikit_invoke::{Environment, Error as PluginError, PluginOutput};
pub use cnikit_process::{CancellationToken, Deadline};
pub use cnikit_types::{Bandwidth, IpRange, PortMapping, Protocol, RuntimeDns, ValidAttachment as Valid};
pub use config::error::ConfigError;
pub use config::list::{ListedPlugin, NetworkList};
pub use config::load::{EXTENSIONS, NetworkFile, conf_files, list_from_file, load};
pub use config::plugin_keys::PluginKeys;
pub use config::position::SourceLocation;
pub use config::select::{NetworkSelector, Reason, Selection, SelectionPolicy, SkippedFile};
pub use config::subnets::RoutedSubnet;
pub use config::validate::{Finding, Severity, Validator};
pub use config::watch::Watcher;
pub use error::{Error, ErrorContext, Failure, FailureKind};
pub use runtime::attachment::Attachment;
#[cfg(feature = "async")]
pub use runtime::background::Background;
pub use runtime::capability::Pod;
pub use runtime::executor::{Executor, Function, InProcess, PluginCall, ProgramExecutor};
pub use runtime::limit::Slots;
pub use runtime::merged::{Merged, MergedInterface};
pub use runtime::networks::{Network, Networks};
pub use runtime::restore::Restored;
pub use runtime::{PlannedSteps, Runtime, TraceContext, Warnings};

/// The page for authors of runtimes, so that its examples are run.
#[cfg(all(doctest, feature = "async"))]
#[doc = include_str!("../../../docs/runtime-authors.md")]
struct RuntimeAuthors;

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

mod attachment;
#[cfg(feature = "async")]
mod background;
mod cache;
mod cached;
mod capability;
mod chain;
mod config_error;
mod entry;
mod error;
mod executor;
mod file;
mod gc;
mod inotify;
mod known;
mod list;
mod load;
mod location;
mod lock;
mod merged;
mod networks;
mod restore;
mod runtime;
mod select;
mod slots;
mod splice;
mod subnets;
mod summary;
mod validate;
mod watch;

pub use attachment::Attachment;
#[cfg(feature = "async")]
pub use background::Background;
pub use cache::Cache;
pub use cached::{CachedAttachment, State};
pub use capability::Pod;
pub use cnikit_invoke::{Environment, Error as PluginError, PluginOutput};
pub use cnikit_process::{CancellationToken, Deadline};
pub use cnikit_types::{Bandwidth, IpRange, PortMapping, Protocol, RuntimeDns, ValidAttachment as Valid};
pub use config_error::ConfigError;
pub use entry::CacheMetadata;
pub use error::{Error, ErrorContext, Failure, FailureKind};
pub use executor::{Executor, Function, InProcess, PluginCall, ProgramExecutor};
pub use known::PluginKeys;
pub use list::{ListedPlugin, NetworkList};
pub use load::{EXTENSIONS, NetworkFile, conf_files, list_from_file, load};
pub use location::SourceLocation;
pub use merged::{Merged, MergedInterface};
pub use networks::{Network, Networks};
pub use restore::Restored;
pub use runtime::{PlannedSteps, Runtime, TraceContext, Warnings};
pub use select::{NetworkSelector, Reason, Selection, SelectionPolicy, SkippedFile};
pub use slots::Slots;
pub use subnets::RoutedSubnet;
pub use summary::AttachmentSummary;
pub use validate::{Finding, Severity, Validator};
pub use watch::Watcher;

/// The page for authors of runtimes, so that its examples are run.
#[cfg(all(doctest, feature = "async"))]
#[doc = include_str!("../../../docs/runtime-authors.md")]
struct RuntimeAuthors;

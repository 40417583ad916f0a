//! Find another CNI plugin and execute it, as sections 2 and 4 of the specification describe.
//!
//! Parts, in reading order:
//!
//! - [`find()`]: from a plugin's type to its file, on `CNI_PATH`.
//! - [`Environment`]: the variables of the protocol.
//! - [`exec()`]: starts the plugin, and returns its output or an [`Error`].
//!
//! Design decision: a plugin's type is a name and never a path, and it is looked up on `CNI_PATH` only, so a network's
//! configuration cannot choose which program root runs. A relative directory of `CNI_PATH` is used only if no user but root
//! and the caller can write there.
//!
//! An [`Error`] distinguishes whether the plugin refused (its own code and message are preserved), died, could not be started, or
//! did not finish in time. What the plugin writes to stderr is passed on to our stderr, and its last lines are part of the
//! error.
//!
//! # Example
//!
//! Ask a plugin for the versions that it supports:
//!
//! ```
//! use std::time::Duration;
//!
//! use cnikit_invoke::{Environment, Error, exec, find};
//! use cnikit_process::Deadline;
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().to_str().ok_or("not UTF-8")?;
//! # let file = dir.path().join("mine");
//! # std::fs::write(&file, "#!/bin/sh\necho '{\"cniVersion\": \"1.1.0\", \"supportedVersions\": [\"1.1.0\"]}'\n")?;
//! # std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
//! let plugin = find("mine", path)?;
//! let environment = Environment { command: "VERSION".to_owned(), path: path.to_owned(), ..Environment::default() };
//! let stdin = br#"{"cniVersion": "1.1.0"}"#;
//! let output = exec(&plugin, &environment, stdin, Deadline::after(Duration::from_secs(5)))?;
//! assert!(String::from_utf8(output.stdout)?.contains("supportedVersions"));
//!
//! assert!(matches!(find("../mine", path), Err(Error::Name { .. })));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod exec;
mod find;
mod tail;
mod trust;

pub use error::Error;
pub use exec::{Caller, EXEC_TIMEOUT, Environment, PluginOutput, exec, exec_cancellable};
pub use find::find;
pub use tail::tail;
pub use trust::{absolute_path, is_writable_by_others, parts_on_the_way, writable_by_anyone};

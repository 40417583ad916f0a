//! Locked, atomic small files.
//!
//! A [`Directory`] is resolved once, symbolic links included, and held open; every later operation is relative to that
//! descriptor, so another process cannot replace the directory while a caller holds its lock.
//!
//! Design decision: a file that other processes may read is never seen half-written. A new file is written without a name and
//! linked into the directory when it is complete ([`Directory::create`]); the kernel decides at that moment whether the name is
//! taken. A file that changes is written under another name and renamed ([`Directory::replace`]). The one exception is
//! [`Directory::rewrite`], for hints of a few bytes that their readers check anyway, because it is twenty times as fast.
//!
//! The next caller can handle every state that a kill at any instruction leaves. A file without a name is deleted with its
//! descriptor. A temporary file is locked while it is written; if it is not locked, the next writer uses it. The kernel
//! releases a lock when its process ends.
//!
//! # Example
//!
//! Replace a file under a lock, so that readers see the old or the new content:
//!
//! ```
//! use std::time::Duration;
//!
//! use cnikit_store::Directory;
//!
//! # let base = tempfile::tempdir()?;
//! # let path = base.path().join("state");
//! let directory = Directory::make(&path, 0o700)?;
//! let lock = directory.lock("lock", 0o600, Duration::from_secs(10))?;
//! directory.replace("settings.json", b"{}", 0o600)?;
//! drop(lock);
//!
//! let (content, facts) = directory.read("settings.json", 1 << 20)?.ok_or("there is no such file")?;
//! assert_eq!((content.as_slice(), facts.size), (&b"{}"[..], 2));
//! assert!(directory.read("../settings.json", 1 << 20).is_err(), "no name leads out of the directory");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod change_stamp;
mod directory;
mod error;
mod facts;
mod file;
mod file_time;
mod lock;
mod private;
mod replace;
mod unnamed_file;
mod version;

pub use change_stamp::ChangeStamp;
pub use directory::Directory;
pub use error::Error;
pub use facts::Facts;
pub use file::read;
pub use file_time::FileTime;
pub use lock::{Lock, WeakLock};
pub use private::PrivateDirectory;
pub use version::check_version;

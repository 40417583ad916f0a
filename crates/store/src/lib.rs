//! Locked, atomic small files.
//!
//! A [`Directory`] is resolved once, a symbolic link included, and pinned by a descriptor; every later operation is relative
//! to that descriptor, so nobody can swap the directory under a caller that holds its lock.
//!
//! The decision this crate is built on: **a file that others may read is never seen half-written.** A new file is written
//! without a name and linked in when it is whole ([`Directory::create`]); that the name is taken is the kernel's answer, not
//! a look beforehand. A file that changes is written under another name and renamed ([`Directory::replace`]). The one
//! exception is [`Directory::rewrite`], for hints of a few bytes that their readers check anyway, because it is twenty times
//! as fast.
//!
//! Every state that a kill at any instruction can leave is one that the next caller gets over: a file without a name goes
//! with its descriptor, a temporary file is locked while it lives and taken over when it is not, and a lock is the kernel's
//! and goes with its process.
#![forbid(unsafe_code)]

mod change_stamp;
mod directory;
mod error;
mod facts;
mod file;
mod lock;
mod private;
mod replace;
mod unnamed_file;

pub use change_stamp::{ChangeStamp, FileTime};
pub use directory::Directory;
pub use error::Error;
pub use facts::Facts;
pub use file::read;
pub use lock::{Lock, WeakLock};
pub use private::PrivateDirectory;

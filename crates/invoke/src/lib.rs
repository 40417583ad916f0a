//! Find another plugin and ask it: names, `CNI_PATH`, request, answer or error.
//!
//! A name is a name and never a path, and it is found on `CNI_PATH` only: a configuration cannot choose what root runs.
//! An error is told apart as finely as it can be known: the plugin refused (its own code and words are kept), it died
//! without a word, it could not be started, it did not finish in time. What it wrote to stderr goes to our stderr, and
//! its last lines into the error.

mod error;
mod exec;
mod find;
mod tail;
mod trust;

pub use error::Error;
pub use exec::{Caller, Environment, PluginOutput, TIMEOUT, exec, exec_cancellable};
pub use find::find;
pub use tail::tail;
pub use trust::{absolute_path, parts_on_the_way, writable_by_anyone};

//! Read and change the sources of firewalld's zones over D-Bus.
//!
//! [`Firewalld`] is a connection to the system bus with the calls that plugins need: query, add and remove a source.
//!
//! Design decision: a small blocking client of our own. A handful of calls with text arguments takes two hundred lines,
//! never waits longer than its deadline, and needs neither an async runtime nor a C library. It never makes the bus start
//! firewalld: whether firewalld runs is the operator's choice.
//!
//! # Example
//!
//! Put a container's address into a zone if firewalld runs:
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use cnikit_firewalld::Firewalld;
//! use cnikit_process::Deadline;
//!
//! let deadline = Deadline::after(Duration::from_secs(5));
//! if let Some(mut firewalld) = Firewalld::connect(None, deadline)?
//!     && firewalld.is_running()?
//! {
//!     firewalld.add_source("trusted", "10.1.0.5/32".parse()?)?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod address;
mod bus;
mod error;
mod firewalld;
mod message;
#[doc(hidden)]
pub mod wire;

pub use error::{Cause, Error, Result};
pub use firewalld::Firewalld;

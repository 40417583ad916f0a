//! Read and change the sources of firewalld's zones over D-Bus.
//!
//! [`Firewalld`] is a connection to the system bus with the calls that plugins need: which zone has an address, and add or
//! remove one.
//!
//! Design decision: a small blocking client of our own. A handful of calls with text arguments takes two hundred lines,
//! never waits longer than its deadline, and needs neither an async runtime nor a C library. It never makes the bus start
//! firewalld: whether firewalld runs is the operator's choice.

mod address;
mod bus;
mod error;
mod firewalld;
mod message;
#[doc(hidden)]
pub mod wire;

pub use error::{Cause, Error, Result};
pub use firewalld::Firewalld;

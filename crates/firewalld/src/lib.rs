//! The zones of firewalld, asked and changed over D-Bus.
//!
//! [`Firewalld`] is a connection to the system's bus, and what firewalld can be told there about the sources of its zones.
//!
//! *Design.* A handful of calls with texts in them, each awaited: a client of our own takes two hundred lines for that, waits
//! no longer than its deadline whoever is silent, and needs neither an async runtime nor a library of C. It never has the bus
//! start firewalld: whether it runs is the operator's choice.

mod address;
mod bus;
mod error;
mod firewalld;
mod message;
#[doc(hidden)]
pub mod wire;

pub use error::{Cause, Error, Result};
pub use firewalld::Firewalld;

//! The environment of a test: hosts and containers of its own, plugins under test, snapshots, and features of the kernel.

pub mod firewalld;
pub mod host;
pub mod need;
pub(crate) mod shared_state;
pub mod snapshot;
pub mod subject;

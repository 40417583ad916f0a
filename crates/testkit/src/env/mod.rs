//! The environment of a test: hosts and containers of its own, plugins under test, snapshots, and features of the kernel.

pub mod firewalld;
pub(crate) mod shared_state;
pub mod subject;

pub(crate) use cnikit_testing::{host, snapshot};

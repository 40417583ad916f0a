//! The environment of a test: hosts and containers of its own, plugins under test, snapshots, and features of the kernel.

pub mod firewalld;
pub(crate) mod shared_state;
pub mod subject;

pub(crate) mod host {
    pub(crate) use cnikit_testing::{Container, Host};
}

pub(crate) mod snapshot {
    pub(crate) use cnikit_testing::{HINTS, HostSnapshot, line_contains};
}

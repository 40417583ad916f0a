//! Where tests run: hosts and containers of their own, the plugins under test, what is on a host, and what a kernel lacks.

pub mod firewalld;
pub mod host;
pub mod need;
pub mod snapshot;
pub mod subject;

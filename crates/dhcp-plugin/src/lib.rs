//! The IPAM plugin dhcp: the addresses of an attachment come from a DHCP server of the network that its interface is in.
//!
//! A lease has to be renewed, and a plugin lives for milliseconds. So a daemon holds the leases (`dhcp daemon`, see
//! [`cnikit_dhcp_daemon`]), and the plugin calls it by a socket. The keys under `ipam` are those of [`DhcpPlugin`].
//!
//! - ADD asks for a lease, and waits for it: at most `timeout` seconds. The server's DNS servers, domains and routes are in the
//!   result; the interface gets the server's MTU if the configuration has none and it is smaller.
//! - DEL gives the lease back. If no daemon runs, that is noted in `dataDir`, and the next daemon makes it good.
//! - CHECK compares the lease with the interface. STATUS fails if no daemon runs. GC gives back what is not valid.
//!
//! # Example
//!
//! The program of the plugin and the daemon:
//!
//! ```no_run
//! fn main() -> std::process::ExitCode {
//!     cnikit_dhcp_plugin::main()
//! }
//! ```
#![forbid(unsafe_code)]

mod configuration;
mod plugin;

use std::process::ExitCode;

use cnikit::Ipam;

pub use configuration::DhcpPlugin;

/// The first argument that makes the program the daemon.
const DAEMON: &str = "daemon";

/// The `main` of the plugin, and of the daemon if the first argument is `daemon`.
pub fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match arguments.next() {
        Some(first) if first == DAEMON => cnikit_dhcp_daemon::run(&arguments.collect::<Vec<_>>()),
        _ => cnikit::main::<Ipam<DhcpPlugin>>(),
    }
}

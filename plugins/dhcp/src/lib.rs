//! Gets the addresses of an attachment from a DHCP server of the network that its interface is in.
//!
//! A lease has to be renewed, and a plugin lives for milliseconds. So a daemon holds the leases (`dhcp daemon`, see
//! [`cnikit_dhcp_daemon`]), and the plugin calls it by a socket. The keys under `ipam` are those of [`DhcpPlugin`].
//!
//! - ADD asks for a lease, and waits for it: at most `timeout` seconds. The server's DNS servers, domains and routes are in the
//!   result; the interface gets the server's MTU if the configuration has none and it is smaller.
//! - DEL gives the lease back. If no daemon runs, that is noted in `dataDir`, and the next daemon makes it good.
//! - CHECK compares the lease with the interface. STATUS fails if no daemon runs. GC gives back what is not valid.
#![forbid(unsafe_code)]

mod configuration;
mod plugin;

pub use configuration::DhcpPlugin;

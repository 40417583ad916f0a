//! Addresses and routes of the container, and those of the host for it.

pub mod bridge_port;
pub mod forwarding;
pub mod gateway;
pub mod host_route;
pub(crate) mod ipv6_ready;
pub mod layer3;
pub mod slaac;

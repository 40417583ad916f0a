//! Addresses and routes: those of the container, those of the host for it, and what the kernel does with them.

pub mod forwarding;
pub mod gateway;
pub mod host_route;
pub(crate) mod ipv6_ready;
pub mod layer3;
pub(crate) mod router_adverts;

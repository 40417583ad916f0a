//! Addresses and routes of the container, and those of the host for it.

pub mod bridge_port;
pub mod forwarding;
pub mod gateway;
pub mod host_route;
pub(crate) mod ipv6_ready;
pub mod layer3;
pub mod slaac;

/// An address that a link of the container has, for tests.
#[cfg(test)]
pub(crate) fn present(address: &str) -> cnikit_netlink::Address {
    cnikit_netlink::Address {
        index: 2,
        address: address.parse().unwrap(),
        no_dad: false,
        no_prefix_route: false,
        tentative: false,
        dad_failed: false,
        scope: 0,
        permanent: true,
        broadcast: None,
    }
}

//! The rules that one attachment wants.

use std::net::IpAddr;

/// The rules that one attachment wants.
#[derive(Clone, Copy)]
pub(super) struct Demand<'a> {
    pub(super) addresses: &'a [IpAddr],
    /// Whether rules accept the traffic of the addresses. Otherwise a zone of firewalld accepts it.
    pub(super) accepts: bool,
    pub(super) isolation: Option<&'a Isolation>,
    pub(super) admin_chain: &'a str,
}

impl Demand<'_> {
    /// Whether no rule is wanted.
    pub(super) fn is_empty(&self) -> bool {
        self.addresses.is_empty() || !self.accepts && self.isolation.is_none()
    }
}

/// A bridge that is isolated from other bridges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Isolation {
    pub(super) bridge: String,
    /// Whether its containers are isolated from each other too.
    pub(super) within: bool,
}

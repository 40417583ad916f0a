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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_rule_is_wanted_without_an_address_or_what_to_do_with_it() {
        let address = [IpAddr::from([10, 1, 0, 2])];
        let isolation = Isolation { bridge: "cni0".into(), within: false };
        for (addresses, accepts, isolation, is_empty) in [
            (&address[..], true, None, false),
            (&address, false, Some(&isolation), false),
            (&address, true, Some(&isolation), false),
            (&address, false, None, true),
            (&[], true, Some(&isolation), true),
        ] {
            let demand = Demand { addresses, accepts, isolation, admin_chain: "CNI-ADMIN" };
            assert_eq!(demand.is_empty(), is_empty, "{addresses:?} {accepts} {isolation:?}");
        }
    }
}

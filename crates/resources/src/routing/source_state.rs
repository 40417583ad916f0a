//! The stored state of source routing: what DEL gives back.

use cnikit_netlink::RoutingRule;
use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};

use crate::routing::stored_route::StoredRoute;
use crate::state_file::StoredState;

/// The protocol number of the rules that we add, and of the routes that we add and that are not copies. It tells them from those
/// of ip(8) (3), of the kernel (2) and of other programs. See `/etc/iproute2/rt_protos`.
#[doc(alias = "FRA_PROTOCOL")]
pub const PROTOCOL: u8 = 203;

/// What one attachment changed in its container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SourceState {
    /// The number of the interface.
    pub(crate) index: u32,
    /// The rules, one per address.
    pub(crate) rules: Vec<StoredRule>,
    /// The routes that were added, in any table.
    pub(crate) added: Vec<StoredRoute>,
    /// The routes that were removed from the main table.
    pub(crate) moved: Vec<StoredRoute>,
}

impl StoredState for SourceState {
    const ENDING: &'static str = ".sbr.json";
}

/// A rule of ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredRule {
    pub(crate) from: IpNetwork,
    pub(crate) table: u32,
    pub(crate) priority: u32,
}

impl StoredRule {
    pub(crate) fn rule(&self) -> RoutingRule {
        RoutingRule::from_source(self.from, self.table, self.priority, PROTOCOL)
    }
}

#[cfg(test)]
mod tests {
    use cnikit_netlink::{KernelRoute, RouteCopy};

    use super::*;

    #[test]
    fn a_state_is_read_as_it_was_written() {
        let route = |text: &str, gateway: &str| {
            let route = KernelRoute {
                gateway: Some(gateway.parse().unwrap()),
                index: Some(3),
                priority: Some(7),
                mtu: Some(1400),
                table: 1000,
                ..KernelRoute::to(text.parse().unwrap())
            };
            StoredRoute(RouteCopy::new(&route).unwrap())
        };
        let state = SourceState {
            index: 3,
            rules: vec![StoredRule { from: "10.0.0.2/32".parse().unwrap(), table: 100, priority: 32765 }],
            added: vec![route("0.0.0.0/0", "10.0.0.1")],
            moved: vec![route("fd01::/64", "fd00::1")],
        };
        let text = serde_json::to_string(&state).unwrap();
        assert!(text.contains(r#""route":"0.0.0.0/0 via 10.0.0.1 metric 7 mtu 1400 scope 0 table 1000""#), "{text}");
        assert_eq!(serde_json::from_str::<SourceState>(&text).unwrap(), state);
        for broken in ["", "0", "zz", "00ff", "ä0"] {
            let text = format!(r#"{{"index":1,"rules":[],"added":[{{"message":"{broken}"}}],"moved":[]}}"#);
            assert!(serde_json::from_str::<SourceState>(&text).is_err(), "{text}");
        }
    }
}

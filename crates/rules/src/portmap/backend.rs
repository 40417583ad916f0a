//! How rules for port mappings are written.

use crate::backend::{AbsentReport, RuleBackend};

pub(super) const BACKEND: RuleBackend = RuleBackend {
    kind: "port mappings",
    what: "port mappings",
    table: "nat",
    shared: &["PREROUTING", "OUTPUT", "POSTROUTING", "CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-MASQ", "CNI-HOSTPORT-SETMARK"],
    locks: true,
    instead: "or set `\"backend\": \"nftables\"`",
    absent: AbsentReport::Once,
};

//! How firewall rules are written.

use crate::backend::{AbsentReport, RuleBackend};

pub(super) const BACKEND: RuleBackend = RuleBackend {
    kind: "firewall",
    what: "firewall rules",
    table: "filter",
    shared: &["FORWARD", "CNI-FORWARD", "CNI-ISOLATION-STAGE-1", "CNI-ISOLATION-STAGE-2"],
    locks: true,
    instead: "or set `\"backend\": \"nftables\"`",
    absent: AbsentReport::EachRule,
};

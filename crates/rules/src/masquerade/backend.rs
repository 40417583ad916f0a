//! How masquerade rules are written.

use crate::backend::{AbsentReport, RuleBackend};

pub(super) const BACKEND: RuleBackend = RuleBackend {
    kind: "masquerade",
    what: "masquerade rules",
    table: "nat",
    shared: &[],
    locks: false,
    instead: "or set `\"ipMasqBackend\": \"nftables\"`",
    absent: AbsentReport::Once,
};

//! How firewall rules are written.

use crate::backend::{AbsentReport, RuleBackend};

pub(super) const BACKEND: RuleBackend = RuleBackend {
    kind: "firewall",
    what: "firewall rules",
    table: "filter",
    shared: &["FORWARD", "CNI-FORWARD", "CNI-ISOLATION-STAGE-1", "CNI-ISOLATION-STAGE-2"],
    locks: true,
    key: "backend",
    nftables_needs: "nf_tables, nft_ct and nf_conntrack (CONFIG_NF_TABLES_INET, CONFIG_NFT_CT, CONFIG_NF_CONNTRACK)",
    iptables_needs: "xt_conntrack and nf_conntrack (CONFIG_NETFILTER_XT_MATCH_CONNTRACK, CONFIG_NF_CONNTRACK)",
    absent: AbsentReport::EachRule,
};

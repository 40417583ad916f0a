//! How rules for port mappings are written.

use crate::backend::{AbsentReport, RuleBackend};

pub(super) const BACKEND: RuleBackend = RuleBackend {
    kind: "port mappings",
    what: "port mappings",
    table: "nat",
    shared: &["PREROUTING", "OUTPUT", "POSTROUTING", "CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-MASQ", "CNI-HOSTPORT-SETMARK"],
    locks: true,
    key: "backend",
    nftables_needs: "nft_chain_nat, nft_nat and nf_conntrack (CONFIG_NFT_NAT, CONFIG_NF_CONNTRACK)",
    iptables_needs: "xt_nat and nf_conntrack (CONFIG_NETFILTER_XT_NAT, CONFIG_NF_CONNTRACK)",
    absent: AbsentReport::Once,
};

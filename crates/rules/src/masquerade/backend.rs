//! How masquerade rules are written.

use crate::backend::{AbsentReport, RuleBackend};

pub(super) const BACKEND: RuleBackend = RuleBackend {
    kind: "masquerade",
    what: "masquerade rules",
    table: "nat",
    shared: &[],
    locks: false,
    key: "ipMasqBackend",
    nftables_needs: "nft_chain_nat, nft_masq and nf_conntrack (CONFIG_NFT_NAT, CONFIG_NFT_MASQ, CONFIG_NF_CONNTRACK)",
    iptables_needs: "xt_MASQUERADE and nf_conntrack (CONFIG_NETFILTER_XT_TARGET_MASQUERADE, CONFIG_NF_CONNTRACK)",
    absent: AbsentReport::Once,
};

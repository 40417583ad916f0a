//! What stands of iptables in the kernel, asked of the kernel: no program is started for it.

use std::fmt;

use super::{IpVersion, Result};
use crate::{Family, Nftables};

/// Half of iptables: where in the kernel its rules are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    /// In `nf_tables`, in tables of iptables' own.
    NfTables,
    /// In `ip_tables` and `ip6_tables`.
    Legacy,
}

/// As it stands in the names of its programs.
impl fmt::Display for Half {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NfTables => "nft",
            Self::Legacy => "legacy",
        })
    }
}

/// Whether the calling thread's namespace has this table, or this chain of it. The legacy half knows of tables only.
pub(crate) fn stands(half: Half, version: IpVersion, table: &'static str, chain: Option<&str>) -> Result<bool> {
    match half {
        Half::NfTables => Ok(in_nf_tables(version, table, chain)?),
        Half::Legacy => Ok(in_legacy(version, table)),
    }
}

/// Without the file the kernel has no such half, or no table of it was ever used.
#[doc(alias = "ip_tables_names")]
fn in_legacy(version: IpVersion, table: &str) -> bool {
    let name = match version {
        IpVersion::V4 => "ip_tables_names",
        IpVersion::V6 => "ip6_tables_names",
    };
    let names = std::fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap_or_default();
    names.lines().any(|line| line == table)
}

fn in_nf_tables(version: IpVersion, table: &'static str, chain: Option<&str>) -> crate::Result<bool> {
    let family = match version {
        IpVersion::V4 => Family::Ip,
        IpVersion::V6 => Family::Ip6,
    };
    Nftables::if_any()?.map_or(Ok(false), |mut nftables| nftables.has(family, table, chain))
}

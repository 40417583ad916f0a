//! Which iptables: the version of IP, and the variant of the programs.

use std::fmt;

/// The version of IP, of which each has its own tables and programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpVersion {
    /// `iptables`.
    V4,
    /// `ip6tables`.
    V6,
}

impl IpVersion {
    /// Both.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];
}

/// The name of its program, and of its packages.
impl fmt::Display for IpVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "iptables",
            Self::V6 => "ip6tables",
        })
    }
}

/// A variant of the programs: where in the kernel their rules are. A host may have both, and neither knows the rules of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    /// In `nf_tables`, in tables of iptables' own.
    NfTables,
    /// In `ip_tables` and `ip6_tables`.
    Legacy,
}

/// As it stands in the names of its programs.
impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NfTables => "nft",
            Self::Legacy => "legacy",
        })
    }
}

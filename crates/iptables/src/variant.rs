//! The version of IP, and the variant of the programs of iptables.

use std::fmt;

/// A version of IP. Each has tables and programs of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpVersion {
    /// `iptables`.
    V4,
    /// `ip6tables`.
    V6,
}

impl IpVersion {
    /// IPv4 and IPv6.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];
}

/// The name of the program and of its package.
impl fmt::Display for IpVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "iptables",
            Self::V6 => "ip6tables",
        })
    }
}

/// A variant of the programs: where in the kernel their rules are. A host may have both, and neither reads the rules of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    /// In `nf_tables`, in tables of iptables' own.
    NfTables,
    /// In `ip_tables` and `ip6_tables`.
    Legacy,
}

impl Variant {
    /// Both variants; the first is the one that distributions choose today.
    pub(crate) const ALL: [Self; 2] = [Self::NfTables, Self::Legacy];
}

/// The variant as the names of its programs contain it.
impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NfTables => "nft",
            Self::Legacy => "legacy",
        })
    }
}

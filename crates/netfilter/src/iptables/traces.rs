//! What stands of iptables in the kernel, asked of the kernel: no program is started for it.

use std::fmt;

use cnikit_netlink::Socket;

use super::{IpVersion, Result};
use crate::attribute::Attributes;
use crate::{Error, Family};

/// The protocol of the socket.
#[doc(alias = "NETLINK_NETFILTER")]
const NETFILTER: isize = 12;
/// `NFT_MSG_GETTABLE` and `NFT_MSG_GETCHAIN` of `nf_tables`, the tenth part of netfilter.
const GET_TABLE: u16 = 10 << 8 | 1;
const GET_CHAIN: u16 = 10 << 8 | 4;
/// `NLM_F_REQUEST` and `NLM_F_ACK`.
const ASKED: u16 = 0x1 | 0x4;

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
pub(crate) fn stands(half: Half, version: IpVersion, table: &str, chain: Option<&str>) -> Result<bool> {
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

fn in_nf_tables(version: IpVersion, table: &str, chain: Option<&str>) -> crate::Result<bool> {
    let mut socket = match Socket::here(NETFILTER) {
        Err(error) if error.unsupported() => return Ok(false),
        opened => opened?,
    };
    let sequence = socket.next_sequence();
    let exchanged = socket.exchange(&question(version, table, chain, sequence), &[sequence])?;
    match exchanged.errors.first() {
        None => Ok(true),
        // Not there; netfilter without nf_tables.
        Some((_, refusal)) if [libc::ENOENT, libc::EINVAL, libc::EOPNOTSUPP].contains(&refusal.errno) => Ok(false),
        Some((_, refusal)) => Err(Error::refused("look for the rules of iptables in", table, refusal)),
    }
}

/// `nlmsghdr`, `nfgenmsg`, the name of the table and that of the chain.
fn question(version: IpVersion, table: &str, chain: Option<&str>, sequence: u32) -> Vec<u8> {
    let family = match version {
        IpVersion::V4 => Family::Ip,
        IpVersion::V6 => Family::Ip6,
    };
    let kind = if chain.is_some() { GET_CHAIN } else { GET_TABLE };
    let names = chain.into_iter().fold(Attributes::new().text(1, table), |names, chain| names.text(3, chain));
    let body = [&[family.number(), 0, 0, 0], names.as_bytes()].concat();
    let length = u32::try_from(16 + body.len()).unwrap_or(u32::MAX);
    let (length, kind, asked) = (length.to_ne_bytes(), kind.to_ne_bytes(), ASKED.to_ne_bytes());
    [&length[..], &kind, &asked, &sequence.to_ne_bytes(), &[0; 4], &body].concat()
}

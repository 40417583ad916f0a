//! The kinds of links on top of another, and their modes.

use std::fmt;

use netlink_packet_core::{parse_u16, parse_u32};

use crate::attribute::value;

// The attributes that are read here, from `linux/if_link.h`.
const MACVLAN_MODE: u16 = 1;
const MACVLAN_BC_QUEUE_LEN: u16 = 7;
const IPVLAN_MODE: u16 = 1;

/// What is particular to a link on top of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpperKind {
    /// It has a MAC of its own.
    Macvlan {
        /// Whom it hears.
        mode: MacvlanMode,
        /// How many broadcasts may wait for it; otherwise 1000. The link below has the longest queue of all on top of it.
        #[doc(alias = "bcqueuelen")]
        queue: Option<u32>,
    },
    /// It has the MAC of the link below.
    Ipvlan(IpvlanMode),
}

/// Whom a macvlan hears beside what is outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "IFLA_MACVLAN_MODE")]
pub enum MacvlanMode {
    /// No other macvlan on the same link, not even by way of a switch.
    Private,
    /// The others by way of a switch that sends frames back.
    Vepa,
    /// The others, directly.
    Bridge,
    /// There are no others: it takes the link below, and its MAC, for itself.
    Passthru,
}

/// Up to which layer an ipvlan is the link below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "IFLA_IPVLAN_MODE")]
pub enum IpvlanMode {
    /// Frames: it answers for its addresses by ARP and neighbour discovery.
    L2,
    /// Packets: the namespace of the link below routes; neither multicast nor broadcasts.
    L3,
    /// As `L3`, and that namespace's netfilter sees them.
    L3s,
}

/// A mode with its name in ip(8) and its number in the kernel.
struct Described<M, N> {
    mode: M,
    name: &'static str,
    number: N,
}

const MACVLAN_MODES: [Described<MacvlanMode, u32>; 4] = [
    Described { mode: MacvlanMode::Private, name: "private", number: 1 },
    Described { mode: MacvlanMode::Vepa, name: "vepa", number: 2 },
    Described { mode: MacvlanMode::Bridge, name: "bridge", number: 4 },
    Described { mode: MacvlanMode::Passthru, name: "passthru", number: 8 },
];
const IPVLAN_MODES: [Described<IpvlanMode, u16>; 3] = [
    Described { mode: IpvlanMode::L2, name: "l2", number: 0 },
    Described { mode: IpvlanMode::L3, name: "l3", number: 1 },
    Described { mode: IpvlanMode::L3s, name: "l3s", number: 2 },
];

/// The entry of a mode. Every mode has one.
fn described<M: Copy + PartialEq, N>(modes: &[Described<M, N>], mode: M) -> &Described<M, N> {
    modes.iter().find(|one| one.mode == mode).unwrap_or(&modes[0])
}

impl MacvlanMode {
    /// The kernel's number of the mode.
    pub(crate) fn number(self) -> u32 {
        described(&MACVLAN_MODES, self).number
    }

    /// The mode with this name in ip(8).
    pub fn named(word: &str) -> Option<Self> {
        MACVLAN_MODES.iter().find(|mode| mode.name == word).map(|mode| mode.mode)
    }
}

impl IpvlanMode {
    /// The kernel's number of the mode.
    pub(crate) fn number(self) -> u16 {
        described(&IPVLAN_MODES, self).number
    }

    /// The mode with this name in ip(8).
    pub fn named(word: &str) -> Option<Self> {
        IPVLAN_MODES.iter().find(|mode| mode.name == word).map(|mode| mode.mode)
    }
}

impl fmt::Display for MacvlanMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(described(&MACVLAN_MODES, *self).name)
    }
}

impl fmt::Display for IpvlanMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(described(&IPVLAN_MODES, *self).name)
    }
}

impl UpperKind {
    /// Reads `IFLA_INFO_DATA` of a link of this kind; `None` if it is of another, or has a mode that is not supported here.
    pub(crate) fn parse(kind: &str, data: &[u8]) -> Option<Self> {
        match kind {
            "macvlan" => {
                let number = parse_u32(value(data, MACVLAN_MODE)?).ok()?;
                let mode = MACVLAN_MODES.iter().find(|mode| mode.number == number)?.mode;
                let queue = value(data, MACVLAN_BC_QUEUE_LEN).and_then(|length| parse_u32(length).ok());
                Some(Self::Macvlan { mode, queue })
            }
            "ipvlan" => {
                let number = parse_u16(value(data, IPVLAN_MODE)?).ok()?;
                let mode = IPVLAN_MODES.iter().find(|mode| mode.number == number)?.mode;
                Some(Self::Ipvlan(mode))
            }
            _ => None,
        }
    }
}

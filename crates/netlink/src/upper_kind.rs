//! The kinds of links on top of another, and their modes.

use std::fmt;

use netlink_packet_core::{parse_u16, parse_u16_be, parse_u32};
use netlink_packet_route::link::VlanProtocol as WireProtocol;

use crate::attribute::value;

// The attributes that are read here, from `linux/if_link.h`.
const MACVLAN_MODE: u16 = 1;
const MACVLAN_BC_QUEUE_LEN: u16 = 7;
const IPVLAN_MODE: u16 = 1;
const VLAN_ID: u16 = 1;
const VLAN_PROTOCOL: u16 = 5;
/// `ETH_P_8021Q` and `ETH_P_8021AD` of `linux/if_ether.h`.
const ETHERTYPE_8021Q: u16 = 0x8100;
const ETHERTYPE_8021AD: u16 = 0x88a8;

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
    /// It has the frames of one VLAN of the link below, and the MAC of that link.
    Vlan {
        /// The number of the VLAN, at most 4094. 0 tags frames with a priority only.
        #[doc(alias = "IFLA_VLAN_ID")]
        id: u16,
        /// The tag of the frames.
        protocol: VlanProtocol,
    },
}

/// The tag of the frames of a VLAN. A link below may have VLANs of the same number with each of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "IFLA_VLAN_PROTOCOL")]
pub enum VlanProtocol {
    /// 802.1Q, ethertype 0x8100: an ordinary VLAN, and the inner tag of two.
    Dot1q,
    /// 802.1ad, ethertype 0x88a8: the outer tag of two, also called service tag.
    #[doc(alias = "QinQ")]
    Dot1ad,
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

impl VlanProtocol {
    /// The protocol with this name, in upper or lower case, as ip(8) takes it.
    pub fn named(word: &str) -> Option<Self> {
        let all = [VlanProtocol::Dot1q, VlanProtocol::Dot1ad];
        all.into_iter().find(|protocol| word.eq_ignore_ascii_case(protocol.name()))
    }

    /// The name, as ip(8) prints it.
    fn name(self) -> &'static str {
        match self {
            VlanProtocol::Dot1q => "802.1Q",
            VlanProtocol::Dot1ad => "802.1ad",
        }
    }

    pub(crate) fn on_wire(self) -> WireProtocol {
        match self {
            VlanProtocol::Dot1q => WireProtocol::Ieee8021Q,
            VlanProtocol::Dot1ad => WireProtocol::Ieee8021Ad,
        }
    }
}

impl fmt::Display for VlanProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl UpperKind {
    /// The name of the kind, as the kernel and ip(8) have it.
    pub fn name(self) -> &'static str {
        match self {
            UpperKind::Macvlan { .. } => "macvlan",
            UpperKind::Ipvlan(_) => "ipvlan",
            UpperKind::Vlan { .. } => "vlan",
        }
    }

    /// The kernel module that has the kind.
    pub fn module(self) -> &'static str {
        match self {
            UpperKind::Vlan { .. } => "8021q",
            other => other.name(),
        }
    }

    /// Whether all links of the kind have the MAC of the link below.
    pub fn shares_mac(self) -> bool {
        !matches!(self, UpperKind::Macvlan { .. })
    }

    /// Whether the kernel puts such a link, if it is made on another of its kind, beside that one and not on it.
    pub fn is_flattened(self) -> bool {
        !matches!(self, UpperKind::Vlan { .. })
    }

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
            "vlan" => {
                let id = parse_u16(value(data, VLAN_ID)?).ok()?;
                let protocol = match parse_u16_be(value(data, VLAN_PROTOCOL)?).ok()? {
                    ETHERTYPE_8021Q => VlanProtocol::Dot1q,
                    ETHERTYPE_8021AD => VlanProtocol::Dot1ad,
                    _ => return None,
                };
                Some(Self::Vlan { id, protocol })
            }
            _ => None,
        }
    }
}

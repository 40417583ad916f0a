//! The kinds of links on top of another link, and their modes.

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

/// The kind of a link on top of another link, with the settings of that kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UpperKind {
    /// A link with its own MAC.
    Macvlan {
        /// The mode.
        mode: MacvlanMode,
        /// The length of the broadcast queue in packets; if `None`, 1000. The link below uses the longest one that the macvlans on
        /// top of it request.
        #[doc(alias = "bcqueuelen")]
        queue: Option<u32>,
    },
    /// A link with the MAC of the link below.
    Ipvlan(IpvlanMode),
    /// A link that carries one VLAN of the link below, with the MAC of that link.
    Vlan {
        /// The VLAN id, at most 4094. With 0 the tag of the frames has a priority only.
        #[doc(alias = "IFLA_VLAN_ID")]
        id: u16,
        /// The protocol of the tag.
        protocol: VlanProtocol,
    },
}

/// The protocol of VLAN tags. A link may have VLANs with the same id for both protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "IFLA_VLAN_PROTOCOL")]
pub enum VlanProtocol {
    /// 802.1Q, ethertype 0x8100: an ordinary VLAN, and the inner tag of two.
    Dot1q,
    /// 802.1ad, ethertype 0x88a8: the outer tag of two, also called service tag.
    #[doc(alias = "QinQ")]
    Dot1ad,
}

/// The mode of a macvlan: which other macvlans on the same link it can exchange packets with. See ip-link(8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "IFLA_MACVLAN_MODE")]
pub enum MacvlanMode {
    /// None, not even through an external switch.
    Private,
    /// All, but only through an external switch that sends frames back to the port that they came from.
    Vepa,
    /// All, directly.
    Bridge,
    /// The macvlan is the only one on the link, and uses the MAC of the link.
    Passthru,
}

/// The mode of an ipvlan: the layer up to which its own namespace processes packets. See ip-link(8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "IFLA_IPVLAN_MODE")]
pub enum IpvlanMode {
    /// Layer 2: the ipvlan answers ARP and neighbour discovery for its addresses.
    L2,
    /// Layer 3: the namespace of the link below routes; there are no multicasts and no broadcasts.
    L3,
    /// As `L3`, and the packets pass the netfilter hooks of the namespace of the link below.
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
    /// The name of the kind in the kernel and in ip(8).
    pub fn name(self) -> &'static str {
        match self {
            UpperKind::Macvlan { .. } => "macvlan",
            UpperKind::Ipvlan(_) => "ipvlan",
            UpperKind::Vlan { .. } => "vlan",
        }
    }

    /// The kernel module that implements the kind.
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

    /// Whether the kernel puts a link that is created on top of another one of its kind on the link below that one instead.
    pub fn is_flattened(self) -> bool {
        !matches!(self, UpperKind::Vlan { .. })
    }

    /// Parses `IFLA_INFO_DATA` of a link of this kind; `None` if the kind or the mode is not supported here.
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

//! Network interfaces, as the kernel describes them.

use netlink_packet_core::{parse_i32, parse_u16, parse_u32};
use netlink_packet_route::link::{LinkFlags, LinkHeader, State};
use serde::{Deserialize, Serialize};

use crate::attribute::{attributes, value};
use crate::frame::{HEADER, words};
use crate::{HardwareAddress, Mac, TunSettings, UpperKind};

// The attributes that are read here, from `linux/if_link.h`.
const ADDRESS: u16 = 1;
pub(crate) const IFNAME: u16 = 3;
const MTU: u16 = 4;
const LINK: u16 = 5;
const MASTER: u16 = 10;
const TXQLEN: u16 = 13;
const OPERSTATE: u16 = 16;
const LINKINFO: u16 = 18;
const IFALIAS: u16 = 20;
const AF_SPEC: u16 = 26;
const PROMISCUITY: u16 = 30;
const GROUP: u16 = 27;
const LINK_NETNSID: u16 = 37;
const MIN_MTU: u16 = 50;
const MAX_MTU: u16 = 51;
pub(crate) const PROP_LIST: u16 = 52;
pub(crate) const ALT_IFNAME: u16 = 53;
const PERM_ADDRESS: u16 = 54;
const PARENT_DEV_NAME: u16 = 56;
const PARENT_DEV_BUS_NAME: u16 = 57;
const INFO_KIND: u16 = 1;
const INFO_DATA: u16 = 2;
const INFO_SLAVE_KIND: u16 = 4;
const INFO_SLAVE_DATA: u16 = 5;
const VRF_TABLE: u16 = 1;
const BR_VLAN_FILTERING: u16 = 7;
const BR_VLAN_DEFAULT_PVID: u16 = 39;
const BR_MULTI_BOOLOPT: u16 = 46;
/// The bit of `BR_BOOLOPT_NO_LL_LEARN` in the values and in the mask of a `br_boolopt_multi`.
const NO_LL_LEARN: u32 = 1;
const BRPORT_STATE: u16 = 1;
const BRPORT_MODE: u16 = 4;
const BRPORT_ISOLATED: u16 = 33;
/// The family of IPv6 in `IFLA_AF_SPEC`.
const AF_INET6: u16 = 10;
const INET6_CONF: u16 = 2;
// Positions in the list of numbers of `IFLA_INET6_CONF`, from `linux/ipv6.h`.
const DEVCONF_ACCEPT_RA: usize = 3;
const DEVCONF_AUTOCONF: usize = 5;
const DEVCONF_DISABLE_IPV6: usize = 26;

/// Length of an `ifinfomsg`.
const LINK_HEADER: usize = 16;

/// A network interface, as the kernel describes it. See ip-link(8).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[doc(alias = "interface")]
#[doc(alias = "ifinfomsg")]
#[non_exhaustive]
pub struct Link {
    /// The interface index. The kernel never assigns one twice in the life of a namespace, unless it is requested.
    #[doc(alias = "ifindex")]
    pub index: u32,
    /// The interface name.
    pub name: String,
    /// The alias, an arbitrary text that is independent of the name.
    #[doc(alias = "IFLA_IFALIAS")]
    pub alias: Option<String>,
    /// Alternative names, which may be longer than 15 bytes.
    #[doc(alias = "IFLA_ALT_IFNAME")]
    pub altnames: Vec<String>,
    /// The hardware address, if it has six bytes.
    #[doc(alias = "IFLA_ADDRESS")]
    pub mac: Option<Mac>,
    /// The hardware address, of any length.
    pub hardware_address: Option<HardwareAddress>,
    /// The hardware address that the device came with, which no process can change. Links without hardware have none.
    #[doc(alias = "IFLA_PERM_ADDRESS")]
    pub permanent_address: Option<HardwareAddress>,
    /// The device on a bus that the link is the interface of; `None` for a link without hardware, and before Linux 5.14.
    #[doc(alias = "IFLA_PARENT_DEV_NAME")]
    pub parent: Option<ParentDevice>,
    /// The MTU in bytes.
    pub mtu: u32,
    /// The smallest MTU that links of its kind accept.
    #[doc(alias = "IFLA_MIN_MTU")]
    pub min_mtu: u32,
    /// The largest MTU that links of its kind accept, if there is a limit. The link below it may allow less.
    #[doc(alias = "IFLA_MAX_MTU")]
    pub max_mtu: Option<u32>,
    /// The kind, such as `veth` or `bridge`; hardware and loopback have none.
    #[doc(alias = "IFLA_INFO_KIND")]
    pub kind: Option<String>,
    /// Whether the link is administratively up (`IFF_UP`); `running` tells whether it passes packets.
    #[doc(alias = "IFF_UP")]
    pub up: bool,
    /// Whether `IFF_PROMISC` is set. The ports of a bridge receive all packets without this flag.
    #[doc(alias = "IFF_PROMISC")]
    pub promiscuous: bool,
    /// Whether the link is set to receive the packets of all multicast groups.
    #[doc(alias = "IFF_ALLMULTI")]
    pub all_multicast: bool,
    /// The length of the transmit queue in packets; 0 if there is none.
    #[doc(alias = "IFLA_TXQLEN")]
    pub tx_queue_length: u32,
    /// How many users have requested promiscuous mode, the kernel and packet sockets included.
    #[doc(alias = "IFLA_PROMISCUITY")]
    pub promiscuity: u32,
    /// Whether packets can pass: the operational state is `UP`, or it is `UNKNOWN` and there is a carrier.
    pub running: bool,
    /// Whether this link, or the one below it, has a carrier. The kernel updates this at once, `running` possibly a moment later.
    #[doc(alias = "IFF_LOWER_UP")]
    pub carrier: bool,
    /// The operational state (RFC 2863) as ip(8) writes it: `UP`, `DOWN`, `LOWERLAYERDOWN`, …
    #[doc(alias = "IFLA_OPERSTATE")]
    pub operstate: String,
    /// The index of the bridge, bond or VRF that the link is a port of.
    #[doc(alias = "IFLA_MASTER")]
    pub master: Option<u32>,
    /// The index of the link below it; for a veth that of its peer, in the namespace of the peer.
    #[doc(alias = "IFLA_LINK")]
    pub lower: Option<u32>,
    /// The nsid of the namespace of `lower`, see [`crate::Netlink::namespace_id`]; `None` if `lower` is in this namespace.
    #[doc(alias = "IFLA_LINK_NETNSID")]
    pub lower_netns: Option<i32>,
    /// The group of the link; 0 is the default group.
    #[doc(alias = "IFLA_GROUP")]
    pub group: u32,
    /// The settings of a bridge port, if the link is one.
    pub port: Option<Port>,
    /// The settings of a macvlan, an ipvlan or a VLAN, if the link is one.
    pub upper: Option<UpperKind>,
    /// The settings of a TUN or TAP device, if the link is one. Linux 4.18 and newer report them.
    pub tun: Option<TunSettings>,
    /// The IPv6 sysctls of the link; `None` where it has none: without IPv6 in the kernel, or with an MTU below 1280.
    #[doc(alias = "IFLA_INET6_CONF")]
    pub ipv6: Option<Ipv6Settings>,
    /// VRFs only: the routing table for packets of the VRF's ports.
    #[doc(alias = "IFLA_VRF_TABLE")]
    pub vrf_table: Option<u32>,
    /// Bridges only: whether the bridge filters by VLAN.
    #[doc(alias = "IFLA_BR_VLAN_FILTERING")]
    pub vlan_filtering: Option<bool>,
    /// Bridges only: the VLAN that new ports are added to; 0 if none. A kernel built without `CONFIG_BRIDGE_VLAN_FILTERING` does
    /// not report it.
    #[doc(alias = "IFLA_BR_VLAN_DEFAULT_PVID")]
    pub default_vlan: Option<u16>,
    /// Bridges only: whether the bridge learns source MACs from frames to the link-local groups `01:80:c2:00:00:00` to `0f`.
    /// These frames pass no netfilter rule before. Reported by Linux 5.0 and newer; older kernels always learn from them.
    #[doc(alias = "BR_BOOLOPT_NO_LL_LEARN")]
    pub link_local_learning: Option<bool>,
}

/// A device on a bus.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ParentDevice {
    /// The bus, such as `pci` or `virtio`. Empty if the kernel does not tell it.
    #[doc(alias = "IFLA_PARENT_DEV_BUS_NAME")]
    pub bus: String,
    /// The name on the bus, such as `0000:00:03.0`.
    pub name: String,
}

/// Some of a link's sysctls in `net.ipv6.conf`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ipv6Settings {
    /// `accept_ra`: whether router advertisements are accepted. 0: no, 1: unless the link forwards, 2: also if it forwards.
    pub accept_ra: i32,
    /// `autoconf`: whether addresses are made from the prefixes of router advertisements.
    pub autoconf: i32,
    /// `disable_ipv6`: whether IPv6 is off on this link.
    pub disabled: bool,
}

/// A link's settings as a port of a bridge. See bridge(8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "bridge_slave")]
#[non_exhaustive]
pub struct Port {
    /// Whether the bridge may send a packet out of the port on which it received it (hairpin mode).
    #[doc(alias = "IFLA_BRPORT_MODE")]
    pub hairpin: bool,
    /// Whether the port is isolated: it exchanges packets only with ports that are not.
    #[doc(alias = "IFLA_BRPORT_ISOLATED")]
    pub isolated: bool,
    /// The STP state: 0 disabled, 1 listening, 2 learning, 3 forwarding, 4 blocking.
    #[doc(alias = "IFLA_BRPORT_STATE")]
    pub state: u8,
}

impl Link {
    /// Parses an `RTM_NEWLINK` message; `None` if it is something else.
    pub(crate) fn parse(message: &[u8]) -> Option<Self> {
        let body = message.get(HEADER..)?;
        let header = LinkHeader::parse(body).ok()?;
        let mut link = Self {
            index: header.index,
            up: header.flags.contains(LinkFlags::Up),
            promiscuous: header.flags.contains(LinkFlags::Promisc),
            all_multicast: header.flags.contains(LinkFlags::Allmulti),
            ..Self::default()
        };
        let mut state = State::Unknown;
        for (kind, value) in attributes(body.get(LINK_HEADER..)?) {
            match (kind, value) {
                (OPERSTATE, [number]) => state = State::from(*number),
                _ => link.take(kind, value),
            }
        }
        link.carrier = header.flags.contains(LinkFlags::LowerUp);
        link.running = state == State::Up || state == State::Unknown && link.carrier;
        link.operstate = state.to_string();
        Some(link)
    }

    fn take(&mut self, kind: u16, value: &[u8]) {
        match kind {
            IFNAME => self.name = words(value),
            IFALIAS => self.alias = Some(words(value)),
            ADDRESS => {
                self.mac = value.try_into().ok().map(Mac);
                self.hardware_address = HardwareAddress::new(value);
            }
            PERM_ADDRESS => self.permanent_address = HardwareAddress::new(value),
            PARENT_DEV_NAME => self.parent.get_or_insert_default().name = words(value),
            PARENT_DEV_BUS_NAME => self.parent.get_or_insert_default().bus = words(value),
            MTU => self.mtu = parse_u32(value).unwrap_or_default(),
            MIN_MTU => self.min_mtu = parse_u32(value).unwrap_or_default(),
            MAX_MTU => self.max_mtu = parse_u32(value).ok().filter(|most| *most != 0),
            LINK => self.lower = parse_u32(value).ok().filter(|index| *index != 0),
            MASTER => self.master = parse_u32(value).ok(),
            TXQLEN => self.tx_queue_length = parse_u32(value).unwrap_or_default(),
            PROMISCUITY => self.promiscuity = parse_u32(value).unwrap_or_default(),
            GROUP => self.group = parse_u32(value).unwrap_or_default(),
            LINK_NETNSID => self.lower_netns = parse_i32(value).ok(),
            PROP_LIST => {
                self.altnames.clear();
                for (property, name) in attributes(value) {
                    if property == ALT_IFNAME {
                        self.altnames.push(words(name));
                    }
                }
            }
            LINKINFO => self.take_info(value),
            AF_SPEC => self.ipv6 = Ipv6Settings::parse(value),
            _ => {}
        }
    }

    /// Parses the attributes of the link's kind and of its master's kind.
    fn take_info(&mut self, info: &[u8]) {
        let find = |wanted| value(info, wanted);
        self.kind = find(INFO_KIND).map(words);
        let data = find(INFO_DATA).unwrap_or_default();
        self.upper = self.kind.as_deref().and_then(|kind| UpperKind::parse(kind, data));
        if self.kind.as_deref() == Some("tun") {
            self.tun = TunSettings::parse(data);
        }
        if self.kind.as_deref() == Some("vrf") {
            self.vrf_table = value(data, VRF_TABLE).and_then(|table| parse_u32(table).ok());
        }
        if self.kind.as_deref() == Some("bridge") {
            self.vlan_filtering = flag(data, BR_VLAN_FILTERING);
            self.default_vlan = value(data, BR_VLAN_DEFAULT_PVID).and_then(|vlan| parse_u16(vlan).ok());
            self.link_local_learning = value(data, BR_MULTI_BOOLOPT).and_then(link_local_learning);
        }
        if find(INFO_SLAVE_KIND).is_some_and(|kind| words(kind) == "bridge") {
            self.port = find(INFO_SLAVE_DATA).map(Port::parse);
        }
    }
}

/// The settings of the link's kind in an `RTM_NEWLINK` message, as the kernel has them.
pub(crate) fn kind_data(message: &[u8]) -> Option<&[u8]> {
    value(value(message.get(HEADER + LINK_HEADER..)?, LINKINFO)?, INFO_DATA)
}

/// The alternative names in an `RTM_NEWLINK` message, as the kernel has them.
pub(crate) fn altnames(message: &[u8]) -> Vec<Vec<u8>> {
    let list = message.get(HEADER + LINK_HEADER..).unwrap_or_default();
    let mut names = Vec::new();
    for (kind, name) in attributes(value(list, PROP_LIST).unwrap_or_default()) {
        if kind == ALT_IFNAME {
            names.push(name.strip_suffix(&[0]).unwrap_or(name).to_vec());
        }
    }
    names
}

/// Parses a `br_boolopt_multi`: the values of the options, and a mask of those that the kernel supports.
fn link_local_learning(options: &[u8]) -> Option<bool> {
    let (values, known) = options.split_at_checked(4)?;
    let is_known = parse_u32(known).ok()? & NO_LL_LEARN != 0;
    let is_off = parse_u32(values).ok()? & NO_LL_LEARN != 0;
    if is_known { Some(!is_off) } else { None }
}

impl Ipv6Settings {
    /// Parses the attributes of address families.
    fn parse(families: &[u8]) -> Option<Self> {
        let settings = value(value(families, AF_INET6)?, INET6_CONF)?;
        let number = |position: usize| parse_i32(settings.chunks_exact(size_of::<i32>()).nth(position)?).ok();
        Some(Self {
            accept_ra: number(DEVCONF_ACCEPT_RA)?,
            autoconf: number(DEVCONF_AUTOCONF)?,
            disabled: number(DEVCONF_DISABLE_IPV6)? != 0,
        })
    }
}

impl Port {
    fn parse(data: &[u8]) -> Self {
        Self {
            hairpin: flag(data, BRPORT_MODE).unwrap_or_default(),
            isolated: flag(data, BRPORT_ISOLATED).unwrap_or_default(),
            state: byte(data, BRPORT_STATE).unwrap_or_default(),
        }
    }
}

fn byte(bytes: &[u8], wanted: u16) -> Option<u8> {
    value(bytes, wanted).and_then(|value| value.first().copied())
}

fn flag(bytes: &[u8], wanted: u16) -> Option<bool> {
    byte(bytes, wanted).map(|byte| byte != 0)
}

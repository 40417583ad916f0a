//! Network interfaces, as the kernel describes them.

use netlink_packet_core::{parse_i32, parse_u16, parse_u32};
use netlink_packet_route::link::{LinkFlags, LinkHeader, State};

use crate::attribute::{attributes, value};
use crate::frame::{HEADER, words};
use crate::{Mac, UpperKind};

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
const PROMISCUITY: u16 = 30;
const GROUP: u16 = 27;
const LINK_NETNSID: u16 = 37;
const MIN_MTU: u16 = 50;
const MAX_MTU: u16 = 51;
const PROP_LIST: u16 = 52;
pub(crate) const ALT_IFNAME: u16 = 53;
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

/// Length of an `ifinfomsg`.
const LINK_HEADER: usize = 16;

/// A network interface, as the kernel describes it. See ip-link(8).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[doc(alias = "interface")]
#[doc(alias = "ifinfomsg")]
pub struct Link {
    /// Its number, never assigned twice in the life of a namespace, unless it is requested.
    #[doc(alias = "ifindex")]
    pub index: u32,
    /// Its name proper.
    pub name: String,
    /// A free text, which outlives a change of name.
    #[doc(alias = "IFLA_IFALIAS")]
    pub alias: Option<String>,
    /// Further names, which may be longer than 15 bytes.
    #[doc(alias = "IFLA_ALT_IFNAME")]
    pub altnames: Vec<String>,
    /// Its hardware address, if that is one of six bytes.
    #[doc(alias = "IFLA_ADDRESS")]
    pub mac: Option<Mac>,
    /// In bytes.
    pub mtu: u32,
    /// The least MTU that its kind takes.
    #[doc(alias = "IFLA_MIN_MTU")]
    pub min_mtu: u32,
    /// The greatest MTU that its kind takes, if it has one. What is below it may carry less.
    #[doc(alias = "IFLA_MAX_MTU")]
    pub max_mtu: Option<u32>,
    /// `veth`, `bridge`; hardware and loopback have none.
    #[doc(alias = "IFLA_INFO_KIND")]
    pub kind: Option<String>,
    /// Whether it is set up (`IFF_UP`); whether it passes packets is in `running`.
    #[doc(alias = "IFF_UP")]
    pub up: bool,
    /// Whether it is set to receive all packets. A bridge's ports take all of them without this flag.
    #[doc(alias = "IFF_PROMISC")]
    pub promiscuous: bool,
    /// Whether it is set to receive the packets of all groups.
    #[doc(alias = "IFF_ALLMULTI")]
    pub all_multicast: bool,
    /// How many packets its queue takes, 0 if it has none.
    #[doc(alias = "IFLA_TXQLEN")]
    pub tx_queue_length: u32,
    /// For how many users, kernel and packet sockets included, it takes all packets.
    #[doc(alias = "IFLA_PROMISCUITY")]
    pub promiscuity: u32,
    /// Whether packets pass: the operational state is `UP`, or it is `UNKNOWN` and there is a carrier.
    pub running: bool,
    /// Whether there is a carrier, on this link or on the one below it. Known at once, where
    /// `running` may come a moment later.
    #[doc(alias = "IFF_LOWER_UP")]
    pub carrier: bool,
    /// The operational state in the words of ip(8), `UP`, `DOWN`, `LOWERLAYERDOWN`, …; see RFC 2863.
    #[doc(alias = "IFLA_OPERSTATE")]
    pub operstate: String,
    /// The number of the bridge, bond or VRF that it is a port of.
    #[doc(alias = "IFLA_MASTER")]
    pub master: Option<u32>,
    /// The number of the link below it; for a veth that of its peer, in the namespace of the peer.
    #[doc(alias = "IFLA_LINK")]
    pub lower: Option<u32>,
    /// The namespace of `lower`, by the number that this namespace has for that one; `None` if it is this one.
    #[doc(alias = "IFLA_LINK_NETNSID")]
    pub lower_netns: Option<i32>,
    /// The number of the group that it is in; 0 is none.
    #[doc(alias = "IFLA_GROUP")]
    pub group: u32,
    /// What it is set to as a port of a bridge.
    pub port: Option<Port>,
    /// What is particular to it as a macvlan, an ipvlan or a VLAN.
    pub upper: Option<UpperKind>,
    /// Of a VRF: the table that packets of its ports are routed by.
    #[doc(alias = "IFLA_VRF_TABLE")]
    pub vrf_table: Option<u32>,
    /// Of a bridge: whether it filters by VLAN.
    #[doc(alias = "IFLA_BR_VLAN_FILTERING")]
    pub vlan_filtering: Option<bool>,
    /// Of a bridge: the VLAN that new ports are in, 0 if in none. A kernel built without `CONFIG_BRIDGE_VLAN_FILTERING`
    /// has nothing to say here.
    #[doc(alias = "IFLA_BR_VLAN_DEFAULT_PVID")]
    pub default_vlan: Option<u16>,
    /// Of a bridge: whether it learns source MACs from frames to the link-local groups `01:80:c2:00:00:00` to `0f`, which
    /// pass no rule of netfilter before. Linux 5.0 or newer; an older kernel always does and does not say so.
    #[doc(alias = "BR_BOOLOPT_NO_LL_LEARN")]
    pub link_local_learning: Option<bool>,
}

/// A link's settings as a port of a bridge. See bridge(8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "bridge_slave")]
pub struct Port {
    /// Whether a packet may leave by the port that it came in by.
    #[doc(alias = "IFLA_BRPORT_MODE")]
    pub hairpin: bool,
    /// Whether it speaks to ports only that are not isolated.
    #[doc(alias = "IFLA_BRPORT_ISOLATED")]
    pub isolated: bool,
    /// 0 disabled, 1 listening, 2 learning, 3 forwarding, 4 blocking.
    #[doc(alias = "IFLA_BRPORT_STATE")]
    pub state: u8,
}

impl Link {
    /// Reads an `RTM_NEWLINK` message; `None` if it is something else.
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
            ADDRESS => self.mac = value.try_into().ok().map(Mac),
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
            _ => {}
        }
    }

    /// Reads what is particular to the kind of link, and to that of its master.
    fn take_info(&mut self, info: &[u8]) {
        let find = |wanted| value(info, wanted);
        self.kind = find(INFO_KIND).map(words);
        let data = find(INFO_DATA).unwrap_or_default();
        self.upper = self.kind.as_deref().and_then(|kind| UpperKind::parse(kind, data));
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

/// Reads a `br_boolopt_multi`: the values of the options, and a mask of those that the kernel knows.
fn link_local_learning(options: &[u8]) -> Option<bool> {
    let (values, known) = options.split_at_checked(4)?;
    let is_known = parse_u32(known).ok()? & NO_LL_LEARN != 0;
    let is_off = parse_u32(values).ok()? & NO_LL_LEARN != 0;
    if is_known { Some(!is_off) } else { None }
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

//! Links on top of another: macvlan and ipvlan.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd};

use cnikit_netns::Netns;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, parse_u16, parse_u32};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{InfoIpVlan, InfoMacVlan, LinkMessage};
use rtnetlink::{LinkIpVlan, LinkMacVlan, LinkMessageBuilder};

use crate::create::dressed;
use crate::link::value;
use crate::netlink::{Forgives, Request};
use crate::{Mac, Netlink, Result};

// The attributes that are read here, from `linux/if_link.h`.
const MACVLAN_MODE: u16 = 1;
const MACVLAN_BC_QUEUE_LEN: u16 = 7;
const IPVLAN_MODE: u16 = 1;

/// A link on top of another, to be made. See ip-link(8).
#[derive(Clone, Debug)]
pub struct NewUpper {
    /// Its name.
    pub name: String,
    /// Its own number; otherwise the next one that is free. A number of one's own is for kernels before 6.15: they refuse a name
    /// that is taken where the socket is, and not only where the link comes to be, unless they are told a number.
    #[doc(alias = "ifindex")]
    pub index: Option<u32>,
    /// The number of the link that it is on, in the namespace of the socket.
    #[doc(alias = "IFLA_LINK")]
    pub lower: u32,
    /// Where it is made, if not in the namespace of the socket; it need not be moved there, which would cost 15 ms.
    #[doc(alias = "IFLA_NET_NS_FD")]
    pub netns: Option<Netns>,
    /// Its hardware address; otherwise the kernel rolls dice, or takes that of the link below.
    pub mac: Option<Mac>,
    /// In bytes; otherwise that of the link below.
    pub mtu: Option<u32>,
    /// The number of its group: all of a link that can be said of it before it is there, and that nothing else depends on.
    #[doc(alias = "IFLA_GROUP")]
    pub group: u32,
    /// It is up at once.
    pub up: bool,
    /// What it is.
    pub upper: UpperKind,
}

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

/// Words of ip(8), and the kernel's numbers.
const MACVLAN_MODES: [(MacvlanMode, &str, u32); 4] = [
    (MacvlanMode::Private, "private", 1),
    (MacvlanMode::Vepa, "vepa", 2),
    (MacvlanMode::Bridge, "bridge", 4),
    (MacvlanMode::Passthru, "passthru", 8),
];
const IPVLAN_MODES: [(IpvlanMode, &str, u16); 3] =
    [(IpvlanMode::L2, "l2", 0), (IpvlanMode::L3, "l3", 1), (IpvlanMode::L3s, "l3s", 2)];

impl MacvlanMode {
    /// The mode with this name in ip(8).
    pub fn named(word: &str) -> Option<Self> {
        MACVLAN_MODES.iter().find(|(_, name, _)| *name == word).map(|(mode, ..)| *mode)
    }
}

impl IpvlanMode {
    /// The mode with this name in ip(8).
    pub fn named(word: &str) -> Option<Self> {
        IPVLAN_MODES.iter().find(|(_, name, _)| *name == word).map(|(mode, ..)| *mode)
    }
}

impl fmt::Display for MacvlanMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        MACVLAN_MODES.iter().filter(|(mode, ..)| mode == self).try_for_each(|(_, name, _)| f.write_str(name))
    }
}

impl fmt::Display for IpvlanMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        IPVLAN_MODES.iter().filter(|(mode, ..)| mode == self).try_for_each(|(_, name, _)| f.write_str(name))
    }
}

impl Netlink {
    /// Creates a link on top of another in one message; it is in its namespace and has its name from the first moment.
    ///
    /// The kernel does not echo a link that is made in another namespace: it can be read there.
    ///
    /// # Errors
    /// Its name is taken there, or here (see [`NewUpper::index`]; [`Error::exists`](crate::Error::exists)), the lower link does
    /// not exist or cannot have such links, or this kernel has none ([`Error::unsupported`](crate::Error::unsupported)).
    #[doc(alias = "macvlan")]
    #[doc(alias = "ipvlan")]
    pub fn create_upper(&self, upper: &NewUpper) -> Result<()> {
        let place = upper.netns.as_ref().map(|netns| format!(" in {}", netns.path().display()));
        let object = format!("{}{}", upper.name, place.unwrap_or_default());
        let link = Some(upper.lower).filter(|lower| *lower > 0);
        let object = if link.is_some() { format!("{object} on") } else { object };
        let message = RouteNetlinkMessage::NewLink(upper.message());
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        let operation = match upper.upper {
            UpperKind::Macvlan { .. } => "create macvlan",
            UpperKind::Ipvlan(_) => "create ipvlan",
        };
        self.ask(Request { message, flags, operation, object, link, forgives: Forgives::Nothing }).map(drop)
    }

    /// Whether this kernel has links of this kind; it loads the module. The kernel is asked for one on top of no link, which it
    /// refuses in either case, with different errors.
    ///
    /// # Errors
    /// The kernel refuses the request for another reason, such as a missing `CAP_NET_ADMIN`.
    pub fn knows_upper(&self, upper: UpperKind) -> Result<bool> {
        let name = "cnikit-probe".to_owned();
        let nowhere =
            NewUpper { name, index: None, lower: 0, netns: None, mac: None, mtu: None, group: 0, up: false, upper };
        match self.create_upper(&nowhere) {
            Err(error) if error.unsupported() => Ok(false),
            Err(error) if error.errno == libc::EINVAL => Ok(true),
            other => other.map(|()| true),
        }
    }
}

impl NewUpper {
    fn message(&self) -> LinkMessage {
        match self.upper {
            UpperKind::Macvlan { mode, queue } => {
                let number = MACVLAN_MODES.iter().find(|(one, ..)| *one == mode).map_or(0, |(.., number)| *number);
                let infos = [Some(InfoMacVlan::Mode(number.into())), queue.map(InfoMacVlan::BcQueueLen)];
                let builder = LinkMessageBuilder::<LinkMacVlan>::new(&self.name);
                let said = infos.into_iter().flatten();
                self.placed(said.fold(builder, LinkMessageBuilder::<LinkMacVlan>::append_info_data))
            }
            UpperKind::Ipvlan(mode) => {
                let number = IPVLAN_MODES.iter().find(|(one, ..)| *one == mode).map_or(0, |(.., number)| *number);
                let builder = LinkMessageBuilder::<LinkIpVlan>::new(&self.name);
                self.placed(builder.append_info_data(InfoIpVlan::Mode(number.into())))
            }
        }
    }

    fn placed<T>(&self, builder: LinkMessageBuilder<T>) -> LinkMessage {
        let mut builder = dressed(builder, self.mac, self.mtu);
        if self.lower > 0 {
            builder = builder.link(self.lower);
        }
        if let Some(netns) = &self.netns {
            builder = builder.setns_by_fd(netns.as_fd().as_raw_fd());
        }
        if self.group > 0 {
            builder = builder.link_group(self.group);
        }
        let mut message = if self.up { builder.up() } else { builder }.build();
        message.header.index = self.index.unwrap_or_default();
        message
    }
}

impl UpperKind {
    /// Reads `IFLA_INFO_DATA` of a link of this kind; `None` if it is of another, or in a mode that nobody here makes.
    pub(crate) fn parse(kind: &str, data: &[u8]) -> Option<Self> {
        match kind {
            "macvlan" => {
                let number = parse_u32(value(data, MACVLAN_MODE)?).ok()?;
                let (mode, ..) = MACVLAN_MODES.iter().find(|(.., one)| *one == number)?;
                let queue = value(data, MACVLAN_BC_QUEUE_LEN).and_then(|length| parse_u32(length).ok());
                Some(Self::Macvlan { mode: *mode, queue })
            }
            "ipvlan" => {
                let number = parse_u16(value(data, IPVLAN_MODE)?).ok()?;
                IPVLAN_MODES.iter().find(|(.., one)| *one == number).map(|(mode, ..)| Self::Ipvlan(*mode))
            }
            _ => None,
        }
    }
}

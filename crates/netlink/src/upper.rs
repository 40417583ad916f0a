//! Creating links on top of another link: macvlan, ipvlan and VLAN.

use std::os::fd::{AsFd, AsRawFd};

use cnikit_netns::Netns;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{InfoIpVlan, InfoMacVlan, InfoVlan, LinkMessage};
use rtnetlink::{LinkIpVlan, LinkMacVlan, LinkMessageBuilder, LinkVlan};

use crate::create::dressed;
use crate::netlink::{Forgives, Request};
use crate::{Link, Mac, Netlink, Result, UpperKind, VlanProtocol};

/// A link on top of another link, to be created. See ip-link(8).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NewUpper {
    /// Its name.
    pub name: String,
    /// The interface index; if `None`, the kernel chooses the next free one. Kernels before 6.15 need an index: without one they
    /// refuse a name that is in use in the namespace of the socket, and not only one in use in the namespace of the new link.
    #[doc(alias = "ifindex")]
    pub index: Option<u32>,
    /// The index of the link below it, in the namespace of the socket.
    #[doc(alias = "IFLA_LINK")]
    pub lower: u32,
    /// The namespace in which it is created, if not in that of the socket. Creating it here and moving it there would cost 15 ms
    /// more.
    #[doc(alias = "IFLA_NET_NS_FD")]
    pub netns: Option<Netns>,
    /// The hardware address; if `None`, the kernel chooses a random one or takes that of the link below.
    pub mac: Option<Mac>,
    /// The MTU in bytes; if `None`, that of the link below.
    pub mtu: Option<u32>,
    /// The group of the link; 0 is the default group. Unlike the alias it can be set in the message that creates the link, and
    /// nothing else depends on it, so it can mark the link until the alias is set.
    #[doc(alias = "IFLA_GROUP")]
    pub group: u32,
    /// Whether the link is up at once.
    pub up: bool,
    /// The kind of link and its settings.
    pub upper: UpperKind,
}

impl NewUpper {
    /// A link of this name and kind on top of the link with the index `lower`, down, with the kernel's settings.
    pub fn new(name: impl Into<String>, lower: u32, upper: UpperKind) -> NewUpper {
        let name = name.into();
        NewUpper { name, index: None, lower, netns: None, mac: None, mtu: None, group: 0, up: false, upper }
    }
}

setters!(NewUpper { group: u32, up: bool } { index: u32, netns: Netns, mac: Mac, mtu: u32 });

impl Netlink {
    /// Creates a link on top of another link in one message; it is in its namespace and has its name from the first moment.
    ///
    /// The kernel does not echo a link that is created in another namespace; it can be read there.
    ///
    /// # Errors
    /// Its name is in use there, or here (see [`NewUpper::index`]; [`Error::exists`](crate::Error::exists)), the lower link does
    /// not exist or cannot have such links, or this kernel does not support them
    /// ([`Error::unsupported`](crate::Error::unsupported)).
    #[doc(alias = "macvlan")]
    #[doc(alias = "ipvlan")]
    #[doc(alias = "vlan")]
    pub fn create_upper(&self, upper: &NewUpper) -> Result<()> {
        let link = (upper.lower > 0).then_some(upper.lower);
        let mut object = upper.name.clone();
        if let Some(netns) = &upper.netns {
            object.extend([" in ", &netns.path().to_string_lossy()]);
        }
        if link.is_some() {
            object += " on";
        }
        let message = RouteNetlinkMessage::NewLink(upper.message());
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        let operation = match upper.upper {
            UpperKind::Macvlan { .. } => "create macvlan",
            UpperKind::Ipvlan(_) => "create ipvlan",
            UpperKind::Vlan { .. } => "create vlan",
        };
        self.ask(Request {
            message: message.into(),
            flags,
            operation,
            object: object.into(),
            link,
            forgives: Forgives::Nothing,
        })
        .map(drop)
    }

    /// Whether this kernel supports links of this kind; the kernel loads their module if needed.
    ///
    /// The request is to create such a link without a lower link, which the kernel refuses in either case, with different errors.
    ///
    /// # Errors
    /// The kernel refuses the request for another reason, such as a missing `CAP_NET_ADMIN`.
    pub fn knows_upper(&self, upper: UpperKind) -> Result<bool> {
        let name = PROBE.to_owned();
        let nowhere = NewUpper::new(name, 0, upper);
        match self.create_upper(&nowhere) {
            Err(error) if error.unsupported() => Ok(false),
            Err(error) if error.errno == libc::EINVAL => Ok(true),
            other => other.map(|()| true),
        }
    }

    /// Whether a link has no VLAN of this number and protocol on top of it, in whatever namespace. Nothing is made: the kernel is
    /// asked for one with an MTU that is larger than the link's, and it checks the VLAN first. `true` also if this cannot be asked:
    /// no MTU is larger than the link's, or a link has the name that the request needs.
    ///
    /// # Errors
    /// The kernel refuses for another reason: the link does not exist or cannot have VLANs, the kernel has no VLANs
    /// ([`Error::unsupported`](crate::Error::unsupported)), or `CAP_NET_ADMIN` is missing.
    #[doc(alias = "IFLA_VLAN_ID")]
    pub fn is_vlan_free(&self, lower: &Link, id: u16, protocol: VlanProtocol) -> Result<bool> {
        if lower.mtu >= LARGEST_MTU {
            return Ok(true);
        }
        let refused = NewUpper::new(PROBE, lower.index, UpperKind::Vlan { id, protocol }).mtu(LARGEST_MTU);
        match self.create_upper(&refused) {
            // Or a link has the name.
            Err(error) if error.exists() => Ok(self.find_link(PROBE)?.is_some()),
            Err(error) if error.errno == libc::EINVAL => Ok(true),
            Err(error) => Err(error),
            // The MTU of the link has been raised since it was read.
            Ok(()) => self.delete_link(self.link(PROBE)?.index).map(|()| true),
        }
    }
}

/// The name of a link that is never made.
const PROBE: &str = "cnikit-probe";
/// The largest MTU that a VLAN takes (`ETH_MAX_MTU`).
const LARGEST_MTU: u32 = 65535;

impl NewUpper {
    fn message(&self) -> LinkMessage {
        match self.upper {
            UpperKind::Macvlan { mode, queue } => {
                let mut builder = LinkMessageBuilder::<LinkMacVlan>::new(&self.name);
                builder = builder.append_info_data(InfoMacVlan::Mode(mode.number().into()));
                if let Some(queue) = queue {
                    builder = builder.append_info_data(InfoMacVlan::BcQueueLen(queue));
                }
                self.placed(builder)
            }
            UpperKind::Ipvlan(mode) => {
                let builder = LinkMessageBuilder::<LinkIpVlan>::new(&self.name);
                self.placed(builder.append_info_data(InfoIpVlan::Mode(mode.number().into())))
            }
            UpperKind::Vlan { id, protocol } => {
                let builder = LinkMessageBuilder::<LinkVlan>::new(&self.name).append_info_data(InfoVlan::Id(id));
                self.placed(builder.append_info_data(InfoVlan::Protocol(protocol.on_wire())))
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

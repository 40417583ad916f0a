//! Creating a link of any kind, and reading the settings of its kind.

use std::os::fd::{AsFd, AsRawFd};

use cnikit_netns::Netns;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::LinkAttribute::{NumRxQueues, NumTxQueues};
use netlink_packet_route::link::{InfoData, InfoKind, LinkMessage};
use rtnetlink::{LinkMessageBuilder, LinkUnspec};

use crate::attribute::Attributes;
use crate::create::dressed;
use crate::link::kind_data;
use crate::links::reading;
use crate::netlink::{Forgives, Request};
use crate::{Error, Link, Mac, Netlink, Result};

/// A link of any kind, to be created. See rtnetlink(7) and ip-link(8).
///
/// For a veth pair, a bridge and the other kinds that have a type of their own ([`NewVeth`](crate::NewVeth),
/// [`NewBridge`](crate::NewBridge), [`NewUpper`](crate::NewUpper), …) that type is simpler. A VXLAN:
///
/// ```no_run
/// use cnikit_netlink::attribute::Attributes;
/// use cnikit_netlink::{Netlink, NewLink};
///
/// // From linux/if_link.h: the VNI in the order of bytes of this machine, the UDP port in that of the network.
/// const IFLA_VXLAN_ID: u16 = 1;
/// const IFLA_VXLAN_PORT: u16 = 15;
///
/// let mut vxlan = NewLink::new("vxlan9", "vxlan");
/// vxlan.data = Attributes::new().bytes(IFLA_VXLAN_ID, &9_u32.to_ne_bytes()).bytes(IFLA_VXLAN_PORT, &4789_u16.to_be_bytes());
/// vxlan.mtu = Some(1450);
/// let link = Netlink::here()?.create_link(&vxlan)?;
/// assert_eq!(link.kind.as_deref(), Some("vxlan"));
/// # Ok::<(), cnikit_netlink::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NewLink {
    /// Its name.
    pub name: String,
    /// Its kind, such as `vxlan`.
    #[doc(alias = "IFLA_INFO_KIND")]
    pub kind: String,
    /// The settings of the kind. Their numbers are in `linux/if_link.h`.
    #[doc(alias = "IFLA_INFO_DATA")]
    pub data: Attributes,
    /// The interface index; if `None`, the kernel chooses the next free one. Kernels before 6.15 need an index for a link in
    /// another namespace: without one they refuse a name that is in use in the namespace of the socket.
    #[doc(alias = "ifindex")]
    pub index: Option<u32>,
    /// The index of the link below it, in the namespace of the socket.
    #[doc(alias = "IFLA_LINK")]
    pub lower: Option<u32>,
    /// The namespace in which it is created, if not in that of the socket. To create it here and move it there would cost 15 ms
    /// more.
    #[doc(alias = "IFLA_NET_NS_FD")]
    pub netns: Option<Netns>,
    /// The hardware address; if `None`, the kernel chooses one.
    pub mac: Option<Mac>,
    /// The MTU in bytes; if `None`, the usual one of the kind.
    pub mtu: Option<u32>,
    /// The group of the link; 0 is the default group.
    #[doc(alias = "IFLA_GROUP")]
    pub group: u32,
    /// The number of transmit and of receive queues; if `None`, the usual one of the kind.
    #[doc(alias = "IFLA_NUM_TX_QUEUES")]
    pub queues: Option<u32>,
    /// The index of the bridge, bond or VRF that it becomes a port of.
    #[doc(alias = "IFLA_MASTER")]
    pub master: Option<u32>,
    /// Whether the link is up at once.
    pub up: bool,
}

impl NewLink {
    /// A link of this name and kind, with the kind's usual settings.
    pub fn new(name: impl Into<String>, kind: impl Into<String>) -> NewLink {
        NewLink {
            name: name.into(),
            kind: kind.into(),
            data: Attributes::default(),
            index: None,
            lower: None,
            netns: None,
            mac: None,
            mtu: None,
            group: 0,
            queues: None,
            master: None,
            up: false,
        }
    }

    fn message(&self) -> LinkMessage {
        let builder = LinkMessageBuilder::<LinkUnspec>::new_with_info_kind(InfoKind::Other(self.kind.clone()));
        let mut builder = dressed(builder.name(&self.name), self.mac, self.mtu);
        if !self.data.as_bytes().is_empty() {
            builder = builder.set_info_data(InfoData::Other(self.data.as_bytes().to_vec()));
        }
        if let Some(index) = self.index {
            builder = builder.index(index);
        }
        if let Some(lower) = self.lower {
            builder = builder.link(lower);
        }
        if let Some(netns) = &self.netns {
            builder = builder.setns_by_fd(netns.as_fd().as_raw_fd());
        }
        if self.group > 0 {
            builder = builder.link_group(self.group);
        }
        if let Some(count) = self.queues {
            builder = builder.append_extra_attribute(NumTxQueues(count)).append_extra_attribute(NumRxQueues(count));
        }
        if let Some(master) = self.master {
            builder = builder.controller(master);
        }
        if self.up { builder.up() } else { builder }.build()
    }
}

setters!(NewLink { data: Attributes, group: u32, up: bool } {
    index: u32,
    lower: u32,
    netns: Netns,
    mac: Mac,
    mtu: u32,
    queues: u32,
    master: u32
});

impl Netlink {
    /// Creates a link of any kind in one message, and returns it. It is in its namespace and has its name from the first moment.
    ///
    /// The kernel does not echo a link that it creates in another namespace: there it is read by its name.
    ///
    /// # Errors
    /// Its name is in use ([`Error::exists`]), the kernel has no such kind ([`Error::unsupported`]) or refuses a setting, the link
    /// below does not exist, or `CAP_NET_ADMIN` is missing.
    #[doc(alias = "RTM_NEWLINK")]
    pub fn create_link(&self, new: &NewLink) -> Result<Link> {
        let named = |mut error: Error| {
            error.operation = format!("create {}", new.kind);
            error
        };
        let operation = "create link";
        let Some(netns) = &new.netns else {
            return self.create(operation, new.name.clone(), new.message(), &new.name).map_err(named);
        };
        let object = format!("{} in {}", new.name, netns.path().display());
        let message = RouteNetlinkMessage::NewLink(new.message());
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        let request = Request {
            message: message.into(),
            flags,
            operation,
            object: object.into(),
            link: None,
            forgives: Forgives::Nothing,
        };
        self.ask(request).map_err(named)?;
        Netlink::inside(netns)?.link(&new.name)
    }

    /// The settings of a link's kind, for any kind; [`attribute::value`](crate::attribute::value) finds one by its number. Empty if
    /// the link has no kind, or the kind no settings.
    ///
    /// # Errors
    /// There is no such link ([`Error::is_absent`]), or the request fails.
    #[doc(alias = "IFLA_INFO_DATA")]
    pub fn link_data(&self, index: u32) -> Result<Attributes> {
        let answers = self.ask(reading(LinkUnspec::new_with_index(index).build(), &format!("number {index}")))?;
        let data = answers.iter().find_map(|message| kind_data(message));
        Ok(Attributes::raw(data.unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribute::value;

    const IFLA_BR_FORWARD_DELAY: u16 = 1;
    const IFLA_BR_PRIORITY: u16 = 6;

    #[test]
    fn a_link_of_any_kind_is_made_here_and_elsewhere_and_its_settings_are_read() {
        let here = cnikit_netns::make::anonymous().unwrap();
        let there = cnikit_netns::make::anonymous().unwrap();
        let netlink = Netlink::inside(&here).unwrap();
        let mut bridge = NewLink::new("any0", "bridge");
        bridge.data = Attributes::new().bytes(IFLA_BR_PRIORITY, &77_u16.to_ne_bytes());
        bridge.mac = Some(Mac([0x0a, 0, 0, 0, 0, 7]));
        bridge.mtu = Some(1400);
        bridge.group = 9;
        bridge.up = true;
        for netns in [None, Some(there.clone())] {
            let place = netns.clone().unwrap_or_else(|| here.clone());
            let made = netlink.create_link(&NewLink { netns, ..bridge.clone() }).unwrap();
            assert_eq!((made.kind.as_deref(), made.mac, made.mtu), (Some("bridge"), bridge.mac, 1400));
            assert_eq!((made.group, made.up), (9, true));
            let data = Netlink::inside(&place).unwrap().link_data(made.index).unwrap();
            let of = |wanted: u16| value(data.as_bytes(), wanted);
            assert_eq!(of(IFLA_BR_PRIORITY), Some(77_u16.to_ne_bytes().as_slice()));
            assert!(of(IFLA_BR_FORWARD_DELAY).is_some(), "what the kernel chose is read too: {data:?}");
        }
        let below = netlink.link("any0").unwrap().index;
        let mut above = NewLink::new("above0", "macvlan");
        (above.lower, above.index, above.netns) = (Some(below), Some(40), Some(there));
        let made = netlink.create_link(&above).unwrap();
        assert_eq!((made.index, made.kind.as_deref(), made.lower), (40, Some("macvlan"), Some(below)));
    }

    #[test]
    fn what_the_kernel_refuses_is_named() {
        let netlink = Netlink::inside(&cnikit_netns::make::anonymous().unwrap()).unwrap();
        let unknown = netlink.create_link(&NewLink::new("odd0", "nosuchkind")).unwrap_err();
        assert!(unknown.unsupported(), "{unknown}");
        assert!(unknown.to_string().contains(r#"create nosuchkind "odd0""#), "{unknown}");
        netlink.create_link(&NewLink::new("odd0", "bridge")).unwrap();
        assert!(netlink.create_link(&NewLink::new("odd0", "bridge")).unwrap_err().exists());
        assert!(netlink.link_data(4711).unwrap_err().is_absent());
    }
}

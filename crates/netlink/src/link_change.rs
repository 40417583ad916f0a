//! Changing the settings of links.

use std::os::fd::{AsFd, AsRawFd};

use cnikit_netns::Netns;
use netlink_packet_core::{DefaultNla, NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    BridgeBooleanOptionFlags, BridgeBooleanOptions, InfoBridge, InfoKind, LinkAttribute, LinkMessage,
};
use rtnetlink::{LinkBridge, LinkBridgePort, LinkMessageBuilder, LinkUnspec};

use crate::attribute::{Attributes, NESTED};
use crate::link::{ALT_IFNAME, PROP_LIST, altnames};
use crate::netlink::{Forgives, Message, Request};
use crate::{Mac, Netlink, Result};

/// `IFLA_NEW_IFINDEX` of `linux/if_link.h`.
const NEW_IFINDEX: u16 = 49;
const NO_OPTION: BridgeBooleanOptionFlags = BridgeBooleanOptionFlags::empty();

/// New settings for a link, sent in one message; `None` leaves a setting unchanged.
///
/// ```
/// use cnikit_netlink::LinkChange;
///
/// let change = LinkChange::default().mtu(1400).up(true);
/// assert_eq!((change.mtu, change.up, change.mac), (Some(1400), Some(true), None));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkChange {
    /// Up or down.
    #[doc(alias = "IFF_UP")]
    pub up: Option<bool>,
    /// The alias, an arbitrary text of at most 254 bytes; an empty text removes it. The kernel accepts no alias in the message
    /// that creates a link.
    #[doc(alias = "IFLA_IFALIAS")]
    pub alias: Option<String>,
    /// The MTU in bytes. Once the MTU of a bridge was changed, it does not follow its ports any longer.
    pub mtu: Option<u32>,
    /// The hardware address.
    pub mac: Option<Mac>,
    /// The index of the bridge, bond or VRF that the link becomes a port of; 0 removes it from its master.
    #[doc(alias = "IFLA_MASTER")]
    pub master: Option<u32>,
    /// Whether the link receives all packets.
    #[doc(alias = "IFF_PROMISC")]
    pub promiscuous: Option<bool>,
    /// Whether the link receives the packets of all multicast groups.
    #[doc(alias = "IFF_ALLMULTI")]
    pub all_multicast: Option<bool>,
    /// The length of the transmit queue in packets.
    #[doc(alias = "IFLA_TXQLEN")]
    pub tx_queue_length: Option<u32>,
    /// Whether the bridge may send a packet out of the port on which it received it (hairpin mode). The kernel refuses this
    /// ([`crate::Error::unsupported`]) for a link that is not a port *before* this message: set `master` in an earlier one.
    #[doc(alias = "IFLA_BRPORT_MODE")]
    pub hairpin: Option<bool>,
    /// Whether the port is isolated: it exchanges packets only with ports that are not. Refused like `hairpin`.
    #[doc(alias = "IFLA_BRPORT_ISOLATED")]
    pub isolated: Option<bool>,
    /// Bridges only: whether the bridge learns from frames to link-local groups. A kernel before 5.0 ignores this. It cannot be
    /// combined with `hairpin` and `isolated`, which are settings of ports. See [`crate::Link::link_local_learning`].
    #[doc(alias = "BR_BOOLOPT_NO_LL_LEARN")]
    pub link_local_learning: Option<bool>,
    /// The group of the link; 0 is the default group. [`Netlink::delete_group`] deletes all links of a group at once.
    #[doc(alias = "IFLA_GROUP")]
    pub group: Option<u32>,
    /// The name.
    pub name: Option<String>,
}

setters!(LinkChange {} {
    up: bool,
    alias: String,
    mtu: u32,
    mac: Mac,
    master: u32,
    promiscuous: bool,
    all_multicast: bool,
    tx_queue_length: u32,
    hairpin: bool,
    isolated: bool,
    link_local_learning: bool,
    group: u32,
    name: String
});

impl Netlink {
    /// Changes a link's settings in one message.
    ///
    /// The kernel applies the settings one by one.
    ///
    /// # Errors
    /// There is no such link ([`crate::Error::is_absent`]), or the kernel refuses a setting; those before it stay in effect.
    #[doc(alias = "RTM_SETLINK")]
    #[doc(alias = "RTM_NEWLINK")]
    pub fn change(&self, index: u32, change: &LinkChange) -> Result<()> {
        self.ask(change.request(index)).map(drop)
    }

    /// Moves a link into another namespace, and changes its settings there, in one message.
    ///
    /// The kernel sets the link down, and removes its addresses and routes. The link takes its MAC, MTU, flags, alias and
    /// alternative names along. It takes its name along first: `change.name` is used instead if that is taken there, and otherwise
    /// set after the move, as are the other settings. The link keeps its index, or gets another one if a link there has that. Since
    /// Linux 5.13 it gets `new_index` instead, which must be free there (`EBUSY`); older kernels ignore that.
    ///
    /// # Errors
    /// There is no such link ([`crate::Error::is_absent`]); the name or an alternative name is taken there
    /// ([`crate::Error::exists`]); the link cannot leave its namespace (`EINVAL`), as `lo` and bridges cannot. After an error the
    /// link may have been moved all the same.
    #[doc(alias = "IFLA_NET_NS_FD")]
    pub fn move_link(&self, index: u32, to: &Netns, change: &LinkChange, new_index: Option<u32>) -> Result<()> {
        let mut request = change.request(index);
        if let Message::Typed(RouteNetlinkMessage::NewLink(message)) = &mut request.message {
            message.attributes.push(LinkAttribute::NetNsFd(to.as_fd().as_raw_fd()));
            if let Some(new_index) = new_index {
                let new_index = DefaultNla::new(NEW_IFINDEX, new_index.to_ne_bytes().to_vec());
                message.attributes.push(LinkAttribute::Other(new_index));
            }
        }
        self.ask(Request { operation: "move link", ..request }).map(drop)
    }

    /// Adds an alternative name to a link.
    ///
    /// # Errors
    /// A link of the namespace has the name ([`crate::Error::exists`]), or there is no such link ([`crate::Error::is_absent`]).
    #[doc(alias = "RTM_NEWLINKPROP")]
    pub fn add_altname(&self, index: u32, name: &str) -> Result<()> {
        let message = RouteNetlinkMessage::NewLinkProp(with_altname(index, name.as_bytes()));
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        let operation = "add alternative name";
        let object = format!("{name} to");
        let request = Request {
            message: message.into(),
            flags,
            operation,
            object: object.into(),
            link: Some(index),
            forgives: Forgives::Nothing,
        };
        self.ask(request).map(drop)
    }

    /// Removes those alternative names of a link for which `keeps` is false. They may be any bytes, which `keeps` gets as text with
    /// replacement characters, as [`crate::Link::altnames`] has them.
    ///
    /// # Errors
    /// There is no such link ([`crate::Error::is_absent`]), or the kernel refuses it. A name that is gone by then is not an error.
    #[doc(alias = "RTM_DELLINKPROP")]
    pub fn retain_altnames(&self, index: u32, keeps: impl Fn(&str) -> Result<bool>) -> Result<()> {
        for name in self.altname_bytes(index)? {
            let text = String::from_utf8_lossy(&name).into_owned();
            if keeps(&text)? {
                continue;
            }
            let message = RouteNetlinkMessage::DelLinkProp(with_altname(index, &name));
            let operation = "remove alternative name";
            let object = format!("{text} from");
            let forgives = Forgives::Absent;
            self.ask(Request {
                message: message.into(),
                flags: 0,
                operation,
                object: object.into(),
                link: Some(index),
                forgives,
            })?;
        }
        Ok(())
    }

    fn altname_bytes(&self, index: u32) -> Result<Vec<Vec<u8>>> {
        let message = RouteNetlinkMessage::GetLink(LinkUnspec::new_with_index(index).build());
        let operation = "find link";
        let object = format!("number {index}");
        let answers = self.ask(Request {
            message: message.into(),
            flags: 0,
            operation,
            object: object.into(),
            link: None,
            forgives: Forgives::Nothing,
        })?;
        Ok(answers.iter().flat_map(|message| altnames(message)).collect())
    }
}

fn with_altname(index: u32, name: &[u8]) -> LinkMessage {
    let mut message = LinkUnspec::new_with_index(index).build();
    let names = Attributes::new().bytes(ALT_IFNAME, &[name, &[0]].concat());
    let list = DefaultNla::new(PROP_LIST | NESTED, names.as_bytes().to_vec());
    message.attributes.push(LinkAttribute::Other(list));
    message
}

impl LinkChange {
    pub(crate) fn request(&self, index: u32) -> Request {
        let operation = "change link";
        let object = String::new();
        let message = RouteNetlinkMessage::NewLink(self.message(index));
        Request {
            message: message.into(),
            flags: 0,
            operation,
            object: object.into(),
            link: Some(index),
            forgives: Forgives::Nothing,
        }
    }

    fn message(&self, index: u32) -> LinkMessage {
        if let Some(learning) = self.link_local_learning {
            let builder = LinkMessageBuilder::<LinkBridge>::new_with_info_kind(InfoKind::Bridge).index(index);
            let options = BridgeBooleanOptions {
                value: if learning { NO_OPTION } else { BridgeBooleanOptionFlags::NoLinkLocalLearn },
                mask: BridgeBooleanOptionFlags::NoLinkLocalLearn,
            };
            return self.dress(builder.append_info_data(InfoBridge::MultiBoolOpt(options))).build();
        }
        if self.hairpin.is_none() && self.isolated.is_none() {
            return self.dress(LinkUnspec::new_with_index(index)).build();
        }
        let mut builder = LinkBridgePort::new(index);
        if let Some(hairpin) = self.hairpin {
            builder = builder.hairpin(hairpin);
        }
        if let Some(isolated) = self.isolated {
            builder = builder.isolated(isolated);
        }
        self.dress(builder).build()
    }

    fn dress<T>(&self, mut builder: LinkMessageBuilder<T>) -> LinkMessageBuilder<T> {
        builder = match self.up {
            Some(true) => builder.up(),
            Some(false) => builder.down(),
            None => builder,
        };
        if let Some(promiscuous) = self.promiscuous {
            builder = builder.promiscuous(promiscuous);
        }
        if let Some(all_multicast) = self.all_multicast {
            builder = builder.allmulticast(all_multicast);
        }
        if let Some(length) = self.tx_queue_length {
            builder = builder.txqueuelen(length);
        }
        if let Some(alias) = &self.alias {
            builder = builder.alias(alias);
        }
        if let Some(mtu) = self.mtu {
            builder = builder.mtu(mtu);
        }
        if let Some(Mac(bytes)) = self.mac {
            builder = builder.address(bytes.to_vec());
        }
        if let Some(master) = self.master {
            builder = builder.controller(master);
        }
        if let Some(group) = self.group {
            builder = builder.link_group(group);
        }
        if let Some(name) = &self.name {
            builder = builder.name(name);
        }
        builder
    }
}

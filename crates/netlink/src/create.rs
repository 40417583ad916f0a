//! New links.

use std::os::fd::{AsFd, AsRawFd};

use cnikit_netns::Netns;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_ECHO, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{InfoData, InfoVeth, LinkMessage};
use rtnetlink::{LinkBridge, LinkMessageBuilder, LinkUnspec, LinkVeth};

use crate::netlink::{Forgives, Request};
use crate::{Error, Link, Mac, Netlink, Result};

/// A pair of links, of which what enters one leaves the other. See veth(4).
#[derive(Clone, Debug)]
pub struct NewVeth {
    /// The end in the namespace of the socket; it is down at first.
    pub name: String,
    /// Its hardware address; otherwise the kernel rolls dice.
    pub mac: Option<Mac>,
    /// Of both ends, in bytes; otherwise 1500.
    pub mtu: Option<u32>,
    /// The number of the bridge that the end here becomes a port of.
    pub master: Option<u32>,
    /// The other end.
    pub peer: Peer,
}

/// The other end of a [`NewVeth`]; it is down at first.
#[derive(Clone, Debug)]
#[doc(alias = "VETH_INFO_PEER")]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// Its hardware address; otherwise the kernel rolls dice.
    pub mac: Option<Mac>,
    /// Where it is made; it need not be moved there, which would cost 15 ms.
    pub netns: Netns,
}

/// A bridge. See ip-link(8).
#[derive(Clone, Debug, Default)]
pub struct NewBridge {
    /// Its name.
    pub name: String,
    /// Its hardware address; otherwise the kernel rolls dice, and takes that of a port as long as nobody sets one.
    pub mac: Option<Mac>,
    /// In bytes, as long as the bridge has no port: then it takes the smallest MTU of its ports. Only a later change to
    /// another value ([`crate::Change::mtu`]) stays.
    pub mtu: Option<u32>,
    /// Whether it filters by VLAN; otherwise it does not. A kernel built without this refuses it.
    pub vlan_filtering: Option<bool>,
}

impl Netlink {
    /// Makes a pair of links in one message, the far end in its namespace and under its name from the first moment.
    ///
    /// Returns the end here, as the kernel echoed it when it was new; its [`Link::port`] is not known then.
    /// [`Error::exists`] means that either name is taken; the kernel does not say which.
    #[doc(alias = "veth")]
    pub fn create_veth(&self, veth: &NewVeth) -> Result<Link> {
        let peer = dressed(LinkUnspec::new_with_name(&veth.peer.name), veth.peer.mac, veth.mtu)
            .setns_by_fd(veth.peer.netns.as_fd().as_raw_fd())
            .build();
        let mut builder = dressed(LinkVeth::new(&veth.name, &veth.peer.name), veth.mac, veth.mtu)
            .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)));
        if let Some(master) = veth.master {
            builder = builder.controller(master);
        }
        let object = format!("{} with peer {} in {}", veth.name, veth.peer.name, veth.peer.netns.path().display());
        let link = self.create("create veth", object, builder.build(), &veth.name)?;
        // The echo was written before the link became a port.
        Ok(Link { master: veth.master, ..link })
    }

    /// Makes a bridge, which is down at first, and returns it. [`Error::exists`] means that its name is taken.
    pub fn create_bridge(&self, bridge: &NewBridge) -> Result<Link> {
        let builder = LinkMessageBuilder::<LinkBridge>::new(&bridge.name);
        let mut builder = dressed(builder, bridge.mac, bridge.mtu);
        if let Some(filtering) = bridge.vlan_filtering {
            builder = builder.vlan_filtering(filtering);
        }
        self.create("create bridge", bridge.name.clone(), builder.build(), &bridge.name)
    }

    fn create(&self, operation: &'static str, object: String, message: LinkMessage, name: &str) -> Result<Link> {
        let unreadable = || Error::unreadable(operation, name, "the kernel did not echo the new link");
        let message = RouteNetlinkMessage::NewLink(message);
        let flags = NLM_F_CREATE | NLM_F_EXCL | NLM_F_ECHO;
        let request = Request { message, flags, operation, object, link: None, forgives: Forgives::Nothing };
        let echoed = self.ask(request)?;
        echoed.iter().filter_map(|message| Link::parse(message)).find(|link| link.name == name).ok_or_else(unreadable)
    }
}

/// The settings that both ends of a veth and a bridge have in common.
fn dressed<T>(mut builder: LinkMessageBuilder<T>, mac: Option<Mac>, mtu: Option<u32>) -> LinkMessageBuilder<T> {
    if let Some(Mac(bytes)) = mac {
        builder = builder.address(bytes.to_vec());
    }
    if let Some(mtu) = mtu {
        builder = builder.mtu(mtu);
    }
    builder
}

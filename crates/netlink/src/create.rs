//! Creating veth pairs and bridges.

use std::os::fd::{AsFd, AsRawFd};

use cnikit_netns::Netns;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_ECHO, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::LinkAttribute::{NumRxQueues, NumTxQueues};
use netlink_packet_route::link::{BridgeBooleanOptionFlags, InfoData, InfoVeth, LinkMessage};
use rtnetlink::{LinkBridge, LinkDummy, LinkIfb, LinkMessageBuilder, LinkUnspec, LinkVeth, LinkVrf};

use crate::netlink::{Forgives, Request};
use crate::{Link, Mac, Netlink, Result};

/// A veth pair to be created. See veth(4).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NewVeth {
    /// The name of the end in the namespace of the socket; this end is down at first.
    pub name: String,
    /// The hardware address of this end; if `None`, the kernel chooses a random one.
    pub mac: Option<Mac>,
    /// The MTU of both ends, in bytes; if `None`, 1500.
    pub mtu: Option<u32>,
    /// The number of transmit and of receive queues of each end. If `None`, the kernel makes one for each possible CPU of the
    /// machine, adds each to sysfs at both ends, and uses one.
    #[doc(alias = "IFLA_NUM_TX_QUEUES")]
    pub queues: Option<u32>,
    /// The index of the bridge that this end becomes a port of.
    pub master: Option<u32>,
    /// The other end.
    pub peer: Peer,
}

/// The other end of a [`NewVeth`]; it is down at first.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[doc(alias = "VETH_INFO_PEER")]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// Its hardware address; if `None`, the kernel chooses a random one.
    pub mac: Option<Mac>,
    /// The namespace in which it is created. Creating it here and moving it there would cost 15 ms more.
    pub netns: Netns,
}

/// A bridge to be created. See ip-link(8).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NewBridge {
    /// Its name.
    pub name: String,
    /// Its hardware address. If `None`, the kernel chooses a random one, and replaces it by the address of a port until an
    /// address is set.
    pub mac: Option<Mac>,
    /// Its MTU in bytes. It holds only as long as the bridge has no port; afterwards the bridge takes the smallest MTU of its
    /// ports. Only a later change to another value ([`crate::LinkChange::mtu`]) is permanent.
    pub mtu: Option<u32>,
    /// Whether it filters by VLAN; if `None`, it does not. A kernel built without `CONFIG_BRIDGE_VLAN_FILTERING` refuses this.
    pub vlan_filtering: Option<bool>,
    /// Whether it learns from frames to link-local groups; if `None`, it does. A kernel before 5.0 ignores this. See
    /// [`Link::link_local_learning`].
    pub link_local_learning: Option<bool>,
}

impl NewVeth {
    /// A pair of this end and its peer, with the kernel's settings.
    pub fn new(name: impl Into<String>, peer: Peer) -> NewVeth {
        NewVeth { name: name.into(), mac: None, mtu: None, queues: None, master: None, peer }
    }
}

impl Peer {
    /// An end of this name in this namespace.
    pub fn new(name: impl Into<String>, netns: Netns) -> Peer {
        Peer { name: name.into(), mac: None, netns }
    }
}

impl NewBridge {
    /// A bridge of this name, with the kernel's settings.
    pub fn new(name: impl Into<String>) -> NewBridge {
        NewBridge { name: name.into(), mac: None, mtu: None, vlan_filtering: None, link_local_learning: None }
    }
}

setters!(NewVeth {} { mac: Mac, mtu: u32, queues: u32, master: u32 });
setters!(Peer {} { mac: Mac });
setters!(NewBridge {} { mac: Mac, mtu: u32, vlan_filtering: bool, link_local_learning: bool });

/// A link that drops all packets sent to it, and receives none. See ip-link(8).
#[derive(Clone, Debug)]
pub struct NewDummy {
    /// Its name.
    pub name: String,
    /// Its hardware address.
    pub mac: Mac,
    /// The number of its group; 0 is the default group.
    #[doc(alias = "IFLA_GROUP")]
    pub group: u32,
}

/// A link whose queue other links' traffic is redirected through. What it sends goes on where it came from. See tc-mirred(8).
#[derive(Clone, Debug)]
#[doc(alias = "intermediate functional block")]
pub struct NewIfb {
    /// Its name.
    pub name: String,
    /// In bytes.
    pub mtu: u32,
    /// The number of its group; 0 is the default group.
    #[doc(alias = "IFLA_GROUP")]
    pub group: u32,
}

impl Netlink {
    /// Creates an ifb, which is down at first and has no queue of its own, and returns it.
    ///
    /// # Errors
    /// Its name is taken ([`Error::exists`](crate::Error::exists)), the kernel has no ifb
    /// ([`Error::unsupported`](crate::Error::unsupported)), or `CAP_NET_ADMIN` is missing.
    #[doc(alias = "ifb")]
    pub fn create_ifb(&self, ifb: &NewIfb) -> Result<Link> {
        self.create("create ifb", ifb.name.clone(), ifb.message(), &ifb.name)
    }

    /// Whether this kernel has ifb links; it loads the module. The kernel is asked for one with a hardware address that it refuses.
    ///
    /// # Errors
    /// The kernel refuses the request for another reason, such as a missing `CAP_NET_ADMIN`.
    pub fn knows_ifb(&self) -> Result<bool> {
        let name = "cnikit-probe";
        let message = dressed(LinkMessageBuilder::<LinkIfb>::new(name), Some(Mac([0; 6])), None).build();
        match self.create("create ifb", name.to_owned(), message, name) {
            Err(error) if error.unsupported() => Ok(false),
            Err(error) if error.errno == libc::EADDRNOTAVAIL => Ok(true),
            other => other.map(|_| true),
        }
    }

    /// Creates a dummy, which is down at first, and returns it.
    ///
    /// # Errors
    /// Its name is taken ([`Error::exists`](crate::Error::exists)), the kernel has no dummy
    /// ([`Error::unsupported`](crate::Error::unsupported)) or refuses the hardware address, or `CAP_NET_ADMIN` is missing.
    #[doc(alias = "dummy")]
    pub fn create_dummy(&self, dummy: &NewDummy) -> Result<Link> {
        self.create("create dummy", dummy.name.clone(), dummy.message(), &dummy.name)
    }

    /// Whether this kernel has dummy links; it loads the module. The kernel is asked for one with a hardware address that it
    /// refuses.
    ///
    /// # Errors
    /// The kernel refuses the request for another reason, such as a missing `CAP_NET_ADMIN`.
    pub fn knows_dummy(&self) -> Result<bool> {
        let refused = NewDummy { name: "cnikit-probe".to_owned(), mac: Mac([0; 6]), group: 0 };
        match self.create_dummy(&refused) {
            Err(error) if error.unsupported() => Ok(false),
            Err(error) if error.errno == libc::EADDRNOTAVAIL => Ok(true),
            other => other.map(|_| true),
        }
    }

    /// Creates a veth pair in one message; the peer is in its namespace and has its name from the first moment.
    ///
    /// Returns this end as the kernel reported it at its creation; most kernels do not report its [`Link::port`] then.
    ///
    /// # Errors
    /// Either name is in use ([`Error::exists`](crate::Error::exists); the kernel does not report which one), the master does
    /// not exist, the kernel does not support veth ([`Error::unsupported`](crate::Error::unsupported)), or `CAP_NET_ADMIN` is
    /// missing in either namespace.
    #[doc(alias = "veth")]
    pub fn create_veth(&self, veth: &NewVeth) -> Result<Link> {
        let object = format!("{} with peer {} in {}", veth.name, veth.peer.name, veth.peer.netns.path().display());
        let link = self.create("create veth", object, veth.message(), &veth.name)?;
        // The kernel wrote the echo before it made the link a port.
        Ok(Link { master: veth.master, ..link })
    }

    /// Creates a bridge, which is down at first, and returns it.
    ///
    /// # Errors
    /// Its name is in use ([`Error::exists`](crate::Error::exists)), the kernel does not support bridges
    /// ([`Error::unsupported`](crate::Error::unsupported)) or refuses a setting, or `CAP_NET_ADMIN` is missing.
    pub fn create_bridge(&self, bridge: &NewBridge) -> Result<Link> {
        self.create("create bridge", bridge.name.clone(), bridge.message(), &bridge.name)
    }

    /// Creates a VRF, a link whose ports' packets are routed by a table of their own; it is up.
    ///
    /// With the first VRF of a namespace the kernel adds the routing rules that lead to the tables of all VRFs, and never removes
    /// them.
    ///
    /// # Errors
    /// Its name is taken ([`Error::exists`](crate::Error::exists)), the kernel has no VRFs
    /// ([`Error::unsupported`](crate::Error::unsupported)), `table` is 0, or `CAP_NET_ADMIN` is missing.
    pub fn create_vrf(&self, name: &str, table: u32) -> Result<Link> {
        let message = LinkVrf::new(name, table).up().build();
        self.create("create VRF", name.to_owned(), message, name)
    }

    /// Whether this kernel has VRFs; it loads the module. The kernel is asked for one without a table, which it refuses in either
    /// case, with different errors.
    ///
    /// # Errors
    /// The kernel refuses the request for another reason, such as a missing `CAP_NET_ADMIN`.
    pub fn knows_vrf(&self) -> Result<bool> {
        match self.create_vrf("cnikit-probe", 0) {
            Err(error) if error.unsupported() => Ok(false),
            Err(error) if error.errno == libc::EINVAL => Ok(true),
            created => created.map(|_| true),
        }
    }

    pub(crate) fn create(
        &self,
        operation: &'static str,
        object: String,
        message: LinkMessage,
        name: &str,
    ) -> Result<Link> {
        let message = RouteNetlinkMessage::NewLink(message);
        let flags = NLM_F_CREATE | NLM_F_EXCL | NLM_F_ECHO;
        self.created(
            Request {
                message: message.into(),
                flags,
                operation,
                object: object.into(),
                link: None,
                forgives: Forgives::Nothing,
            },
            name,
        )
    }

    /// Sends a request that creates a link, and returns the link as the kernel echoed it. Kernels before 6.2 do not echo new
    /// links; there the link is read by its name.
    fn created(&self, request: Request, name: &str) -> Result<Link> {
        for message in self.ask(request)? {
            if let Some(link) = Link::parse(&message)
                && link.name == name
            {
                return Ok(link);
            }
        }
        self.link(name)
    }
}

impl NewVeth {
    fn message(&self) -> LinkMessage {
        let peer = self
            .end(LinkUnspec::new_with_name(&self.peer.name), self.peer.mac)
            .setns_by_fd(self.peer.netns.as_fd().as_raw_fd())
            .build();
        let mut builder = self
            .end(LinkVeth::new(&self.name, &self.peer.name), self.mac)
            .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)));
        if let Some(master) = self.master {
            builder = builder.controller(master);
        }
        builder.build()
    }

    fn end<T>(&self, builder: LinkMessageBuilder<T>, mac: Option<Mac>) -> LinkMessageBuilder<T> {
        let mut builder = dressed(builder, mac, self.mtu);
        if let Some(count) = self.queues {
            builder = builder.append_extra_attribute(NumTxQueues(count)).append_extra_attribute(NumRxQueues(count));
        }
        builder
    }
}

impl NewDummy {
    fn message(&self) -> LinkMessage {
        let builder = dressed(LinkMessageBuilder::<LinkDummy>::new(&self.name), Some(self.mac), None);
        if self.group > 0 { builder.link_group(self.group) } else { builder }.build()
    }
}

impl NewIfb {
    fn message(&self) -> LinkMessage {
        let builder = dressed(LinkMessageBuilder::<LinkIfb>::new(&self.name), None, Some(self.mtu)).txqueuelen(0);
        if self.group > 0 { builder.link_group(self.group) } else { builder }.build()
    }
}

impl NewBridge {
    fn message(&self) -> LinkMessage {
        let mut builder = dressed(LinkMessageBuilder::<LinkBridge>::new(&self.name), self.mac, self.mtu);
        if let Some(filtering) = self.vlan_filtering {
            builder = builder.vlan_filtering(filtering);
        }
        if let Some(learning) = self.link_local_learning {
            builder = builder.set_boolean_opt(BridgeBooleanOptionFlags::NoLinkLocalLearn, !learning);
        }
        builder.build()
    }
}

/// Adds the settings that all new links have in common: hardware address and MTU.
pub(crate) fn dressed<T>(
    mut builder: LinkMessageBuilder<T>,
    mac: Option<Mac>,
    mtu: Option<u32>,
) -> LinkMessageBuilder<T> {
    if let Some(Mac(bytes)) = mac {
        builder = builder.address(bytes.to_vec());
    }
    if let Some(mtu) = mtu {
        builder = builder.mtu(mtu);
    }
    builder
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request without `NLM_F_ECHO`, which is how older kernels treat every request.
    fn unechoed(message: LinkMessage) -> Request {
        let operation = "create";
        let object = String::new();
        let message = RouteNetlinkMessage::NewLink(message);
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        Request {
            message: message.into(),
            flags,
            operation,
            object: object.into(),
            link: None,
            forgives: Forgives::Nothing,
        }
    }

    #[test]
    fn a_link_that_the_kernel_did_not_echo_is_read() {
        let here = cnikit_netns::make::anonymous().unwrap();
        let there = cnikit_netns::make::anonymous().unwrap();
        let netlink = Netlink::inside(&here).unwrap();
        let bridge = |name: &str| NewBridge::new(name).mtu(1400);
        let peer = Peer::new("far", there);
        let mac = Some(Mac([0x0a, 0, 0, 0, 0, 1]));

        assert_eq!(netlink.ask(unechoed(bridge("br0").message())).unwrap(), [[0; 0]; 0], "there is no echo to read");
        let made = netlink.created(unechoed(bridge("br1").message()), "br1").unwrap();
        assert_eq!((made.name.as_str(), made.kind.as_deref(), made.mtu), ("br1", Some("bridge"), 1400));

        let veth = NewVeth::new("near", peer).mac(mac).master(made.index);
        let near = netlink.created(unechoed(veth.message()), "near").unwrap();
        assert_eq!((near.name.as_str(), near.kind.as_deref(), near.mac), ("near", Some("veth"), mac));
        assert_eq!((near.master, near.lower_netns.is_some()), (Some(made.index), true));

        let taken = netlink.created(unechoed(bridge("br0").message()), "br0").unwrap_err();
        assert!(taken.exists(), "the link that is there already is not read as if it were new: {taken}");
    }
}

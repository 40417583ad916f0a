//! Links, addresses and routes.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;

use libc::{
    IFF_UP, IFLA_IFNAME, NLM_F_DUMP, RTM_DELLINK, RTM_GETADDR, RTM_GETLINK, RTM_GETROUTE, RTM_NEWADDR, RTM_NEWLINK,
    RTM_NEWROUTE,
};
use nix::sys::socket::SockProtocol;

use crate::netlink::{ACK, CREATE, Message, Socket, attribute, link_header};
use crate::{IFNAME, PREFIX, Result, gateway};

/// The attribute of a veth's data that describes its other end; `linux/veth.h`.
const VETH_INFO_PEER: u16 = 1;
/// The mode of a macvlan and its value for bridges; `linux/if_link.h`.
const MACVLAN_MODE: u16 = 1;
const MACVLAN_BRIDGE: u32 = 4;
/// The bytes of `struct ifinfomsg`, `struct ifaddrmsg` and `struct rtmsg`.
pub(crate) const LINK_HEADER: usize = 16;
const ADDRESS_HEADER: usize = 8;
const ROUTE_HEADER: usize = 12;

/// The other side of the container's link.
pub(crate) enum Near {
    /// A port of the bridge with this index.
    Bridge(u32),
    /// A host end with the gateway's address.
    Alone,
    /// The master with this index.
    Master(u32),
}

/// The host's links.
pub(crate) struct Host(Socket);

impl Host {
    pub(crate) fn here() -> Result<Host> {
        Socket::new(SockProtocol::NetlinkRoute).map(Host)
    }

    pub(crate) fn index(&self, name: &str) -> Result<u32> {
        link(&self.0, name).map(|answer| index(&answer))
    }

    /// The bridge of this name, with the gateway's address; it is made if it does not exist. Of several calls at once another one
    /// may make it, or give it the address, in the meantime.
    pub(crate) fn bridge(&self, name: &str) -> Result<u32> {
        match self.index(name) {
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
            found => return found,
        }
        let make = Message::new(RTM_NEWLINK, CREATE, &link_header(0, IFF_UP))
            .text(IFLA_IFNAME, name)
            .nest(libc::IFLA_LINKINFO, |info| info.text(libc::IFLA_INFO_KIND, "bridge"));
        there_is(self.0.ask(&[make]))?;
        let made = self.index(name)?;
        there_is(self.0.ask(&[address(made, Ipv4Addr::new(10, 97, 0, 1), PREFIX)]))?;
        Ok(made)
    }

    /// Makes the container's link in its namespace, and the host's end of it.
    pub(crate) fn make(&self, near: &Near, name: &str, netns: &File, assigned: Ipv4Addr) -> Result<()> {
        let descriptor = netns.as_raw_fd().to_ne_bytes();
        if let Near::Master(master) = near {
            let macvlan = Message::new(RTM_NEWLINK, CREATE, &link_header(0, 0))
                .text(IFLA_IFNAME, IFNAME)
                .with(libc::IFLA_NET_NS_FD, &descriptor)
                .with(libc::IFLA_LINK, &master.to_ne_bytes())
                .nest(libc::IFLA_LINKINFO, |info| {
                    info.text(libc::IFLA_INFO_KIND, "macvlan")
                        .nest(libc::IFLA_INFO_DATA, |data| data.with(MACVLAN_MODE, &MACVLAN_BRIDGE.to_ne_bytes()))
                });
            return self.0.ask(&[macvlan]).map(drop);
        }
        let mut veth = Message::new(RTM_NEWLINK, CREATE, &link_header(0, IFF_UP)).text(IFLA_IFNAME, name);
        if let Near::Bridge(bridge) = near {
            veth = veth.with(libc::IFLA_MASTER, &bridge.to_ne_bytes());
        }
        let veth = veth.nest(libc::IFLA_LINKINFO, |info| {
            info.text(libc::IFLA_INFO_KIND, "veth").nest(libc::IFLA_INFO_DATA, |data| {
                data.nest(VETH_INFO_PEER, |peer| {
                    peer.raw(&link_header(0, 0)).text(IFLA_IFNAME, IFNAME).with(libc::IFLA_NET_NS_FD, &descriptor)
                })
            })
        });
        self.0.ask(&[veth])?;
        if let Near::Alone = near {
            let made = self.index(name)?;
            self.0.ask(&[address(made, gateway(assigned), 32), route(made, assigned, 32, None)])?;
        }
        Ok(())
    }

    /// Whether the host has its end of the container's link, and what ADD set besides: the address of the gateway, and if there is
    /// no bridge a route to the container.
    pub(crate) fn check(&self, near: &Near, name: &str, assigned: Ipv4Addr) -> Result<()> {
        match near {
            Near::Master(_) => Ok(()),
            Near::Bridge(bridge) => {
                self.index(name)?;
                has_address(&self.0, *bridge, gateway(assigned))
            }
            Near::Alone => {
                let end = self.index(name)?;
                has_address(&self.0, end, gateway(assigned))?;
                has_routes(&self.0, end)
            }
        }
    }
}

/// The container's link.
pub(crate) struct Inside(Socket);

impl Inside {
    pub(crate) fn here() -> Result<Inside> {
        Socket::new(SockProtocol::NetlinkRoute).map(Inside)
    }

    /// Sets the link up, with its address and routes. Returns its MAC.
    pub(crate) fn configure(&self, near: &Near, assigned: Ipv4Addr) -> Result<String> {
        let found = link(&self.0, IFNAME)?;
        let index = index(&found);
        let up = Message::new(RTM_NEWLINK, ACK, &link_header(index, IFF_UP));
        let mut messages = vec![up, address(index, assigned, PREFIX)];
        let gateway = gateway(assigned);
        match near {
            Near::Bridge(_) => messages.push(route(index, Ipv4Addr::UNSPECIFIED, 0, Some(gateway))),
            Near::Alone => messages.push(route(index, gateway, 32, None)),
            Near::Master(_) => {}
        }
        self.0.ask(&messages)?;
        Ok(text(attribute(&found, LINK_HEADER, libc::IFLA_ADDRESS).unwrap_or_default()))
    }

    /// Whether the link has the address and routes.
    pub(crate) fn check(&self, assigned: Ipv4Addr) -> Result<()> {
        let index = index(&link(&self.0, IFNAME)?);
        has_address(&self.0, index, assigned)?;
        has_routes(&self.0, index)
    }

    pub(crate) fn delete(&self) -> Result<()> {
        self.0.ask(&[Message::new(RTM_DELLINK, ACK, &link_header(0, 0)).text(IFLA_IFNAME, IFNAME)]).map(drop)
    }
}

/// A MAC as text.
pub(crate) fn text(mac: &[u8]) -> String {
    mac.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
}

/// The index of the other end of the container's link.
pub(crate) fn other_end(inside: &Socket) -> Result<u32> {
    let found = link(inside, IFNAME)?;
    let index = attribute(&found, LINK_HEADER, libc::IFLA_LINK).and_then(|index| index.try_into().ok());
    index.map(u32::from_ne_bytes).ok_or_else(|| io::Error::other("the link has no other end"))
}

/// The kernel's description of the link with this index.
pub(crate) fn link_at(socket: &Socket, index: u32) -> Result<()> {
    socket.ask(&[Message::new(RTM_GETLINK, ACK, &link_header(index, 0))]).map(drop)
}

/// The kernel's description of a link.
pub(crate) fn link(socket: &Socket, name: &str) -> Result<Vec<u8>> {
    let ask = Message::new(RTM_GETLINK, ACK, &link_header(0, 0)).text(IFLA_IFNAME, name);
    socket.ask(&[ask])?.into_iter().next().ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))
}

fn has_address(socket: &Socket, link: u32, address: Ipv4Addr) -> Result<()> {
    let addresses = socket.ask(&[Message::new(RTM_GETADDR, NLM_F_DUMP, &[2, 0, 0, 0, 0, 0, 0, 0])])?;
    let wanted = address.octets();
    let is_wanted = |one: &[u8]| attribute(one, ADDRESS_HEADER, libc::IFA_LOCAL) == Some(&wanted) && index(one) == link;
    if addresses.iter().any(|one| is_wanted(one)) { Ok(()) } else { Err(io::Error::other("an address is missing")) }
}

fn has_routes(socket: &Socket, link: u32) -> Result<()> {
    let routes = socket.ask(&[Message::new(RTM_GETROUTE, NLM_F_DUMP, &[2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])])?;
    let link = link.to_ne_bytes();
    let is_wanted = |one: &[u8]| attribute(one, ROUTE_HEADER, libc::RTA_OIF) == Some(&link);
    if routes.iter().any(|one| is_wanted(one)) { Ok(()) } else { Err(io::Error::other("there is no route")) }
}

/// The index in the answer for a link or an address.
pub(crate) fn index(answer: &[u8]) -> u32 {
    answer.get(4..8).map_or(0, |bytes| u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

/// Success if the kernel has made the object, or it existed already.
fn there_is<T>(made: Result<T>) -> Result<()> {
    match made {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made.map(drop),
    }
}

/// `struct ifaddrmsg`: family, prefix, flags, scope, index.
fn address(index: u32, address: Ipv4Addr, prefix: u8) -> Message {
    let [a, b, c, d] = index.to_ne_bytes();
    Message::new(RTM_NEWADDR, CREATE, &[2, prefix, 0, 0, a, b, c, d])
        .with(libc::IFA_LOCAL, &address.octets())
        .with(libc::IFA_ADDRESS, &address.octets())
}

/// `struct rtmsg`: family, prefixes of destination and source, type of service, table, protocol, scope, type, flags. Without a
/// gateway the destination is on the link.
fn route(index: u32, to: Ipv4Addr, prefix: u8, gateway: Option<Ipv4Addr>) -> Message {
    let scope = if gateway.is_some() { libc::RT_SCOPE_UNIVERSE } else { libc::RT_SCOPE_LINK };
    let header = [2, prefix, 0, 0, libc::RT_TABLE_MAIN, libc::RTPROT_STATIC, scope, libc::RTN_UNICAST, 0, 0, 0, 0];
    let mut route = Message::new(RTM_NEWROUTE, CREATE, &header).with(libc::RTA_OIF, &index.to_ne_bytes());
    if prefix > 0 {
        route = route.with(libc::RTA_DST, &to.octets());
    }
    match gateway {
        Some(gateway) => route.with(libc::RTA_GATEWAY, &gateway.octets()),
        None => route,
    }
}

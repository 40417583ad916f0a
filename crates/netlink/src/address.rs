//! Addresses of links.

use std::net::Ipv4Addr;

use ipnetwork::IpNetwork;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, parse_ip, parse_u32};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressHeader, AddressMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::attribute::value;
use crate::frame::HEADER;
use crate::netlink::{Forgives, Request};
use crate::{Netlink, Result};

// The attributes that are read here, from `linux/if_addr.h`.
const ADDRESS: u16 = 1;
const LOCAL: u16 = 2;
const BROADCAST: u16 = 4;
const FLAGS: u16 = 8;

/// Prefixes from this length on have no address to spare for a broadcast (RFC 3021).
const WITHOUT_BROADCAST: u8 = 31;
/// Length of an `ifaddrmsg`.
const ADDRESS_HEADER: usize = 8;

/// An address of a link. See ip-address(8).
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "ifaddrmsg")]
pub struct Address {
    /// The number of the link.
    pub index: u32,
    /// The address with the length of its prefix.
    #[doc(alias = "IFA_LOCAL")]
    pub address: IpNetwork,
    /// Duplicate address detection is not done for it (IPv6).
    #[doc(alias = "IFA_F_NODAD")]
    pub no_dad: bool,
    /// It brought no route to its prefix with it.
    #[doc(alias = "IFA_F_NOPREFIXROUTE")]
    pub no_prefix_route: bool,
    /// The neighbours are being asked whether they have it, and it cannot be used yet (IPv6).
    #[doc(alias = "IFA_F_TENTATIVE")]
    pub tentative: bool,
    /// A neighbour has it; it will never be usable (IPv6).
    #[doc(alias = "IFA_F_DADFAILED")]
    pub dad_failed: bool,
    /// 0 everywhere, 253 this link, 254 this host.
    #[doc(alias = "RT_SCOPE_UNIVERSE")]
    pub scope: u8,
    /// It does not run out; the kernel makes the others itself, or takes them from a router.
    #[doc(alias = "IFA_F_PERMANENT")]
    pub permanent: bool,
    /// The broadcast address (IPv4).
    pub broadcast: Option<Ipv4Addr>,
}

/// An address to be added. IPv4 prefixes of up to 30 bits get the broadcast address that ends them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewAddress {
    /// The address with the length of its prefix.
    pub address: IpNetwork,
    /// Use it at once, without asking the neighbours (IPv6).
    #[doc(alias = "IFA_F_NODAD")]
    pub no_dad: bool,
    /// Add no route to its prefix.
    #[doc(alias = "IFA_F_NOPREFIXROUTE")]
    pub no_prefix_route: bool,
    /// 0 everywhere, 253 this link, 254 this host. The kernel computes that of an IPv6 address itself.
    pub scope: u8,
}

impl From<IpNetwork> for NewAddress {
    /// An address as ip(8) adds it: asked for, with a route to its prefix, valid everywhere.
    fn from(address: IpNetwork) -> Self {
        Self { address, no_dad: false, no_prefix_route: false, scope: 0 }
    }
}

impl Netlink {
    /// The addresses of a link, IPv4 first. The kernel filters them.
    ///
    /// # Errors
    /// There is no such link ([`crate::Error::is_absent`]), or the dump fails, see [`Socket::dump`](crate::Socket::dump).
    #[doc(alias = "RTM_GETADDR")]
    pub fn addresses(&self, index: u32) -> Result<Vec<Address>> {
        let mut message = AddressMessage::default();
        message.header.index = index;
        let message = RouteNetlinkMessage::GetAddress(message);
        let messages = self.dump(&message, "list addresses of link", &format!("number {index}"))?;
        let ours = |address: &Address| address.index == index;
        Ok(messages.iter().filter_map(|message| Address::parse(message)).filter(ours).collect())
    }

    /// Adds an address to a link.
    ///
    /// # Errors
    /// The kernel refuses it: the link has it already ([`crate::Error::exists`]), there is no such link
    /// ([`crate::Error::is_absent`]), or IPv6 is disabled on it.
    #[doc(alias = "RTM_NEWADDR")]
    pub fn add_address(&self, index: u32, address: &NewAddress) -> Result<()> {
        self.ask(address.request(index)).map(drop)
    }

    /// Removes an address from a link.
    ///
    /// # Errors
    /// The link does not have it or does not exist ([`crate::Error::is_absent`]), or the kernel refuses it otherwise.
    #[doc(alias = "RTM_DELADDR")]
    pub fn delete_address(&self, index: u32, address: IpNetwork) -> Result<()> {
        let message = RouteNetlinkMessage::DelAddress(message(index, address));
        let operation = "delete address";
        let object = format!("{address} from");
        let request = Request { message, flags: 0, operation, object, link: Some(index), forgives: Forgives::Nothing };
        self.ask(request).map(drop)
    }
}

impl NewAddress {
    pub(crate) fn request(&self, index: u32) -> Request {
        let mut message = message(index, self.address);
        message.header.scope = self.scope.into();
        let mut flags = AddressFlags::empty();
        flags.set(AddressFlags::Nodad, self.no_dad);
        flags.set(AddressFlags::Noprefixroute, self.no_prefix_route);
        if !flags.is_empty() {
            message.attributes.push(AddressAttribute::Flags(flags));
        }
        Request {
            message: RouteNetlinkMessage::NewAddress(message),
            flags: NLM_F_CREATE | NLM_F_EXCL,
            operation: "add address",
            object: format!("{} to", self.address),
            link: Some(index),
            forgives: Forgives::Nothing,
        }
    }
}

/// The message about an address. Built here, since rtnetlink's builder leaves a multicast address out: a removal that names no
/// address removes the first that the link has.
fn message(index: u32, address: IpNetwork) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    message.header.prefix_len = address.prefix();
    message.header.index = index;
    message.attributes = vec![AddressAttribute::Address(address.ip()), AddressAttribute::Local(address.ip())];
    if let IpNetwork::V4(v4) = address
        && v4.prefix() < WITHOUT_BROADCAST
    {
        message.attributes.push(AddressAttribute::Broadcast(v4.broadcast()));
    }
    message
}

impl Address {
    /// Reads an `RTM_NEWADDR` message; `None` if it is something else.
    pub(crate) fn parse(message: &[u8]) -> Option<Self> {
        let body = message.get(HEADER..)?;
        let header = AddressHeader::parse(body).ok()?;
        let find = |wanted| value(body.get(ADDRESS_HEADER..).unwrap_or_default(), wanted);
        // On a link with a far end IFA_ADDRESS is that end's; ours is always IFA_LOCAL, if there is one.
        let address = find(LOCAL).or_else(|| find(ADDRESS)).and_then(|value| parse_ip(value).ok())?;
        let flags = find(FLAGS).and_then(|value| parse_u32(value).ok()).unwrap_or(header.flags.bits().into());
        let flags = AddressFlags::from_bits_retain(flags);
        Some(Self {
            index: header.index,
            address: IpNetwork::new(address, header.prefix_len).ok()?,
            no_dad: flags.contains(AddressFlags::Nodad),
            no_prefix_route: flags.contains(AddressFlags::Noprefixroute),
            tentative: flags.contains(AddressFlags::Tentative),
            dad_failed: flags.contains(AddressFlags::Dadfailed),
            scope: header.scope.into(),
            permanent: flags.contains(AddressFlags::Permanent),
            broadcast: find(BROADCAST).and_then(|value| <[u8; 4]>::try_from(value).ok()).map(Ipv4Addr::from),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Batch, wire};

    #[test]
    fn a_message_names_its_address_a_multicast_one_too() {
        for text in ["10.0.0.2/24", "10.0.0.2/31", "224.0.0.5/24", "fd00::2/64", "ff02::5/64"] {
            let address: IpNetwork = text.parse().unwrap();
            let mut batch = Batch::new();
            batch.add_address(3, &NewAddress::from(address));
            let found = wire::address(&wire::messages(batch).unwrap()[0]).unwrap();
            assert_eq!((found.index, found.address), (3, address));
        }
    }
}

//! Whole addresses, with the properties that [`Address`] lacks: they can be given to a link again.

use netlink_packet_core::{DefaultNla, Emitable, NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeader, AddressHeaderFlags, AddressMessage,
};

use crate::address::{ADDRESS_HEADER, FLAGS};
use crate::attribute::attributes;
use crate::frame::HEADER;
use crate::netlink::{Forgives, Request};
use crate::{Address, Batch, Netlink, Result};

/// `IFA_PROTO` of `linux/if_addr.h`: the origin of an address.
const PROTO: u16 = 11;
/// `IFAPROT_KERNEL_LO`, `_RA` and `_LL`: the kernel made the address itself, for loopback, because of a router, or for the link.
const OF_KERNEL: std::ops::RangeInclusive<u8> = 1..=3;
/// The flags that an administrator sets, and the one for an address that does not expire. The kernel computes the others.
const SETTABLE: AddressFlags = AddressFlags::Nodad
    .union(AddressFlags::Homeaddress)
    .union(AddressFlags::Managetempaddr)
    .union(AddressFlags::Noprefixroute)
    .union(AddressFlags::Mcautojoin)
    .union(AddressFlags::Permanent);

/// An address with all its properties, as the kernel reported it: peer, broadcast address, label, scope, flags, metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressCopy {
    header: AddressHeader,
    attributes: Vec<(u16, Vec<u8>)>,
    address: Address,
}

impl Netlink {
    /// The addresses of a link that an administrator gave it, in their order: those that do not expire, except the ones that the
    /// kernel made itself, as far as it tells which those are (Linux 5.18).
    ///
    /// # Errors
    /// As [`Netlink::addresses`].
    #[doc(alias = "IFA_F_PERMANENT")]
    pub fn address_copies_of(&self, index: u32) -> Result<Vec<AddressCopy>> {
        let mut message = AddressMessage::default();
        message.header.index = index;
        let message = RouteNetlinkMessage::GetAddress(message);
        let messages = self.dump(&message, "list addresses of link", &format!("number {index}"))?;
        let mut copies = Vec::new();
        for message in &messages {
            if let Some(copy) = AddressCopy::read(message)
                && copy.address.index == index
                && copy.is_of_administrator()
            {
                copies.push(copy);
            }
        }
        Ok(copies)
    }
}

impl Batch {
    /// Gives a link this address, unless it has it.
    pub fn add_address_copy(&mut self, index: u32, copy: &AddressCopy) {
        self.add(copy.request(index));
    }
}

impl AddressCopy {
    /// The properties that [`Address`] has.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The `ifaddrmsg` with its attributes, to be stored. Numbers are in the byte order of this machine.
    pub fn to_bytes(&self) -> Vec<u8> {
        let message = self.message(self.header.index);
        let mut bytes = vec![0; message.buffer_len()];
        message.emit(&mut bytes);
        bytes
    }

    /// Reads what [`AddressCopy::to_bytes`] wrote; `None` if it is something else.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Self::read(&[&[0; HEADER], bytes].concat())
    }

    fn read(message: &[u8]) -> Option<Self> {
        let address = Address::parse(message)?;
        let body = message.get(HEADER..)?;
        let mut header = AddressHeader::parse(body).ok()?;
        header.flags = AddressHeaderFlags::empty();
        let mut copy = Self { header, attributes: Vec::new(), address };
        for (kind, value) in attributes(body.get(ADDRESS_HEADER..)?) {
            copy.attributes.push((kind, settable(kind, value)));
        }
        Some(copy)
    }

    fn is_of_administrator(&self) -> bool {
        let proto = self.attributes.iter().find(|(kind, _)| *kind == PROTO);
        let is_of_kernel = proto.is_some_and(|(_, value)| value.first().is_some_and(|proto| OF_KERNEL.contains(proto)));
        self.address.permanent && !is_of_kernel
    }

    fn message(&self, index: u32) -> AddressMessage {
        let mut message = AddressMessage::default();
        message.header = self.header.clone();
        message.header.index = index;
        for (kind, value) in &self.attributes {
            message.attributes.push(AddressAttribute::Other(DefaultNla::new(*kind, value.clone())));
        }
        message
    }

    fn request(&self, index: u32) -> Request {
        Request {
            message: RouteNetlinkMessage::NewAddress(self.message(index)).into(),
            flags: NLM_F_CREATE | NLM_F_EXCL,
            operation: "add address",
            object: format!("{} to", self.address.address).into(),
            link: Some(index),
            forgives: Forgives::Present,
        }
    }
}

/// The value of an attribute; of flags only those that can be set.
fn settable(kind: u16, value: &[u8]) -> Vec<u8> {
    if kind == FLAGS
        && let Ok(flags) = <[u8; 4]>::try_from(value)
    {
        let flags = AddressFlags::from_bits_retain(u32::from_ne_bytes(flags));
        return (flags & SETTABLE).bits().to_ne_bytes().to_vec();
    }
    value.to_vec()
}

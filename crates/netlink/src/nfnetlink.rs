//! Messages of nfnetlink, the netlink protocol of netfilter: `nlmsghdr`, `nfgenmsg`, attributes. See `linux/netfilter/nfnetlink.h`.

use crate::attribute::Attributes;

/// The protocol of a netlink socket for netfilter.
#[doc(alias = "NETLINK_NETFILTER")]
pub const NETFILTER: isize = 12;
/// The length of `nlmsghdr` and `nfgenmsg` together, in bytes.
pub const HEADERS: usize = 20;

const REQUEST: u16 = 0x1;
const ACK: u16 = 0x4;

/// The message that opens a transaction of a subsystem.
#[doc(alias = "NFNL_MSG_BATCH_BEGIN")]
const BEGIN: u16 = 0x10;
/// The message that ends a transaction and makes the kernel carry it out.
#[doc(alias = "NFNL_MSG_BATCH_END")]
const END: u16 = 0x11;
/// The attribute with the generation of the ruleset that a transaction is bound to.
#[doc(alias = "NFNL_BATCH_GENID")]
const GENERATION: u16 = 1;

/// One message to a subsystem of netfilter, without its sequence number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetfilterMessage {
    kind: u16,
    flags: u16,
    family: u8,
    resource: u16,
    attributes: Attributes,
    /// The operation, as an error describes it.
    pub operation: &'static str,
    /// The object of the operation, as an error describes it.
    pub object: String,
}

impl NetfilterMessage {
    /// A request of this type (the subsystem in the high byte) with these flags, for a protocol family (`NFPROTO_*`).
    #[inline]
    pub fn request(kind: u16, flags: u16, family: u8, attributes: Attributes) -> Self {
        let flags = flags | REQUEST;
        Self { kind, flags, family, resource: 0, attributes, operation: "read", object: String::new() }
    }

    /// The same message with this description for errors.
    #[must_use]
    #[inline]
    pub fn described(self, operation: &'static str, object: String) -> Self {
        Self { operation, object, ..self }
    }

    /// Opens a transaction of a subsystem. With a guard the kernel refuses it (`ERESTART`) unless the ruleset still has that
    /// generation.
    pub fn begin(subsystem: u16, guard: Option<u32>) -> Self {
        let mut message = Self::bracket(BEGIN, subsystem);
        if let Some(generation) = guard {
            message.attributes = message.attributes.number(GENERATION, generation);
        }
        message
    }

    /// Ends a transaction, so that the kernel carries it out.
    pub fn end(subsystem: u16) -> Self {
        Self::bracket(END, subsystem)
    }

    fn bracket(kind: u16, resource: u16) -> Self {
        let message = Self::request(kind, 0, 0, Attributes::new()).described("change", "the ruleset".to_owned());
        Self { resource, ..message }
    }

    /// The same message with a request for an acknowledgement.
    #[must_use]
    pub fn acknowledged(self) -> Self {
        Self { flags: self.flags | ACK, ..self }
    }

    /// The length in bytes.
    #[inline]
    pub fn length(&self) -> usize {
        HEADERS + self.attributes.as_bytes().len()
    }

    /// Encodes the message.
    #[inline]
    pub fn encode(&self, sequence: u32) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.length());
        self.write(sequence, &mut bytes);
        bytes
    }

    /// Encodes messages in one datagram, each with its sequence number.
    #[inline]
    pub fn encode_all<'a>(messages: impl IntoIterator<Item = (&'a Self, &'a u32)>) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (message, sequence) in messages {
            message.write(*sequence, &mut bytes);
        }
        bytes
    }

    #[inline]
    fn write(&self, sequence: u32, bytes: &mut Vec<u8>) {
        let length = u32::try_from(self.length()).unwrap_or(u32::MAX);
        bytes.extend(length.to_ne_bytes());
        bytes.extend(self.kind.to_ne_bytes());
        bytes.extend(self.flags.to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend([0, 0, 0, 0, self.family, 0]);
        bytes.extend(self.resource.to_be_bytes());
        bytes.extend_from_slice(self.attributes.as_bytes());
    }
}

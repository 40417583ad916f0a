//! Messages of nfnetlink, the netlink protocol of netfilter: `nlmsghdr`, `nfgenmsg`, attributes. See `linux/netfilter/nfnetlink.h`.

use crate::attribute::Attributes;

/// The protocol of a netlink socket for netfilter.
#[doc(alias = "NETLINK_NETFILTER")]
pub const NETFILTER: isize = 12;
/// The length of the header of a netlink message and of that of netfilter behind it, in bytes.
pub const HEADERS: usize = 20;

const REQUEST: u16 = 0x1;
const ACK: u16 = 0x4;

/// The message that opens a transaction of a subsystem.
#[doc(alias = "NFNL_MSG_BATCH_BEGIN")]
const BEGIN: u16 = 0x10;
/// The message that has the transaction carried out.
#[doc(alias = "NFNL_MSG_BATCH_END")]
const END: u16 = 0x11;
/// The number of the ruleset that a transaction is for.
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
    /// What the message does, for an error.
    pub operation: &'static str,
    /// With what it does that, for an error.
    pub object: String,
}

impl NetfilterMessage {
    /// A request of this type (the subsystem in the high byte) with these flags, for a protocol family (`NFPROTO_*`).
    pub fn request(kind: u16, flags: u16, family: u8, attributes: Attributes) -> Self {
        let (operation, object) = ("read", String::new());
        Self { kind, flags: flags | REQUEST, family, resource: 0, attributes, operation, object }
    }

    /// The same, with the words that an error describes it by.
    #[must_use]
    pub fn described(self, operation: &'static str, object: String) -> Self {
        Self { operation, object, ..self }
    }

    /// Opens a transaction of a subsystem. With a guard it fails with `ERESTART` unless the ruleset still has that number.
    pub fn begin(subsystem: u16, guard: Option<u32>) -> Self {
        let mut message = Self::bracket(BEGIN, subsystem);
        if let Some(generation) = guard {
            message.attributes = message.attributes.number(GENERATION, generation);
        }
        message
    }

    /// Has the transaction carried out.
    pub fn end(subsystem: u16) -> Self {
        Self::bracket(END, subsystem)
    }

    fn bracket(kind: u16, resource: u16) -> Self {
        let message = Self::request(kind, 0, 0, Attributes::new()).described("change", "the ruleset".to_owned());
        Self { resource, ..message }
    }

    /// The same, and the kernel acknowledges it.
    #[must_use]
    pub fn acknowledged(self) -> Self {
        Self { flags: self.flags | ACK, ..self }
    }

    /// Its length in bytes.
    pub fn length(&self) -> usize {
        HEADERS + self.attributes.as_bytes().len()
    }

    /// Its bytes.
    pub fn encode(&self, sequence: u32) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.length());
        self.write(sequence, &mut bytes);
        bytes
    }

    /// The bytes of many messages, one behind the other, each with its sequence number.
    pub fn encode_all<'a>(messages: impl IntoIterator<Item = (&'a Self, &'a u32)>) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (message, sequence) in messages {
            message.write(*sequence, &mut bytes);
        }
        bytes
    }

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

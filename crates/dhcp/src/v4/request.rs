//! The messages that a client sends.

use std::net::Ipv4Addr;

use cnikit_netlink::Mac;
use dhcproto::v4::{DhcpOption, Flags, MIN_PACKET_SIZE, Message, MessageType, OptionCode, UnknownOption};
use dhcproto::{Decodable, Decoder, Encodable, Encoder};

use super::options::{ClientOptions, code};

/// The longest message that we receive (option 57), in bytes: what fits into a frame of a link with the usual MTU.
const LONGEST_REPLY: u16 = 1_500;

/// The fields in front of the options, of a request on an Ethernet link. The last four bytes say that options follow (RFC 2131,
/// section 3).
const BLANK: [u8; 240] = {
    let mut bytes = [0; 240];
    [bytes[0], bytes[1], bytes[2]] = [1, 1, 6];
    [bytes[236], bytes[237], bytes[238], bytes[239]] = [99, 130, 83, 99];
    bytes
};

/// A message to a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) kind: MessageType,
    pub(crate) xid: u32,
    /// Seconds since the client began.
    pub(crate) secs: u16,
    /// Whether the server is to broadcast its reply.
    pub(crate) broadcast: bool,
    /// The client's address (`ciaddr`), if it uses one.
    pub(crate) own: Option<Ipv4Addr>,
    /// The address that it asks for or declines (option 50).
    pub(crate) wanted: Option<Ipv4Addr>,
    /// The server that is meant (option 54).
    pub(crate) server: Option<Ipv4Addr>,
}

impl Request {
    /// The payload of the datagram.
    pub(crate) fn encode(&self, mac: Mac, options: &ClientOptions) -> Vec<u8> {
        // `Message::new_with_id` takes a random number too, and panics if the kernel has none. These bytes are a message always.
        let Ok(mut message) = Message::decode(&mut Decoder::new(&BLANK)) else { return Vec::new() };
        message.set_xid(self.xid).set_chaddr(&mac.0).set_secs(self.secs);
        message.set_ciaddr(self.own.unwrap_or(Ipv4Addr::UNSPECIFIED));
        if self.broadcast {
            message.set_flags(Flags::default().set_broadcast());
        }
        let sent = message.opts_mut();
        if matches!(self.kind, MessageType::Discover | MessageType::Request) {
            sent.insert(DhcpOption::MaxMessageSize(LONGEST_REPLY));
            for (code, value) in options.sent() {
                sent.insert(DhcpOption::Unknown(UnknownOption::new(OptionCode::from(code), value)));
            }
        } else {
            // RFC 2131, table 5: neither a list of requests nor a class belongs into these.
            sent.insert(DhcpOption::ClientIdentifier(options.client_id().to_vec()));
        }
        sent.insert(DhcpOption::MessageType(self.kind));
        if let Some(wanted) = self.wanted {
            sent.insert(DhcpOption::RequestedIpAddress(wanted));
        }
        if let Some(server) = self.server {
            sent.insert(DhcpOption::ServerIdentifier(server));
        }
        let mut payload = Vec::with_capacity(MIN_PACKET_SIZE);
        // Writing to memory does not fail, and no option is longer than its length field says.
        let encoded = message.encode(&mut Encoder::new(&mut payload));
        debug_assert!(encoded.is_ok(), "{encoded:?}");
        payload.resize(payload.len().max(MIN_PACKET_SIZE), code::PAD);
        payload
    }
}

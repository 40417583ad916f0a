//! A server's reply, parsed from the payload of a datagram.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use cnikit_netlink::Mac;
use dhcproto::v4::borrowed::{DhcpOptionIterator, Message};
use dhcproto::v4::{HType, MAGIC, MessageType, Opcode};
use serde::{Deserialize, Serialize};

use super::options::code;
use super::parameters::{Parameters, address, is_host, seconds};

/// The options of a message by code. The parts of an option that occurs several times are joined (RFC 3396).
pub(crate) type Options = BTreeMap<u8, Vec<u8>>;

/// The positions of the fields that hold more options if option 52 says so (RFC 2131, section 4.1).
const MAGIC_COOKIE: std::ops::Range<usize> = 236..240;
const FILE: std::ops::Range<usize> = 108..236;
const SNAME: std::ops::Range<usize> = 44..108;
/// The positions of the number of an exchange, and of an Ethernet address of the client.
const XID: std::ops::Range<usize> = 4..8;
const CHADDR: std::ops::Range<usize> = 28..34;
/// The length of an Ethernet address, in bytes.
const MAC_LENGTH: u8 = 6;
/// The lease time that means for ever.
const INFINITE: u32 = u32::MAX;
/// The lease time of a server that names none.
const DEFAULT_LEASE: u32 = 3_600;
/// The longest message of a server that is shown, in characters.
const LONGEST_MESSAGE: usize = 200;

/// What a server says in its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyKind {
    /// DHCPOFFER.
    Offer,
    /// DHCPACK.
    Ack,
    /// DHCPNAK.
    Nak,
}

/// A reply of a DHCP server. Its fields are well formed; whether it answers a request of ours, the client decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// What it says.
    pub kind: ReplyKind,
    /// The number of the exchange.
    pub xid: u32,
    /// The hardware address of the client that it is for.
    pub client: Mac,
    /// The server (option 54).
    pub server: Ipv4Addr,
    /// The address that is offered or assigned (`yiaddr`); 0.0.0.0 in a DHCPNAK.
    pub address: Ipv4Addr,
    /// The times of the lease.
    pub times: LeaseTimes,
    /// What else the server configures.
    pub parameters: Parameters,
    /// The server's explanation (option 56), in printable characters; often empty.
    pub message: String,
}

/// The times of a lease, from when it was requested: renewal ≤ rebinding ≤ expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseTimes {
    /// When the client begins to renew the lease with its server (T1).
    pub renewal: Duration,
    /// When it begins to ask any server (T2).
    pub rebinding: Duration,
    /// When the lease ends; `None` if never, and then the two others have no meaning.
    pub expiry: Option<Duration>,
}

/// Whether the payload of a datagram is for the client with this hardware address, and has this number of an exchange (`chaddr`,
/// `xid`).
pub(crate) fn is_for(payload: &[u8], xid: u32, client: Mac) -> bool {
    payload.get(XID) == Some(&xid.to_be_bytes()[..]) && payload.get(CHADDR) == Some(&client.0[..])
}

impl Reply {
    /// Parses the payload of a UDP datagram. `None` if it is not a reply of a DHCP server to an Ethernet client, or has a field
    /// that no client can use.
    pub fn parse(payload: &[u8]) -> Option<Reply> {
        let message = Message::new(payload).ok()?;
        if message.opcode() != Opcode::BootReply || message.htype() != HType::Eth || message.hlen() != MAC_LENGTH {
            return None;
        }
        if payload.get(MAGIC_COOKIE) != Some(&MAGIC) {
            return None;
        }
        let options = options(&message, payload);
        let kind = match options.get(&code::MESSAGE_TYPE)?.as_slice() {
            [kind] => match MessageType::from(*kind) {
                MessageType::Offer => ReplyKind::Offer,
                MessageType::Ack => ReplyKind::Ack,
                MessageType::Nak => ReplyKind::Nak,
                _ => return None,
            },
            _ => return None,
        };
        if kind != ReplyKind::Nak && !is_host(message.yiaddr()) {
            return None;
        }
        Some(Reply {
            kind,
            xid: message.xid(),
            client: Mac(message.chaddr().try_into().ok()?),
            server: address(options.get(&code::SERVER_ID)?)?,
            address: message.yiaddr(),
            times: times(&options)?,
            parameters: Parameters::of(&options),
            message: explanation(&options),
        })
    }
}

/// All options of a message, those in the fields `file` and `sname` included.
fn options(message: &Message<'_>, payload: &[u8]) -> Options {
    let mut options = Options::new();
    let mut collect = |parts: DhcpOptionIterator<'_>| {
        for option in parts {
            options.entry(option.code().into()).or_default().extend(option.data());
        }
        options.get(&code::OVERLOAD).cloned()
    };
    let overload = collect(message.opts());
    let fields: &[_] = match overload.as_deref() {
        Some([1]) => &[FILE],
        Some([2]) => &[SNAME],
        Some([3]) => &[FILE, SNAME],
        _ => &[],
    };
    for field in fields {
        collect(DhcpOptionIterator::new(&payload[field.clone()]));
    }
    options
}

/// The times of the lease; `None` if it ends at once. Times of renewal that are out of order are replaced by the defaults of RFC
/// 2131.
fn times(options: &Options) -> Option<LeaseTimes> {
    let read = |code: u8| options.get(&code).and_then(|value| seconds(value));
    let duration = read(code::LEASE_TIME).unwrap_or(DEFAULT_LEASE);
    if duration == 0 {
        return None;
    }
    if duration == INFINITE {
        return Some(LeaseTimes { renewal: Duration::MAX, rebinding: Duration::MAX, expiry: None });
    }
    let expiry = Duration::from_secs(duration.into());
    let rebinding = named(read(code::REBINDING_TIME), expiry).unwrap_or(expiry * 7 / 8);
    let renewal = named(read(code::RENEWAL_TIME), rebinding).unwrap_or((expiry / 2).min(rebinding));
    Some(LeaseTimes { renewal, rebinding, expiry: Some(expiry) })
}

/// The time that the server names, if it is not zero and not after this end.
fn named(seconds: Option<u32>, end: Duration) -> Option<Duration> {
    let time = Duration::from_secs(seconds?.into());
    if time.is_zero() || time > end { None } else { Some(time) }
}

fn explanation(options: &Options) -> String {
    let Some(bytes) = options.get(&code::MESSAGE) else { return String::new() };
    let text = String::from_utf8_lossy(bytes);
    let printable = |letter: char| if letter == ' ' || letter.is_ascii_graphic() { letter } else { '?' };
    text.trim_end_matches('\0').chars().take(LONGEST_MESSAGE).map(printable).collect()
}

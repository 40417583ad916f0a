//! Messages to and from servers.

use std::net::Ipv6Addr;
use std::time::Duration;

use dhcproto::v6::{DhcpOption, DhcpOptions, IAAddr, IANA, MessageType, ORO, OptionCode, Status};
use dhcproto::{Decodable, Decoder, Encodable, Encoder};

use super::lease::Lease6Address;
use super::raw_options::{RawOptions, address, number};

/// The most addresses that are used of a reply. A server assigns as many as it has prefixes for the link.
pub const MAX_ADDRESSES: usize = 8;
/// The most DNS servers, and the most domains, that are used of a reply.
const MAX_NAMES: usize = 32;
/// The longest DUID in bytes (RFC 8415, section 11.1).
const MAX_DUID: usize = 130;
/// The longest explanation of a server that is shown, in characters.
const MAX_TEXT: usize = 200;
/// The lifetime that means for ever.
const INFINITE: u32 = u32::MAX;
/// The length of the type of the message and the number of its exchange, in bytes.
const HEADER: usize = 4;
/// The lengths of the fields before the options of an association and of an address, in bytes.
const ASSOCIATION: usize = 12;
const ADDRESS: usize = 24;

/// What a server's message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply6Kind {
    /// An offer.
    Advertise,
    /// The answer to a request.
    Reply,
}

/// A status that is not success, in the server's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerStatus {
    /// Its code (RFC 8415, section 21.13).
    pub code: u16,
    /// Its name and the server's explanation, in printable characters.
    pub text: String,
}

/// A message of a server to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply6 {
    /// What it is.
    pub kind: Reply6Kind,
    /// The number of the exchange, of 24 bits.
    pub xid: u32,
    /// The DUID of the client that it is for.
    pub client: Vec<u8>,
    /// The DUID of the server.
    pub server: Vec<u8>,
    /// Whether it ends an exchange that had only two messages.
    pub rapid: bool,
    /// The status of the whole message, or of the client's association; `None` for success.
    pub status: Option<ServerStatus>,
    /// The time until T1 that the server names; zero if it leaves the choice to the client.
    pub renewal: Duration,
    /// The time until T2.
    pub rebinding: Duration,
    /// The addresses of the client's association that can be used.
    pub addresses: Vec<Lease6Address>,
    /// Those that must not be used any more: their lifetime is zero.
    pub ended: Vec<Ipv6Addr>,
    /// The DNS servers.
    pub dns: Vec<Ipv6Addr>,
    /// The domains that are searched.
    pub search: Vec<String>,
}

impl Reply6 {
    /// Parses the payload of a UDP datagram. `iaid` is the number of the client's association; others are ignored. `None` if it is
    /// not a message that a client has any use for.
    pub fn parse(payload: &[u8], iaid: u32) -> Option<Reply6> {
        let (header, options) = payload.split_at_checked(HEADER)?;
        let kind = match MessageType::from(header[0]) {
            MessageType::Advertise => Reply6Kind::Advertise,
            MessageType::Reply => Reply6Kind::Reply,
            _ => return None,
        };
        let options = RawOptions::new(options);
        let server = options.value_of(OptionCode::ServerId)?;
        if !(1..=MAX_DUID).contains(&server.len()) {
            return None;
        }
        let mut reply = Reply6 {
            kind,
            xid: u32::from_be_bytes([0, header[1], header[2], header[3]]),
            client: options.value_of(OptionCode::ClientId)?.to_vec(),
            server: server.to_vec(),
            rapid: options.value_of(OptionCode::RapidCommit).is_some(),
            status: status(&options),
            renewal: Duration::ZERO,
            rebinding: Duration::ZERO,
            addresses: Vec::new(),
            ended: Vec::new(),
            dns: Vec::new(),
            search: Vec::new(),
        };
        for (code, value) in options {
            match code {
                OptionCode::IANA => reply.read(value, iaid),
                OptionCode::DomainNameServers => reply.dns.extend(dns_servers(value)),
                OptionCode::DomainSearchList => reply.search.extend(domains(value)),
                _ => {}
            }
        }
        reply.dns.truncate(MAX_NAMES);
        reply.search.truncate(MAX_NAMES);
        Some(reply)
    }

    /// Reads an association. One of another number is ignored, and one whose times are out of order has to be (RFC 8415, section
    /// 21.4).
    fn read(&mut self, value: &[u8], iaid: u32) {
        let Some((fields, options)) = value.split_at_checked(ASSOCIATION) else { return };
        let [id, renewal, rebinding] = [0, 4, 8].map(|at| number(&fields[at..]));
        if id != iaid || (renewal > rebinding && rebinding > 0) {
            return;
        }
        self.renewal = lifetime(renewal);
        self.rebinding = lifetime(rebinding);
        let options = RawOptions::new(options);
        if self.status.is_none() {
            self.status = status(&options);
        }
        for (code, value) in options {
            if code != OptionCode::IAAddr {
                continue;
            }
            if let Some(address) = leased_address(value) {
                if self.addresses.len() < MAX_ADDRESSES {
                    self.addresses.push(address);
                }
            } else if self.ended.len() < MAX_ADDRESSES
                && let Some(address) = ended_address(value)
            {
                self.ended.push(address);
            }
        }
    }
}

/// The address of an option of an association, if it can be used and is valid for some time.
fn leased_address(value: &[u8]) -> Option<Lease6Address> {
    let (fields, options) = value.split_at_checked(ADDRESS)?;
    let address = address(fields);
    let [preferred, valid] = [16, 20].map(|at| number(&fields[at..]));
    let is_refused = status(&RawOptions::new(options)).is_some();
    if is_refused || valid == 0 || preferred > valid || !is_host(address) {
        return None;
    }
    Some(Lease6Address { address, preferred: lifetime(preferred), valid: lifetime(valid) })
}

/// The address of an option of an association, if its lifetime is zero.
fn ended_address(value: &[u8]) -> Option<Ipv6Addr> {
    let (fields, _) = value.split_at_checked(ADDRESS)?;
    if number(&fields[20..]) == 0 { Some(address(fields)) } else { None }
}

/// The DNS servers of option 23 that can be asked.
fn dns_servers(value: &[u8]) -> Vec<Ipv6Addr> {
    value.chunks_exact(size_of::<Ipv6Addr>()).map(address).filter(|one| is_host(*one)).collect()
}

/// The domains of option 24 that a resolver can search.
fn domains(value: &[u8]) -> Vec<String> {
    let code = u16::from(OptionCode::DomainSearchList).to_be_bytes();
    let Ok(length) = u16::try_from(value.len()) else { return Vec::new() };
    let option = [&code[..], &length.to_be_bytes(), value].concat();
    let Ok(DhcpOption::DomainSearchList(names)) = DhcpOption::decode(&mut Decoder::new(&option)) else {
        return Vec::new();
    };
    let mut domains = Vec::new();
    for name in names {
        let text = name.to_string().trim_end_matches('.').to_owned();
        if is_domain(&text) {
            domains.push(text);
        }
    }
    domains
}

/// Whether the address can be one host's on more than its link.
fn is_host(address: Ipv6Addr) -> bool {
    let is_special = address.is_unspecified() || address.is_loopback() || address.is_multicast();
    !is_special && !address.is_unicast_link_local() && address.to_ipv4_mapped().is_none()
}

/// Whether the text is a domain that a resolver can search, of letters, digits, hyphens and underscores.
fn is_domain(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let is_label = |label: &str| (1..=63).contains(&label.len()) && label.bytes().all(is_letter);
    name.len() <= 253 && name.split('.').all(is_label)
}

fn lifetime(seconds: u32) -> Duration {
    if seconds == INFINITE { Duration::MAX } else { Duration::from_secs(seconds.into()) }
}

/// The status among these options, if it is not success.
fn status(options: &RawOptions<'_>) -> Option<ServerStatus> {
    let (code, explanation) = options.value_of(OptionCode::StatusCode)?.split_at_checked(2)?;
    let code = u16::from_be_bytes([code[0], code[1]]);
    let status = Status::from(code);
    if status == Status::Success {
        return None;
    }
    let printable = |letter: char| if letter == ' ' || letter.is_ascii_graphic() { letter } else { '?' };
    let explanation: String = String::from_utf8_lossy(explanation).chars().take(MAX_TEXT).map(printable).collect();
    let text = if explanation.is_empty() { format!("{status:?}") } else { format!("{status:?}: {explanation}") };
    Some(ServerStatus { code, text })
}

/// A message to servers.
#[derive(Clone, Debug)]
pub(crate) struct Request6<'a> {
    pub(crate) kind: MessageType,
    pub(crate) xid: u32,
    /// The time since the first message of the exchange.
    pub(crate) elapsed: Duration,
    pub(crate) duid: &'a [u8],
    pub(crate) iaid: u32,
    /// The DUID of the server that is meant; `None` for every server.
    pub(crate) server: Option<&'a [u8]>,
    /// The addresses that the message is about.
    pub(crate) addresses: &'a [Ipv6Addr],
}

impl Request6<'_> {
    /// The payload of the datagram.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut options = DhcpOptions::new();
        options.insert(DhcpOption::ClientId(self.duid.to_vec()));
        if let Some(server) = self.server {
            options.insert(DhcpOption::ServerId(server.to_vec()));
        }
        // In hundredths of a second.
        let elapsed = u16::try_from(self.elapsed.as_millis() / 10).unwrap_or(u16::MAX);
        options.insert(DhcpOption::ElapsedTime(elapsed));
        let mut association = DhcpOptions::new();
        for addr in self.addresses {
            let opts = DhcpOptions::new();
            association.insert(DhcpOption::IAAddr(IAAddr { addr: *addr, preferred_life: 0, valid_life: 0, opts }));
        }
        options.insert(DhcpOption::IANA(IANA { id: self.iaid, t1: 0, t2: 0, opts: association }));
        if self.kind == MessageType::Solicit {
            options.insert(DhcpOption::RapidCommit);
        }
        if !matches!(self.kind, MessageType::Release | MessageType::Decline) {
            let opts = vec![OptionCode::DomainNameServers, OptionCode::DomainSearchList];
            options.insert(DhcpOption::ORO(ORO { opts }));
        }
        // By hand: `Message::new_with_id` takes a random number too, and panics if the kernel has none.
        let [_, first, second, third] = self.xid.to_be_bytes();
        let mut payload = vec![self.kind.into(), first, second, third];
        let mut bytes = Vec::new();
        // Writing to memory does not fail, and no option is longer than its length field says.
        let encoded = options.encode(&mut Encoder::new(&mut bytes));
        payload.extend(bytes);
        debug_assert!(encoded.is_ok(), "{encoded:?}");
        payload
    }
}

//! Option codes, and the options that a client sends.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The codes of the options that this crate reads or writes (RFC 2132; others as noted).
pub(crate) mod code {
    pub(crate) const PAD: u8 = 0;
    pub(crate) const SUBNET_MASK: u8 = 1;
    pub(crate) const ROUTERS: u8 = 3;
    pub(crate) const DNS_SERVERS: u8 = 6;
    pub(crate) const HOST_NAME: u8 = 12;
    pub(crate) const DOMAIN_NAME: u8 = 15;
    pub(crate) const INTERFACE_MTU: u8 = 26;
    pub(crate) const STATIC_ROUTES: u8 = 33;
    pub(crate) const NTP_SERVERS: u8 = 42;
    pub(crate) const REQUESTED_ADDRESS: u8 = 50;
    pub(crate) const LEASE_TIME: u8 = 51;
    pub(crate) const OVERLOAD: u8 = 52;
    pub(crate) const MESSAGE_TYPE: u8 = 53;
    pub(crate) const SERVER_ID: u8 = 54;
    pub(crate) const PARAMETER_REQUEST_LIST: u8 = 55;
    pub(crate) const MESSAGE: u8 = 56;
    pub(crate) const RENEWAL_TIME: u8 = 58;
    pub(crate) const REBINDING_TIME: u8 = 59;
    pub(crate) const VENDOR_CLASS: u8 = 60;
    pub(crate) const CLIENT_ID: u8 = 61;
    pub(crate) const USER_CLASS: u8 = 77;
    /// RFC 3397.
    pub(crate) const DOMAIN_SEARCH: u8 = 119;
    /// RFC 3442.
    pub(crate) const CLASSLESS_ROUTES: u8 = 121;
    /// The classless routes of Microsoft's servers, from before RFC 3442.
    pub(crate) const CLASSLESS_ROUTES_OLD: u8 = 249;
    pub(crate) const END: u8 = 255;
}

/// The options that a client asks for by default. Classless routes precede routers, as RFC 3442 demands.
const DEFAULT_REQUESTS: [u8; 13] = [
    code::CLASSLESS_ROUTES,
    code::SUBNET_MASK,
    code::ROUTERS,
    code::DNS_SERVERS,
    code::DOMAIN_NAME,
    code::INTERFACE_MTU,
    code::STATIC_ROUTES,
    code::NTP_SERVERS,
    code::LEASE_TIME,
    code::RENEWAL_TIME,
    code::REBINDING_TIME,
    code::DOMAIN_SEARCH,
    code::CLASSLESS_ROUTES_OLD,
];
/// What a client asks for that asks for nothing: without a list a server sends what it likes.
const LEAST_REQUESTS: [u8; 4] = [code::SUBNET_MASK, code::ROUTERS, code::DOMAIN_NAME, code::DNS_SERVERS];

/// The longest value of an option that is sent, in bytes.
const LONGEST_VALUE: usize = 255;
/// The most that all options of the caller's may take, headers included, in bytes: every server receives a datagram of 576 bytes,
/// and most links carry 1,500.
const LONGEST_OPTIONS: usize = 1_024;
/// The options that a client writes itself: any other value would break the protocol.
const RESERVED: [u8; 6] =
    [code::PAD, code::REQUESTED_ADDRESS, code::OVERLOAD, code::MESSAGE_TYPE, code::SERVER_ID, code::END];

/// The shortest client identifier, in bytes. A shorter one would be that of many clients.
const LEAST_ID: usize = 2;
/// The longest text in a client identifier: the option has a type byte in front of it.
const LONGEST_ID: usize = LONGEST_VALUE - 1;

/// The code of an option by its name in upstream's dhcp plugin or its decimal number; `None` if it is neither.
pub fn option_code(name: &str) -> Option<u8> {
    let code = match name {
        "subnet-mask" => code::SUBNET_MASK,
        "routers" => code::ROUTERS,
        "host-name" => code::HOST_NAME,
        "vendor-class-identifier" => code::VENDOR_CLASS,
        "dhcp-client-identifier" => code::CLIENT_ID,
        "user-class" => code::USER_CLASS,
        number if number.bytes().all(|letter| letter.is_ascii_digit()) => number.parse().ok()?,
        _ => return None,
    };
    Some(code)
}

/// The client identifier (option 61) for this text: a zero byte (no hardware type) and the text.
///
/// A text of more than 254 bytes does not fit. Its beginning and the SHA-256 of all of it are used then, so that two texts with the
/// same beginning remain two clients.
pub fn client_id(text: &str) -> Vec<u8> {
    let mut id = vec![0];
    if text.len() <= LONGEST_ID {
        id.extend(text.as_bytes());
        return id;
    }
    let mut digest = String::new();
    for byte in Sha256::digest(text) {
        let _ = write!(digest, "{byte:02x}"); // writing to a text does not fail
    }
    id.extend(&text.as_bytes()[..LONGEST_ID - digest.len()]);
    id.extend(digest.as_bytes());
    id
}

/// The options that a client sends in addition to those of the protocol, and the list of those that it asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientOptions {
    provided: BTreeMap<u8, Vec<u8>>,
    requested: Vec<u8>,
}

/// Why an option cannot be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OptionError {
    /// The value has this many bytes, of which 255 fit.
    TooLong(usize),
    /// The client writes this option itself.
    Reserved(u8),
    /// All options together have this many bytes.
    TooMany(usize),
    /// The client identifier has this many bytes, and needs two (RFC 2132, section 9.14).
    TooShort(usize),
}

impl ClientOptions {
    /// The options of a client with this identifier (option 61, see [`client_id`]), which asks for what a network usually needs.
    pub fn new(client_id: Vec<u8>) -> Self {
        Self { provided: BTreeMap::from([(code::CLIENT_ID, client_id)]), requested: DEFAULT_REQUESTS.to_vec() }
    }

    /// Sends this option too. A later value for the same option replaces an earlier one, the client identifier included.
    ///
    /// # Errors
    /// The value does not fit, or the protocol decides about this option.
    pub fn provide(&mut self, code: u8, value: Vec<u8>) -> Result<(), OptionError> {
        if RESERVED.contains(&code) {
            return Err(OptionError::Reserved(code));
        }
        if value.len() > LONGEST_VALUE {
            return Err(OptionError::TooLong(value.len()));
        }
        if code == code::CLIENT_ID && value.len() < LEAST_ID {
            return Err(OptionError::TooShort(value.len()));
        }
        self.provided.insert(code, value);
        let total = self.provided.values().map(|value| value.len() + 2).sum();
        if total > LONGEST_OPTIONS {
            return Err(OptionError::TooMany(total));
        }
        Ok(())
    }

    /// Asks for these options, and then for those of the default list unless `only`. A code that occurs twice is sent once.
    pub fn request(&mut self, codes: &[u8], only: bool) {
        let defaults = if only { &[][..] } else { &DEFAULT_REQUESTS };
        self.requested.clear();
        for code in codes.iter().chain(defaults) {
            if !self.requested.contains(code) {
                self.requested.push(*code);
            }
        }
        if self.requested.is_empty() {
            self.requested.extend(LEAST_REQUESTS);
        }
    }

    /// Every option, by code: the provided ones, and the parameter request list (option 55) unless it is provided.
    pub(crate) fn sent(&self) -> BTreeMap<u8, Vec<u8>> {
        let mut sent = self.provided.clone();
        let list = self.requested.iter().copied().take(LONGEST_VALUE).collect();
        sent.entry(code::PARAMETER_REQUEST_LIST).or_insert(list);
        sent
    }

    /// The client identifier.
    pub(crate) fn client_id(&self) -> &[u8] {
        &self.provided[&code::CLIENT_ID]
    }
}

impl fmt::Display for OptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OptionError::TooLong(bytes) => write!(f, "the value has {bytes} bytes, and an option has at most 255"),
            OptionError::Reserved(code) => write!(f, "the DHCP client writes option {code} itself"),
            OptionError::TooMany(bytes) => {
                write!(f, "all options together have {bytes} bytes, and {LONGEST_OPTIONS} fit into a packet")
            }
            OptionError::TooShort(bytes) => {
                write!(f, "the client identifier has {bytes} bytes, and needs at least {LEAST_ID}")
            }
        }
    }
}

impl std::error::Error for OptionError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_has_a_name_or_a_number() {
        let codes = ["subnet-mask", "routers", "host-name", "vendor-class-identifier", "dhcp-client-identifier"];
        assert_eq!(codes.map(option_code), [Some(1), Some(3), Some(12), Some(60), Some(61)]);
        assert_eq!(["user-class", "0", "042", "255"].map(option_code), [Some(77), Some(0), Some(42), Some(255)]);
        assert_eq!(["", "256", "-1", "+1", "Routers", " 3", "0x10", "99999999999"].map(option_code), [None; 8]);
    }

    #[test]
    fn a_client_identifier_is_the_text_or_where_that_is_too_long_has_its_hash() {
        assert_eq!(client_id("c/net/eth0"), b"\0c/net/eth0");
        let fits = "x".repeat(254);
        assert_eq!(client_id(&fits), [&[0], fits.as_bytes()].concat());
        let long = |end: &str| client_id(&format!("{}{end}", "x".repeat(254)));
        assert_eq!((long("1").len(), long("1")[..100] == long("2")[..100]), (255, true));
        assert_ne!(long("1"), long("2"));
    }

    #[test]
    fn provided_options_replace_ours_and_are_bounded() {
        let mut options = ClientOptions::new(client_id("c"));
        options.provide(12, b"name".to_vec()).unwrap();
        options.provide(61, vec![1, 2]).unwrap();
        options.provide(55, vec![7]).unwrap();
        let sent = options.sent();
        assert_eq!(options.client_id(), [1, 2]);
        assert_eq!(sent.into_iter().collect::<Vec<_>>(), [(12, b"name".to_vec()), (55, vec![7]), (61, vec![1, 2])]);
        for code in [0, 50, 52, 53, 54, 255] {
            assert_eq!(options.provide(code, vec![]), Err(OptionError::Reserved(code)));
        }
        assert_eq!(options.provide(61, vec![0]), Err(OptionError::TooShort(1)));
        assert_eq!(options.client_id(), [1, 2]);
        assert_eq!(options.provide(12, vec![0; 256]), Err(OptionError::TooLong(256)));
        let full: Vec<_> = (100..110).map(|code| options.provide(code, vec![0; 255])).collect();
        assert_eq!(full.iter().filter(|one| one.is_ok()).count(), 3);
        assert!(full[3].as_ref().unwrap_err().to_string().contains("all options together have 1"), "{full:?}");
    }

    #[test]
    fn the_list_of_requests_begins_with_what_is_wanted() {
        let list = |codes: &[u8], only| {
            let mut options = ClientOptions::new(client_id("c"));
            options.request(codes, only);
            options.sent()[&55].clone()
        };
        assert_eq!(ClientOptions::new(client_id("c")).sent()[&55], DEFAULT_REQUESTS);
        assert_eq!(list(&[66, 3, 66], false)[..4], [66, 3, 121, 1]);
        assert_eq!(list(&[66, 3, 66], false).len(), DEFAULT_REQUESTS.len() + 1);
        assert_eq!(list(&[66], true), [66]);
        assert_eq!(list(&[], true), LEAST_REQUESTS);
    }
}

//! DHCP for IPv6 (RFC 8415): addresses, DNS servers and domains. Prefixes are not requested, and relays not served.

mod client;
mod frame;
mod lease;
mod message;
mod neighbor;
mod raw_options;
mod timing;

pub use client::{ALL_SERVERS, Client6, Client6Event, Client6Hindrance, Client6Settings, Transmit6};
pub use frame::multicast_packet;
pub use lease::{Lease6, Lease6Address, Lease6Loss};
pub use message::{MAX_ADDRESSES, Reply6, Reply6Kind, ServerStatus};
pub use neighbor::advertisement_packet;

/// The ports of clients, and of servers and relays (RFC 8415, section 7.2).
pub(crate) const CLIENT_PORT: u16 = 546;
pub(crate) const SERVER_PORT: u16 = 547;

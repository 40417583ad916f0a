//! DHCP for IPv6 (RFC 8415): addresses, DNS servers and domains. Prefixes are not requested, and relays not served.

mod client;
mod lease;
mod message;
mod raw_options;
mod timing;

pub use client::{ALL_SERVERS, Client6, Client6Event, Client6Hindrance, Client6Settings};
pub use lease::{Lease6, Lease6Address, Lease6Loss};
pub use message::{MAX_ADDRESSES, Reply6, Reply6Kind, ServerStatus};

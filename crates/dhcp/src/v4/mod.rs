//! DHCP for IPv4 (RFC 2131, RFC 2132).

mod arp;
mod client;
mod frame;
mod hindrance;
mod lease;
mod options;
mod parameters;
pub(crate) mod rate;
mod reply;
mod request;
pub(crate) mod timing;

pub use client::{Client, ClientEvent, ClientSettings, Transmit};
pub use hindrance::Hindrance;
pub use lease::{Lease, LossReason};
pub use options::{ClientOptions, OptionError, client_id, option_code};
pub use parameters::{LeaseRoute, MAX_ROUTES, Parameters};
pub use rate::PACKETS_PER_SECOND;
pub use reply::{LeaseTimes, Reply, ReplyKind};
pub use timing::Timing;

//! A DHCP client without I/O of its own, and the sockets for it.
//!
//! Parts, in reading order:
//!
//! - [`v4::Client`]: the state machine. It gets the time and packets, and answers with packets, a deadline and events.
//! - [`v4::ClientOptions`]: what a client tells and asks for. [`v4::Lease`], [`v4::Parameters`]: what it gets.
//! - [`v6::Client6`], [`v6::Lease6`]: the same for IPv6.
//! - [`LinkSocket`], [`ArpSocket`], [`RoutedSocket`], [`MulticastSocket`], [`NeighborSocket`]: the sockets, opened inside a
//!   network namespace.
//!
//! Design decision: the client has no clock, no socket and no thread, so one event loop serves a thousand of them, and a test
//! drives hours of a lease in a microsecond. Messages are encoded and decoded by dhcproto, packets by etherparse.
//!
//! # Example
//!
//! The first packet of a client:
//!
//! ```
//! use std::time::Duration;
//!
//! use cnikit_dhcp::v4::{Client, ClientOptions, ClientSettings, Timing, Transmit, client_id};
//! use cnikit_netlink::Mac;
//!
//! let mac = Mac([2, 0, 0, 0, 0, 1]);
//! let options = ClientOptions::new(client_id("container/network/eth0"));
//! let settings = ClientSettings { mac, options, timing: Timing::default(), broadcast: false };
//! let mut client = Client::new(settings, || 4);
//! client.start(Duration::ZERO, None);
//! let Some(Transmit::Packet { to, .. }) = client.transmit() else { panic!("no DHCPDISCOVER") };
//! assert_eq!(to, Mac([0xff; 6]));
//! let why = client.hindrance(Duration::from_secs(1)).unwrap().to_string();
//! assert_eq!(why, "DHCPDISCOVER got no answer: it was sent once in 1.0 s");
//! ```

mod error;
mod exchange;
mod kernel;
mod probing;
mod socket;
pub mod v4;
pub mod v6;

pub use error::{Error, Result};
pub use probing::ProbeTiming;
pub use socket::{ArpSocket, LinkSocket, MulticastSocket, NeighborSocket, RoutedSocket, UplinkSocket, VlanTag};

//! Netlink: one blocking socket a namespace, typed nouns, the kernel's own words in errors.
//!
//! [`Netlink`] is a handle on one namespace; its methods read and change [`Link`]s, [`Address`]es, [`KernelRoute`]s and
//! [`Neighbour`]s. A [`Batch`] sends several changes at once. [`Socket`] is the transport below, for other protocols.
//!
//! *Design.* Messages are built with the types of rtnetlink and netlink-packet-route, and sent by a socket of our own:
//! a program that waits for each answer gains nothing from an asynchronous one. Dumps are filtered by the kernel, and
//! read again when they changed underway. What the kernel explains in an extended acknowledgement is in [`Error`].

mod address;
mod batch;
mod create;
mod deferred_close;
mod dump;
mod error;
mod exchange;
mod frame;
mod link;
mod link_change;
mod mac;
mod namespace;
mod neighbour;
mod netlink;
mod route;
mod socket;
mod upper;
mod vlan;
mod watch;
#[doc(hidden)]
pub mod wire;

pub use address::{Address, NewAddress};
pub use batch::Batch;
pub use create::{NewBridge, NewVeth, Peer};
pub use error::{Error, Result};
pub use exchange::Exchanged;
pub use frame::NetlinkError;
pub use link::{Link, Port};
pub use link_change::LinkChange;
pub use mac::{Mac, NotAMac};
pub use neighbour::Neighbour;
pub use netlink::Netlink;
pub use route::{Family, KernelRoute, MAIN_TABLE};
pub use socket::Socket;
pub use upper::{IpvlanMode, MacvlanMode, NewUpper, UpperKind};
pub use vlan::VlanRange;

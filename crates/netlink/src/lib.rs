//! Read and change links, addresses, routes, routing rules, neighbours and queueing disciplines over netlink.
//!
//! Parts, in reading order:
//!
//! - [`Netlink`]: a handle on one namespace. Its methods read and change [`Link`]s, [`Address`]es, [`KernelRoute`]s,
//!   [`RoutingRule`]s, [`Neighbour`]s and [`Qdisc`]s.
//! - [`Batch`]: several changes in one datagram.
//! - [`Error`]: the operation, its object, and the kernel's error number and explanation (extended acknowledgement).
//! - [`Socket`]: the transport, also for other netlink protocols.
//! - [`nfnetlink`] and [`attribute`]: the messages of netfilter.
//!
//! Design decision: a blocking socket of our own per namespace, with the message types of rtnetlink and netlink-packet-route.
//! A program that waits for each answer gains nothing from an asynchronous socket. Dumps are filtered by the kernel, and
//! repeated when they changed while they were read.
//!
//! # Example
//!
//! Read links and addresses, which needs no privilege:
//!
//! ```
//! use cnikit_netlink::Netlink;
//!
//! let host = Netlink::here()?;
//! let loopback = host.link("lo")?;
//! for address in host.addresses(loopback.index)? {
//!     println!("{} has {}", loopback.name, address.address);
//! }
//! assert!(host.find_link("nosuchlink0")?.is_none());
//! assert!(host.link("nosuchlink0").unwrap_err().is_absent());
//! # Ok::<(), cnikit_netlink::Error>(())
//! ```

#[macro_use]
mod setters;

mod address;
mod address_copy;
pub mod attribute;
mod batch;
mod create;
mod deferred_close;
mod dump;
mod error;
mod exchange;
mod filter;
mod forwarding;
mod frame;
mod hardware_address;
mod htb;
mod link;
mod link_change;
mod links;
mod mac;
mod namespace;
mod neighbour;
mod netlink;
mod new_link;
pub mod nfnetlink;
mod qdisc;
mod route;
mod route_copy;
mod rule;
mod socket;
mod tbf;
mod tun;
mod unregister;
mod upper;
mod upper_kind;
mod vlan;
mod watch;
#[doc(hidden)]
pub mod wire;

pub use address::{Address, NewAddress};
pub use address_copy::AddressCopy;
pub use batch::Batch;
pub use create::{NewBridge, NewDummy, NewIfb, NewVeth, Peer};
pub use error::{Error, Result};
pub use exchange::Exchanged;
pub use filter::{Filter, FilterRule, PacketMatch};
pub use forwarding::ForwardingEntry;
pub use frame::NetlinkError;
pub use hardware_address::HardwareAddress;
pub use htb::HtbClass;
pub use link::{Ipv6Settings, Link, ParentDevice, Port};
pub use link_change::LinkChange;
pub use mac::{Mac, NotAMac};
pub use neighbour::Neighbour;
pub use netlink::Netlink;
pub use new_link::NewLink;
pub use qdisc::{Qdisc, QdiscPlace, ROOT_HANDLE};
pub use route::{Family, KernelRoute, MAIN_TABLE};
pub use route_copy::RouteCopy;
pub use rule::RoutingRule;
pub use socket::Socket;
pub use tbf::Tbf;
pub use tun::TunSettings;
pub use upper::NewUpper;
pub use upper_kind::{IpvlanMode, MacvlanMode, UpperKind, VlanProtocol};
pub use vlan::VlanRange;

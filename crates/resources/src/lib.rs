//! The kinds of kernel state that plugins make, one file each.
//!
//! | kind | what it is | removed with |
//! |---|---|---|
//! | [`veth`] | a veth pair, one end on the host | the attachment |
//! | [`macvlan`] | a macvlan link in the container | the attachment |
//! | [`ipvlan`] | an ipvlan link in the container | the attachment |
//! | [`vlan`] | a VLAN link in the container | the attachment |
//! | [`dummy`] | a dummy link in the container | the attachment |
//! | [`tap`] | a TAP device in the container | the attachment |
//! | [`host_device`] | a device of the host, moved into the container | a state file |
//! | [`userspace_device`] | a device that a program in user space has | nothing is made |
//! | [`bridge`] | a bridge on the host | never: it is shared |
//! | [`bridge_port`] | a bridge port in forwarding state, and announcements to neighbours | the link |
//! | [`layer3`] | addresses and routes of the container's interface | the link |
//! | [`loopback`] | the container's `lo`, up | saved settings |
//! | [`bring_up`] | the container's interface without addresses, up | the link |
//! | [`vlans`] | the VLANs of a bridge port | the link |
//! | [`vlan_gateway`] | a link of the host in one VLAN of a bridge | never: it is shared |
//! | [`gateway`] | gateway addresses on a shared link of the host | never: they are shared |
//! | [`host_route`] | gateway addresses and routes on a host end | the link |
//! | [`forwarding`] | IP forwarding of the host | never: it is shared |
//! | [`sysctls`] | sysctls below `net/` in the container's namespace | saved settings, where configured |
//! | [`ingress_limit`] | a limit of the rate at which the container's interface receives | the attachment |
//! | [`egress_limit`] | a limit of the rate at which it sends, with an ifb on the host | the attachment |
//! | [`link_settings`] | MAC, MTU, flags and queue length of the container's interface | saved settings |
//! | [`vrf`] | the container's interface in a VRF, with its routes | a state file |
//! | [`source_routing`] | rules and tables that route packets of the container's interface by their source | a state file |
//!
//! For a link kind of your own: [`container_link`].
//!
//! Parts, each of which uses only those before it: `identity` (the attachment that a link belongs to), [`saved_settings`],
//! [`sysctls`], `state_file`, [`lock_netns`], `link`, `address`, `shaper`, `routing`. Rules of the packet filter are in the
//! crate `cnikit-rules`.
//!
//! Design decision: names of host ends and MACs are hashes of the attachment's tag, and the alias of a link and the comments of
//! rules contain the tag. So DEL and GC find everything without the configuration, and never touch resources of another attachment.
//!
//! # Example
//!
//! The plan of a container's interface with a veth pair on a bridge; a plan is data, and [`cnikit_plan::apply`] makes it:
//!
//! ```
//! use cnikit_plan::Plan;
//! use cnikit_resources::veth::{HostEnd, Veth};
//!
//! let port = HostEnd::Port { bridge: "cni0".to_owned(), hairpin: false, isolated: false };
//! let veth =
//!     Veth::new("eth0", port).mtu(1400);
//! let plan = Plan::of(veth);
//! assert_eq!(plan.lines(), ["veth pair: eth0 in the container, mtu 1400, the other end a port of bridge cni0"]);
//! ```
#![forbid(unsafe_code)]

mod address;
mod identity;
mod link;
#[doc(hidden)]
pub mod lock_netns;
mod routing;
pub mod saved_settings;
mod shaper;
mod state_file;
mod stored_file;
pub mod sysctls;

pub use address::{bridge_port, forwarding, gateway, host_route, layer3, slaac};
pub use cnikit_netlink::{HardwareAddress, IpvlanMode, KernelRoute, Mac, MacvlanMode, UpperKind, VlanProtocol};
pub use identity::alias;
pub use link::{
    bridge, bring_up, container_link, dummy, host_device, ipvlan, link_settings, loopback, macvlan, parent, stacked,
    tap, userspace_device, veth, vlan, vlan_gateway, vlans,
};
pub use routing::{source_routing, vrf};
pub use shaper::{CountedTraffic, RateLimit, USUAL_LATENCY, egress_limit, ingress_limit};

/// Every kind. Each has a file of its own.
pub const ALL: [cnikit_plan::Kind; 24] = [
    veth::KIND,
    macvlan::KIND,
    ipvlan::KIND,
    vlan::KIND,
    dummy::KIND,
    tap::KIND,
    host_device::KIND,
    userspace_device::KIND,
    bridge::KIND,
    layer3::KIND,
    loopback::KIND,
    bridge_port::KIND,
    bring_up::KIND,
    vlans::KIND,
    vlan_gateway::KIND,
    gateway::KIND,
    host_route::KIND,
    forwarding::KIND,
    sysctls::KIND,
    link_settings::KIND,
    ingress_limit::KIND,
    egress_limit::KIND,
    source_routing::KIND,
    vrf::KIND,
];

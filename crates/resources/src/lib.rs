//! The kinds of kernel state that plugins make, one file each.
//!
//! | file | what | kept by |
//! |---|---|---|
//! | [`veth`] | a pair of links, one end on the host | its attachment |
//! | [`macvlan`] | the container's interface on top of another, with a MAC of its own | its attachment |
//! | [`ipvlan`] | the same with the MAC of the other | its attachment |
//! | [`bridge`] | a bridge on the host | all |
//! | [`layer3`] | addresses and routes of the container's end | the link |
//! | [`loopback`] | the container's own loopback, up | lent |
//! | [`port`] | a bridge port that forwards, neighbours that know | the link |
//! | [`bring_up`] | the container's end of a layer-2 attachment, up | the link |
//! | [`vlans`] | the VLANs of a bridge port | the link |
//! | [`vlan_gateway`] | a link of the host into one VLAN of a bridge | all |
//! | [`gateway`] | the gateway's addresses on a shared link of the host | all |
//! | [`host_route`] | the gateway's addresses and the way back on a link of the host's own | the link |
//! | [`forwarding`] | the host passes packets on | all |
//! | [`spoof`] | a bridge port that takes frames of the container's MAC only | its attachment |
//! | [`ip_spoof`] | a host's end that takes packets of the container's addresses only | its attachment |
//! | [`sysctls`] | settings below `net/` of the container's namespace | lent, where it is asked for |
//! | [`link_settings`] | MAC, MTU, flags and queue of the container's interface | lent |
//! | [`masquerade`] | what leaves the network leaves under the host's address | its attachment |
//! | [`firewall`] | what the container sends, and what answers it, passes the host | its attachment |
//! | [`portmap`] | ports of the host lead to the container | its attachment |
#![forbid(unsafe_code)]

pub mod alias;
mod backend;
mod batch_restore;
pub mod bridge;
pub mod bring_up;
mod delete_links;
pub mod firewall;
pub mod forwarding;
pub mod gateway;
mod guard;
pub mod host_route;
pub mod ip_spoof;
mod iptables;
mod ipv6_ready;
pub mod ipvlan;
pub mod layer3;
pub mod link_settings;
mod lock_netns;
pub mod loopback;
mod mac_holder;
pub mod macvlan;
pub mod masquerade;
pub mod master;
pub mod port;
pub mod portmap;
mod random;
mod recorded;
mod router_adverts;
mod rules;
pub mod saved_settings;
pub mod spoof;
pub mod stacked;
mod stacked_links;
pub mod sysctls;
mod unclaimed;
pub mod veth;
pub mod vlan_gateway;
pub mod vlans;

pub use backend::Backend;
pub use cnikit_netlink::{IpvlanMode, KernelRoute, Mac, MacvlanMode, UpperKind};

/// Every kind, each of one file.
pub const ALL: [cnikit_plan::Kind; 20] = [
    veth::KIND,
    macvlan::KIND,
    ipvlan::KIND,
    bridge::KIND,
    layer3::KIND,
    loopback::KIND,
    port::KIND,
    bring_up::KIND,
    vlans::KIND,
    vlan_gateway::KIND,
    gateway::KIND,
    host_route::KIND,
    forwarding::KIND,
    spoof::KIND,
    ip_spoof::KIND,
    sysctls::KIND,
    link_settings::KIND,
    masquerade::KIND,
    firewall::KIND,
    portmap::KIND,
];

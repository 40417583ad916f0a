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
//! | [`bridge_port`] | a bridge port that forwards, neighbours that know | the link |
//! | [`bring_up`] | the container's end of a layer-2 attachment, up | the link |
//! | [`vlans`] | the VLANs of a bridge port | the link |
//! | [`vlan_gateway`] | a link of the host into one VLAN of a bridge | all |
//! | [`gateway`] | the gateway's addresses on a shared link of the host | all |
//! | [`host_route`] | the gateway's addresses and the way back on a link of the host's own | the link |
//! | [`forwarding`] | the host passes packets on | all |
//! | [`mac_spoofing`] | a bridge port that takes frames of the container's MAC only | its attachment |
//! | [`ip_spoofing`] | a host's end that takes packets of the container's addresses only | its attachment |
//! | [`sysctls`] | settings below `net/` of the container's namespace | lent, where it is asked for |
//! | [`link_settings`] | MAC, MTU, flags and queue of the container's interface | lent |
//! | [`masquerade`] | what leaves the network leaves under the host's address | its attachment |
//! | [`firewall`] | what the container sends, and what answers it, passes the host | its attachment |
//! | [`portmap`] | ports of the host lead to the container | its attachment |
#![forbid(unsafe_code)]

mod address;
mod identity;
mod link;
mod rules;
pub mod saved_settings;
pub mod sysctls;

pub use address::{forwarding, gateway, host_route, layer3};
pub use cnikit_netlink::{IpvlanMode, KernelRoute, Mac, MacvlanMode, UpperKind};
pub use identity::alias;
pub use link::{
    bridge, bridge_port, bring_up, ipvlan, link_settings, loopback, macvlan, parent, stacked, veth, vlan_gateway, vlans,
};
pub use rules::backend::Backend;
pub use rules::{firewall, ip_spoofing, mac_spoofing, masquerade, portmap};

/// Every kind, each of one file.
pub const ALL: [cnikit_plan::Kind; 20] = [
    veth::KIND,
    macvlan::KIND,
    ipvlan::KIND,
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
    mac_spoofing::KIND,
    ip_spoofing::KIND,
    sysctls::KIND,
    link_settings::KIND,
    masquerade::KIND,
    firewall::KIND,
    portmap::KIND,
];

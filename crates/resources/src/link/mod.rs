//! Links: veth pairs, bridges and their ports, macvlan, ipvlan, VLAN, dummy, tap, devices of the host, the VLANs of bridge ports,
//! and the settings of a link.

pub mod bridge;
pub mod bring_up;
pub mod container_link;
pub(crate) mod delete_links;
pub mod dummy;
pub mod host_device;
pub(crate) mod ipv6_settings;
pub mod ipvlan;
pub mod link_settings;
pub mod loopback;
pub(crate) mod mac_holder;
pub mod macvlan;
pub mod parent;
pub(crate) mod random;
pub mod stacked;
pub(crate) mod stacked_links;
pub mod tap;
mod tap_label;
pub(crate) mod unreaped;
pub mod userspace_device;
pub mod veth;
pub(crate) mod veth_ends;
pub mod vlan;
pub mod vlan_gateway;
pub mod vlans;

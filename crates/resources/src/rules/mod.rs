//! Rules of the packet filter: the choice of the backend, roll-back, and each type of rule.

pub(crate) mod backend;
pub(crate) mod batch_restore;
pub mod firewall;
pub mod ip_spoofing;
pub(crate) mod iptables;
pub(crate) mod lock_netns;
pub mod mac_spoofing;
pub mod masquerade;
pub(crate) mod port_rules;
pub mod portmap;
pub(crate) mod unclaimed;
pub(crate) mod undo;

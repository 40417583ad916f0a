//! Rules of the packet filter that attachments need, written with nftables or iptables.
//!
//! | kind | what it is |
//! |---|---|
//! | [`masquerade`] | SNAT of packets that leave the container's network |
//! | [`portmap`] | DNAT of host ports to the container |
//! | [`firewall`] | rules that accept the container's traffic |
//! | [`mac_spoofing`] | rules that pass only frames with the container's MAC |
//! | [`ip_spoofing`] | rules that pass only packets with the container's addresses |
//!
//! All of them are removed with their attachment.
//!
//! Parts, in reading order: [`backend`] (choose, read, apply, undo, retry), `iptables` (one table, in either variant of the
//! programs), `batch_restore` (many attachments at once), then each kind with its two backends.
//!
//! Design decision: tables, chains and comments are those of the upstream plugins, so either can remove what the other made. Which
//! attachment a rule belongs to is in a field beside the comment (nftables) or in a rule without effect (iptables).
#![forbid(unsafe_code)]

pub mod backend;
pub(crate) mod batch_restore;
pub mod firewall;
pub mod ip_spoofing;
pub(crate) mod iptables;
pub mod mac_spoofing;
pub mod masquerade;
pub(crate) mod port_rules;
pub mod portmap;
pub(crate) mod unclaimed;

pub use backend::Backend;

/// Every kind.
pub const ALL: [cnikit_plan::Kind; 5] =
    [mac_spoofing::KIND, ip_spoofing::KIND, masquerade::KIND, firewall::KIND, portmap::KIND];

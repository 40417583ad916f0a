//! Rules of the packet filter that attachments need, written with nftables or iptables.
//!
//! | kind | what it is |
//! |---|---|
//! | [`masquerade`] | SNAT of packets that leave the container's network |
//! | [`portmap`] | DNAT of host ports to the container |
//! | [`firewall`] | rules that accept the container's traffic |
//! | [`mac_spoofing`] | rules that accept only frames with the container's MAC |
//! | [`ip_spoofing`] | rules that accept only packets with the container's addresses |
//!
//! All of them are removed with their attachment. Each is a resource of a plan: it prints what it will do, and ADD makes it.
//!
//! ```
//! use cnikit_rules::Backend;
//! use cnikit_rules::masquerade::Masquerade;
//! use cnikit_rules::portmap::{L4Protocol, Mapping};
//!
//! let addresses = vec!["10.1.0.2/24".parse().unwrap()];
//! let masquerade = Masquerade::of(addresses, Backend::Nftables);
//! assert_eq!(masquerade.to_string(), "masquerade 10.1.0.2 on the host (nftables)");
//!
//! let web = Mapping { host_port: 8080, container_port: 80, protocol: L4Protocol::Tcp, host_address: None };
//! assert_eq!(web.dnat_target([10, 1, 0, 2].into()), Some("10.1.0.2:80".parse().unwrap()));
//! ```
//!
//! Parts, in reading order: [`backend`] (the configuration), `choice` (choose and compare), [`nftables`] (replace rules with an
//! undo step), `iptables` (read, apply, undo and retry in one table, in either variant of the programs), `batch_restore` (many
//! attachments at once), then each kind with its two backends.
//!
//! Design decision: tables, chains and comments are those of the upstream plugins, so either can remove the rules of the other. The
//! owner of a rule is in its user data (nftables) or in a rule without a target (iptables).
#![forbid(unsafe_code)]

mod addresses;
pub mod backend;
mod batch_restore;
mod choice;
pub mod firewall;
pub mod ip_spoofing;
mod iptables;
pub mod mac_spoofing;
pub mod masquerade;
pub mod nftables;
mod port_rules;
pub mod portmap;
mod rule_lists;

pub use backend::Backend;

/// Every kind.
pub const ALL: [cnikit_plan::Kind; 5] =
    [mac_spoofing::KIND, ip_spoofing::KIND, masquerade::KIND, firewall::KIND, portmap::KIND];

//! Rules of the packet filter that attachments need, written with nftables or iptables.
//!
//! | kind | what it is | feature |
//! |---|---|---|
//! | [`masquerade`] | SNAT of packets that leave the container's network | |
//! | `portmap` | DNAT of host ports to the container | `portmap` |
//! | `firewall` | rules that accept the container's traffic | `firewall` |
//! | [`mac_spoofing`] | rules that accept only frames with the container's MAC | |
//! | [`ip_spoofing`] | rules that accept only packets with the container's addresses | |
//!
//! The features are off by default: each adds a crate that only its kind needs, conntrack's or firewalld's.
//!
//! All of them are removed with their attachment. Each is a resource of a plan: it prints what it will do, and ADD makes it.
//!
//! ```
//! use cnikit_rules::Backend;
//! use cnikit_rules::masquerade::Masquerade;
//!
//! let addresses = vec!["10.1.0.2/24".parse().unwrap()];
//! let masquerade = Masquerade::of(addresses, Backend::Nftables);
//! assert_eq!(masquerade.to_string(), "masquerade 10.1.0.2 on the host (nftables)");
//! ```
//!
//! Parts, in reading order: `backend` (the configuration), `choice` (choose and compare), [`nftables`] (replace rules with an
//! undo step), `iptables` (read, apply, undo and retry in one table, in either variant of the programs), `batch_restore` (many
//! attachments at once), then each kind with its two backends.
//!
//! Design decision: tables, chains and comments are those of the upstream plugins, so either can remove the rules of the other. The
//! owner of a rule is in its user data (nftables) or in a rule without a target (iptables).
#![forbid(unsafe_code)]

mod addresses;
mod backend;
mod batch_restore;
mod choice;
#[cfg(feature = "firewall")]
pub mod firewall;
pub mod ip_spoofing;
mod iptables;
#[cfg(test)]
mod lines;
pub mod mac_spoofing;
pub mod masquerade;
pub mod nftables;
mod port_rules;
#[cfg(feature = "portmap")]
pub mod portmap;
mod rule_lists;

pub use backend::Backend;

/// Every kind, `firewall` and `portmap` if their features are on.
pub const ALL: &[cnikit_plan::Kind] = &[
    mac_spoofing::KIND,
    ip_spoofing::KIND,
    masquerade::KIND,
    #[cfg(feature = "firewall")]
    firewall::KIND,
    #[cfg(feature = "portmap")]
    portmap::KIND,
];

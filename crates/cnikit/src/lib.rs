//! Write a CNI plugin as a type that describes what it makes.
//!
//! A plugin is a type: its fields are its configuration, and it implements [`Plugin`] or one of the shapes. The plugin below
//! changes nothing, yet it supports all verbs and all versions of CNI, validates its input, passes on the result of the
//! plugins before it, rolls back, logs, and prints a description of itself when it is run by hand:
//!
//! ```
#![doc = include_str!("../examples/hello.rs")]
//! ```
//!
//! Two methods are required; every other verb has a default. The arguments of a verb have what the verb guarantees: an
//! [`Add`] has an open network namespace that is not the plugin's own, a [`Check`] has a result to compare with, and a
//! [`Del`] says what was found at the namespace's path.
//!
//! # The shapes
//!
//! Most plugins implement a shape, and a transparent newtype makes that a [`Plugin`]:
//!
//! | shape | you write | you get |
//! |---|---|---|
//! | [`InterfacePlugin`] in [`InterfaceShape`] | the plan of the link and of its layer 3 | ADD, CHECK, DEL, GC, STATUS, the dry run, roll-back, addresses from the IPAM plugin |
//! | [`ChainedPlugin`] in [`Chained`] | the plan of the changes to an interface that another plugin made | ADD, CHECK, DEL, GC, STATUS, the dry run, roll-back, the result passed on |
//! | [`IpamPlugin`] in [`Ipam`] | allocate and release addresses | the protocol |
//! | [`DelegatingPlugin`] in [`Delegating`] | another plugin's configuration, and where it is stored for DEL | the delegate's results, for all verbs |
//!
//! A plan is a list of [`resources`] and [`rules`]. Each can be made and compared with the actual state, and its kind removes it
//! for an [`AttachmentId`] when nothing else is known. For a resource that does not exist yet, write a
//! [`Resource`] of your own: two methods, and a [`Kind`] if it outlives the link. It reads and changes
//! links of any kind with [`netlink`], and rules with [`rules::nftables`].
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `portmap` | `rules::portmap`: port mappings, and the crate that deletes their flows |
//! | `firewall` | `rules::firewall`: rules that accept the container's traffic, and the client of firewalld |
#![forbid(unsafe_code)]

mod addresses;
mod chained;
mod delegate_store;
mod delegating;
mod interface;
mod ipam;
pub mod keys;
mod requested;
mod source;

pub use addresses::Addresses;
pub use chained::{Chained, ChainedPlugin};
pub use cnikit_netlink as netlink;
pub use cnikit_netlink::Mac;
pub use cnikit_netns as netns;
pub use cnikit_plan as plan;
pub use cnikit_plan::{ApplyContext, Drifts, GcContext, Kind, Made, Plan, ReleaseContext, Resource};
pub use cnikit_resources as resources;
pub use cnikit_rules as rules;
pub use cnikit_skel::{
    Add, AttachmentId, AttachmentSpec, Call, Check, Del, Delegate, DryRun, DryRunReport, Entry, Error, Errors, Gc,
    Input, Journal, KeySource, LogLevel, NetnsLookup, Observe, Plugin, Plugins, Request, Result, Role, Sources, Status,
    Stdin, Undo, UnknownKeys, ValidSet, about, code, dispatch, log, main, serve,
};
#[cfg(feature = "testing")]
pub use cnikit_testing as testing;
pub use cnikit_types as types;
pub use cnikit_types::{CniResult, NetConf, Version};
pub use delegating::{Delegating, DelegatingPlugin};
pub use interface::{InterfacePlugin, InterfaceShape};
pub use ipam::{Ipam, IpamPlugin, one_address_a_family};
pub use requested::{HostState, gateways_from_dhcp};
pub use source::Source;

//! Write a CNI plugin by saying what is particular to it.
//!
//! A plugin is a type: its fields are its configuration, and it implements [`Plugin`] or one of the shapes. This one changes
//! nothing, yet it speaks all verbs and all versions of CNI, checks what it is given, passes on the result of the plugins
//! before it, rolls back, logs, and explains itself when called by hand:
//!
//! ```rust,no_run
#![doc = include_str!("../examples/hello.rs")]
//! ```
//!
//! Two methods are required; every other verb has a sound default. What a verb guarantees is not an `Option`: an [`Add`] has
//! an open network namespace that is not the plugin's own, a [`Check`] has a result to compare with, while a [`Del`] says
//! what was found in the namespace's place.
//!
//! # The shapes
//!
//! Most plugins describe rather than act. They implement a shape, and a transparent newtype makes that a [`Plugin`]:
//!
//! | shape | you write | you are given |
//! |---|---|---|
//! | [`InterfacePlugin`] in [`InterfaceShape`] | the plan of the link and of its layer 3 | ADD, CHECK, DEL, GC, STATUS, the dry run, roll-back, addresses from the IPAM plugin |
//! | [`ChainedPlugin`] in [`Chained`] | the plan of what changes about an interface that others made | ADD, CHECK, DEL, GC, STATUS, the dry run, roll-back, the result passed on |
//! | [`IpamPlugin`] in [`Ipam`] | take, give back | the protocol |
//! | [`DelegatingPlugin`] in [`Delegating`] | another plugin's configuration, and where it waits for DEL | the delegate's answers, for all verbs |
//!
//! A plan is a list of [`resources`]; each knows how to make itself true, how to be compared with what is, and its kind
//! knows how to find what is left of it by [`AttachmentId`] when nothing else is known. Where yours needs a thing that is not
//! there, write a [`Resource`](plan::Resource) of your own: two methods, and a [`Kind`](plan::Kind) if it outlives the link.
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
pub use cnikit_plan as plan;
pub use cnikit_resources as resources;
pub use cnikit_skel::{
    Add, AttachmentId, AttachmentSpec, Call, Check, Del, Delegate, DryRun, DryRunReport, Entry, Error, Errors, Gc,
    Input, Journal, KeySource, NetnsLookup, Plugin, Plugins, Request, Result, Sources, Status, ValidAttachments, about,
    code, dispatch, input, log, main, serve,
};
pub use cnikit_types as types;
pub use cnikit_types::{CniResult, NetConf, Version};
pub use delegating::{Delegating, DelegatingPlugin};
pub use interface::{InterfacePlugin, InterfaceShape};
pub use ipam::{Ipam, IpamPlugin, one_address_a_family};
pub use requested::HostState;
pub use source::Source;

//! Rules as values; `nf_tables` over netlink, and [`iptables`] by its programs.
//!
//! A [`TableLayout`] says which table and chains are shared with everybody who adds rules there, a [`Rule`] what is ours, and
//! [`Nftables`] makes it so in one atomic transaction. No `nft` is started: the messages are built here, a few hundred
//! bytes that the kernel takes in 50 microseconds, where the program takes milliseconds. What they say is what nft(8)
//! would have said, expression by expression, so that its listing shows our rules like its own, and either can remove
//! what the other made.
//!
//! What rules have decided of a flow outlives them; [`Conntrack`] has the kernel forget it.

mod attribute;
mod batch;
mod compile;
mod conntrack;
mod decompile;
mod expression;
mod field;
mod flow;
mod hook;
mod installed_rule;
pub mod iptables;
mod layout;
mod message;
mod nft_parser;
mod nftables;
mod owned_chain;
mod owner_filter;
mod rule;
mod set;
mod snapshot;
mod state;
mod userdata;
#[doc(hidden)]
pub mod wire;
mod xtables_compat;

pub use cnikit_netlink::{Error, Mac, Result};
pub use conntrack::{Conntrack, Flows};
pub use field::{Field, KeyType, Value};
pub use installed_rule::InstalledRule;
pub use layout::{Chain, Gate, Hook, HookKind, HookPoint, OwnChain, TableFamily, TableLayout};
pub use nftables::{BatchOutcome, Claim, GuardedLink, Localnet, Nftables, OwnersBatch};
pub use owned_chain::Rules;
pub use owner_filter::OwnerFilter;
pub use rule::{Direction, L4Protocol, Layer, Match, Rule, Side, Verdict};
pub use set::{By, Index, Key, Set};
pub use snapshot::Snapshot;
pub use userdata::LONGEST_COMMENT;

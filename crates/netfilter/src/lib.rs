//! Packet filter rules as values: nftables over netlink, [`iptables`] by its programs, and connection tracking.
//!
//! Parts, in reading order:
//!
//! - [`Rule`], its [`Match`]es and its [`Verdict`]: a rule in the terms of nft(8).
//! - [`TableLayout`]: the table, chains and sets that rules are added to, and that are shared with other owners.
//! - [`OwnerFilter`]: which installed rules belong to an owner.
//! - [`Nftables`]: reads rules, and replaces an owner's rules in one transaction.
//! - [`iptables`]: the same for the programs iptables-save and iptables-restore.
//! - [`Conntrack`]: deletes flows that outlive the rules that created them.
//!
//! Design decision: no `nft` program is started. The netlink messages are built here, expression by expression as nft(8)
//! builds them, so `nft list ruleset` shows our rules like its own and either can remove what the other made. A transaction
//! takes 50 microseconds, the program milliseconds.

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

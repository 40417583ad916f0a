//! Rules as values; `nf_tables` over netlink, and [`iptables`] by its programs.
//!
//! A [`Frame`] says which table and chains are shared with everybody who adds rules there, a [`Rule`] what is ours, and
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
mod found;
mod frame;
mod hook;
pub mod iptables;
mod looked;
mod message;
mod nftables;
mod own;
mod rule;
mod set;
mod state;
mod translated;
mod userdata;
mod whose;
#[doc(hidden)]
pub mod wire;
mod words;

pub use cnikit_netlink::{Error, Mac, Result};
pub use conntrack::{Conntrack, Flows};
pub use field::{Field, KeyType, Value};
pub use found::Found;
pub use frame::{Chain, Family, Frame, Gate, Hook, HookKind, HookPoint, OwnChain};
pub use looked::Looked;
pub use nftables::{Claim, GuardedLink, Joined, Joint, Localnet, Nftables};
pub use own::Rules;
pub use rule::{Layer, Match, Protocol, Rule, Side, Verdict, Way};
pub use set::{By, Index, Key, Set};
pub use userdata::LONGEST_COMMENT;
pub use whose::Whose;

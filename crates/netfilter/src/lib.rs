//! Rules as values; `nf_tables` over netlink, and [`iptables`] by its programs.
//!
//! A [`Frame`] says which table and chains are shared with everybody who adds rules there, a [`Rule`] what is ours, and
//! [`Nftables`] makes it so in one atomic transaction. No `nft` is started: the messages are built here, a few hundred
//! bytes that the kernel takes in 50 microseconds, where the program takes milliseconds. What they say is what nft(8)
//! would have said, expression by expression, so that its listing shows our rules like its own, and either can remove
//! what the other made.

mod attribute;
mod batch;
mod compile;
mod expression;
mod found;
mod frame;
mod hook;
pub mod iptables;
mod message;
mod nftables;
mod own;
mod rule;
mod state;
mod userdata;
mod whose;
#[doc(hidden)]
pub mod wire;

pub use cnikit_netlink::{Error, Mac, Result};
pub use found::Found;
pub use frame::{Chain, Family, Frame, Hook, HookKind, HookPoint, OwnChain};
pub use nftables::{Claim, Nftables};
pub use rule::{Match, Rule, Verdict};
pub use userdata::LONGEST_COMMENT;
pub use whose::Whose;

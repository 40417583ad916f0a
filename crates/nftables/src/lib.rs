//! Packet filter rules of nftables as values, over netlink.
//!
//! Parts, in reading order:
//!
//! - [`Rule`], its [`Match`]es and its [`Verdict`]: a rule in the terms of nft(8).
//! - [`TableLayout`]: the table, chains and sets that rules are added to, and that are shared with other owners.
//! - [`OwnerFilter`]: which installed rules belong to an owner.
//! - [`Nftables`]: reads rules, and replaces an owner's rules in one transaction.
//!
//! ```
//! use cnikit_nftables::{L4Protocol, Match, Rule, TableFamily, Verdict};
//!
//! let rule = Rule {
//!     matches: vec![Match::from("cni0"), Match::to_port(L4Protocol::Udp, 53)],
//!     verdict: Verdict::Accept,
//!     comment: Some("dns".to_owned()),
//! };
//! assert_eq!(rule.to_string(), r#"iifname "cni0" udp dport 53 accept comment "dns""#);
//! rule.validate(TableFamily::Inet)?;
//! # Ok::<(), cnikit_nftables::Error>(())
//! ```
//!
//! Design decision: no `nft` program is started. The netlink messages are built here, expression by expression as nft(8)
//! builds them, so `nft list ruleset` shows our rules like its own and either can remove what the other made. A transaction
//! takes 50 microseconds, the program milliseconds.

mod rule;
mod ruleset;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;
mod wire;

/// The expressions of the kernel's rules, and the matches and verdicts that they are read as.
pub mod expression {
    pub use crate::rule::decompile::{read_match, read_verdict};
    pub use crate::wire::expression::{DATA, Expression, Header, Load, REGISTER, decode};
}

pub use cnikit_netlink::{Error, Mac, Result};
pub use rule::set::{Index, IndexBy, Key, Set};
pub use rule::types::{
    Direction, Field, KeyType, KeyValue, L4Protocol, Layer, Match, Rule, Side, TableFamily, Verdict,
};
pub use ruleset::desired_rules::Rules;
pub use ruleset::hook::InstalledChain;
pub use ruleset::installed_rule::InstalledRule;
pub use ruleset::layout::{Chain, Hook, HookKind, HookPoint, JumpCondition, OwnedChain, TableLayout};
pub use ruleset::loopback::{GuardedLink, RouteLocalnet};
pub use ruleset::nftables::Nftables;
pub use ruleset::owner_filter::OwnerFilter;
pub use ruleset::owners_batch::{BatchOutcome, OwnersBatch};
pub use ruleset::queries::ChainOwner;
pub use ruleset::removal::Deletion;
pub use ruleset::replacement::Replacement;
pub use ruleset::snapshot::Snapshot;
pub use wire::userdata::LONGEST_COMMENT;

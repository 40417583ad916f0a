//! Tables, chains and rules of the kernel: read, compared with the desired ones, and changed in transactions.

mod attempts;
pub(crate) mod desired_rules;
pub(crate) mod element;
pub(crate) mod hook;
pub(crate) mod installed_rule;
pub(crate) mod keys;
pub(crate) mod layout;
pub(crate) mod loopback;
pub(crate) mod message;
pub(crate) mod nftables;
pub(crate) mod owned_chain;
pub(crate) mod owner_filter;
pub(crate) mod owners_batch;
pub(crate) mod queries;
pub(crate) mod refill;
pub(crate) mod removal;
pub(crate) mod replacement;
pub(crate) mod snapshot;
pub(crate) mod table_state;

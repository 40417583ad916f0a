//! The protocol between a node of the plugin `pool` and the engine, without input or output: what to do next, given the node's
//! files and what the engine answered. The agent and the model of the tests execute the same functions.
//!
//! - [`Survey`]: what the engine said about a node, at one revision.
//! - [`plan()`]: the steps that follow from the files and a survey.
//! - [`transaction_of`]: what a step asks of the engine, with its guards.
//! - [`decide_sticky`]: how a name gets its addresses on another node.
//! - [`Execution`]: a transaction on an engine that writes one key at a time.
//! - [`settled`], [`changed`]: what an answer changes in the files.
//! - [`MemoryStore`]: the keys of an engine in memory, for tests.
//!
//! # Why it is safe
//!
//! A block serves only after a write in the engine that named this node and its incarnation, or after the engine confirmed that
//! this write is still the last one. The revision of that write is the block's *epoch*. A block's key is deleted only under its
//! epoch, so a deletion that is late, because the network or a server held it, deletes nothing that was written since. Therefore a
//! block that was sealed and is to serve again is written anew first ([`Step::Renew`]): to read that it is still there would not be
//! enough, as the deletion may yet arrive. A late claim can create a block that the node does not know of; a survey finds it, and
//! the node adopts it by the same write.
//!
//! No time decides anything. The session ends when its lease does, but nothing is freed by that: it detects a clone only.
#![forbid(unsafe_code)]

mod execution;
mod memory_store;
mod plan;
mod sticky;
mod survey;
mod transaction;
mod view;

pub use execution::{CheckOrder, Execution, FoundValue, KeyReply, KeyRequest, NextRequest};
pub use memory_store::MemoryStore;
pub use plan::{Standing, Step, plan};
pub use sticky::{FoundSticky, StickyClaim, StickyDecision, decide_sticky, left_to_name, name_of};
pub use survey::{FoundBlock, StoredValue, Survey};
pub use transaction::{
    Guard, Outcome, Part, Transaction, WriteOperation, claim, fence, free_fenced, settled, transaction_of,
};
pub use view::{BlockChange, BlockId, ChangeKind, HeldBlock, NodeView, changed};

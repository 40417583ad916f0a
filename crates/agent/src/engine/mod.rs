//! Engines, which record the blocks of all nodes.

mod any;
mod etcd;
mod kubernetes;
mod memory;

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;

use cnikit_pool::{Incarnation, KeyOfEngine};
use cnikit_pool_protocol::{BlockId, Outcome, StoredValue, Survey, Transaction};

pub use any::{AnyEngine, EngineSettings};
pub use etcd::{EtcdEngine, EtcdSettings, EtcdTls};
pub use kubernetes::{
    ApiCredentials, ApiServer, ClusterNode, GROUP as KUBERNETES_GROUP, KubernetesEngine, KubernetesSettings,
    NodeSighting,
};
pub use memory::MemoryEngine;

/// Why an engine did not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineError {
    /// What failed and why.
    pub text: String,
    /// Whether the engine may have executed what was asked, or may yet: nothing is known before the next survey.
    pub is_open: bool,
}

/// What etcd says when its space quota is used up (alarm NOSPACE). An API server passes it on.
const NO_SPACE: &str = "database space exceeded";

impl EngineError {
    /// Whether etcd reads and deletes, and writes nothing more, because its space quota is used up. What it was asked when that
    /// happened may have been executed: its applier executes a transaction, and compares with the quota afterwards.
    pub(crate) fn is_no_space(&self) -> bool {
        self.text.contains(NO_SPACE)
    }

    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        if self.is_no_space() {
            "etcd's space quota is used up: compact and defragment it, or raise --quota-backend-bytes; then `etcdctl alarm disarm`"
        } else {
            "the engine is out of reach: look at etcd or the API server, and at the network of this node"
        }
    }
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for EngineError {}

/// A part of the keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listing {
    /// The definitions of all pools.
    Pools,
    /// Which namespace uses which pool.
    Selections,
    /// The blocks of one pool.
    BlocksOf(String),
    /// The static addresses of one pool.
    StaticsOf(String),
    /// The blocks of all pools.
    Blocks,
    /// All static addresses.
    Statics,
    /// All nodes.
    Nodes,
    /// All sessions.
    Sessions,
    /// The fences of one node.
    FencesOf(String),
    /// The value of one key.
    Key(KeyOfEngine),
    /// How much of each node's blocks is in use.
    Usages,
}

/// Which blocks a survey reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// All blocks of all nodes. It finds every block of the node, and takes as long as there are blocks.
    All,
    /// The given ones only, by their keys.
    Given,
}

/// An engine. Claims, releases, fences, sessions and the node's record are transactions, which the protocol computes; an engine
/// executes them, all or nothing: at once, or as an [`Execution`](cnikit_pool_protocol::Execution).
pub trait Engine: Send + Sync + 'static {
    /// Executes a transaction.
    fn commit(&self, transaction: &Transaction) -> impl Future<Output = Result<Outcome, EngineError>> + Send;

    /// Reads the keys of a node: at one revision, or first the blocks and then the rest. The blocks `given`, such as those in the
    /// node's files, are read also if another node owns them.
    fn survey(
        &self,
        node: &str,
        incarnation: Incarnation,
        given: &BTreeSet<BlockId>,
        reach: Reach,
    ) -> impl Future<Output = Result<Survey, EngineError>> + Send;

    /// The values of a part of the keys, as they are now.
    fn list(
        &self,
        listing: &Listing,
    ) -> impl Future<Output = Result<Vec<(KeyOfEngine, StoredValue)>, EngineError>> + Send;

    /// The session of a node; `None` if it has none. One that has ended, and is still stored, has a value that is no record.
    fn living_session(&self, node: &str) -> impl Future<Output = Result<Option<StoredValue>, EngineError>> + Send {
        async move {
            let key = KeyOfEngine::Session(node.to_owned());
            Ok(self.list(&Listing::Key(key)).await?.into_iter().next().map(|(_, stored)| stored))
        }
    }

    /// Renews the session, once. `Ok(false)`: it has ended, or none was opened.
    fn keep_session(&self) -> impl Future<Output = Result<bool, EngineError>> + Send;

    /// Calls `changed` when the pools, the selections or what concerns the node may have changed; ends with an error when it cannot
    /// any more.
    fn watch(&self, node: &str, changed: impl Fn() + Send) -> impl Future<Output = EngineError> + Send;
}

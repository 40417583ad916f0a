//! A node with its files and its agent.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cnikit_agent::engine::{AnyEngine, Engine, EngineSettings, Listing};
use cnikit_agent::operator::{FenceRequest, define_pool};
use cnikit_agent::{AgentFailure, AgentMetrics, AgentSettings, PoolAgent};
use cnikit_pool::{BlockRecord, BlockState, EngineKeys, Incarnation, LocalBlock, NetworkFiles, NodeFiles, Want};
use cnikit_pool_protocol::{Outcome, StoredValue, Transaction, WriteOperation};
use cnikit_reservations::{AllocationRequest, Boot, Owner, RangeSet, Store};
use tokio::runtime::Runtime;

use crate::cluster::runtime;

/// Renews a session until it is dropped.
pub(crate) struct Keeper(tokio::task::JoinHandle<()>);

impl Drop for Keeper {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub(crate) struct Node {
    pub(crate) runtime: Runtime,
    pub(crate) engine: Arc<AnyEngine>,
    pub(crate) agent: PoolAgent<AnyEngine>,
    pub(crate) files: NodeFiles,
}

impl Node {
    /// A node with this name, whose files are in a directory of that name.
    pub(crate) fn new(name: &str, dir: &Path, settings: impl Into<EngineSettings>) -> Node {
        Node::booted(name, dir, settings, "boot-1", Duration::from_mins(5))
    }

    pub(crate) fn booted(
        name: &str,
        dir: &Path,
        settings: impl Into<EngineSettings>,
        boot: &str,
        grace: Duration,
    ) -> Node {
        let runtime = runtime();
        let engine = Arc::new(AnyEngine::new(settings.into()).unwrap());
        let files = NodeFiles::new(dir.join(name));
        let settings = AgentSettings { node: name.into(), boot: format!("{boot}-{name}"), files: files.clone(), grace };
        let metrics = Arc::new(AgentMetrics::default());
        let agent = PoolAgent::new(settings, Arc::clone(&engine), runtime.handle().clone(), metrics).unwrap();
        Node { runtime, engine, agent, files }
    }

    pub(crate) fn define(&self, pool: &str) {
        self.runtime.block_on(define_pool(self.engine.as_ref(), pool.as_bytes())).unwrap();
    }

    /// Another program writes a key.
    pub(crate) fn put(&self, key: &str, value: &str) {
        let key = keys().parse(&format!("{}{key}", EngineKeys::PREFIX)).unwrap();
        self.write(WriteOperation::Put(key, value.into()));
    }

    /// A claim of this incarnation is executed that the files do not know of.
    pub(crate) fn claim_late(&self, block: &str) {
        let node = self.files.node().unwrap().unwrap();
        let record = format!(r#"{{"node":"{}","incarnation":"{}","network":"pods"}}"#, node.node, node.incarnation);
        self.put(&format!("blocks/blue/{block}"), &record);
    }

    /// Another program deletes all blocks.
    pub(crate) fn delete_blocks(&self) {
        for (key, _) in self.runtime.block_on(self.engine.list(&Listing::Blocks)).unwrap() {
            self.write(WriteOperation::Delete(key));
        }
    }

    fn write(&self, write: WriteOperation) {
        let transaction = Transaction { guards: Vec::new(), writes: vec![write] };
        let outcome = self.runtime.block_on(self.engine.commit(&transaction)).unwrap();
        assert!(matches!(outcome, Outcome::Committed(_)), "{outcome:?}");
    }

    /// The incarnation in the files.
    pub(crate) fn incarnation(&self) -> Incarnation {
        self.files.node().unwrap().unwrap().incarnation
    }

    pub(crate) fn reconcile(&mut self) -> Result<(), AgentFailure> {
        self.agent.reconcile(&BTreeSet::new())
    }

    pub(crate) fn want(&mut self, network: &str, free: u32) -> Result<(), AgentFailure> {
        self.agent.serve(&want(network, free))
    }

    /// The blocks of a network in the files, in a state.
    pub(crate) fn blocks(&self, network: &str, state: BlockState) -> Vec<LocalBlock> {
        let network = self.files.network(network, Duration::from_secs(5), |_| {});
        let mut blocks = network.blocks().unwrap();
        blocks.retain(|block| block.state == state);
        blocks
    }

    /// A container gets an address of a block of the network.
    pub(crate) fn reserve(&self, network: &str, container: &str) {
        let network = self.files.network(network, Duration::from_secs(5), |_| {});
        let request = self.request(&network, container);
        network.lock().unwrap().acquire(&request).unwrap();
    }

    /// A container got an address, and the machine booted since.
    pub(crate) fn reserve_in_earlier_boot(&self, network: &str, container: &str) {
        let network = self.files.network(network, Duration::from_secs(5), |_| {});
        let request = self.request(&network, container);
        let machine = std::fs::read_to_string("/etc/machine-id").unwrap();
        let boot = Boot::new("11111111-1111-1111-1111-111111111111", Some(&machine));
        let store = Store { boot, ..network.store().clone() };
        store.acquire(&request).unwrap();
    }

    fn request(&self, network: &NetworkFiles, container: &str) -> AllocationRequest {
        let pools = self.files.pools().unwrap().unwrap();
        let block = network.blocks().unwrap().into_iter().find(|block| block.state == BlockState::Active).unwrap();
        let range = block.range(&pools.pool(&block.pool).unwrap().unwrap()).unwrap();
        AllocationRequest {
            owner: Owner::new(container, "eth0"),
            sets: vec![RangeSet::try_from(&[range][..]).unwrap()],
            wanted: Vec::new(),
            cooldown: Duration::ZERO,
        }
    }

    pub(crate) fn release(&self, network: &str, container: &str) {
        let network = self.files.network(network, Duration::from_secs(5), |_| {});
        network.store().release(&Owner::new(container, "eth0")).unwrap();
    }

    /// The owners in the engine, with their blocks.
    pub(crate) fn owners(&self) -> Vec<(String, String)> {
        self.try_owners().unwrap()
    }

    pub(crate) fn try_owners(&self) -> Result<Vec<(String, String)>, String> {
        let listed = self.runtime.block_on(self.engine.list(&Listing::Blocks)).map_err(|error| error.text)?;
        let owner = |stored: &StoredValue| stored.record::<BlockRecord>().unwrap().node;
        Ok(listed.iter().map(|(key, stored)| (owner(stored), key.to_string())).collect())
    }

    /// Renews the session, as the daemon does, until the value is dropped.
    pub(crate) fn keep(&self) -> Keeper {
        let engine = Arc::clone(&self.engine);
        Keeper(self.runtime.spawn(async move {
            loop {
                let _ = engine.keep_session().await;
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }))
    }
}

fn keys() -> EngineKeys {
    EngineKeys::new(EngineKeys::PREFIX).unwrap()
}

/// The fence of a node.
pub(crate) fn fence_of(node: &str, force: bool) -> FenceRequest {
    FenceRequest { node: node.into(), incarnation: None, by: "a test".into(), why: "it burns".into(), force }
}

pub(crate) fn want(network: &str, free: u32) -> Want {
    Want {
        network: network.into(),
        pool: "blue".into(),
        families: Vec::new(),
        free,
        addresses: Vec::new(),
        attachment: None,
    }
}

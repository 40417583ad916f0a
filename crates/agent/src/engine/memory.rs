//! An engine in memory, for tests.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use cnikit_pool::{Incarnation, KeyOfEngine};
use cnikit_pool_protocol::{BlockId, MemoryStore, Outcome, StoredValue, Survey, Transaction};

use super::{Engine, EngineError, Listing, Reach};

/// The store, shared by several agents. Its sessions do not end.
#[derive(Clone, Debug, Default)]
pub struct MemoryEngine {
    store: Arc<Mutex<MemoryStore>>,
}

impl MemoryEngine {
    /// Calls a function with the store.
    pub fn with<T>(&self, call: impl FnOnce(&mut MemoryStore) -> T) -> T {
        call(&mut self.store.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Engine for MemoryEngine {
    async fn commit(&self, transaction: &Transaction) -> Result<Outcome, EngineError> {
        Ok(self.with(|store| store.commit(transaction)))
    }

    async fn survey(
        &self,
        node: &str,
        incarnation: Incarnation,
        given: &BTreeSet<BlockId>,
        reach: Reach,
    ) -> Result<Survey, EngineError> {
        let mut survey = self.with(|store| store.survey(node, incarnation, given));
        survey.blocks.retain(|id, _| reach == Reach::All || given.contains(id));
        Ok(survey)
    }

    async fn list(&self, listing: &Listing) -> Result<Vec<(KeyOfEngine, StoredValue)>, EngineError> {
        let is_listed = |key: &KeyOfEngine| match (listing, key) {
            (Listing::Pools, KeyOfEngine::Pool(_))
            | (Listing::Selections, KeyOfEngine::Select(_))
            | (Listing::Blocks, KeyOfEngine::Block { .. })
            | (Listing::Statics, KeyOfEngine::Static { .. })
            | (Listing::Nodes, KeyOfEngine::Node(_))
            | (Listing::Sessions, KeyOfEngine::Session(_))
            | (Listing::Usages, KeyOfEngine::Usage(_)) => true,
            (Listing::Key(listed), key) => listed == key,
            (Listing::BlocksOf(name), KeyOfEngine::Block { pool, .. })
            | (Listing::StaticsOf(name), KeyOfEngine::Static { pool, .. }) => name == pool,
            (Listing::FencesOf(name), KeyOfEngine::Fence { node, .. }) => name == node,
            _ => false,
        };
        let copied = |(key, stored): (&KeyOfEngine, &StoredValue)| (key.clone(), stored.clone());
        Ok(self.with(|store| store.values.iter().filter(|(key, _)| is_listed(key)).map(copied).collect()))
    }

    async fn keep_session(&self) -> Result<bool, EngineError> {
        Ok(true)
    }

    async fn watch(&self, _: &str, _: impl Fn() + Send) -> EngineError {
        std::future::pending().await
    }
}

//! The engine that a configuration names.

use std::collections::BTreeSet;

use cnikit_pool::{Incarnation, KeyOfEngine};
use cnikit_pool_protocol::{BlockId, Outcome, StoredValue, Survey, Transaction};

use super::{Engine, EngineError, EtcdEngine, EtcdSettings, KubernetesEngine, KubernetesSettings, Listing, Reach};

/// What is needed to reach the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineSettings {
    /// etcd.
    Etcd(EtcdSettings),
    /// The Kubernetes API.
    Kubernetes(KubernetesSettings),
}

impl From<EtcdSettings> for EngineSettings {
    fn from(settings: EtcdSettings) -> EngineSettings {
        EngineSettings::Etcd(settings)
    }
}

impl From<KubernetesSettings> for EngineSettings {
    fn from(settings: KubernetesSettings) -> EngineSettings {
        EngineSettings::Kubernetes(settings)
    }
}

/// One of the engines.
#[derive(Debug)]
pub enum AnyEngine {
    /// etcd.
    Etcd(Box<EtcdEngine>),
    /// The Kubernetes API.
    Kubernetes(Box<KubernetesEngine>),
}

impl AnyEngine {
    /// An engine that connects when it is first asked.
    ///
    /// # Errors
    /// The settings are invalid.
    pub fn new(settings: EngineSettings) -> Result<AnyEngine, cnikit_pool::Error> {
        Ok(match settings {
            EngineSettings::Etcd(settings) => AnyEngine::Etcd(Box::new(EtcdEngine::new(settings)?)),
            EngineSettings::Kubernetes(settings) => AnyEngine::Kubernetes(Box::new(KubernetesEngine::new(settings)?)),
        })
    }
}

impl Engine for AnyEngine {
    async fn commit(&self, transaction: &Transaction) -> Result<Outcome, EngineError> {
        match self {
            AnyEngine::Etcd(engine) => engine.commit(transaction).await,
            AnyEngine::Kubernetes(engine) => engine.commit(transaction).await,
        }
    }

    async fn survey(
        &self,
        node: &str,
        incarnation: Incarnation,
        given: &BTreeSet<BlockId>,
        reach: Reach,
    ) -> Result<Survey, EngineError> {
        match self {
            AnyEngine::Etcd(engine) => engine.survey(node, incarnation, given, reach).await,
            AnyEngine::Kubernetes(engine) => engine.survey(node, incarnation, given, reach).await,
        }
    }

    async fn list(&self, listing: &Listing) -> Result<Vec<(KeyOfEngine, StoredValue)>, EngineError> {
        match self {
            AnyEngine::Etcd(engine) => engine.list(listing).await,
            AnyEngine::Kubernetes(engine) => engine.list(listing).await,
        }
    }

    async fn living_session(&self, node: &str) -> Result<Option<StoredValue>, EngineError> {
        match self {
            AnyEngine::Etcd(engine) => engine.living_session(node).await,
            AnyEngine::Kubernetes(engine) => engine.living_session(node).await,
        }
    }

    async fn keep_session(&self) -> Result<bool, EngineError> {
        match self {
            AnyEngine::Etcd(engine) => engine.keep_session().await,
            AnyEngine::Kubernetes(engine) => engine.keep_session().await,
        }
    }

    async fn watch(&self, node: &str, changed: impl Fn() + Send) -> EngineError {
        match self {
            AnyEngine::Etcd(engine) => engine.watch(node, changed).await,
            AnyEngine::Kubernetes(engine) => engine.watch(node, changed).await,
        }
    }
}

//! `cnikit-agent watch-nodes`: fences nodes by the word of Kubernetes, which is a Node object that was deleted, or the taint
//! `node.kubernetes.io/out-of-service`.
//!
//! A node whose agent renews its session is not fenced, whatever Kubernetes says: its containers may run. One program of a cluster
//! does this; a second one does no harm.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cnikit_pool::{Incarnation, KeyOfEngine, NodeRecord};
use tokio::task::JoinSet;

use crate::agent::AgentFailure;
use crate::engine::{ClusterNode, Engine, EngineError, KubernetesEngine, Listing, NodeSighting};
use crate::log::log;
use crate::operator::{FenceRequest, fence_node};

/// What follows from what Kubernetes has of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
enum NodeWord {
    /// Nothing.
    Keep,
    /// It is to be recorded that the node is one of the cluster.
    Record,
    /// Its containers are gone, for this reason.
    Gone(&'static str),
}

fn word(node: Option<&ClusterNode>, sighting: Option<&NodeSighting>) -> NodeWord {
    match (node, sighting) {
        (Some(node), Some(sighting)) if node.uid == sighting.uid => {
            if node.is_out_of_service {
                return NodeWord::Gone("its Node object has the taint node.kubernetes.io/out-of-service");
            }
            NodeWord::Keep
        }
        // It may be the same machine, which has joined the cluster again.
        (Some(_), _) => NodeWord::Record,
        (None, Some(_)) => NodeWord::Gone("its Node object was deleted"),
        // It was never a node of this cluster.
        (None, None) => NodeWord::Keep,
    }
}

/// What is remembered between two rounds.
#[derive(Debug, Default)]
pub struct NodeWatch {
    /// Incarnations that were fenced completely.
    done: BTreeSet<(String, Incarnation)>,
    /// The last failure of each node, which is logged once.
    failures: BTreeMap<String, String>,
}

impl NodeWatch {
    /// Looks at all nodes once. Returns the nodes that were fenced.
    ///
    /// # Errors
    /// The API server does not answer, or does not allow it. That one node cannot be fenced is logged.
    pub async fn round(&mut self, engine: &Arc<KubernetesEngine>) -> Result<Vec<String>, EngineError> {
        let registered = engine.list(&Listing::Nodes).await?;
        let sightings = engine.sightings().await?;
        // After the sightings: a node that is in none of the two was deleted after it was seen.
        let nodes = engine.cluster_nodes().await?;
        let mut fences: JoinSet<(String, Incarnation, Result<(), AgentFailure>)> = JoinSet::new();
        for (key, stored) in registered {
            let (KeyOfEngine::Node(name), Some(NodeRecord { incarnation })) = (key, stored.record()) else { continue };
            let node = nodes.iter().find(|node| node.name == name);
            let sighting = sightings.iter().find(|sighting| sighting.node == name);
            match (word(node, sighting), node) {
                (NodeWord::Record, Some(node)) => engine.record_sighting(node, sighting).await?,
                (NodeWord::Gone(why), _) if !self.done.contains(&(name.clone(), incarnation)) => {
                    let engine = Arc::clone(engine);
                    let forgotten = sighting.filter(|_| node.is_none()).cloned();
                    fences.spawn(async move {
                        let fenced = fence(&engine, &name, incarnation, why, forgotten.as_ref()).await;
                        (name, incarnation, fenced)
                    });
                }
                _ => {}
            }
        }
        let mut fenced = Vec::new();
        while let Some(ended) = fences.join_next().await {
            let Ok((name, incarnation, result)) = ended else { continue };
            match result {
                Ok(()) => {
                    self.failures.remove(&name);
                    self.done.insert((name.clone(), incarnation));
                    fenced.push(name);
                }
                Err(failure) => self.log_failure(name, &failure),
            }
        }
        Ok(fenced)
    }

    fn log_failure(&mut self, name: String, failure: &AgentFailure) {
        let text = failure.to_string();
        if self.failures.get(&name) != Some(&text) {
            log("nodes", format_args!("node {name} is not fenced: {text}"));
            self.failures.insert(name, text);
        }
    }
}

async fn fence(
    engine: &KubernetesEngine,
    name: &str,
    incarnation: Incarnation,
    why: &'static str,
    forgotten: Option<&NodeSighting>,
) -> Result<(), AgentFailure> {
    let request = FenceRequest {
        node: name.to_owned(),
        incarnation: Some(incarnation),
        by: "kubernetes".to_owned(),
        why: why.to_owned(),
        force: false,
    };
    let (_, freed) = fence_node(engine, &request).await?;
    log("nodes", format_args!("node {name} is fenced, and {freed} of its blocks are free: {why}"));
    if let Some(sighting) = forgotten {
        engine.forget_sighting(sighting).await?;
    }
    Ok(())
}

/// Looks again and again.
pub async fn watch_nodes(engine: Arc<KubernetesEngine>, every: Duration) -> ! {
    let mut watch = NodeWatch::default();
    loop {
        if let Err(error) = watch.round(&engine).await {
            log("nodes", error);
        }
        tokio::time::sleep(every).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_node_that_was_seen_can_be_gone() {
        let node = |uid: &str, is_out_of_service| ClusterNode { name: "a".into(), uid: uid.into(), is_out_of_service };
        let seen = NodeSighting { node: "a".into(), uid: "1".into(), revision: 7 };
        assert_eq!(word(None, None), NodeWord::Keep);
        assert_eq!(word(Some(&node("1", false)), None), NodeWord::Record);
        assert_eq!(word(Some(&node("1", false)), Some(&seen)), NodeWord::Keep);
        assert_eq!(word(Some(&node("2", true)), Some(&seen)), NodeWord::Record);
        assert!(matches!(word(Some(&node("1", true)), Some(&seen)), NodeWord::Gone(_)));
        assert!(matches!(word(None, Some(&seen)), NodeWord::Gone(_)));
    }
}

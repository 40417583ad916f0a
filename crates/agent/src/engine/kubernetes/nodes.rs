//! The nodes of the Kubernetes cluster itself, whose deletion is a word about their containers.

use serde_json::json;

use super::super::EngineError;
use super::KubernetesEngine;
use super::objects::{SIGHTINGS, draw, node_name, object, revision_of};

/// The taint by which an administrator says that a node is shut down, and its containers are gone.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// A Node object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterNode {
    /// Its name.
    pub name: String,
    /// Its identity: a node that is deleted and created again has another one.
    pub uid: String,
    /// Whether it has the taint `node.kubernetes.io/out-of-service`.
    pub is_out_of_service: bool,
}

/// That a node of a pool was a node of the cluster. Only then means the absence of a Node object that it was deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSighting {
    /// The node.
    pub node: String,
    /// The identity of its Node object.
    pub uid: String,
    /// The revision of the record.
    pub revision: i64,
}

impl KubernetesEngine {
    /// All Node objects.
    ///
    /// # Errors
    /// The API server does not answer, or does not allow it.
    pub async fn cluster_nodes(&self) -> Result<Vec<ClusterNode>, EngineError> {
        let mut nodes = Vec::new();
        for found in self.all_at("/api/v1/nodes").await? {
            let text = |key: &str| found["metadata"][key].as_str().unwrap_or_default().to_owned();
            let taints = found["spec"]["taints"].as_array().map(Vec::as_slice).unwrap_or_default();
            let is_out_of_service = taints.iter().any(|taint| taint["key"] == OUT_OF_SERVICE);
            nodes.push(ClusterNode { name: text("name"), uid: text("uid"), is_out_of_service });
        }
        Ok(nodes)
    }

    /// The nodes of pools that were seen in the cluster.
    ///
    /// # Errors
    /// The API server does not answer, or does not allow it.
    pub async fn sightings(&self) -> Result<Vec<NodeSighting>, EngineError> {
        let mut sightings = Vec::new();
        for found in self.all(SIGHTINGS).await? {
            let text = |key: &str| found["spec"][key].as_str().unwrap_or_default().to_owned();
            sightings.push(NodeSighting { node: text("node"), uid: text("uid"), revision: revision_of(&found)? });
        }
        Ok(sightings)
    }

    /// Records that a node was seen, over what was recorded before. Another program may be faster: then nothing is written.
    ///
    /// # Errors
    /// The API server does not answer, or does not allow it.
    pub async fn record_sighting(&self, node: &ClusterNode, before: Option<&NodeSighting>) -> Result<(), EngineError> {
        let spec = json!({"node": node.name, "uid": node.uid, "write": draw()?});
        let revision = before.map(|sighting| sighting.revision);
        self.put(SIGHTINGS, object(SIGHTINGS, &node_name(&node.name), &spec), revision).await?;
        Ok(())
    }

    /// Deletes a record that a node was seen, if it is still the same.
    ///
    /// # Errors
    /// The API server does not answer, or does not allow it.
    pub async fn forget_sighting(&self, sighting: &NodeSighting) -> Result<(), EngineError> {
        self.delete(SIGHTINGS, &node_name(&sighting.node), sighting.revision).await?;
        Ok(())
    }
}

//! Nodes that Kubernetes has given up.

use std::sync::Arc;

use cnikit_agent::cluster_nodes::NodeWatch;
use cnikit_agent::engine::KubernetesEngine;
use cnikit_pool::{BlockState, NodeState};

use crate::cluster::{Cluster, runtime};
use crate::node::Node;
use crate::program::{AGENT, active, ask, configure, define};
use crate::running::{Running, eventually, log_of};

const POOL: &str = r#"{"name":"blue","ranges":[{"subnet":"10.8.0.0/24"}],"blockSize4":28}"#;

fn create_node(cluster: &Cluster, name: &str) {
    let file = cluster.host.dir().join("node.json");
    let node = serde_json::json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    std::fs::write(&file, node.to_string()).unwrap();
    cluster.kubectl(&format!("create -f {}", file.display()));
}

#[test]
fn a_node_that_was_deleted_or_is_out_of_service_is_fenced_once_its_session_has_ended() {
    let cluster = Cluster::start();
    cluster.host.enter(|| {
        let watcher = runtime();
        let engine = Arc::new(KubernetesEngine::new(cluster.settings_of("watcher")).unwrap());
        let mut watch = NodeWatch::default();
        let mut nodes = ["a", "b", "c"].map(|name| Node::new(name, cluster.host.dir(), cluster.settings_of("agent")));
        Node::new("operator", cluster.host.dir(), cluster.settings()).define(POOL);
        for node in &mut nodes {
            node.want("pods", 1).unwrap();
        }
        create_node(&cluster, "a");
        create_node(&cluster, "b");
        assert_eq!(watcher.block_on(watch.round(&engine)).unwrap(), Vec::<String>::new());
        assert!(cluster.kubectl("get nodesightings.pool.cnikit -o name").lines().count() == 2);

        cluster.kubectl("delete node a");
        cluster.kubectl("taint node b node.kubernetes.io/out-of-service=nodeshutdown:NoExecute");
        // Whose agent lives is not fenced.
        let keepers = [nodes[0].keep(), nodes[1].keep()];
        assert_eq!(watcher.block_on(watch.round(&engine)).unwrap(), Vec::<String>::new());
        assert_eq!(nodes[0].owners().len(), 3);
        drop(keepers);
        let mut fenced = Vec::new();
        eventually("they are not fenced", || {
            fenced.extend(watcher.block_on(watch.round(&engine)).unwrap());
            fenced.len() >= 2
        });
        fenced.sort();
        assert_eq!(fenced, ["a", "b"]);
        // A node that was never one of the cluster has its block.
        assert_eq!(nodes[2].owners(), [("c".to_owned(), nodes[2].owners()[0].1.clone())]);
        assert_eq!(watcher.block_on(watch.round(&engine)).unwrap(), Vec::<String>::new(), "once");
        let fences = cluster.kubectl("get nodefences.pool.cnikit");
        assert!(fences.contains("was deleted") && fences.contains("out-of-service"), "{fences}");
        assert_eq!(cluster.kubectl("get nodesightings.pool.cnikit -o name").trim(), "nodesighting.pool.cnikit/b");

        // They return: each begins anew, and its new incarnation is not fenced by the old word while its agent lives.
        for node in &mut nodes[..2] {
            node.reconcile().unwrap();
            assert_eq!(node.files.node().unwrap().unwrap().state, NodeState::Serving);
            node.want("pods", 1).unwrap();
            assert_eq!(node.blocks("pods", BlockState::Active).len(), 1);
        }
        let keepers = [nodes[0].keep(), nodes[1].keep()];
        assert_eq!(watcher.block_on(watch.round(&engine)).unwrap(), Vec::<String>::new());
        drop(keepers);
        assert_eq!(nodes[2].owners().len(), 3);
    });
}

#[test]
fn the_program_fences_a_deleted_node_and_ends_when_it_is_told_to() {
    let cluster = Cluster::start();
    let (host, dir) = (&cluster.host, cluster.host.dir());
    define(&cluster);
    create_node(&cluster, "a");
    let config = configure(&cluster, "a", "agent");
    let daemon = Running::start(host, "agent", &format!("{AGENT} run --config {config}"));
    eventually("the daemon does not serve", || {
        let _ = ask(dir, "a", "pods", 1);
        active(dir, "a", "pods") == 1
    });
    let watcher = configure(&cluster, "watcher", "watcher");
    let watch = Running::start(host, "watch", &format!("{AGENT} watch-nodes --config {watcher}"));
    eventually("it is not seen", || cluster.kubectl("get nodesightings.pool.cnikit -o name").contains("/a"));
    daemon.signal(host, "KILL");
    daemon.finish();
    cluster.kubectl("delete node a");
    eventually("it is not fenced", || {
        !cluster.kubectl("get blocks.pool.cnikit -o name").contains("block.pool.cnikit/")
    });
    watch.signal(host, "TERM");
    let ended = watch.finish();
    assert!(ended.how.is_success(), "{:?}: {}", ended.how, log_of(dir, "watch"));
}

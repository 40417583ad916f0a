//! Objects: revisions, names, rights, and definitions that are pending.

use std::time::Duration;

use cnikit_agent::AgentFailure;
use cnikit_agent::engine::{Engine, Listing};
use cnikit_agent::operator::{define_pool, fence_node, select_pool};
use cnikit_pool::{BlockState, KeyOfEngine};
use cnikit_pool_protocol::{Guard, Outcome, Transaction, WriteOperation};

use crate::cluster::Cluster;
use crate::node::{Node, fence_of};
use crate::running::eventually;

const POOL: &str = r#"{"name":"blue","ranges":[{"subnet":"10.8.0.0/24"}],"blockSize4":28}"#;

fn block() -> KeyOfEngine {
    KeyOfEngine::Block { pool: "blue".into(), cidr: "10.8.0.16/28".parse().unwrap() }
}

fn commit(node: &Node, guards: Vec<Guard>, write: WriteOperation) -> Outcome {
    node.runtime.block_on(node.engine.commit(&Transaction { guards, writes: vec![write] })).unwrap()
}

fn written(outcome: Outcome) -> i64 {
    match outcome {
        Outcome::Committed(revisions) => revisions[0],
        Outcome::Refused(values) => panic!("{values:?}"),
    }
}

#[test]
fn a_write_of_the_same_value_has_a_new_revision_and_a_late_deletion_deletes_nothing() {
    let cluster = Cluster::start();
    cluster.host.enter(|| {
        let node = Node::new("a", cluster.host.dir(), cluster.settings());
        let value = br#"{"node":"a"}"#.to_vec();
        let put = || WriteOperation::Put(block(), value.clone());
        let first = written(commit(&node, vec![Guard::Absent(block())], put()));
        let taken = commit(&node, vec![Guard::Absent(block())], put());
        let Outcome::Refused(values) = taken else { panic!("{taken:?}") };
        assert_eq!(values[0].as_ref().unwrap().revision, first);
        let second = written(commit(&node, vec![Guard::Unchanged(block(), first)], put()));
        assert!(second > first, "the API server writes nothing for the same object");
        for write in [WriteOperation::Delete(block()), put()] {
            let late = commit(&node, vec![Guard::Unchanged(block(), first)], write);
            assert!(matches!(late, Outcome::Refused(_)), "{late:?}");
        }
        let listed = node.runtime.block_on(node.engine.list(&Listing::Blocks)).unwrap();
        assert_eq!((listed.len(), listed[0].1.revision), (1, second));
        written(commit(&node, vec![Guard::Unchanged(block(), second)], WriteOperation::Delete(block())));
        assert_eq!(node.owners(), []);
    });
}

/// How many requests for objects of ours the API server has served. It counts one when it has answered.
fn requests(cluster: &Cluster) -> usize {
    let metrics = cluster.kubectl("get --raw /metrics");
    let ours = |line: &&str| {
        line.starts_with("apiserver_request_total{")
            && line.contains("group=\"pool.cnikit\"")
            && !line.contains("verb=\"WATCH\"")
    };
    metrics.lines().filter(ours).map(|line| line.rsplit(' ').next().unwrap().parse::<usize>().unwrap()).sum()
}

/// The four are those of session, node, fence and pool, which are read after the blocks are written. docs/agent.md and ADR 0030
/// have the arithmetic.
#[test]
fn a_claim_takes_one_request_per_block_and_four_more() {
    let cluster = Cluster::start();
    cluster.host.enter(|| {
        let mut node = Node::new("a", cluster.host.dir(), cluster.settings());
        node.define(r#"{"name":"blue","ranges":[{"subnet":"10.8.0.0/24"}],"blockSize4":29}"#);
        node.reconcile().unwrap();
        let mut claimed = 0;
        // In a network of its own each, so that the blocks that serve already do not count.
        for (network, free, blocks) in [("one", 1, 1), ("some", 31, 4), ("many", 127, 16)] {
            let before = requests(&cluster);
            node.want(network, free).unwrap();
            claimed += blocks;
            let asked = requests(&cluster) - before;
            assert_eq!(asked, blocks + 4, "of {blocks} blocks");
            assert_eq!(node.owners().len(), claimed);
        }
    });
}

#[test]
fn an_object_that_has_not_the_name_of_its_key_is_nobodys_and_takes_the_place() {
    let cluster = Cluster::start();
    cluster.host.enter(|| {
        let mut node = Node::new("a", cluster.host.dir(), cluster.settings());
        node.define(POOL);
        node.reconcile().unwrap();
        let incarnation = node.files.node().unwrap().unwrap().incarnation;
        let file = cluster.host.dir().join("forged.json");
        let forged = serde_json::json!({
            "apiVersion": "pool.cnikit/v1", "kind": "Block", "metadata": {"name": "blue.10-8-0-16-28"},
            "spec": {"key": "blocks/blue/10.8.0.32/28", "write": "x",
                "value": {"node": "a", "incarnation": incarnation.to_string(), "network": "pods"}},
        });
        std::fs::write(&file, forged.to_string()).unwrap();
        cluster.kubectl(&format!("create -f {}", file.display()));
        node.reconcile().unwrap();
        assert_eq!(node.blocks("pods", BlockState::Active), []);
        node.want("pods", 200).unwrap();
        let cidrs: Vec<String> =
            node.blocks("pods", BlockState::Active).iter().map(|block| block.cidr.to_string()).collect();
        assert!(cidrs.len() >= 13 && !cidrs.contains(&"10.8.0.16/28".into()), "{cidrs:?}");
        assert!(cluster.kubectl("get blocks.pool.cnikit").contains("blocks/blue/10.8.0.32/28"));
    });
}

#[test]
fn an_agent_claims_and_gives_back_and_neither_fences_nor_defines() {
    let cluster = Cluster::start();
    cluster.host.enter(|| {
        let operator = Node::new("operator", cluster.host.dir(), cluster.settings());
        operator.define(&POOL.replace("\"blockSize4\"", "\"cooldown\":0,\"blockSize4\""));
        let mut node = Node::booted("a", cluster.host.dir(), cluster.settings_of("agent"), "boot", Duration::ZERO);
        node.want("pods", 30).unwrap();
        assert!(node.owners().len() >= 2);
        eventually("nothing is given back", || {
            node.reconcile().unwrap();
            node.owners().len() == 1
        });
        assert!(node.runtime.block_on(node.engine.keep_session()).unwrap());
        node.agent.report_usage(Duration::ZERO).unwrap();
        let forbidden = |failure: AgentFailure| {
            let text = failure.to_string();
            assert!(text.contains("403") && text.contains("agent"), "{text}");
        };
        forbidden(node.runtime.block_on(fence_node(node.engine.as_ref(), &fence_of("a", true))).unwrap_err());
        forbidden(node.runtime.block_on(define_pool(node.engine.as_ref(), POOL.as_bytes())).unwrap_err());
        let selected = select_pool(node.engine.as_ref(), "team-a", Some("blue"));
        forbidden(node.runtime.block_on(selected).unwrap_err());
        assert_eq!(node.owners().len(), 1);
    });
}

#[test]
fn a_token_is_read_again_and_a_wrong_one_is_an_error() {
    let cluster = Cluster::start();
    cluster.host.enter(|| {
        let token = cluster.host.dir().join("rotated.token");
        std::fs::write(&token, "old").unwrap();
        let node = Node::new("a", cluster.host.dir(), cluster.settings_of("rotated"));
        let refused = node.try_owners().unwrap_err();
        assert!(refused.contains("401") && !refused.contains("old"), "{refused}");
        std::fs::write(&token, "agent-token\n").unwrap();
        assert_eq!(node.try_owners(), Ok(Vec::new()));
        // A server with another certificate is no server.
        let mut other = cluster.settings();
        cluster.host.sh(&format!(
            "cd {} && openssl req -x509 -newkey rsa:2048 -nodes -keyout /dev/null -out other.crt -subj /CN=other 2>/dev/null",
            cluster.host.dir().display()
        ));
        other.server.ca = cluster.host.dir().join("other.crt");
        let refused = Node::new("a", cluster.host.dir(), other).try_owners().unwrap_err();
        assert!(refused.contains("certificate"), "{refused}");
    });
}

/// A server that has not the kinds answers 404 to everything: that is not the absence of a fence.
#[test]
fn without_the_kinds_nothing_is_taken_for_absent() {
    let cluster = Cluster::without_kinds();
    cluster.host.enter(|| {
        let mut admin = cluster.settings();
        std::fs::write(cluster.host.dir().join("admin.token"), "admin").unwrap();
        admin.server.credentials = cluster.settings_of("admin").server.credentials;
        let mut node = Node::new("a", cluster.host.dir(), admin);
        let fence = KeyOfEngine::Fence { node: "a".into(), incarnation: cnikit_pool::Incarnation::of(1) };
        for listing in [Listing::Key(fence), Listing::Pools] {
            let missing = node.runtime.block_on(node.engine.list(&listing)).unwrap_err();
            assert!(missing.text.contains("custom resource definitions"), "{missing}");
        }
        assert!(matches!(node.reconcile().unwrap_err(), AgentFailure::Engine(_)));
    });
}

#[test]
fn a_definition_that_did_not_end_stops_claims_until_it_is_repeated() {
    let cluster = Cluster::start();
    cluster.host.enter(|| {
        let mut node = Node::new("a", cluster.host.dir(), cluster.settings());
        node.define(POOL);
        node.want("pods", 1).unwrap();
        // As the operator's program leaves it if it ends after its first write.
        cluster.kubectl("patch pools.pool.cnikit blue --type=merge -p '{\"spec\":{\"pending\":true}}'");
        let refused = node.want("more", 1).unwrap_err();
        // The agent knows the definition before; it learns of the mark by the refusal.
        assert!(refused.to_string().contains("pool blue is being defined anew"), "{refused}");
        assert_eq!((node.blocks("pods", BlockState::Active).len(), node.owners().len()), (1, 1));
        assert_eq!(node.files.pools().unwrap().unwrap().pools.len(), 1, "its blocks serve on");
        let selected = node.runtime.block_on(select_pool(node.engine.as_ref(), "team-a", Some("blue")));
        assert!(selected.unwrap_err().to_string().contains("has begun, and has not ended"));
        node.define(POOL);
        node.want("more", 1).unwrap();
        assert_eq!(node.owners().len(), 2);
    });
}

/// docs/agent.md counts the bytes of many nodes by these.
#[test]
fn the_objects_of_a_node_with_two_blocks_take_four_kilobytes_of_etcd() {
    let cluster = Cluster::start();
    cluster.host.enter(|| {
        let operator = Node::new("operator", cluster.host.dir(), cluster.settings());
        operator.define(POOL);
        let mut node = Node::new("node-1.example.com", cluster.host.dir(), cluster.settings_of("agent"));
        node.want("pods", 20).unwrap();
        assert!(node.runtime.block_on(node.engine.keep_session()).unwrap());
        node.agent.report_usage(Duration::ZERO).unwrap();
        let line =
            "ETCDCTL_API=3 etcdctl --endpoints http://127.0.0.1:2379 get --prefix /registry/pool.cnikit/ -w json";
        let found: serde_json::Value = serde_json::from_str(&cluster.host.sh(line)).unwrap();
        let mut sizes = Vec::new();
        for pair in found["kvs"].as_array().unwrap() {
            // Base64 without its padding.
            let size = |member: &str| pair[member].as_str().unwrap().trim_end_matches('=').len() * 3 / 4;
            sizes.push((size("key"), size("value")));
        }
        // The pool, two blocks, node, session, heartbeat, use.
        assert_eq!(sizes.len(), 7, "{found}");
        let all: usize = sizes.iter().map(|(key, value)| key + value).sum();
        assert!((4_000..5_000).contains(&all), "{sizes:?}");
    });
}

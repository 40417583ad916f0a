//! A node on which no agent runs, as with Podman: the plugin runs the agent's program, and what is not used goes back.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use cnikit_pool::{NodeFiles, NodeState};
use serde_json::json;

use crate::cluster::Cluster;
use crate::node::Node;
use crate::operations::{Operated, define};
use crate::plugin::{Called, Network};
use crate::running::eventually;

const AGENT: &str = env!("CARGO_BIN_EXE_cnikit-agent");

/// The network `pods` of a node, whose agent's program is run with the node's configuration.
fn pods(node: &Operated<'_>) -> Network {
    Network::new(&node.dir(), &json!({"agent": AGENT, "agentConfig": node.dir().with_extension("json"), "timeout": 40}))
}

fn add_all(pods: &Network, count: usize) {
    for n in 0..count {
        assert_eq!(pods.add(&format!("container-{n}")).addresses().len(), 1);
    }
}

fn del_all(pods: &Network, count: usize) {
    for n in 0..count {
        assert_eq!(pods.del(&format!("container-{n}")), Called::Done(Vec::new()));
    }
}

/// Whether a process waits to give blocks back.
fn waits(node: &Operated<'_>) -> bool {
    NodeFiles::new(node.dir()).lock_give_back().unwrap().is_none()
}

#[test]
fn blocks_without_containers_go_back_and_no_process_stays() {
    let cluster = Cluster::start();
    let node = Operated::new(&cluster, "a");
    define(&node);
    cluster.host.enter(|| {
        let observer = cluster.node("observer");
        let pods = pods(&node);
        add_all(&pods, 40);
        assert_eq!((node.active("pods").len(), observer.owners().len()), (3, 3));
        assert!(!waits(&node), "nothing is released yet");
        // One container of the second block stays. The others are deleted by DEL, and then by GC.
        del_all(&pods, 15);
        assert_eq!(pods.gc(&["container-15"]), Called::Done(Vec::new()));
        eventually("the process does not begin", || waits(&node) || observer.owners().len() == 1);
        eventually("nothing is given back", || observer.owners().len() == 1 && node.active("pods").len() == 1);
        eventually("the process stays", || !waits(&node));
        assert_eq!(pods.del("container-15"), Called::Done(Vec::new()));
        assert!(!waits(&node), "the last block stays");
        assert_eq!(pods.add("another").addresses().len(), 1);
        assert_eq!(node.active("pods").len(), 1);
    });
}

#[test]
fn a_process_that_is_killed_costs_no_grace_and_del_succeeds_at_once_while_etcd_is_dead() {
    let mut cluster = Cluster::start();
    let host_dir = cluster.host.dir().to_owned();
    let settings = cluster.settings();
    let netns = cluster.host.netns().clone();
    let node = Operated::new(&cluster, "a");
    define(&node);
    node.configure("grace", json!(4));
    node.configure("timeout", json!(500));
    let (dir, config) = (node.dir(), node.dir().with_extension("json"));
    // Nothing is started by the plugin, so that each process is one of this test.
    let pods = Network::new(&dir, &json!({"agent": AGENT, "agentConfig": config, "timeout": 40}));
    let alone = Network::new(&dir, &json!({}));
    let give_back = node.agent("give-back");
    netns
        .enter(|_| {
            let observer = Node::new("observer", &host_dir, settings);
            add_all(&pods, 40);
            del_all(&alone, 40);
            assert!(!waits(&node), "without the program none is started");
            node.host().sh(&give_back);
            let seen = std::fs::read_to_string(dir.join(".pool/unused.json")).unwrap();
            assert_eq!(seen.matches("\"since\"").count(), 3, "{seen}");
            assert_eq!(observer.owners().len(), 3, "each was seen once");
            // Another process, a grace later; between them nothing runs.
            let began = Instant::now();
            eventually("the second process gives nothing back", || {
                node.host().sh(&give_back);
                observer.owners().len() == 1
            });
            let took = began.elapsed();
            assert!(took > Duration::from_secs(2) && took < Duration::from_secs(15), "{took:?}");
            add_all(&pods, 40);
            assert_eq!(observer.owners().len(), 3);
        })
        .unwrap();
    for n in 0..3 {
        cluster.kill(n);
    }
    netns
        .enter(|_| {
            let began = Instant::now();
            del_all(&pods, 39);
            let each = began.elapsed() / 39;
            // An answer of etcd is waited for 500 ms at least.
            assert!(each < Duration::from_millis(250), "a DEL took {each:?}");
            let files = NodeFiles::new(&dir);
            eventually("no process waits for etcd", || files.lock_give_back().unwrap().is_none());
            let free: Vec<IpAddr> = pods.add("late").addresses();
            assert_eq!(free.len(), 1, "an ADD beside that process");
        })
        .unwrap();
}

#[test]
fn a_fenced_node_begins_anew_when_its_last_container_is_deleted() {
    let cluster = Cluster::start();
    let node = Operated::new(&cluster, "a");
    define(&node);
    cluster.host.enter(|| {
        let pods = pods(&node);
        add_all(&pods, 2);
        node.done("fence a --by me --force");
        // A claim is the first that asks etcd.
        let refused = pods.clone().named("other").add("container-9");
        assert_eq!(refused.code(), 11, "{refused:?}");
        let files = NodeFiles::new(node.dir());
        let first = files.node().unwrap().unwrap();
        assert_eq!(first.state, NodeState::Fenced);
        pods.del("container-0");
        assert_eq!(pods.add("container-3").code(), 11, "a container of the fenced incarnation runs");
        pods.del("container-1");
        eventually("the node does not begin anew", || files.node().unwrap().unwrap().state == NodeState::Serving);
        assert_ne!(files.node().unwrap().unwrap().incarnation, first.incarnation);
        assert_eq!(pods.add("container-3").addresses().len(), 1);
    });
}

//! Addresses that stay with a name.

use std::net::IpAddr;

use cnikit_agent::engine::{Engine, Listing};
use cnikit_agent::operator::{fence_node, forget_name};
use cnikit_pool::{StickyWant, UnheldRecord, write_record};
use cnikit_pool_protocol::BlockId;

use crate::cluster::Cluster;
use crate::node::{Node, fence_of};

const POOL: &str = r#"{"name":"blue","ranges":[{"subnet":"10.8.0.0/24"},{"subnet":"fd00::/120"}],"blockSize4":28,"blockSize6":124,
    "static":[{"subnet":"10.8.0.0/24","rangeStart":"10.8.0.240","rangeEnd":"10.8.0.254"},
        {"subnet":"fd00::/120","rangeStart":"fd00::f0","rangeEnd":"fd00::fe"}]}"#;

fn wants(name: &str, container: &str) -> StickyWant {
    StickyWant {
        network: "pods".into(),
        pool: "blue".into(),
        namespace: "db".into(),
        name: name.into(),
        families: Vec::new(),
        attachment: format!("{container}/eth0"),
    }
}

#[test]
fn a_name_keeps_its_addresses_on_another_node_after_a_fence() {
    let cluster = Cluster::start();
    cluster.host.enter(|| {
        let mut nodes = ["a", "b"].map(|name| Node::new(name, cluster.host.dir(), cluster.settings()));
        nodes[0].define(POOL);
        let first = nodes[0].agent.serve_sticky(&wants("pg-0", "c1")).unwrap();
        assert_eq!(first.len(), 2, "one of each family");
        let other = nodes[0].agent.serve_sticky(&wants("pg-1", "c2")).unwrap();
        assert!(first.iter().all(|address| !other.contains(address)), "{first:?} {other:?}");
        let held = nodes[1].agent.serve_sticky(&wants("pg-0", "d1")).unwrap_err();
        assert!(held.to_string().contains("belongs to c1/eth0 of network pods on node a"), "{held}");

        let request = fence_of("a", true);
        nodes[1].runtime.block_on(fence_node(nodes[1].engine.as_ref(), &request)).unwrap();
        assert_eq!(nodes[1].agent.serve_sticky(&wants("pg-0", "d1")).unwrap(), first);
        let forget = |name: &str| nodes[0].runtime.block_on(forget_name(nodes[0].engine.as_ref(), "blue", "db", name));
        let held = forget("pg-0").unwrap_err();
        assert!(held.to_string().starts_with("node b has "), "{held}");
        assert_eq!(forget("pg-1").unwrap(), other);
        assert!(forget("pg-1").unwrap_err().to_string().contains("no name db/pg-1"));
        let statics = nodes[0].runtime.block_on(nodes[0].engine.list(&Listing::Statics)).unwrap();
        assert_eq!(statics.len(), 2);
    });
}

/// What a claim leaves that ended after it had reserved the address.
#[test]
fn an_address_that_is_reserved_for_a_name_without_a_record_is_the_names() {
    let cluster = Cluster::start();
    cluster.host.enter(|| {
        let mut node = Node::new("a", cluster.host.dir(), cluster.settings());
        node.define(POOL);
        let left: IpAddr = "10.8.0.250".parse().unwrap();
        let record = write_record(&UnheldRecord { sticky: "db/pg-0".into() }).unwrap();
        let key = BlockId::of_static("blue", left).key().to_string();
        node.put(&key, std::str::from_utf8(&record).unwrap());
        assert_eq!(node.agent.serve_sticky(&wants("pg-0", "c1")).unwrap()[0], left);
        // One of a name that nobody claims any more is forgotten.
        let key = key.replace("250", "251");
        node.put(&key, std::str::from_utf8(&record).unwrap().replace("pg-0", "pg-9").as_str());
        let forgotten = node.runtime.block_on(forget_name(node.engine.as_ref(), "blue", "db", "pg-9")).unwrap();
        assert_eq!(forgotten, ["10.8.0.251".parse::<IpAddr>().unwrap()]);
    });
}

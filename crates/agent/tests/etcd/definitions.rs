//! Definitions of pools that change while nodes have blocks.

use std::time::Instant;

use cnikit_agent::operator::define_pool;
use cnikit_pool::{BlockState, Want};

use crate::cluster::Cluster;
use crate::node::{Node, want};

const STATIC: &str = r#"{"name":"blue","ranges":[{"subnet":"10.8.0.0/24"}],"blockSize4":28,
    "static":[{"subnet":"10.8.0.0/24","rangeStart":"10.8.0.240","rangeEnd":"10.8.0.254"}]}"#;
/// Its addresses from .240 on are blocks of one address.
const TINY: &str = r#"{"name":"blue","ranges":[{"subnet":"10.8.0.0/24"}],"blockSize4":32}"#;

fn asks(address: &str) -> Want {
    let mut asked = want("pods", 1);
    asked.addresses = vec![address.parse().unwrap()];
    asked.attachment = Some("container-1/eth0".into());
    asked
}

/// Why a definition is refused.
fn refused(node: &Node, pool: &str) -> String {
    node.runtime.block_on(define_pool(node.engine.as_ref(), pool.as_bytes())).unwrap_err().to_string()
}

#[test]
fn a_static_address_that_is_claimed_stays_one_whatever_is_defined() {
    let cluster = Cluster::start();
    let (host, settings) = (&cluster.host, cluster.settings());
    host.enter(|| {
        let mut node = Node::new("a", host.dir(), settings.clone());
        node.define(STATIC);
        node.agent.serve(&asks("10.8.0.245"), Instant::now()).unwrap();
        let why = refused(&node, TINY);
        assert_eq!(why, "node a has static address 10.8.0.245, which this definition does not have");
        // A definition that another program writes does not make a block of it.
        host.sh(&format!("ETCDCTL_API=3 etcdctl --endpoints 127.0.0.1:2379 put /cnikit/v1/pools/blue '{TINY}'"));
        for _ in 0..2 {
            node.reconcile().unwrap();
            let all = node.files.network("pods", std::time::Duration::from_secs(5), |_| {}).blocks().unwrap();
            assert!(all.len() == 1 && all[0].is_static, "{all:?}");
        }
        assert_eq!(node.owners(), [], "and none is claimed for it");
        assert_eq!(node.blocks("pods", BlockState::Active).len(), 1);
    });
}

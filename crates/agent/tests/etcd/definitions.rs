//! Definitions of pools that change while nodes have blocks, or claim some. These run with each engine.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cnikit_agent::engine::{Engine, MemoryEngine};
use cnikit_agent::operator::define_pool;
use cnikit_pool::{BlockState, KeyOfEngine, Want};
use cnikit_pool_protocol::{Guard, Outcome, Part, Transaction, WriteOperation};

use crate::cluster::Cluster;
use crate::node::{Node, want};
use crate::running::eventually;

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
    let host = &cluster.host;
    host.enter(|| {
        let mut node = cluster.node("a");
        node.define(STATIC);
        node.agent.serve(&asks("10.8.0.245")).unwrap();
        let why = refused(&node, TINY);
        assert_eq!(why, "node a has static address 10.8.0.245, which this definition does not have");
        // A definition that another program writes does not make a block of it.
        node.put("pools/blue", TINY);
        for _ in 0..2 {
            node.reconcile().unwrap();
            let all = node.files.network("pods", Duration::from_secs(5), |_| {}).blocks().unwrap();
            assert!(all.len() == 1 && all[0].is_static, "{all:?}");
        }
        assert_eq!(node.owners(), [], "and none is claimed for it");
        assert_eq!(node.blocks("pods", BlockState::Active).len(), 1);
    });
}

#[test]
fn a_node_that_does_not_know_the_last_definition_claims_by_it_all_the_same() {
    let cluster = Cluster::start();
    let host = &cluster.host;
    host.enter(|| {
        let mut node = cluster.node("a");
        node.define(STATIC);
        node.reconcile().unwrap();
        let operator = cluster.node("operator");
        operator.define(TINY);
        assert_eq!(node.files.pools().unwrap().unwrap().pools[0].block_size4, 28, "nothing has told it");
        node.want("pods", 1).unwrap();
        let blocks = node.blocks("pods", BlockState::Active);
        assert!(blocks.len() == 1 && blocks[0].cidr.prefix() == 32, "{blocks:?}");
        operator.define(STATIC.replace("blue", "red").replace("10.8", "10.9").as_str());
        let why = refused(&operator, &STATIC.replace("blue", "green"));
        assert!(why.starts_with("range 10.8.0.1-10.8.0.254 overlaps 10.8.0.1-10.8.0.254 of pool blue"), "{why}");
        // A requested address is claimed by the last definition too.
        node.agent.serve(&asks("10.8.0.77")).unwrap();
        assert_eq!(node.owners().len(), 2);
    });
}

/// Without the guards, claims by both definitions overlap within a few rounds.
#[test]
fn claims_while_a_pool_is_defined_again_and_again_never_overlap() {
    let cluster = Cluster::start();
    let host = &cluster.host;
    host.enter(|| cluster.node("operator").define(TINY));
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            host.enter(|| {
                let operator = cluster.node("operator");
                while !ends.load(Ordering::Relaxed) {
                    for pool in [STATIC, TINY] {
                        let _ = operator.runtime.block_on(define_pool(operator.engine.as_ref(), pool.as_bytes()));
                    }
                }
            });
        });
        host.enter(|| {
            let mut node = cluster.node("a");
            for _ in 0..40 {
                // The first block decides: the other definition is refused from then on.
                let _ = node.want("pods", 20);
                let mut seen = BTreeSet::new();
                for (_, key) in node.owners() {
                    let cidr: ipnetwork::IpNetwork = key.strip_prefix("blocks/blue/").unwrap().parse().unwrap();
                    assert!(cidr.iter().all(|address| seen.insert(address)), "{:?}", node.owners());
                }
                node.delete_blocks();
                node.reconcile().unwrap();
            }
            ends.store(true, Ordering::Relaxed);
        });
    });
}

#[test]
fn a_closed_pool_drains_to_the_end() {
    let cluster = Cluster::start();
    let (host, settings) = (&cluster.host, cluster.settings());
    host.enter(|| {
        let open = r#"{"name":"blue","ranges":[{"subnet":"10.8.0.0/24"}],"blockSize4":28,"cooldown":0}"#;
        let mut node = Node::booted("a", host.dir(), settings.clone(), "boot", Duration::ZERO);
        node.define(open);
        node.want("pods", 1).unwrap();
        node.reserve("pods", "container-1");
        node.define(&open.replace(r#""cooldown""#, r#""closed":true,"cooldown""#));
        node.reconcile().unwrap();
        assert_eq!(node.owners().len(), 1, "a container has an address of it");
        let closed = node.want("pods", 30).unwrap_err();
        assert!(closed.to_string().contains("is closed"), "{closed}");
        node.release("pods", "container-1");
        eventually("it keeps the last block", || {
            if node.agent.has_idle_blocks().unwrap() {
                node.reconcile().unwrap();
            }
            node.owners().is_empty()
        });
        // Now the pool can have other blocks.
        node.define(TINY);
    });
}

#[test]
fn a_block_that_the_pool_has_no_longer_is_given_back_and_not_claimed_again() {
    let cluster = Cluster::start();
    let (host, settings) = (&cluster.host, cluster.settings());
    host.enter(|| {
        let mut node = Node::booted("a", host.dir(), settings.clone(), "boot", Duration::ZERO);
        node.define(&STATIC.replace("\"blockSize4\"", "\"cooldown\":0,\"blockSize4\""));
        node.want("pods", 1).unwrap();
        node.reserve("pods", "container-1");
        node.put("pools/blue", TINY);
        node.reconcile().unwrap();
        assert_eq!(node.owners().len(), 1);
        node.delete_blocks();
        node.reconcile().unwrap();
        assert_eq!(node.owners(), [], "another node may have addresses of it as other blocks");
        assert_eq!(node.blocks("pods", BlockState::Lost).len(), 1);
        node.release("pods", "container-1");
        node.reconcile().unwrap();
        assert_eq!(node.blocks("pods", BlockState::Lost), []);
    });
}

/// The condition by which a definition is written, in the engine and in the memory of the model.
#[test]
fn a_condition_on_a_part_of_the_keys_holds_until_one_of_them_is_written() {
    let cluster = Cluster::start();
    cluster.host.enter(|| {
        let node = cluster.node("a");
        node.runtime.block_on(check_parts(node.engine.as_ref()));
        node.runtime.block_on(check_parts(&MemoryEngine::default()));
    });
}

async fn check_parts<E: Engine>(engine: &E) {
    let block = |pool: &str| KeyOfEngine::Block { pool: pool.into(), cidr: "10.8.0.0/28".parse().unwrap() };
    let address = KeyOfEngine::Static { pool: "blue".into(), address: "10.8.0.250".parse().unwrap() };
    let mark = KeyOfEngine::Select("mark".into());
    let commit = |guards: Vec<Guard>, key: &KeyOfEngine| {
        let transaction = Transaction { guards, writes: vec![WriteOperation::Put(key.clone(), b"{}".to_vec())] };
        async move { engine.commit(&transaction).await.unwrap() }
    };
    let parts = || [Part::BlocksOf("blue".into()), Part::StaticsOf("blue".into()), Part::Pools];
    let none_since = |revision: i64| parts().map(|part| Guard::NoneSince(part, revision)).to_vec();
    assert!(matches!(commit(none_since(0), &mark).await, Outcome::Committed(_)), "there is no key");
    for other in [block("blue2"), block("blu"), KeyOfEngine::Node("blue".into())] {
        commit(Vec::new(), &other).await;
    }
    let Outcome::Committed(seen) = commit(none_since(0), &mark).await else { panic!("keys of other parts") };
    for (key, part) in [(block("blue"), 0), (address, 1), (KeyOfEngine::Pool("red".into()), 2)] {
        let Outcome::Committed(written) = commit(Vec::new(), &key).await else { panic!("it has no condition") };
        let guard = |revision| {
            vec![Guard::Absent(KeyOfEngine::Select("none".into())), Guard::NoneSince(parts()[part].clone(), revision)]
        };
        let refused = commit(guard(seen[0]), &mark).await;
        assert_eq!(refused, Outcome::Refused(vec![None, None]), "{key} was written since");
        assert!(matches!(commit(guard(written[0]), &mark).await, Outcome::Committed(_)), "{key}");
    }
}

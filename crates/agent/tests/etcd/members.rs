//! What is etcd's: members that die, claims without a daemon, and many blocks in one transaction.

use std::time::{Duration, Instant};

use cnikit_agent::AgentFailure;
use cnikit_pool::BlockState;

use crate::claims::POOL;
use crate::cluster::Cluster;
use crate::figures::served_at;
use crate::node::Node;
use crate::running::eventually;

#[test]
fn claims_go_on_when_a_member_dies_and_end_in_an_error_without_a_majority() {
    let mut cluster = Cluster::start();
    let settings = cluster.settings();
    let dir = cluster.host.dir().to_owned();
    let netns = cluster.host.netns().clone();
    netns
        .enter(|_| {
            let mut node = Node::new("a", &dir, settings);
            node.define(POOL);
            node.want("pods", 1).unwrap();
            cluster.kill(0);
            let began = Instant::now();
            eventually("no claim succeeds", || node.want("more", 1).is_ok());
            assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
            assert_eq!(node.blocks("more", BlockState::Active).len(), 2);
            cluster.kill(1);
            let failed = node.want("none", 1).unwrap_err();
            assert!(matches!(failed, AgentFailure::Engine(_)), "{failed}");
            assert_eq!(failed.reply().code, 11);
            assert_eq!(node.blocks("pods", BlockState::Active).len(), 2, "what the node has goes on to serve");
        })
        .unwrap();
}

#[test]
fn a_claim_after_a_boot_is_served_by_the_blocks_that_are_confirmed() {
    let cluster = Cluster::start();
    let (host, settings) = (&cluster.host, cluster.settings());
    host.enter(|| {
        let mut node = Node::new("a", host.dir(), settings.clone());
        node.define(POOL);
        node.want("pods", 1).unwrap();
        let before = node.blocks("pods", BlockState::Active);
        drop(node);
        // No daemon runs: the plugin finds unconfirmed blocks, and has one claim made by a new process.
        eventually("it is never served", || {
            let mut node = Node::booted("a", host.dir(), settings.clone(), "boot-2", Duration::from_mins(5));
            node.want("pods", 1).is_ok()
        });
        let node = Node::booted("a", host.dir(), settings, "boot-2", Duration::from_mins(5));
        assert_eq!(node.blocks("pods", BlockState::Active), before);
        assert_eq!(node.owners().len(), 2, "none was claimed");
    });
}

/// 1,024 blocks take 64 transactions of 16 blocks, far less than two per block, counted by etcd itself with those that only read.
#[test]
fn many_blocks_are_claimed_many_at_once() {
    let cluster = Cluster::start();
    let (host, settings) = (&cluster.host, cluster.settings());
    host.enter(|| {
        let mut node = Node::new("a", host.dir(), settings.clone());
        node.define(r#"{"name":"blue","ranges":[{"subnet":"10.8.0.0/16"}],"blockSize4":26}"#);
        node.reconcile().unwrap();
        let requests = |method: &str| -> u64 {
            (0..3).map(|n| served_at(host, &cluster.endpoint(n)).get(method).copied().unwrap_or_default()).sum()
        };
        let (before, ranges) = (requests("Txn"), requests("Range"));
        // Without the daemon, which renews it, the session ends when claims take longer than five seconds, as on a busy machine:
        // then it is opened again, and the last claim is made anew, in about 20 transactions more.
        let _kept = node.keep();
        node.want("pods", 1_024 * 64 - 3).unwrap();
        let (transactions, ranges) = (requests("Txn") - before, requests("Range") - ranges);
        assert_eq!(node.owners().len(), 1_024);
        // On a busy machine a claim is asked about that was not answered in time.
        assert!((64..=128).contains(&transactions), "{transactions} transactions");
        assert!(ranges <= 64, "{ranges} other reads");
    });
}

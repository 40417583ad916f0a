//! etcd is restored from a snapshot, by the commands of the operator's handbook, and two nodes go on.

use std::time::Duration;

use cnikit_pool::BlockState;

use crate::claims::differences;
use crate::cluster::Cluster;
use crate::node::{Node, want};
use crate::operations::etcdctl;
use crate::running::eventually;

/// The blocks of a network that serve.
fn active(node: &Node, network: &str) -> Vec<String> {
    let blocks = node.blocks(network, BlockState::Active);
    let mut cidrs: Vec<String> = blocks.iter().map(|block| block.cidr.to_string()).collect();
    cidrs.sort();
    cidrs
}

/// What happened to the blocks of a node since the backup.
struct Since {
    /// One that was claimed, and no other node has claimed after the restore.
    kept: String,
    /// One that was claimed, and another node claims after the restore.
    taken: String,
    /// One that was given back.
    returned: String,
}

/// Node a with two blocks of the network old, a backup, then what happens since.
fn changes_since_a_backup(cluster: &Cluster, snapshot: &str) -> Since {
    let mut node = Node::booted("a", cluster.host.dir(), cluster.settings(), "boot-1", Duration::ZERO);
    node.define(r#"{"name":"blue","ranges":[{"subnet":"10.8.0.0/24"}],"blockSize4":28,"cooldown":0}"#);
    node.want("old", 20).unwrap();
    let before = active(&node, "old");
    assert_eq!(before.len(), 2);
    etcdctl(&cluster.host, &format!("snapshot save {snapshot} 2>&1"));

    for network in ["kept", "taken"] {
        node.want(network, 1).unwrap();
        node.reserve(network, &format!("container-of-{network}"));
    }
    node.want("idle", 1).unwrap();
    // Last, so that no other network gets the block.
    eventually("nothing is given back", || {
        node.reconcile().unwrap();
        node.owners().len() == 4
    });
    let left = active(&node, "old");
    let returned = before.into_iter().find(|block| !left.contains(block)).unwrap();
    Since { kept: active(&node, "kept")[0].clone(), taken: active(&node, "taken")[0].clone(), returned }
}

/// Another node claims this block.
fn claimed_by_another(cluster: &Cluster, block: &str) {
    let mut other = Node::new("b", cluster.host.dir(), cluster.settings());
    let mut asked = want("pods", 1);
    asked.addresses = vec![block.parse::<ipnetwork::IpNetwork>().unwrap().iter().nth(3).unwrap()];
    other.agent.serve(&asked).unwrap();
    assert_eq!(active(&other, "pods"), [block]);
}

/// Each row of the handbook's table of what happened since the backup.
#[test]
fn a_restored_backup_takes_no_address_from_a_container_and_gives_none_twice() {
    let mut cluster = Cluster::start();
    let (dir, settings) = (cluster.host.dir().to_owned(), cluster.settings());
    let snapshot = format!("{}/pools.snapshot", dir.display());
    let since = cluster.host.enter(|| changes_since_a_backup(&cluster, &snapshot));

    // The agent of the node is stopped, and that of another node is faster.
    cluster.restore(&snapshot);
    cluster.host.enter(|| {
        claimed_by_another(&cluster, &since.taken);
        let mut node = Node::new("a", &dir, settings.clone());
        eventually("the session of before is in the way", || {
            node.reconcile().unwrap();
            node.agent.may_claim()
        });
        let _keeper = node.keep();
        assert_eq!(active(&node, "kept"), [since.kept.as_str()], "its container has the address");
        assert_eq!(active(&node, "taken"), Vec::<String>::new());
        assert_eq!(node.blocks("taken", BlockState::Lost).len(), 1);
        assert_eq!(active(&node, "idle"), Vec::<String>::new(), "nothing used it");
        assert_eq!(node.blocks("idle", BlockState::Lost), []);
        assert!(active(&node, "old").contains(&since.returned), "what was given back is the node's again");
        let owners = node.owners();
        let own = owners.iter().filter(|(owner, _)| owner == "a").count();
        assert_eq!((owners.len(), own), (4, 3), "{owners:?}");

        let found = differences(&node);
        assert_eq!(found.iter().map(|one| one.kind).collect::<Vec<_>>(), ["foreign-block"], "{found:?}");
        let what = &found[0].what;
        assert!(what.contains("belongs to node b") && what.contains("container-of-taken"), "{found:?}");
        assert!(found[0].hint.starts_with("restart the containers"), "{found:?}");
        // The container is restarted.
        node.release("taken", "container-of-taken");
        node.reconcile().unwrap();
        assert_eq!(differences(&node), []);
        node.want("taken", 1).unwrap();
        node.reserve("taken", "container-of-taken");
        assert_ne!(active(&node, "taken"), [since.taken.as_str()]);
    });

    cluster.host.enter(|| {
        let mut node = Node::booted("a", &dir, settings, "boot-1", Duration::ZERO);
        eventually("it is never given back again", || {
            node.reconcile().unwrap();
            active(&node, "old").len() == 1
        });
        assert_eq!(differences(&node), []);
        assert_eq!(active(&node, "kept"), [since.kept.as_str()]);
    });
}

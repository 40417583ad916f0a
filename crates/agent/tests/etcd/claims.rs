//! Claims of several nodes: races, lost answers, fences, reboots. These run with each engine.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use cnikit_agent::AgentFailure;
use cnikit_agent::compare::{ComparedNode, NodeDifference, compare_node};
use cnikit_agent::operator::fence_node;
use cnikit_pool::{BlockState, NodeState};

use crate::cluster::Cluster;
use crate::node::{Node, fence_of, want};
use crate::proxy::{PROXY, Proxy};
use crate::running::eventually;

/// 62 blocks of four addresses, and as many of IPv6; those with network address, gateway and broadcast address are smaller.
pub(crate) const POOL: &str = r#"{"name":"blue","ranges":[{"subnet":"10.8.0.0/24","rangeEnd":"10.8.0.247"},{"subnet":"fd00::/120"}],
    "blockSize4":30,"blockSize6":126,"cooldown":0}"#;

#[test]
fn two_nodes_that_claim_at_once_share_no_block_and_leave_none() {
    let cluster = Cluster::start();
    let host = &cluster.host;
    host.enter(|| cluster.node("a").define(POOL));
    let claim_all = |name: &'static str| {
        host.enter(|| {
            let mut node = cluster.node(name);
            let full = node.want("pods", u32::MAX).unwrap_err();
            assert!(full.to_string().contains("no free block"), "{full}");
            node.blocks("pods", BlockState::Active).len()
        })
    };
    let (one, other) = std::thread::scope(|scope| {
        let one = scope.spawn(|| claim_all("a"));
        let other = scope.spawn(|| claim_all("b"));
        (one.join().unwrap(), other.join().unwrap())
    });
    host.enter(|| {
        let mut nodes = ["a", "b"].map(|name| cluster.node(name));
        let owners = nodes[0].owners();
        let keys: BTreeSet<&String> = owners.iter().map(|(_, key)| key).collect();
        assert_eq!(keys.len(), one + other, "what the files have is what the engine has");
        assert!(one > 0 && other > 0, "{one} and {other}");
        let v4 = keys.iter().filter(|key| !key.contains(':')).count();
        assert_eq!(v4, 62, "no block is left");
        for node in &mut nodes {
            node.reconcile().unwrap();
        }
        assert_eq!(nodes[0].owners(), owners, "a new process of an agent changes nothing");
    });
}

#[test]
fn a_claim_whose_answer_is_lost_is_found_and_adopted() {
    let cluster = Cluster::start();
    let host = &cluster.host;
    host.enter(|| {
        let proxy = Proxy::start(Cluster::address());
        let near = cluster.settings_at(PROXY);
        let mut node = Node::new("a", host.dir(), near);
        node.define(POOL);
        node.reconcile().unwrap();
        let direct = cluster.node("observer");
        // The connection is open, so the claim reaches the engine; its answer does not come back.
        proxy.lose_answers(true);
        let failed = node.want("pods", 1).unwrap_err();
        assert!(matches!(failed, AgentFailure::Engine(_)), "{failed}");
        eventually("the claim never reached the engine", || direct.owners().len() == Cluster::CLAIMED_UNHEARD);
        assert_eq!(node.blocks("pods", BlockState::Active), [], "the files do not know of it");
        proxy.lose_answers(false);
        node.reconcile().unwrap();
        assert_eq!(node.blocks("pods", BlockState::Active).len(), Cluster::CLAIMED_UNHEARD);
        node.want("pods", 1).unwrap();
        assert_eq!(node.blocks("pods", BlockState::Active).len(), 2, "one of each family");
        assert_eq!(direct.owners().len(), 2, "and no other was claimed");
    });
}

/// The answers are lost from one after the other of those that a claim needs: with an engine that writes one key at a time, the
/// agent is then between two of its requests.
#[test]
fn a_claim_whose_answers_are_lost_from_any_one_on_leaves_nothing_behind() {
    let cluster = Cluster::start();
    let host = &cluster.host;
    host.enter(|| {
        let proxy = Proxy::start(Cluster::address());
        let mut node = Node::new("a", host.dir(), cluster.settings_at(PROXY));
        node.define(POOL);
        node.reconcile().unwrap();
        let direct = Node::new("observer", host.dir(), cluster.settings());
        let mut lost = 0;
        for pieces in 0..12 {
            let network = format!("pods-{pieces}");
            proxy.lose_answers_after(pieces);
            lost += usize::from(node.want(&network, 1).is_err());
            proxy.lose_answers(false);
            eventually("it does not agree with the engine", || node.reconcile().is_ok());
            let mut claimed = 0;
            for network in node.files.networks().unwrap() {
                claimed += node.blocks(&network, BlockState::Active).len();
            }
            assert_eq!(direct.owners().len(), claimed, "after {pieces} pieces");
            node.want(&network, 1).unwrap();
            assert_eq!(node.blocks(&network, BlockState::Active).len(), 2, "one of each family");
        }
        assert!(lost > 0 && direct.owners().len() == 24, "{lost}, {:?}", direct.owners());
    });
}

#[test]
fn a_claim_that_cannot_be_written_down_is_the_only_one_until_it_can() {
    let cluster = Cluster::start();
    let host = &cluster.host;
    host.enter(|| {
        let mut node = cluster.node("a");
        node.define(POOL);
        node.reconcile().unwrap();
        // Instead of the file there is a directory, so that no file of blocks can be written.
        let file = host.dir().join("a/.pool/pods.blocks");
        let blocks = host.dir().join("a/.pool/.pods.blocks.new");
        std::fs::create_dir_all(blocks.join("full")).unwrap();
        for _ in 0..4 {
            let failed = node.want("pods", 1).unwrap_err();
            assert!(matches!(failed, AgentFailure::Files(_)), "{failed}");
            assert!(!file.exists());
            assert_eq!(node.owners().len(), 2, "one of each family");
        }
        std::fs::remove_dir_all(blocks).unwrap();
        node.want("pods", 1).unwrap();
        assert_eq!(node.blocks("pods", BlockState::Active).len(), 2);
        assert_eq!(node.owners().len(), 2, "the next call has what the first one claimed");
    });
}

#[test]
fn a_claim_of_what_is_this_nodes_already_is_no_other_nodes() {
    let cluster = Cluster::start();
    let host = &cluster.host;
    host.enter(|| {
        let mut node = cluster.node("a");
        node.define(POOL);
        node.reconcile().unwrap();
        // A claim of this incarnation was executed late: the node has not seen it.
        node.claim_late("10.8.0.40/30");
        let mut asked = want("pods", 1);
        asked.addresses = vec!["10.8.0.41".parse().unwrap()];
        node.agent.serve(&asked).unwrap();
        assert_eq!(node.blocks("pods", BlockState::Active).len(), 1);

        let long = "x".repeat(231);
        let refused = node.want(&long, 1).unwrap_err();
        assert!(refused.to_string().contains("the network's name has 231 bytes"), "{refused}");
        assert_eq!(node.owners().len(), 1, "nothing was claimed for it");
    });
}

#[test]
fn a_block_that_nobody_knows_of_is_found_among_all_blocks_only() {
    let cluster = Cluster::start();
    let host = &cluster.host;
    host.enter(|| {
        let mut node = cluster.node("a");
        node.define(POOL);
        node.reconcile().unwrap();
        // A process that ended long ago has claimed it, and the network delivered that late.
        node.claim_late("10.8.0.40/30");
        node.reconcile().unwrap();
        assert_eq!(node.blocks("pods", BlockState::Active), []);
        node.agent.read_all_next();
        node.reconcile().unwrap();
        assert_eq!(node.blocks("pods", BlockState::Active).len(), 1);
    });
}

/// etcd executes at most 128 reads in a transaction.
#[test]
fn a_node_with_many_blocks_asks_for_all_of_them_by_their_keys() {
    let cluster = Cluster::start();
    let host = &cluster.host;
    host.enter(|| {
        let mut node = cluster.node("a");
        node.define(
            r#"{"name":"blue","ranges":[{"subnet":"10.8.0.0/24"}],"blockSize4":32,"maxBlocks":230,"cooldown":0}"#,
        );
        node.want("pods", 230).unwrap();
        node.reconcile().unwrap();
        assert_eq!(node.blocks("pods", BlockState::Active).len(), 230, "one that was not found would be lost");
    });
}

#[test]
fn a_fenced_nodes_blocks_are_given_again_and_it_serves_nothing_when_it_returns() {
    let cluster = Cluster::start();
    let host = &cluster.host;
    host.enter(|| {
        // Two blocks of one address of each family.
        let tiny = r#"{"name":"blue","ranges":[{"subnet":"10.8.0.0/29","rangeStart":"10.8.0.2","rangeEnd":"10.8.0.3"}],
            "blockSize4":32,"cooldown":0}"#;
        let mut lost = cluster.node("a");
        lost.define(tiny);
        lost.want("pods", 2).unwrap();
        lost.reserve("pods", "container-1");
        let mut other = cluster.node("b");
        let full = other.want("pods", 1).unwrap_err();
        assert!(full.to_string().contains("no free block"), "{full}");

        let request = fence_of("a", true);
        let fenced = fence_node(other.engine.as_ref(), &request);
        assert_eq!(other.runtime.block_on(fenced).unwrap().1, 2);
        other.want("pods", 2).unwrap();
        assert_eq!(other.blocks("pods", BlockState::Active).len(), 2);

        // It comes back with its container.
        lost.reconcile().unwrap();
        assert_eq!(lost.files.node().unwrap().unwrap().state, NodeState::Fenced);
        assert_eq!(lost.blocks("pods", BlockState::Active), []);
        assert_eq!(lost.blocks("pods", BlockState::Lost).len(), 1, "that of the container; the other one is forgotten");
        let refused = lost.want("pods", 1).unwrap_err();
        assert!(refused.to_string().contains("node a was fenced, and 1 of its blocks"), "{refused}");
        // Its container ends: it begins anew.
        lost.release("pods", "container-1");
        lost.reconcile().unwrap();
        assert_eq!(lost.files.node().unwrap().unwrap().state, NodeState::Serving);
        assert!(lost.agent.may_claim());
        assert!(other.owners().iter().all(|(owner, _)| owner == "b"));
    });
}

#[test]
fn a_fenced_node_begins_anew_after_a_reboot_that_ended_its_containers() {
    let cluster = Cluster::start();
    let (host, settings) = (&cluster.host, cluster.settings());
    host.enter(|| {
        let mut node = cluster.node("a");
        node.define(POOL);
        node.want("pods", 1).unwrap();
        node.reserve_in_earlier_boot("pods", "container-1");
        let request = fence_of("a", true);
        node.runtime.block_on(fence_node(node.engine.as_ref(), &request)).unwrap();
        drop(node);
        let mut node = Node::booted("a", host.dir(), settings, "boot-2", Duration::from_mins(5));
        eventually("it never begins anew", || {
            node.reconcile().unwrap();
            node.agent.may_claim()
        });
        assert_eq!(node.blocks("pods", BlockState::Lost), []);
        node.want("pods", 1).unwrap();
    });
}

#[test]
fn a_fence_that_is_repeated_does_not_fence_what_began_anew() {
    let cluster = Cluster::start();
    let host = &cluster.host;
    host.enter(|| {
        let mut node = cluster.node("a");
        node.define(POOL);
        node.want("pods", 1).unwrap();
        let first = node.files.node().unwrap().unwrap().incarnation;
        let keeper = node.keep();
        let operator = cluster.node("operator");
        let fence = |force| operator.runtime.block_on(fence_node(operator.engine.as_ref(), &fence_of("a", force)));
        let alive = fence(false).unwrap_err().to_string();
        assert!(alive.contains("has a session") && alive.contains(&first.to_string()), "{alive}");
        assert_eq!(fence(true).unwrap(), (first, 2));
        node.reconcile().unwrap();
        node.want("pods", 1).unwrap();
        let second = node.files.node().unwrap().unwrap().incarnation;
        assert_ne!(first, second);

        // The first fence was not finished: a block of that incarnation is still there.
        let left = format!(r#"{{"node":"a","incarnation":"{first}","network":"pods"}}"#);
        let free = |key: &&str| !node.owners().iter().any(|(_, owned)| owned.ends_with(*key));
        let key = ["blue/10.8.0.40/30", "blue/10.8.0.44/30", "blue/10.8.0.48/30"].into_iter().find(free).unwrap();
        node.put(&format!("blocks/{key}"), &left);
        assert_eq!(fence(false).unwrap(), (first, 1), "that of the new incarnation is not touched");
        let alive = fence(false).unwrap_err().to_string();
        assert!(alive.contains(&second.to_string()), "{alive}");
        assert_eq!(node.owners().len(), 2);
        // Its session ends.
        drop(keeper);
        eventually("it stays alive", || match fence(false) {
            Ok(fenced) => fenced == (second, 2),
            Err(error) => !error.to_string().contains("has a session"),
        });
        assert_eq!(fence(false).unwrap(), (second, 0), "to repeat it does nothing");
    });
}

/// Its store is empty, and its name is the same.
#[test]
fn a_node_that_is_installed_again_gets_no_address_of_before_until_the_old_incarnation_is_fenced() {
    let cluster = Cluster::start();
    let (host, settings) = (&cluster.host, cluster.settings());
    host.enter(|| {
        // Four blocks of one address, and a static address.
        let mut old = cluster.node("a");
        old.define(
            r#"{"name":"blue","ranges":[{"subnet":"10.8.0.0/29","rangeStart":"10.8.0.2","rangeEnd":"10.8.0.5"}],
            "static":[{"subnet":"10.8.0.0/29","rangeStart":"10.8.0.6"}],"blockSize4":32,"cooldown":0}"#,
        );
        old.want("pods", 2).unwrap();
        let mut of_one = want("pods", 1);
        of_one.addresses = vec!["10.8.0.6".parse().unwrap()];
        old.agent.serve(&of_one).unwrap();
        old.reserve("pods", "container-1");
        let (first, before) = (old.incarnation(), old.owners());
        drop(old);
        std::fs::remove_dir_all(host.dir().join("a")).unwrap();

        let mut node = Node::booted("a", host.dir(), settings, "boot-2", Duration::from_mins(5));
        eventually("the session of before never ends", || {
            node.reconcile().unwrap();
            node.agent.may_claim()
        });
        let _keeper = node.keep();
        let second = node.incarnation();
        assert_ne!(first, second);
        assert_eq!(node.owners(), before, "nothing of before is freed");
        node.want("pods", 2).unwrap();
        let full = node.want("pods", 3).unwrap_err();
        assert!(full.to_string().contains("no free block"), "{full}");
        let taken = node.agent.serve(&of_one).unwrap_err();
        assert!(taken.to_string().contains("which belongs to"), "{taken}");
        let blocks = node.blocks("pods", BlockState::Active);
        assert_eq!(blocks.len(), 2);
        assert!(before.iter().all(|(_, key)| !blocks.iter().any(|block| key.contains(&block.cidr.ip().to_string()))));

        let found = differences(&node);
        assert_eq!(found.iter().map(|one| one.kind).collect::<Vec<_>>(), ["former-incarnation"], "{found:?}");
        assert_eq!(found[0].what, format!("incarnation {first} of this node has 3 blocks"));
        assert!(found[0].hint.ends_with(&format!("fence a --incarnation {first}")), "{}", found[0].hint);

        // Without its incarnation, the fence would be that of the node that serves.
        let mut request = fence_of("a", false);
        let alive = node.runtime.block_on(fence_node(node.engine.as_ref(), &request)).unwrap_err().to_string();
        assert!(alive.contains("has a session") && alive.contains(&second.to_string()), "{alive}");
        request.incarnation = Some(first);
        assert_eq!(node.runtime.block_on(fence_node(node.engine.as_ref(), &request)).unwrap(), (first, 3));
        assert_eq!(differences(&node), []);
        node.want("pods", 4).unwrap();
        node.agent.serve(&of_one).unwrap();
        assert_eq!((node.incarnation(), node.blocks("pods", BlockState::Active).len()), (second, 5));
    });
}

/// How the files of a node differ from the engine.
pub(crate) fn differences(node: &Node) -> Vec<NodeDifference> {
    let local = node.files.node().unwrap().unwrap();
    let compared = ComparedNode { name: local.node, boot: local.boot, files: node.files.clone() };
    node.runtime.block_on(compare_node(node.engine.as_ref(), &compared)).unwrap()
}

#[test]
fn blocks_are_unconfirmed_after_a_boot_until_the_engine_has_confirmed_them() {
    let cluster = Cluster::start();
    let (host, settings) = (&cluster.host, cluster.settings());
    host.enter(|| {
        let mut node = cluster.node("a");
        node.define(POOL);
        node.want("pods", 1).unwrap();
        let before = node.blocks("pods", BlockState::Active);
        drop(node);
        let grace = Duration::from_mins(5);
        let unreachable = cluster.settings_at("127.0.0.1:1");
        let mut node = Node::booted("a", host.dir(), unreachable, "boot-2", grace);
        node.reconcile().unwrap_err();
        drop(node);
        let mut node = Node::booted("a", host.dir(), settings, "boot-2", grace);
        // The session of the boot before ends with its lease, which nothing renews.
        eventually("it is never confirmed", || {
            node.reconcile().unwrap();
            node.agent.may_claim()
        });
        assert_eq!(node.blocks("pods", BlockState::Active), before);
    });
}

/// As when the process before ended after it had claimed, and before it answered.
#[test]
fn a_process_that_finds_free_addresses_claims_nothing() {
    let cluster = Cluster::start();
    let host = &cluster.host;
    host.enter(|| {
        let mut node = cluster.node("a");
        node.define(POOL);
        node.want("pods", 1).unwrap();
        let before = node.blocks("pods", BlockState::Active);
        drop(node);
        let mut node = cluster.node("a");
        node.want("pods", 1).unwrap();
        assert_eq!(node.blocks("pods", BlockState::Active), before);
    });
}

#[test]
fn an_unused_block_is_given_back_after_the_grace_and_the_last_one_stays() {
    let cluster = Cluster::start();
    let (host, settings) = (&cluster.host, cluster.settings());
    host.enter(|| {
        let mut node = Node::booted("a", host.dir(), settings, "boot", Duration::from_millis(300));
        node.define(POOL);
        node.want("pods", 10).unwrap();
        node.reserve("pods", "container-1");
        let claimed = node.owners().len();
        assert!(claimed >= 6, "{claimed}");
        eventually("nothing is given back", || {
            if node.agent.has_idle_blocks().unwrap() {
                node.reconcile().unwrap();
            }
            node.owners().len() == 2
        });
        assert_eq!(node.blocks("pods", BlockState::Active).len(), 2, "the one in use, and one of the other family");
        // Three addresses are free beside the container's.
        node.want("pods", 3).unwrap();
        assert_eq!(node.owners().len(), 2);
        node.want("pods", 4).unwrap();
        assert!(node.owners().len() > 2);
    });
}

#[test]
fn a_block_stays_until_the_cooldown_of_its_addresses_has_passed() {
    let cluster = Cluster::start();
    let (host, settings) = (&cluster.host, cluster.settings());
    host.enter(|| {
        let mut node = Node::booted("a", host.dir(), settings, "boot", Duration::ZERO);
        node.define(&POOL.replace("\"cooldown\":0", "\"cooldown\":3,\"closed\":false"));
        node.want("pods", 1).unwrap();
        node.reserve("pods", "container-1");
        // From now on the last block is given back too, once it is without use.
        node.define(&POOL.replace("\"cooldown\":0", "\"cooldown\":3,\"closed\":true"));
        node.release("pods", "container-1");
        let began = Instant::now();
        eventually("it is never given back", || {
            node.reconcile().unwrap();
            node.owners().is_empty()
        });
        assert!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
    });
}

#[test]
fn a_second_machine_of_the_same_name_and_store_claims_nothing() {
    let cluster = Cluster::start();
    let (host, settings) = (&cluster.host, cluster.settings());
    host.enter(|| {
        let mut node = cluster.node("a");
        node.define(POOL);
        node.want("pods", 1).unwrap();
        let copy = host.dir().join("copy");
        host.sh(&format!("mkdir {0} && cp -a {1}/a {0}/a", copy.display(), host.dir().display()));
        let mut clone = Node::booted("a", &copy, settings.clone(), "boot-of-clone", Duration::from_mins(5));
        let keeper = node.keep();
        let refused = clone.want("pods", 9).unwrap_err();
        assert!(refused.to_string().contains("another machine"), "{refused}");
        assert_eq!(clone.blocks("pods", BlockState::Active), [], "nothing is confirmed");
        drop(keeper);
        assert_eq!(node.blocks("pods", BlockState::Active).len(), 2);
    });
}

#[test]
fn requested_and_static_addresses_are_claimed_once() {
    let cluster = Cluster::start();
    let host = &cluster.host;
    host.enter(|| {
        let pool = r#"{"name":"blue","ranges":[{"subnet":"10.8.0.0/24"}],"blockSize4":28,
            "static":[{"subnet":"10.8.0.0/24","rangeStart":"10.8.0.240","rangeEnd":"10.8.0.254"}]}"#;
        let mut nodes = ["a", "b"].map(|name| cluster.node(name));
        nodes[0].define(pool);
        for address in ["10.8.0.245", "10.8.0.77"] {
            let mut asked = want("pods", 1);
            asked.addresses = vec![address.parse().unwrap()];
            asked.attachment = Some("container-1/eth0".into());
            nodes[0].agent.serve(&asked).unwrap();
            nodes[0].agent.serve(&asked).unwrap();
            let taken = nodes[1].agent.serve(&asked).unwrap_err();
            assert!(taken.to_string().contains("which belongs to node a, for network pods"), "{taken}");
        }
        let cidrs: Vec<String> =
            nodes[0].blocks("pods", BlockState::Active).iter().map(|block| block.cidr.to_string()).collect();
        assert_eq!(cidrs, ["10.8.0.245/32", "10.8.0.64/28"]);
        let mut foreign = want("pods", 1);
        foreign.addresses = vec!["10.9.0.1".parse().unwrap()];
        assert_eq!(nodes[0].agent.serve(&foreign).unwrap_err().reply().code, 7);
    });
}

#[test]
fn a_requested_address_obeys_max_blocks_and_unseals_its_block() {
    let cluster = Cluster::start();
    let host = &cluster.host;
    host.enter(|| {
        let pool = r#"{"name":"blue","ranges":[{"subnet":"10.8.0.0/24"}],"blockSize4":28,"maxBlocks":2,
            "static":[{"subnet":"10.8.0.0/24","rangeStart":"10.8.0.240","rangeEnd":"10.8.0.254"}]}"#;
        let mut node = cluster.node("a");
        node.define(pool);
        let ask = |node: &mut Node, address: &str| {
            let mut asked = want("pods", 1);
            asked.addresses = vec![address.parse().unwrap()];
            node.agent.serve(&asked)
        };
        ask(&mut node, "10.8.0.20").unwrap();
        ask(&mut node, "10.8.0.40").unwrap();
        let full = ask(&mut node, "10.8.0.60").unwrap_err();
        assert_eq!(full.to_string(), "this node has 2 blocks of pool blue, and may have 2");
        ask(&mut node, "10.8.0.245").unwrap();
        assert_eq!(node.owners().len(), 2, "a static address is no block");

        // A block is being given back when an address of it is requested.
        let network = node.files.network("pods", Duration::from_secs(5), |_| {});
        let locked = network.lock().unwrap();
        let mut blocks = locked.blocks().unwrap();
        let sealed = blocks.iter_mut().find(|block| block.cidr.to_string() == "10.8.0.32/28").unwrap();
        sealed.state = BlockState::Sealed;
        let before = sealed.epoch;
        locked.write_blocks(&blocks).unwrap();
        drop(locked);
        ask(&mut node, "10.8.0.40").unwrap();
        let block = node.blocks("pods", BlockState::Active);
        let block = block.iter().find(|block| block.cidr.to_string() == "10.8.0.32/28").unwrap();
        assert!(block.epoch > before, "it was written anew");
    });
}

#[test]
fn what_the_engine_lost_is_claimed_again_and_what_the_disk_lost_is_read_again() {
    let cluster = Cluster::start();
    let host = &cluster.host;
    host.enter(|| {
        let mut node = cluster.node("a");
        node.define(r#"{"name":"blue","ranges":[{"subnet":"10.8.0.0/24"}],"blockSize4":28}"#);
        node.want("pods", 1).unwrap();
        node.reserve("pods", "container-1");
        let before = node.blocks("pods", BlockState::Active);

        // The backup is older than the claim.
        node.delete_blocks();
        node.reconcile().unwrap();
        let after = node.blocks("pods", BlockState::Active);
        assert_eq!(node.owners().len(), 1);
        assert!(after.len() == 1 && after[0].cidr == before[0].cidr && after[0].epoch > before[0].epoch, "{after:?}");

        // A power cut took the content of the file.
        std::fs::write(host.dir().join("a/.pool/pods.blocks"), "").unwrap();
        std::fs::write(host.dir().join("a/.pool/pools.json"), "{").unwrap();
        let mut node = cluster.node("a");
        node.reconcile().unwrap();
        let again = node.blocks("pods", BlockState::Active);
        assert!(again.len() == 1 && again[0].cidr == before[0].cidr && again[0].epoch > after[0].epoch, "{again:?}");
        assert!(node.files.pools().unwrap().is_some());
    });
}

#[test]
fn a_record_that_names_a_path_makes_no_file() {
    let cluster = Cluster::start();
    let host = &cluster.host;
    host.enter(|| {
        let mut node = cluster.node("a");
        node.define(r#"{"name":"blue","ranges":[{"subnet":"10.8.0.0/24"}],"blockSize4":28}"#);
        node.reconcile().unwrap();
        let incarnation = node.files.node().unwrap().unwrap().incarnation;
        let record = format!(r#"{{"node":"a","incarnation":"{incarnation}","network":"../../escaped"}}"#);
        // All blocks but one have such a record: the node claims that one.
        for n in 1..16 {
            node.put(&format!("blocks/blue/10.8.0.{}/28", n * 16), &record);
        }
        // Nor does one of addresses that no pool has: outside the pool, of another size, in no static range, of no pool.
        let elsewhere = record.replace("../../escaped", "elsewhere");
        for key in
            ["blocks/blue/192.0.2.0/28", "blocks/blue/10.8.0.0/24", "static/blue/10.8.0.9", "blocks/red/10.8.0.0/28"]
        {
            node.put(key, &elsewhere);
        }
        node.reconcile().unwrap();
        node.want("pods", 1).unwrap();
        assert!(!host.dir().join("escaped").exists() && !host.dir().parent().unwrap().join("escaped").exists());
        assert_eq!(node.files.networks().unwrap(), ["pods"]);
    });
}

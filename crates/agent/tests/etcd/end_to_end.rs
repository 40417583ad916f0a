//! The plugin, the agent's program and etcd together.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cnikit_pool::{BlockState, NodeFiles};
use cnikit_process::{CancellationToken, Deadline};
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::node::Node;
use crate::plugin::{Called, Disturbance, Network};
use crate::running::{Running, eventually, log_of};

const AGENT: &str = env!("CARGO_BIN_EXE_cnikit-agent");

/// Writes the configuration of the node `a`, and defines the pool `blue`.
fn configure(cluster: &Cluster, pool: &Value) -> String {
    let dir = cluster.host.dir();
    let config = json!({
        "endpoints": [cluster.endpoint(0), cluster.endpoint(1), cluster.endpoint(2)],
        "node": "a",
        "dataDir": dir.join("a"),
        "socket": dir.join("a/run/agent.sock"),
        "timeout": 1000,
        "session": 5,
        "grace": 1,
    });
    let path = dir.join("a.json");
    std::fs::write(&path, config.to_string()).unwrap();
    std::fs::write(dir.join("blue.json"), pool.to_string()).unwrap();
    let config = path.display().to_string();
    cluster.host.sh(&format!("{AGENT} define {}/blue.json --config {config}", dir.display()));
    config
}

/// How many blocks serve.
fn active(dir: &Path) -> usize {
    let network = NodeFiles::new(dir.join("a")).network("pods", Duration::from_secs(5), |_| {});
    network.blocks().unwrap().iter().filter(|block| block.state == BlockState::Active).count()
}

#[test]
fn the_plugin_gets_blocks_through_the_daemon_and_goes_on_when_etcd_is_dead() {
    let mut cluster = Cluster::start();
    let pool = json!({"name": "blue", "ranges": [{"subnet": "10.8.0.0/24"}], "blockSize4": 28, "cooldown": 1});
    let config = configure(&cluster, &pool);
    let dir = cluster.host.dir().to_owned();
    let netns = cluster.host.netns().clone();
    let pods = Network::new(&dir.join("a"), &json!({}));
    let _daemon = Running::start(&cluster.host, "agent", &format!("{AGENT} run --log --config {config}"));
    netns
        .enter(|_| {
            let engine = Node::new("observer", &dir, cluster.settings());
            eventually("the daemon does not serve", || pods.status() == Called::Done(Vec::new()));
            assert_eq!(engine.owners(), [], "nothing is claimed before it is needed");

            // The first ADD waits for a block. Later ones find those that the agent claims when few addresses are left.
            let mut given: BTreeSet<IpAddr> = pods.add("container-0").addresses().into_iter().collect();
            assert_eq!((given.len(), active(&dir)), (1, 1), "{}", log_of(&dir, "agent"));
            for n in 1..30 {
                given.extend(pods.add(&format!("container-{n}")).addresses());
                let free = active(&dir) * 16 - given.len();
                if free < 4 {
                    eventually("no block is claimed beforehand", || active(&dir) * 16 - given.len() >= 4);
                }
            }
            assert_eq!(given.len(), 30);
            assert!(active(&dir) >= 2 && engine.owners().len() == active(&dir), "{:?}", engine.owners());
            let text = log_of(&dir, "agent");
            assert!(!text.contains("no free"), "{text}");

            // Blocks without containers are given back after the grace.
            for n in 1..30 {
                assert_eq!(pods.del(&format!("container-{n}")), Called::Done(Vec::new()));
            }
            eventually("nothing is given back", || engine.owners().len() == 1 && active(&dir) == 1);

            for n in 0..3 {
                cluster.kill(n);
            }
            let network = NodeFiles::new(dir.join("a")).network("pods", Duration::from_secs(5), |_| {});
            let mut free = 0;
            eventually("no address is past its cooldown", || match pods.add(&format!("dead-{free}")) {
                Called::Done(_) => {
                    free += 1;
                    false
                }
                Called::Failed(code, text) => {
                    assert_eq!(code, 11, "{text}");
                    assert!(text.contains("its blocks here are"), "{text}");
                    network.lock().unwrap().cooling(Duration::from_secs(1)).is_empty()
                }
                Called::Killed => panic!("nobody kills it"),
            });
            assert!(free >= 12, "{free} addresses without etcd");
            assert_eq!(pods.status(), Called::Done(Vec::new()), "a pool that is full, and an engine that is dead");
            for n in 0..free {
                assert_eq!(pods.del(&format!("dead-{n}")), Called::Done(Vec::new()));
            }
            assert_eq!(pods.del("container-0"), Called::Done(Vec::new()));
        })
        .unwrap();
}

/// How many bytes each member of etcd may store.
const QUOTA: usize = 2 << 20;

#[test]
fn nodes_go_on_when_the_space_of_etcd_is_used_up_and_claim_again_when_its_alarm_is_disarmed() {
    let cluster = Cluster::with_quota(QUOTA);
    let pool = json!({"name": "blue", "ranges": [{"subnet": "10.8.0.0/24"}], "blockSize4": 28, "cooldown": 0});
    let config = configure(&cluster, &pool);
    let (host, dir) = (&cluster.host, cluster.host.dir());
    let run = format!("{AGENT} run --log --config {config}");
    let daemon = Running::start(host, "agent", &run);
    let pods = Network::new(&dir.join("a"), &json!({"minFree": 2}));
    let endpoints = [cluster.endpoint(0), cluster.endpoint(1), cluster.endpoint(2)].join(",");
    let etcdctl = |words: &str| host.try_sh(&format!("ETCDCTL_API=3 etcdctl --endpoints {endpoints} {words} 2>&1"));
    host.enter(|| {
        eventually("the daemon does not serve", || pods.status() == Called::Done(Vec::new()));
        let mut given: Vec<IpAddr> = pods.add("container-0").addresses();
        let fill = format!("head -c {} /dev/zero | tr '\\0' x >{}/filler", QUOTA / 4, dir.display());
        host.sh(&fill);
        eventually("the space is not used up", || {
            let (success, printed) = etcdctl(&format!("put /filler <{}/filler", dir.display()));
            !success && printed.contains("database space exceeded")
        });
        assert!(etcdctl("alarm list").1.contains("NOSPACE"));

        // The node's block serves on. The agent is told that few addresses are left, and cannot claim any.
        let refused = loop {
            match pods.add(&format!("container-{}", given.len())) {
                Called::Done(addresses) => given.extend(addresses),
                Called::Failed(code, text) => break (code, text),
                Called::Killed => panic!("nobody kills it"),
            }
        };
        assert!((13..=16).contains(&given.len()), "{given:?}");
        assert_eq!(refused.0, 11, "{}", refused.1);
        for part in ["pool blue has no free address", "database space exceeded", "etcdctl alarm disarm"] {
            assert!(refused.1.contains(part), "{part}: {}", refused.1);
        }
        assert_eq!(pods.status(), Called::Done(Vec::new()));
        // Nor does an agent that starts meanwhile, without a session, disturb anything.
        daemon.signal(host, "TERM");
        assert!(daemon.finish().how.is_success(), "{}", log_of(dir, "agent"));
        let _daemon = Running::start(host, "agent-2", &run);
        eventually("the next agent does not serve", || dir.join("a/run/agent.sock").exists());
        assert_eq!(pods.del("container-3"), Called::Done(Vec::new()));
        assert_eq!(pods.add("container-3").addresses(), [given[3]]);
        let Called::Failed(11, text) = pods.add("late") else { panic!("no address is free") };
        assert!(text.contains("etcdctl alarm disarm"), "{text}");

        let status = etcdctl("endpoint status -w json").1;
        let status: Value = serde_json::from_str(status.trim()).unwrap();
        let revision = &status[0]["Status"]["header"]["revision"];
        for words in ["del /filler", &format!("compact {revision}"), "defrag", "alarm disarm"] {
            let (success, printed) = etcdctl(words);
            assert!(success, "{words}: {printed}");
        }
        eventually("nothing is claimed", || matches!(pods.add("late"), Called::Done(_)));
        assert_eq!(active(dir), 2, "{}", log_of(dir, "agent-2"));
    });
}

#[test]
fn a_full_pool_is_code_11_and_no_failure_of_status() {
    let cluster = Cluster::start();
    let range = json!({"subnet": "10.8.0.0/24", "rangeStart": "10.8.0.16", "rangeEnd": "10.8.0.31"});
    let pool = json!({"name": "blue", "ranges": [range], "blockSize4": 30, "cooldown": 0});
    let config = configure(&cluster, &pool);
    let (host, dir) = (&cluster.host, cluster.host.dir());
    let _daemon = Running::start(host, "agent", &format!("{AGENT} run --log --config {config}"));
    let pods = Network::new(&dir.join("a"), &json!({}));
    host.enter(|| {
        eventually("the daemon does not serve", || pods.status() == Called::Done(Vec::new()));
        for n in 0..16 {
            pods.add(&format!("container-{n}")).addresses();
        }
        let full = pods.add("container-16");
        assert_eq!(full.code(), 11, "{full:?}");
        let Called::Failed(_, text) = full else { panic!("it is full") };
        for part in ["pool blue has no free address", "10.8.0.16/30 (active)", "nodes have all of them"] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(pods.status(), Called::Done(Vec::new()));
        pods.del("container-3");
        assert_eq!(pods.add("container-16").addresses().len(), 1);

        // Calls that are killed or stopped at any moment lose no address.
        pods.del("container-16");
        let token = CancellationToken::new().unwrap();
        for n in 0..30 {
            let after = Duration::from_micros(300 * n);
            let stopped = Disturbance::Stop(after, Duration::from_millis(20));
            let how = if n % 3 == 0 { stopped } else { Disturbance::Kill(after) };
            pods.call("ADD", &format!("ended-{n}"), how, &token);
            pods.call("DEL", &format!("ended-{n}"), how, &token);
            assert_eq!(pods.del(&format!("ended-{n}")), Called::Done(Vec::new()));
            assert_eq!(pods.add("container-16").addresses().len(), 1);
            pods.del("container-16");
        }
    });
}

/// As `systemctl restart` and an upgrade of the package do, again and again: SIGTERM, then another process.
#[test]
fn an_agent_is_replaced_while_containers_start_and_none_fails() {
    let cluster = Cluster::start();
    let pool = json!({"name": "blue", "ranges": [{"subnet": "10.8.0.0/22"}], "blockSize4": 31, "cooldown": 0});
    let config = configure(&cluster, &pool);
    let (host, dir) = (&cluster.host, cluster.host.dir());
    let command = format!("{AGENT} run --config {config}");
    let mut daemon = Running::start(host, "agent-0", &command);
    // The plugin finds the program, as an installed one does. `minFree` has nearly every ADD wait for a block.
    let pods = Network::new(&dir.join("a"), &json!({"agent": AGENT, "agentConfig": config, "minFree": 0}));
    host.enter(|| eventually("the daemon does not serve", || pods.status() == Called::Done(Vec::new())));
    let stop = AtomicBool::new(false);
    let (mut replaced, mut given) = (0, Vec::new());
    std::thread::scope(|scope| {
        let mut workers = Vec::new();
        for worker in 0..3 {
            let (pods, stop) = (&pods, &stop);
            let add_all = move || {
                let mut given = Vec::new();
                while !stop.load(Ordering::Relaxed) && given.len() < 250 {
                    given.extend(pods.add(&format!("container-{worker}-{}", given.len())).addresses());
                }
                given
            };
            workers.push(scope.spawn(move || host.enter(add_all)));
        }
        while replaced < 5 {
            Deadline::never().pause(Duration::from_millis(300));
            daemon.signal(host, "TERM");
            let next = Running::start(host, &format!("agent-{}", replaced + 1), &command);
            let ended = std::mem::replace(&mut daemon, next).finish();
            assert!(ended.how.is_success(), "{:?}", ended.how);
            replaced += 1;
        }
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            given.extend(worker.join().unwrap());
        }
    });
    assert!(given.len() > 30, "{} containers", given.len());
    assert_eq!(given.iter().collect::<BTreeSet<_>>().len(), given.len());
    eprintln!("replaced {replaced} times while {} containers started", given.len());
}

#[test]
fn without_a_daemon_the_plugin_runs_the_program_once_per_block() {
    let cluster = Cluster::start();
    let pool = json!({"name": "blue", "ranges": [{"subnet": "10.8.0.0/24"}, {"subnet": "fd00::/120"}],
        "blockSize4": 28, "blockSize6": 124, "cooldown": 0});
    let config = configure(&cluster, &pool);
    let (host, dir) = (&cluster.host, cluster.host.dir());
    // Each run is a line of a file.
    let program = dir.join("cnikit-agent");
    let runs = dir.join("runs");
    std::fs::write(&program, format!("#!/bin/sh\necho run >>{}\nexec {AGENT} \"$@\"\n", runs.display())).unwrap();
    host.sh(&format!("chmod 755 {}", program.display()));
    let pods = Network::new(&dir.join("a"), &json!({"agent": program, "agentConfig": config}));
    let mut given: Vec<IpAddr> = Vec::new();
    std::thread::scope(|scope| {
        let mut workers = Vec::new();
        for worker in 0..6 {
            let pods = &pods;
            let add_all = move || {
                let ids = (0..10).map(|n| format!("container-{worker}-{n}"));
                host.enter(|| ids.flat_map(|id| pods.add(&id).addresses()).collect::<Vec<IpAddr>>())
            };
            workers.push(scope.spawn(add_all));
        }
        for worker in workers {
            given.extend(worker.join().unwrap());
        }
    });
    assert_eq!((given.len(), given.iter().collect::<BTreeSet<_>>().len()), (120, 120), "one of each family for each");
    let blocks = active(dir);
    let owners = host.enter(|| Node::new("observer", dir, cluster.settings()).owners());
    assert_eq!(owners.len(), blocks);
    let runs = std::fs::read_to_string(runs).unwrap().lines().count();
    // A run claims one block of each family; 60 addresses are in at least four blocks of 16.
    assert_eq!(blocks, 2 * runs, "{owners:?}");
    assert!((4..=5).contains(&runs), "{runs} runs");
}

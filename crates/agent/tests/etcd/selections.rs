//! The pool of a namespace: from the operator's command through the engine, the watch and the node's file to the plugin. These run
//! with each engine.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cnikit_agent::engine::{Engine, Listing};
use cnikit_agent::operator::{define_pool, select_pool};
use cnikit_pool::{AgentReply, AgentRequest, NodeFiles, ask_agent};
use cnikit_process::Deadline;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::node::want;
use crate::plugin::{Called, Network, built};
use crate::running::{Running, eventually, log_of};

const AGENT: &str = env!("CARGO_BIN_EXE_cnikit-agent");
const BLUE: &str = r#"{"name":"blue","ranges":[{"subnet":"10.8.0.0/24"}],"blockSize4":28}"#;
const RED: &str = r#"{"name":"red","ranges":[{"subnet":"10.9.0.0/24"}],"blockSize4":28}"#;

/// Writes a configuration, of the operator or of an agent, and returns its path.
fn configure(cluster: &Cluster, node: &str, role: &str) -> PathBuf {
    let dir = cluster.host.dir();
    let mut config = cluster.engine_config(role);
    config["node"] = node.into();
    config["dataDir"] = json!(dir.join(node));
    config["socket"] = json!(dir.join(node).join("run/agent.sock"));
    config["session"] = 5.into();
    config["metrics"] = json!(dir.join(format!("{node}.figures")));
    let path = dir.join(format!("{node}.json"));
    std::fs::write(&path, config.to_string()).unwrap();
    path
}

/// The selections in the file of a node.
fn selected(dir: &Path) -> BTreeMap<String, String> {
    NodeFiles::new(dir).pools().unwrap().map(|pools| pools.select).unwrap_or_default()
}

fn is_in(subnet: &str, called: Called) -> bool {
    let subnet: ipnetwork::IpNetwork = subnet.parse().unwrap();
    let addresses: Vec<IpAddr> = called.addresses();
    addresses.len() == 1 && subnet.contains(addresses[0])
}

#[test]
fn pods_of_a_namespace_get_the_pool_that_an_operator_chose_for_it_until_it_is_removed() {
    let cluster = Cluster::start();
    let (host, dir) = (&cluster.host, cluster.host.dir());
    let config = configure(&cluster, "a", "agent");
    let operator = configure(&cluster, "operator", "operator");
    let run = |words: &str| host.try_sh(&format!("{AGENT} {words} --config {} 2>&1", operator.display()));
    for (name, pool) in [("blue", BLUE), ("red", RED)] {
        let file = dir.join(format!("{name}-pool.json"));
        std::fs::write(&file, pool).unwrap();
        assert!(run(&format!("define {}", file.display())).0);
    }
    // Nothing but the watch makes it read the selections anew: its blocks are in use, and all blocks are read every ten minutes.
    let _daemon = Running::start(host, "agent", &format!("{AGENT} run --config {}", config.display()));
    let pods = Network::new(&dir.join("a"), &json!({}));
    let of = |namespace: &str| pods.clone().with_args(&format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace}"));
    host.enter(|| {
        eventually("the daemon does not serve", || pods.status() == Called::Done(Vec::new()));
        let before = of("team-a").add("before");
        assert!(is_in("10.8.0.0/24", before.clone()), "{before:?}");

        let (done, printed) = run("select team-a red");
        assert!(done && printed == "pods of namespace team-a get addresses of pool red\n", "{printed}");
        eventually("the watch tells the node nothing", || selected(&dir.join("a")).contains_key("team-a"));
        assert_eq!(selected(&dir.join("a")), BTreeMap::from([("team-a".into(), "red".into())]));
        let (first, other, none) = (of("team-a").add("first"), of("team-b").add("other"), pods.add("none"));
        assert!(is_in("10.9.0.0/24", first.clone()), "{first:?} {}", log_of(dir, "agent"));
        assert!(is_in("10.8.0.0/24", other) && is_in("10.8.0.0/24", none), "namespaces without one, and no namespace");
        let listed: Value = serde_json::from_str(&run("list").1).unwrap();
        assert_eq!(listed["selections"], json!([{"namespace": "team-a", "pool": "red"}]));

        let tool = built("CNIKIT_CNITOOL");
        let pools =
            format!("{} --json ipam pools --agent {AGENT} --agent-config {}", tool.display(), operator.display());
        let shown: Value = serde_json::from_str(&host.sh(&pools)).unwrap();
        for row in shown["pools"].as_array().unwrap() {
            let expected = if row["pool"] == "red" { json!(["team-a"]) } else { json!([]) };
            assert_eq!(row["namespaces"], expected, "{shown}");
        }

        // Another choice replaces the first one; containers keep their addresses, and DEL needs no namespace.
        assert!(run("select team-a blue").0);
        eventually("the watch tells the node nothing", || {
            selected(&dir.join("a")).get("team-a").map(String::as_str) == Some("blue")
        });
        assert!(is_in("10.8.0.0/24", of("team-a").add("second")));
        assert_eq!(pods.del("first"), Called::Done(Vec::new()));
        assert_eq!(std::fs::read_dir(dir.join("a/pods")).unwrap().filter(is_of_red).count(), 0);

        let (done, printed) = run("select team-a --none");
        assert!(done && printed.contains("of the pool of their network"), "{printed}");
        eventually("the watch tells the node nothing", || selected(&dir.join("a")).is_empty());
        let (done, printed) = run("select team-a --none");
        assert!(!done && printed.contains("namespace team-a has no pool of its own"), "{printed}");
    });
}

fn is_of_red(entry: &std::io::Result<std::fs::DirEntry>) -> bool {
    entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("10.9.")
}

#[test]
fn neither_a_pool_that_does_not_exist_nor_a_name_that_is_a_path_is_selected() {
    let cluster = Cluster::start();
    cluster.host.enter(|| {
        let mut node = cluster.node("a");
        node.define(BLUE);
        let refused = |namespace: &str, pool: Option<&str>| {
            let done = node.runtime.block_on(select_pool(node.engine.as_ref(), namespace, pool));
            done.unwrap_err().to_string()
        };
        assert_eq!(refused("team-a", Some("red")), "there is no pool red");
        assert_eq!(refused("team-a", Some("../blue")), "there is no pool ../blue");
        assert_eq!(refused("team-a", None), "namespace team-a has no pool of its own");
        for namespace in ["", "../../nodes/b", "team/a", "team a", "-team", "team\n", "\u{1b}[2J", &"x".repeat(254)] {
            for pool in [Some("blue"), None] {
                let text = refused(namespace, pool);
                assert!(text.starts_with(&format!("{namespace:?} is not the name of a namespace")), "{text}");
            }
        }
        let all = node.runtime.block_on(node.engine.list(&Listing::Selections)).unwrap();
        assert_eq!(all, [], "nothing was written");

        // What another program writes that is no name of a pool never becomes one, so its pods get no address of another pool.
        node.put("select/team-a", "../../escaped");
        node.put("select/team-b", &format!("blue{}", " ".repeat(70)));
        node.put("select/team-c", "blue\n");
        node.put("select/team-d", "gone");
        node.put("select/team-e", "");
        node.runtime.block_on(select_pool(node.engine.as_ref(), "team-f", Some("blue"))).unwrap();
        node.want("pods", 1).unwrap();
        let pools = node.files.pools().unwrap().unwrap();
        let known: Vec<&str> = pools
            .select
            .iter()
            .filter(|(_, pool)| pools.pool(pool).unwrap().is_some())
            .map(|(namespace, _)| namespace.as_str())
            .collect();
        assert_eq!((pools.select.len(), known), (6, vec!["team-f"]), "{:?}", pools.select);
        let pods = Network::new(&cluster.host.dir().join("a"), &json!({"timeout": 1}));
        let of = |namespace: &str| pods.clone().with_args(&format!("K8S_POD_NAMESPACE={namespace}")).add(namespace);
        for namespace in ["team-a", "team-b", "team-c", "team-d", "team-e"] {
            let failed = of(namespace);
            assert!([7, 11].contains(&failed.code()), "{failed:?}");
        }
        // The command repairs one of them, and removes another.
        for (namespace, pool) in [("team-a", Some("blue")), ("team-b", None)] {
            node.runtime.block_on(select_pool(node.engine.as_ref(), namespace, pool)).unwrap();
        }
        node.reconcile().unwrap();
        let select = node.files.pools().unwrap().unwrap().select;
        assert!(select["team-a"] == "blue" && !select.contains_key("team-b"), "{select:?}");
    });
}

/// How many times the engine was asked for a survey or a transaction.
fn engine_calls(cluster: &Cluster) -> u64 {
    let socket = cluster.host.dir().join("a.figures");
    let figures = cluster.host.sh(&format!("curl -s --unix-socket {} http://agent/metrics", socket.display()));
    let line = figures.lines().find_map(|line| line.strip_prefix("cnikit_agent_engine_calls_total "));
    line.unwrap_or_else(|| panic!("{figures}")).parse().unwrap()
}

#[test]
fn many_choices_at_once_are_no_more_comparisons_than_a_few() {
    let cluster = Cluster::start();
    let (host, dir) = (&cluster.host, cluster.host.dir());
    let config = configure(&cluster, "a", "agent");
    let daemon = Running::start(host, "agent", &format!("{AGENT} run --config {}", config.display()));
    let pods = Network::new(&dir.join("a"), &json!({}));
    host.enter(|| {
        let operator = cluster.node("operator");
        operator.define(BLUE);
        eventually("the daemon does not serve", || matches!(pods.add("container-1"), Called::Done(_)));
        let select = |namespace: &str| {
            operator.runtime.block_on(select_pool(operator.engine.as_ref(), namespace, Some("blue"))).unwrap();
        };
        let before = engine_calls(&cluster);
        daemon.signal(host, "STOP");
        for n in 0..60 {
            select(&format!("team-{n}"));
        }
        daemon.signal(host, "CONT");
        eventually("the node does not have them all", || selected(&dir.join("a")).len() == 60);
        // It is served after what the watch has reported.
        let request = AgentRequest::Want(want("pods", 1));
        let reply = ask_agent(&dir.join("a/run/agent.sock"), &request, Deadline::after(Duration::from_secs(20)));
        assert_eq!(reply.unwrap(), AgentReply::Done(true));
        let calls = engine_calls(&cluster) - before;
        assert!((1..=20).contains(&calls), "{calls} surveys and transactions for 60 changes");
    });
}

/// A choice that is refused because the pool changes has to leave the one before: an engine that writes first undoes that.
#[test]
fn while_a_pool_is_defined_again_and_again_a_namespace_never_loses_the_pool_that_it_has() {
    let cluster = Cluster::start();
    cluster.host.enter(|| {
        let node = cluster.node("a");
        node.define(BLUE);
        node.define(RED);
        let engine = node.engine.as_ref();
        node.runtime.block_on(select_pool(engine, "team-a", Some("blue"))).unwrap();
        let mut done = 0;
        let mut current = "blue";
        for n in 0..20 {
            let pool = if n % 2 == 0 { "red" } else { "blue" };
            let [selected, defined] = node.runtime.block_on(async {
                let (one, other) = tokio::join!(
                    select_pool(engine, "team-a", Some(pool)),
                    define_pool(engine, if n % 2 == 0 { RED } else { BLUE }.as_bytes()),
                );
                [one.map_err(|error| error.to_string()), other.map(drop).map_err(|error| error.to_string())]
            });
            assert_eq!(defined, Ok(()));
            let all = node.runtime.block_on(node.engine.list(&Listing::Selections)).unwrap();
            let value = String::from_utf8_lossy(&all[0].1.value).into_owned();
            match selected {
                Ok(()) => {
                    done += 1;
                    current = pool;
                }
                // An engine marks the definition while it is written.
                Err(why) => assert!(why.contains("has begun, and has not ended"), "{why}"),
            }
            assert_eq!(value, current);
        }
        assert!(done > 0);
    });
}

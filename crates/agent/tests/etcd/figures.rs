//! Figures, which are printed: docs/agent.md has them. `scripts/test agent` measures the fence only. `CNIKIT_POOL_PLUGIN` is to be
//! the plugin as it is released, with host-local beside it.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Duration, Instant};

use cnikit_process::{CancellationToken, Deadline};
use cnikit_testing::Host;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::node::Node;
use crate::plugin::{Called, Disturbance, Network, plugin};
use crate::running::{Running, eventually};

const AGENT: &str = env!("CARGO_BIN_EXE_cnikit-agent");
/// The port of etcd.
const PORT: u16 = 2379;
/// Two processors, two callers.
const CALLERS: usize = 2;

fn say(line: &str) {
    std::io::stderr().write_all(format!("figure: {line}\n").as_bytes()).unwrap();
}

/// Starts etcd with one member, and waits until it serves.
fn one_etcd(host: &Host) -> Running {
    etcd_at(host, "etcd", PORT)
}

/// The same with a name and a port of its own; the next port is that of the members.
fn etcd_at(host: &Host, name: &str, port: u16) -> Running {
    let (data, client, peer) =
        (host.dir().join(name), format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{}", port + 1));
    let command = format!(
        "etcd --data-dir {} --listen-client-urls {client} --advertise-client-urls {client} --listen-peer-urls {peer} \
         --initial-advertise-peer-urls {peer} --initial-cluster default={peer}",
        data.display()
    );
    let etcd = Running::start(host, name, &command);
    eventually("etcd does not serve", || {
        host.try_sh(&format!("ETCDCTL_API=3 etcdctl --endpoints {client} put /ready yes")).0
    });
    etcd
}

/// Writes the configuration of a node, and returns its path.
fn configure(host: &Host, node: &str) -> String {
    configure_at(host, node, PORT)
}

fn configure_at(host: &Host, node: &str, port: u16) -> String {
    let dir = host.dir();
    let config = json!({
        "endpoints": [format!("http://127.0.0.1:{port}")],
        "node": node,
        "dataDir": dir.join(node),
        "socket": dir.join(node).join("run/agent.sock"),
        // What is measured is to have no comparison in it: docs/agent.md counts those.
        "compare": 86400,
    });
    let path = dir.join(format!("{node}.json"));
    std::fs::write(&path, config.to_string()).unwrap();
    path.display().to_string()
}

fn define(host: &Host, config: &str, pool: &Value) {
    std::fs::write(host.dir().join("pool.json"), pool.to_string()).unwrap();
    host.sh(&format!("{AGENT} define {}/pool.json --config {config}", host.dir().display()));
}

/// Makes these calls by some callers at once, each of which succeeds. Returns how long they took.
fn call_all(host: &Host, calls: &[(&str, &Network, String)]) -> Duration {
    let began = Instant::now();
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let token = CancellationToken::new().unwrap();
            scope.spawn(move || {
                host.enter(|| {
                    for (verb, network, container) in calls.iter().skip(caller).step_by(CALLERS) {
                        let called = network.call(verb, container, Disturbance::None, &token);
                        assert!(matches!(called, Called::Done(_)), "{verb} {container}: {called:?}");
                    }
                });
            });
        }
    });
    began.elapsed()
}

#[test]
#[ignore = "a measurement"]
fn of_2048_addresses_in_16_networks() {
    let host = Host::new();
    let _etcd = one_etcd(&host);
    let config = configure(&host, "a");
    define(&host, &config, &json!({"name": "blue", "ranges": [{"subnet": "10.8.0.0/16"}], "blockSize4": 26}));
    let _agent = Running::start(&host, "agent", &format!("{AGENT} run --config {config}"));
    let files = host.dir().join("a");
    eventually("the agent does not serve", || files.join("run/agent.sock").exists());
    let pool: Vec<Network> = (0..16).map(|n| Network::new(&files, &json!({})).named(&format!("net{n}"))).collect();
    let local = |n: usize| {
        let range = json!({"subnet": format!("10.{}.0.0/16", 100 + n)});
        let ipam = json!({"type": "host-local", "dataDir": host.dir().join("local"), "ranges": [[range]]});
        Network::of(&ipam, plugin().with_file_name("host-local")).named(&format!("net{n}"))
    };
    let local: Vec<Network> = (0..16).map(local).collect();
    for (name, networks) in [("pool", &pool), ("host-local", &local), ("pool", &pool), ("host-local", &local)] {
        for verb in ["ADD", "DEL"] {
            let mut calls = Vec::new();
            for container in 0..128 {
                calls.extend(networks.iter().map(|network| (verb, network, format!("container-{container}"))));
            }
            let took = call_all(&host, &calls);
            say(&format!("{name}: {} {verb} in 16 networks, {CALLERS} at once: {took:.2?}", calls.len()));
            assert!(took < Duration::from_secs(10), "{name}: {verb}: {took:.2?}");
        }
    }
}

/// Host-local, the pool of a node whose etcd serves, and that of one whose etcd was killed, in turn.
#[test]
#[ignore = "a measurement"]
fn of_an_add_beside_host_local_with_etcd_and_with_a_dead_one() {
    const ROUNDS: usize = 300;
    /// The most that an ADD may take, in times of host-local's.
    const MOST: f64 = 1.5;
    let host = Host::new();
    let (_etcd, dead) = (one_etcd(&host), etcd_at(&host, "dead", 2479));
    let configs = [configure(&host, "a"), configure_at(&host, "b", 2479)];
    let pool = json!({"name": "blue", "ranges": [{"subnet": "10.8.0.0/16"}], "blockSize4": 22});
    let mut agents = Vec::new();
    for (node, config) in ["a", "b"].into_iter().zip(&configs) {
        define(&host, config, &pool);
        agents.push(Running::start(&host, &format!("agent-{node}"), &format!("{AGENT} run --config {config}")));
    }
    let ipam =
        json!({"type": "host-local", "dataDir": host.dir().join("local"), "ranges": [[{"subnet": "10.9.0.0/16"}]]});
    let networks = [
        ("host-local", Network::of(&ipam, plugin().with_file_name("host-local"))),
        ("pool", Network::new(&host.dir().join("a"), &json!({}))),
        ("pool, etcd dead", Network::new(&host.dir().join("b"), &json!({}))),
    ];
    let mut took = vec![Vec::new(); networks.len()];
    host.enter(|| {
        for (name, network) in &networks {
            eventually(name, || matches!(network.add("first"), Called::Done(_)));
        }
        dead.signal(&host, "KILL");
        dead.finish();
        for round in 0..ROUNDS {
            for turn in 0..networks.len() {
                let which = (round + turn) % networks.len();
                let began = Instant::now();
                networks[which].1.add(&format!("container-{round}")).addresses();
                took[which].push(began.elapsed());
            }
        }
    });
    let medians: Vec<f64> = took.iter_mut().map(|times| median(times)).collect();
    for ((name, _), median) in networks.iter().zip(&medians) {
        let times = median / medians[0];
        say(&format!("{name}: median of {ROUNDS} ADD {:.2} ms, {times:.2} times host-local's", median * 1e3));
        assert!(times <= MOST, "{name}: {times:.2} times");
    }
}

/// In seconds.
fn median(times: &mut [Duration]) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64()
}

#[test]
#[ignore = "a measurement"]
fn of_a_claim_of_1024_blocks() {
    let cluster = Cluster::start();
    let (host, settings) = (&cluster.host, cluster.settings());
    host.enter(|| {
        let mut node = Node::new("a", host.dir(), settings);
        node.define(r#"{"name":"blue","ranges":[{"subnet":"10.8.0.0/16"}],"blockSize4":26}"#);
        node.reconcile().unwrap();
        let began = Instant::now();
        node.want("pods", 1_024 * 64 - 3).unwrap();
        say(&format!("1,024 blocks claimed of three members of etcd: {:.2?}", began.elapsed()));
        assert_eq!(node.owners().len(), 1_024);
    });
}

#[test]
fn of_a_fence() {
    let host = Host::new();
    let _etcd = one_etcd(&host);
    let configs = ["a", "b"].map(|node| configure(&host, node));
    define(&host, &configs[0], &json!({"name": "blue", "ranges": [{"subnet": "10.8.0.0/24"}], "blockSize4": 28}));
    let networks = ["a", "b"].map(|node| Network::new(&host.dir().join(node), &json!({"minFree": 0})));
    let agents = ["a", "b"].map(|node| {
        Running::start(
            &host,
            node,
            &format!("{AGENT} run --config {}", host.dir().join(format!("{node}.json")).display()),
        )
    });
    host.enter(|| {
        eventually("the agent does not serve", || networks[0].status() == Called::Done(Vec::new()));
        let mut count = 0;
        while let Called::Done(_) = networks[0].add(&format!("container-{count}")) {
            count += 1;
        }
        assert_eq!(count, 253);
        eventually("the agent does not serve", || networks[1].status() == Called::Done(Vec::new()));
        assert_eq!(networks[1].add("container").code(), 11);
        agents[0].signal(&host, "KILL");
        let began = Instant::now();
        host.sh(&format!("{AGENT} fence a --force --config {}", configs[1]));
        networks[1].add("container").addresses();
        let took = began.elapsed();
        say(&format!("a node with 16 blocks is fenced, and another has assigned an address of them: {took:.2?}"));
        assert!(took < Duration::from_secs(1), "{took:.2?}");
    });
}

/// How many requests the etcd at an endpoint has served, by method.
pub(crate) fn served_at(host: &Host, endpoint: &str) -> BTreeMap<String, u64> {
    let text = host.sh(&format!("curl -s {endpoint}/metrics"));
    let mut served = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("grpc_server_handled_total{")) {
        let (_, after) = line.split_once("grpc_method=\"").unwrap();
        let (method, _) = after.split_once('"').unwrap();
        let count: f64 = line.rsplit(' ').next().unwrap().parse().unwrap();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
        let count = count as u64;
        *served.entry(method.to_owned()).or_default() += count;
    }
    served
}

fn served(host: &Host) -> BTreeMap<String, u64> {
    served_at(host, "http://127.0.0.1:2379")
}

/// The memory that etcd has in use.
fn memory(host: &Host) -> String {
    host.sh(&format!("grep VmRSS /proc/$(cat {}/etcd.pid)/status", host.dir().display())).trim().to_owned()
}

#[test]
#[ignore = "a measurement"]
fn of_the_requests_of_100_nodes() {
    const NODES: usize = 100;
    const EACH: usize = 100;
    let host = Host::new();
    let _etcd = one_etcd(&host);
    let names: Vec<String> = (0..NODES).map(|n| format!("node-{n}")).collect();
    let configs: Vec<String> = names.iter().map(|node| configure(&host, node)).collect();
    let pool = json!({"name": "blue", "ranges": [{"subnet": "10.0.0.0/8"}], "blockSize4": 26, "cooldown": 0});
    define(&host, &configs[0], &pool);
    say(&format!("memory of etcd without agents: {}", memory(&host)));
    let start = |n: usize| Running::start(&host, &names[n], &format!("{AGENT} run --config {}", configs[n]));
    let _agents: Vec<Running> = (0..NODES).map(start).collect();
    let network = |node: &String| Network::new(&host.dir().join(node), &json!({}));
    let networks: Vec<Network> = names.iter().map(network).collect();
    let is_ready = |node: &String| host.dir().join(node).join(".pool/pools.json").exists();
    eventually("not all agents serve", || names.iter().all(is_ready));
    say(&format!("memory of etcd with {NODES} agents: {}", memory(&host)));
    let before = served(&host);
    let mut calls = Vec::new();
    for n in 0..EACH {
        calls.extend(networks.iter().map(|network| ("ADD", network, format!("container-{n}"))));
    }
    let took = call_all(&host, &calls);
    let after = served(&host);
    say(&format!(
        "{NODES} nodes, {} ADD from nothing: {took:.2?}; etcd served {}",
        calls.len(),
        difference(&before, &after)
    ));

    let mut calls = Vec::new();
    for n in 0..EACH / 2 {
        calls.extend(networks.iter().map(|network| ("DEL", network, format!("container-{n}"))));
        calls.extend(networks.iter().map(|network| ("ADD", network, format!("again-{n}"))));
    }
    // What the last claims brought about is over.
    Deadline::never().pause(Duration::from_secs(8));
    let before = served(&host);
    let took = call_all(&host, &calls);
    let after = served(&host);
    let moved = difference(&before, &after);
    say(&format!("{NODES} nodes, {} DEL and ADD within free blocks: {took:.2?}; etcd served {moved}", calls.len()));
    say(&format!("memory of etcd: {}", memory(&host)));
    let count = |method: &str| after.get(method).unwrap_or(&0) - before.get(method).unwrap_or(&0);
    assert_eq!((count("Txn"), count("Range"), count("Put"), count("DeleteRange")), (0, 0, 0, 0), "{moved}");
}

/// What was served meanwhile, by method.
fn difference(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> String {
    let mut texts = Vec::new();
    for (method, count) in after {
        let more = count - before.get(method).unwrap_or(&0);
        if more > 0 {
            texts.push(format!("{method} {more}"));
        }
    }
    if texts.is_empty() { "nothing".to_owned() } else { texts.join(", ") }
}

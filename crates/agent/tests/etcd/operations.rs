//! `cnitool ipam` on nodes with a real etcd: what an operator sees and does.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cnikit_pool::{AgentRequest, BlockState, NodeFiles, ask_agent};
use cnikit_process::Deadline;
use cnikit_testing::Host;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::node::want;
use crate::plugin::{Called, Network, built};
use crate::running::{Running, eventually, log_of};

const AGENT: &str = env!("CARGO_BIN_EXE_cnikit-agent");
/// Blocks of 16 addresses, and static ones.
const POOL: &str = r#"{"name":"blue","ranges":[{"subnet":"10.8.0.0/24"}],"blockSize4":28,"cooldown":0,
    "static":[{"subnet":"10.8.0.0/24","rangeStart":"10.8.0.240"}]}"#;

/// The built tool. A dependency on it would be one on the crates that it needs.
fn cnitool() -> PathBuf {
    built("CNIKIT_CNITOOL")
}

/// A node whose files are in a directory of its name.
pub(crate) struct Operated<'a> {
    host: &'a Host,
    name: String,
}

impl<'a> Operated<'a> {
    pub(crate) fn new(cluster: &'a Cluster, name: &str) -> Operated<'a> {
        let dir = cluster.host.dir();
        fs::create_dir_all(dir.join(name)).unwrap();
        let config = json!({
            "endpoints": [cluster.endpoint(0), cluster.endpoint(1), cluster.endpoint(2)],
            "node": name, "dataDir": dir.join(name), "socket": dir.join(name).join("run/agent.sock"),
            "session": 5, "compare": 1, "grace": 1,
        });
        fs::write(dir.join(format!("{name}.json")), config.to_string()).unwrap();
        fs::write(dir.join("blue.json"), POOL).unwrap();
        Operated { host: &cluster.host, name: name.into() }
    }

    /// Sets a key of the configuration.
    pub(crate) fn configure(&self, key: &str, value: Value) {
        let file = self.dir().with_extension("json");
        let mut config: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        config[key] = value;
        fs::write(&file, config.to_string()).unwrap();
    }

    /// From now on unused blocks stay. Otherwise the daemon gives all but one back after five seconds in which nothing happens, to
    /// which a test comes on a busy machine.
    fn keep_unused_blocks(&self) {
        self.configure("grace", json!(86_400));
    }

    pub(crate) fn host(&self) -> &Host {
        self.host
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.host.dir().join(&self.name)
    }

    pub(crate) fn agent(&self, command: &str) -> String {
        format!("{AGENT} {command} --config {}.json", self.dir().display())
    }

    pub(crate) fn start(&self) -> Running {
        let daemon = Running::start(self.host, &format!("agent-{}", self.name), &self.agent("run"));
        eventually("the agent does not serve", || self.claim("warm-up", 1));
        daemon
    }

    fn claim(&self, network: &str, free: u32) -> bool {
        let request = AgentRequest::Want(want(network, free));
        let socket = self.dir().join("run/agent.sock");
        matches!(
            ask_agent(&socket, &request, Deadline::after(Duration::from_secs(20))),
            Ok(cnikit_pool::AgentReply::Done(true))
        )
    }

    /// Runs `cnitool --json ipam …`; returns its exit status, its document and what it wrote to stderr.
    fn ipam(&self, arguments: &str) -> (i32, Value, String) {
        let dir = self.dir();
        let line = format!(
            "CNI_CACHE_DIR={0}/cache NETCONFPATH={0}/net.d {1} --json ipam {arguments} --agent {AGENT} \
             --agent-config {0}.json 2>{0}/stderr; s=$?; echo; echo $s",
            dir.display(),
            cnitool().display(),
        );
        let printed = self.host.sh(&line);
        let (document, status) = printed.trim_end().rsplit_once('\n').unwrap();
        let document = serde_json::from_str(document).unwrap_or(Value::Null);
        (status.parse().unwrap(), document, fs::read_to_string(dir.join("stderr")).unwrap())
    }

    pub(crate) fn done(&self, arguments: &str) -> Value {
        let (status, document, errors) = self.ipam(arguments);
        assert_eq!(status, 0, "{arguments}: {document}{errors}");
        document
    }

    fn refused(&self, arguments: &str) -> String {
        let (status, document, errors) = self.ipam(arguments);
        assert_eq!(status, 1, "{arguments}: {document}{errors}");
        errors
    }

    /// The kinds of the findings of `ipam check`, except those about the containers of these tests, which no runtime knows.
    fn findings(&self) -> Vec<String> {
        let (_, document, errors) = self.ipam("check --within-pid-namespace");
        let all = document["findings"].as_array().unwrap_or_else(|| panic!("{document}{errors}")).iter();
        let mut kinds: Vec<String> = all.map(|one| one["kind"].as_str().unwrap().to_owned()).collect();
        kinds.retain(|kind| kind != "suspected");
        kinds
    }

    /// A reservation as host-local writes it.
    fn hold(&self, network: &str, address: &str, container: &str) {
        fs::create_dir_all(self.dir().join(network)).unwrap();
        fs::write(self.dir().join(network).join(address), format!("{container}\r\neth0")).unwrap();
    }

    fn holds(&self, network: &str, address: &str) -> bool {
        self.dir().join(network).join(address).exists()
    }

    /// The active blocks of a network in the files.
    pub(crate) fn active(&self, network: &str) -> Vec<String> {
        let files = NodeFiles::new(self.dir()).network(network, Duration::from_secs(5), |_| {});
        let mut blocks = Vec::new();
        for block in files.blocks().unwrap() {
            if block.state == BlockState::Active {
                blocks.push(block.cidr.to_string());
            }
        }
        blocks.sort();
        blocks
    }

    /// A cached result of a container that runs: its namespace is that of the tool.
    fn cache(&self, network: &str, container: &str, address: &str) {
        let cached = json!({
            "kind": "cniCacheV1", "containerId": container, "ifName": "eth0", "networkName": network,
            "netns": "/proc/self/ns/net", "config": "e30=",
            "result": {"cniVersion": "1.0.0", "ips": [{"address": format!("{address}/24")}]},
        });
        let results = self.dir().join("cache/results");
        fs::create_dir_all(&results).unwrap();
        fs::write(results.join(format!("{network}-{container}-eth0")), cached.to_string()).unwrap();
    }
}

pub(crate) fn define(node: &Operated<'_>) {
    node.host.sh(&node.agent(&format!("define {}/blue.json", node.host.dir().display())));
}

/// A key of etcd.
pub(crate) fn etcdctl(host: &Host, words: &str) -> String {
    host.sh(&format!("ETCDCTL_API=3 etcdctl --endpoints http://127.0.0.1:2379 {words}"))
}

#[test]
fn the_addresses_of_host_local_become_the_pools_and_overlaps_are_refused_before() {
    let cluster = Cluster::start();
    let (a, b) = (Operated::new(&cluster, "a"), Operated::new(&cluster, "b"));
    [&a, &b].into_iter().for_each(Operated::keep_unused_blocks);
    define(&a);
    for (address, container) in [("10.8.0.5", "c1"), ("10.8.0.37", "c2"), ("10.8.0.38", "c3"), ("10.8.0.245", "c4")] {
        a.hold("pods", address, container);
    }
    let adopt = |node: &Operated<'_>, more: &str| format!("adopt {}/pods --pool blue {more}", node.dir().display());
    let planned = a.done(&adopt(&a, "--dry-run"));
    assert_eq!(planned["blocks"].as_array().unwrap().len(), 3, "{planned}");
    assert_eq!(a.active("pods"), Vec::<String>::new(), "a dry run claims nothing");

    // Killed at some moment, and repeated: with no daemon, and beside one.
    for delay in ["0.02", "0.05", "0.1"] {
        let killed = a.agent(&adopt(&a, ""));
        cluster.host.try_sh(&format!("timeout -s KILL {delay} {killed}"));
    }
    let daemon = a.start();
    let adopted = a.done(&adopt(&a, ""));
    assert_eq!(a.active("pods"), ["10.8.0.0/28", "10.8.0.245/32", "10.8.0.32/28"]);
    assert_eq!(adopted["blocks"][1]["addresses"], 2, "{adopted}");
    let again = a.done(&adopt(&a, ""));
    assert!(again["blocks"].as_array().unwrap().iter().all(|block| block["had"] == true), "{again}");
    assert_eq!(a.findings(), Vec::<String>::new());

    // A whole range, before its network is used.
    a.done(&adopt(&a, "--range 10.8.0.64/27"));
    assert_eq!(a.active("pods").len(), 5);

    // What another node has, what another network has, and what the pool has not: nothing is claimed.
    b.hold("pods", "10.8.0.130", "d1");
    b.hold("pods", "10.8.0.40", "d2");
    b.hold("pods", "10.9.0.1", "d3");
    let error = b.refused(&adopt(&b, ""));
    assert!(error.contains("10.8.0.32/28 belongs to node a, for network pods"), "{error}");
    assert!(error.contains("pool blue has no address 10.9.0.1") && error.contains("nothing was changed"), "{error}");
    assert_eq!(b.active("pods"), Vec::<String>::new());
    fs::remove_file(b.dir().join("pods/10.8.0.40")).unwrap();
    fs::remove_file(b.dir().join("pods/10.9.0.1")).unwrap();
    b.hold("other", "10.8.0.131", "d4");
    let error = b.refused(&adopt(&b, ""));
    assert!(error.contains("10.8.0.128/28 has 10.8.0.131 of network other"), "{error}");
    let error = b.refused(&format!("adopt {} --pool blue", a.dir().join("pods").display()));
    assert!(error.contains("is not the directory of a network below"), "{error}");
    daemon.signal(&cluster.host, "TERM");
    daemon.finish();
}

/// What host-local has reserved is checked, released and never given twice by the pool.
#[test]
fn containers_that_host_local_served_live_on_with_the_pool() {
    let cluster = Cluster::start();
    let a = Operated::new(&cluster, "a");
    define(&a);
    let daemon = a.start();
    // They are in two blocks.
    let range = json!({"subnet": "10.8.0.0/24", "rangeStart": "10.8.0.28", "rangeEnd": "10.8.0.40"});
    let ipam = json!({"type": "host-local", "dataDir": a.dir(), "ranges": [[range]]});
    let before = Network::of(&ipam, built("CNIKIT_HOST_LOCAL"));
    // No block is claimed before the others are full.
    let pods = Network::new(&a.dir(), &json!({"minFree": 0}));
    cluster.host.enter(|| {
        let served: Vec<(String, IpAddr)> = (0..6)
            .map(|n| format!("container-{n}"))
            .map(|container| (container.clone(), before.add(&container).addresses()[0]))
            .collect();
        let early = pods.check("container-0", served[0].1);
        assert_eq!(early, Called::Done(Vec::new()), "other plugins' addresses are none of the pool's");
        a.done(&format!("adopt {}/pods --pool blue", a.dir().display()));
        assert_eq!(a.active("pods"), ["10.8.0.16/28", "10.8.0.32/28"]);
        assert_eq!(a.findings(), Vec::<String>::new());

        let mut living: BTreeSet<IpAddr> = BTreeSet::new();
        for (container, address) in &served {
            assert_eq!(pods.check(container, *address), Called::Done(Vec::new()));
            living.insert(*address);
        }
        let wrong = pods.check("container-0", served[1].1);
        assert!(matches!(wrong, Called::Failed(..)), "the address of another container: {wrong:?}");
        let again = pods.add("container-0");
        assert!(matches!(again, Called::Failed(..)), "it has an address: {again:?}");
        let new = pods.add("new-0").addresses()[0];
        assert!(living.insert(new) && a.holds("pods", &new.to_string()));

        // The pool's DEL frees what host-local reserved, and only then another container gets it.
        assert_eq!(pods.del("container-5"), Called::Done(Vec::new()));
        let freed = served[5].1;
        assert!(living.remove(&freed) && !a.holds("pods", &freed.to_string()));
        for n in 1.. {
            let given = pods.add(&format!("new-{n}")).addresses()[0];
            assert!(living.insert(given), "{given} has two containers");
            if given == freed {
                break;
            }
        }
        assert_eq!(a.findings(), Vec::<String>::new());
        let valid: Vec<&str> = served[..5].iter().map(|(container, _)| container.as_str()).collect();
        assert_eq!(pods.gc(&valid), Called::Done(Vec::new()));
        for (container, address) in &served[..5] {
            assert_eq!(pods.check(container, *address), Called::Done(Vec::new()), "GC knows them as its own");
            assert_eq!(pods.del(container), Called::Done(Vec::new()));
        }
    });
    eventually("the adopted blocks are not given back", || a.active("pods").len() == 1);
    daemon.signal(&cluster.host, "TERM");
    daemon.finish();
}

#[test]
fn addresses_of_whereabouts_are_taken_over_where_their_containers_run() {
    let cluster = Cluster::start();
    let (a, b) = (Operated::new(&cluster, "a"), Operated::new(&cluster, "b"));
    define(&a);
    let allocation = |id: &str, pod: &str| json!({"id": id, "podref": format!("default/{pod}"), "ifname": "eth0"});
    let allocations = |shared: bool| {
        let mut all = json!({
            "241": allocation("c1", "web-0"), "242": allocation("d1", "web-1"), "100": allocation("c2", "db-0"),
            "300": allocation("c3", "far"), "243": allocation("c4", "gone"),
        });
        if shared {
            all["101"] = allocation("d2", "db-1");
        }
        json!({"kind": "List", "items": [{"kind": "IPPool", "spec": {"range": "10.8.0.0/16", "allocations": all}}]})
    };
    let file = cluster.host.dir().join("pools.json");
    for (node, container, address) in [
        (&a, "c1", "10.8.0.241"),
        (&a, "c2", "10.8.0.100"),
        (&a, "c3", "10.8.1.44"),
        (&b, "d1", "10.8.0.242"),
        (&b, "d2", "10.8.0.101"),
    ] {
        node.cache("pods", container, address);
    }
    // Containers of two nodes are in one block.
    fs::write(&file, allocations(true).to_string()).unwrap();
    let import = format!("import {} --pool blue", file.display());
    let error = a.refused(&import);
    assert!(error.contains("10.8.0.96/28 has 10.8.0.101, of a container of another node"), "{error}");
    assert!(!a.holds("pods", "10.8.0.241") && !a.dir().join("pods").exists(), "nothing was changed");

    fs::write(&file, allocations(false).to_string()).unwrap();
    let (status, planned, errors) = a.ipam(&format!("{import} --dry-run"));
    assert_eq!(status, 3, "{planned}{errors}");
    assert!(!a.holds("pods", "10.8.0.241"));
    for _ in 0..2 {
        let (status, done, errors) = a.ipam(&import);
        assert_eq!((status, done["left"].as_array().map(Vec::len)), (3, Some(3)), "{done}{errors}");
        assert_eq!(a.active("pods"), ["10.8.0.241/32", "10.8.0.96/28"]);
        assert!(a.holds("pods", "10.8.0.241") && a.holds("pods", "10.8.0.100"));
    }
    // On the node of the other container, what the first one has is not its own.
    b.ipam(&import);
    assert_eq!(b.active("pods"), ["10.8.0.242/32"]);
    let error = a.refused("import /dev/null --pool blue");
    assert!(error.contains("it is not JSON"), "{error}");
}

#[test]
fn what_differs_is_found_with_what_to_do_and_nothing_is_while_nodes_claim() {
    let cluster = Cluster::start();
    let (a, b) = (Operated::new(&cluster, "a"), Operated::new(&cluster, "b"));
    define(&a);
    assert_eq!(a.findings(), ["no-agent"]);
    let (daemon, other) = (a.start(), b.start());
    std::thread::scope(|scope| {
        let claims = scope.spawn(|| (0..20).all(|n| a.claim(&format!("net-{}", n % 4), 1 + n)));
        for _ in 0..2 {
            assert_eq!(a.findings(), Vec::<String>::new(), "{}", log_of(cluster.host.dir(), "agent-a"));
        }
        let _ = claims.join();
    });
    let block = a.active("net-0")[0].clone();
    let address = NodeFiles::new(a.dir());
    let range = address.pools().unwrap().unwrap().pool("blue").unwrap().unwrap();
    let inside = range.block_of(block.parse().unwrap()).unwrap().range.end.unwrap().to_string();
    a.hold("net-0", &inside, "c1");
    a.hold("net-0", "10.9.0.1", "c2");
    assert_eq!(a.findings(), ["reserved-without-block"]);
    fs::remove_file(a.dir().join("net-0/10.9.0.1")).unwrap();
    // A container that no reservation protects.
    fs::remove_file(a.dir().join("net-0").join(&inside)).unwrap();
    a.cache("net-0", "c1", &inside);
    assert_eq!(a.findings(), ["not-reserved"]);
    a.hold("net-0", &inside, "c1");
    assert_eq!(a.findings(), Vec::<String>::new());

    // The agent is killed, and another program writes to etcd.
    daemon.signal(&cluster.host, "KILL");
    daemon.finish();
    let key = format!("/cnikit/v1/blocks/blue/{block}");
    etcdctl(&cluster.host, &format!("del {key}"));
    let mut found = a.findings();
    found.retain(|kind| kind != "no-session");
    assert_eq!(found, ["unknown-block"]);
    let taken = json!({"node": "b", "incarnation": "0".repeat(32), "network": "pods"});
    etcdctl(&cluster.host, &format!("put {key} '{taken}'"));
    eventually("the session does not end", || a.findings().contains(&"no-session".to_owned()));
    assert_eq!(a.findings(), ["no-session", "foreign-block"]);
    let (status, document, _) = a.ipam("check --within-pid-namespace");
    let hint = document["findings"][1]["hint"].as_str().unwrap();
    assert!(status == 3 && hint.starts_with("restart the containers"), "{document}");
    // Without the agent's program, the rest is compared.
    let (status, document, errors) = a.ipam("check --local --within-pid-namespace");
    assert_eq!((status, document["findings"].as_array().map(Vec::len)), (0, Some(0)), "{document}{errors}");
    other.signal(&cluster.host, "TERM");
    other.finish();
}

#[test]
fn pools_blocks_and_use_are_shown_and_a_node_is_fenced() {
    let cluster = Cluster::start();
    let (a, b) = (Operated::new(&cluster, "a"), Operated::new(&cluster, "b"));
    [&a, &b].into_iter().for_each(Operated::keep_unused_blocks);
    define(&a);
    let (daemon, other) = (a.start(), b.start());
    assert!(a.claim("pods", 1) && b.claim("pods", 20));
    let row = a.done("pools")["pools"][0].clone();
    assert_eq!((&row["blocksTaken"], &row["blocksFree"]), (&5.into(), &10.into()), "{row}");
    assert_eq!((&row["nodes"], &row["closed"]), (&json!(["a", "b"]), &false.into()));
    let blocks = a.done("blocks --node a")["blocks"].clone();
    assert_eq!(blocks.as_array().unwrap().len(), 2);
    assert!(blocks.as_array().unwrap().iter().all(|block| block["state"] == "active"), "{blocks}");
    assert!(a.done("blocks --node b")["blocks"].as_array().unwrap().iter().all(|block| block["state"] == "owned"));

    // The use of the other node is what its agent wrote; it is written again if it changes.
    let held = address_in(&b.active("pods")[0]);
    b.hold("pods", &held, "c1");
    let used_by = |name: &str| {
        let all = a.done("usage --nodes")["nodes"].clone();
        let rows = all.as_array().unwrap().iter();
        rows.filter(|row| row["node"] == name).map(|row| row["used"].as_u64().unwrap()).sum::<u64>()
    };
    eventually("the use is not written", || used_by("b") == 1);
    assert_eq!(used_by("a"), 0);
    let own = address_in(&a.active("pods")[0]);
    a.hold("pods", &own, "c2");
    assert_eq!(used_by("a"), 1, "this node's is exact");
    let revisions = || etcdctl(&cluster.host, "get /cnikit/v1/usage/b -w json");
    let before = revisions();
    Deadline::never().pause(Duration::from_secs(3));
    let version = |text: &str| serde_json::from_str::<Value>(text).unwrap()["kvs"][0]["version"].clone();
    assert_eq!(version(&before), version(&revisions()), "what has not changed is not written");

    // The ranges of a pool's network are its blocks.
    let usage = a.done(&format!("usage --network pods --data-dir {}", a.dir().display()));
    let range = &usage["networks"][0]["ranges"][0];
    assert_eq!((&range["taken"], &usage["networks"][0]["ofNoRange"]), (&1.into(), &0.into()), "{usage}");
    daemon.signal(&cluster.host, "TERM");
    daemon.finish();
    other.signal(&cluster.host, "KILL");
    other.finish();
    let error = a.refused("fence b --by me");
    assert!(error.contains("has a session"), "{error}");
    let fenced = a.done("fence b --by me --why burnt --force");
    assert_eq!(fenced["freed"], 3, "{fenced}");
    let error = a.refused("fence nobody");
    assert!(error.contains("there is no node nobody; hint:"), "{error}");
}

/// The finding names the command that frees the blocks of before, and the node that was installed again keeps its own.
#[test]
fn the_blocks_of_a_node_that_was_installed_again_are_found_and_freed_by_the_command_of_the_finding() {
    let cluster = Cluster::start();
    let (a, b) = (Operated::new(&cluster, "a"), Operated::new(&cluster, "b"));
    define(&a);
    let daemon = a.start();
    assert!(a.claim("pods", 40));
    daemon.signal(&cluster.host, "KILL");
    daemon.finish();
    fs::remove_dir_all(a.dir()).unwrap();
    fs::create_dir(a.dir()).unwrap();
    let daemon = a.start();
    assert_eq!(a.active("pods"), Vec::<String>::new());
    assert!(a.claim("pods", 1));
    let own = a.active("pods");
    assert_eq!(a.findings(), ["former-incarnation"]);
    let (_, document, _) = a.ipam("check --within-pid-namespace");
    let (what, hint) = (&document["findings"][0]["what"], document["findings"][0]["hint"].as_str().unwrap());
    // Those of `pods` and of `warm-up`.
    assert!(what.as_str().unwrap().ends_with("of this node has 4 blocks"), "{document}");
    let (_, command) = hint.split_once("cnitool ipam ").unwrap();
    let fenced = b.done(command);
    assert_eq!((&fenced["node"], &fenced["freed"]), (&"a".into(), &4.into()), "{fenced}");
    assert_eq!(a.findings(), Vec::<String>::new());
    assert_eq!(a.active("pods"), own);
    assert!(a.claim("pods", 40) && a.active("pods").len() == 3, "it is not fenced");
    daemon.signal(&cluster.host, "TERM");
    daemon.finish();
}

/// An address of a block.
fn address_in(block: &str) -> String {
    let block: ipnetwork::Ipv4Network = block.parse().unwrap();
    block.nth(3).unwrap().to_string()
}

#[test]
fn an_address_is_released_if_it_is_proven_that_no_container_has_it() {
    let cluster = Cluster::start();
    let a = Operated::new(&cluster, "a");
    define(&a);
    let daemon = a.start();
    assert!(a.claim("pods", 1));
    let held = address_in(&a.active("pods")[0]);
    a.hold("pods", &held, "c1");
    a.cache("pods", "c1", &held);
    let of_node = format!("--data-dir {} --within-pid-namespace", a.dir().display());
    let error = a.release(&format!("{held} {of_node}"), 1);
    assert!(error.contains("its namespace is present") && error.contains("--force"), "{error}");
    assert!(a.holds("pods", &held));
    // What a crash left without content is nobody's.
    fs::write(a.dir().join("pods").join(&held), "").unwrap();
    a.release(&format!("{held} {of_node} --dry-run"), 0);
    assert!(a.holds("pods", &held));
    a.release(&format!("{held} {of_node}"), 0);
    assert!(!a.holds("pods", &held));
    let error = a.release(&format!("{held} {of_node}"), 1);
    assert!(error.contains("is reserved on this node"), "{error}");
    // A whole block, by the operator's word.
    a.hold("pods", &held, "c1");
    a.release(&format!("{} {of_node} --force", a.active("pods")[0]), 0);
    assert!(!a.holds("pods", &held));
    daemon.signal(&cluster.host, "TERM");
    daemon.finish();
}

impl Operated<'_> {
    /// `ipam release` asks no agent.
    fn release(&self, arguments: &str, status: i32) -> String {
        let dir = self.dir();
        let line = format!(
            "CNI_CACHE_DIR={0}/cache NETCONFPATH={0}/net.d {1} ipam release {arguments} 2>&1; echo $?",
            dir.display(),
            cnitool().display(),
        );
        let printed = self.host.sh(&line);
        let (text, ended) = printed.trim_end().rsplit_once('\n').unwrap_or(("", printed.trim_end()));
        assert_eq!(ended, status.to_string(), "{arguments}: {text}");
        text.to_owned()
    }
}

/// Without the agent's program, the tool says where it has searched.
#[test]
fn the_program_is_searched_beside_the_plugins_and_the_tool() {
    let host = Host::new();
    let empty = host.dir().join("empty");
    fs::create_dir(&empty).unwrap();
    let copy = host.dir().join("cnitool");
    // Copied by a process of its own: a program that another test starts at this moment would keep a file of ours open for writing,
    // and a file that is written is not executed (ETXTBSY, execve(2)).
    host.sh(&format!("cp {} {}", cnitool().display(), copy.display()));
    let line = |path: &Path| format!("CNI_PATH={} {} ipam pools 2>&1", path.display(), copy.display());
    let (success, printed) = host.try_sh(&line(&empty));
    assert!(!success && printed.contains("cnikit-agent is in none of") && printed.contains("--agent"), "{printed}");
    let beside = Path::new(AGENT).parent().unwrap();
    let (success, printed) = host.try_sh(&line(beside));
    assert!(!success && printed.contains("/etc/cnikit/agent.json"), "{printed}");
}

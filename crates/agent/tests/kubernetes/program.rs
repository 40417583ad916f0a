//! The program with the Kubernetes API: daemon, commands, a fence that waits for the session.

use std::path::Path;
use std::time::{Duration, Instant};

use cnikit_pool::{AgentReply, AgentRequest, BlockState, NodeFiles, ask_agent};
use cnikit_process::Deadline;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::node::want;
use crate::running::{Running, eventually, log_of};

pub(crate) const AGENT: &str = env!("CARGO_BIN_EXE_cnikit-agent");

/// The configuration of a node, whose agent has the token of this name.
pub(crate) fn configure(cluster: &Cluster, node: &str, token: &str) -> String {
    let dir = cluster.host.dir();
    let mut config = cluster.engine_config(token);
    config["node"] = node.into();
    config["dataDir"] = json!(dir.join(node));
    config["socket"] = json!(dir.join(node).join("run/agent.sock"));
    config["session"] = 4.into();
    let path = dir.join(format!("{node}-{token}.json"));
    std::fs::write(&path, config.to_string()).unwrap();
    path.display().to_string()
}

pub(crate) fn define(cluster: &Cluster) -> String {
    let operator = configure(cluster, "operator", "operator");
    let pool = cluster.host.dir().join("blue.json");
    std::fs::write(&pool, r#"{"name":"blue","ranges":[{"subnet":"10.8.0.0/24"}],"blockSize4":28}"#).unwrap();
    cluster.host.sh(&format!("{AGENT} define {} --config {operator}", pool.display()));
    operator
}

pub(crate) fn active(dir: &Path, node: &str, network: &str) -> usize {
    let network = NodeFiles::new(dir.join(node)).network(network, Duration::from_secs(5), |_| {});
    network.blocks().unwrap().iter().filter(|block| block.state == BlockState::Active).count()
}

pub(crate) fn ask(dir: &Path, node: &str, network: &str, free: u32) -> Option<AgentReply> {
    let request = AgentRequest::Want(want(network, free));
    ask_agent(&dir.join(node).join("run/agent.sock"), &request, Deadline::after(Duration::from_secs(20))).ok()
}

#[test]
fn the_daemon_serves_learns_of_pools_and_is_fenced_after_its_session() {
    let cluster = Cluster::start();
    let (host, dir) = (&cluster.host, cluster.host.dir());
    let config = configure(&cluster, "a", "agent");
    let daemon = Running::start(host, "agent", &format!("{AGENT} run --config {config}"));
    eventually("the daemon does not answer", || ask(dir, "a", "pods", 1).is_some());
    let operator = define(&cluster);
    // The watch has told it, or the claim asks.
    eventually("the daemon does not serve", || ask(dir, "a", "pods", 1) == Some(AgentReply::Done(true)));
    assert_eq!(active(dir, "a", "pods"), 1, "{}", log_of(dir, "agent"));
    assert_eq!(ask(dir, "a", "pods", 30), Some(AgentReply::Done(true)));
    let claimed = active(dir, "a", "pods");

    let listed: Value = serde_json::from_str(&host.sh(&format!("{AGENT} list --config {config}"))).unwrap();
    assert_eq!(listed["nodes"][0]["node"], "a");
    assert!(listed["nodes"][0]["session"].is_object(), "{listed}");
    let checked: Value = serde_json::from_str(&host.sh(&format!("{AGENT} check --config {config}"))).unwrap();
    assert_eq!(checked["findings"], json!([]));

    // The session is renewed by the daemon: it is seen within a third of its length.
    let fence = format!("{AGENT} fence a --by me --why 'it burns' --config {operator} 2>&1");
    let (is_fenced, printed) = host.try_sh(&fence);
    assert!(!is_fenced && printed.contains("has a session") && printed.contains("--force"), "{printed}");
    daemon.signal(host, "KILL");
    daemon.finish();
    let began = Instant::now();
    let fenced: Value = serde_json::from_str(&host.sh(&fence)).unwrap();
    assert_eq!(fenced["freed"], claimed);
    assert!(began.elapsed() >= Duration::from_secs(3), "it waited for the session: {:?}", began.elapsed());

    // It learns of a fence by its watch, and begins anew, because it has no container.
    let daemon = Running::start(host, "agent", &format!("{AGENT} run --config {config}"));
    eventually("it does not begin anew", || ask(dir, "a", "pods", 1) == Some(AgentReply::Done(true)));
    let before = std::fs::read_to_string(dir.join("a/.pool/node.json")).unwrap();
    host.sh(&format!("{AGENT} fence a --force --config {operator}"));
    eventually("the watch tells it nothing", || {
        std::fs::read_to_string(dir.join("a/.pool/node.json")).unwrap() != before
    });
    daemon.signal(host, "TERM");
    let ended = daemon.finish();
    assert!(ended.how.is_success(), "{:?}: {}", ended.how, log_of(dir, "agent"));
}

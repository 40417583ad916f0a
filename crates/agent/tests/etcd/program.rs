//! The program: daemon, claim without a daemon, operator's commands.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use cnikit_pool::{AgentReply, AgentRequest, BlockState, NodeFiles, ask_agent};
use cnikit_process::Deadline;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::node::want;
use crate::plugin::{Called, Network};
use crate::running::{Running, eventually, log_of};

const AGENT: &str = env!("CARGO_BIN_EXE_cnikit-agent");

fn configure(cluster: &Cluster, node: &str) -> String {
    let dir = cluster.host.dir();
    let config = json!({
        "endpoints": [cluster.endpoint(0), cluster.endpoint(1), cluster.endpoint(2)],
        "node": node,
        "dataDir": dir.join(node),
        "socket": dir.join(node).join("run/agent.sock"),
        "metrics": "127.0.0.1:9465",
        "session": 5,
    });
    let path = dir.join(format!("{node}.json"));
    std::fs::write(&path, config.to_string()).unwrap();
    let pool = r#"{"name":"blue","ranges":[{"subnet":"10.8.0.0/24"}],"blockSize4":28}"#;
    std::fs::write(dir.join("blue.json"), pool).unwrap();
    path.display().to_string()
}

fn active(dir: &Path, node: &str, network: &str) -> usize {
    let network = NodeFiles::new(dir.join(node)).network(network, Duration::from_secs(5), |_| {});
    network.blocks().unwrap().iter().filter(|block| block.state == BlockState::Active).count()
}

#[test]
fn the_daemon_serves_plugins_until_it_is_told_to_end_and_another_takes_over() {
    let cluster = Cluster::start();
    let (host, dir) = (&cluster.host, cluster.host.dir());
    let config = configure(&cluster, "a");
    host.sh(&format!("{AGENT} define {}/blue.json --config {config}", dir.display()));
    let daemon = Running::start(host, "agent", &format!("{AGENT} run --log --config {config}"));
    let socket = dir.join("a/run/agent.sock");
    let ask = |network: &str, free: u32| {
        let request = AgentRequest::Want(want(network, free));
        ask_agent(&socket, &request, Deadline::after(Duration::from_secs(20)))
    };
    eventually("the daemon does not serve", || ask("pods", 1).is_ok());
    assert_eq!(active(dir, "a", "pods"), 1, "{}", log_of(dir, "agent"));
    assert_eq!(ask("pods", 40).unwrap(), AgentReply::Done(true));
    assert_eq!(active(dir, "a", "pods"), 3);
    let Ok(AgentReply::Error(full)) = ask("pods", 1000) else { panic!("a pool of 256 addresses") };
    assert!(full.code == 11 && full.msg.contains("no free block"), "{full:?}");

    let figures = host.sh("curl -s http://127.0.0.1:9465/metrics || python3 -c 'import urllib.request as u; print(u.urlopen(\"http://127.0.0.1:9465/metrics\").read().decode())'");
    assert!(
        figures.contains("cnikit_agent_may_claim 1") && figures.contains("cnikit_agent_failed_requests_total 1"),
        "{figures}"
    );

    check_figures(&figures, &documented_figures());

    // A claim by the program is handed on to the daemon.
    let done = host.sh(&format!("{AGENT} claim --network second --pool nowhere --config {config} || true"));
    assert!(done.contains("there is no pool nowhere"), "{done}");
    let listed: Value = serde_json::from_str(&host.sh(&format!("{AGENT} list --config {config}"))).unwrap();
    assert_eq!(listed["nodes"][0]["node"], "a");
    assert!(listed["nodes"][0]["session"].is_object(), "{listed}");

    daemon.signal(host, "TERM");
    let ended = daemon.finish();
    assert!(ended.how.is_success(), "{:?}: {}", ended.how, log_of(dir, "agent"));
    let claimed = active(dir, "a", "pods");
    // The next process of the same boot takes over the session, and has what the first one had.
    let daemon = Running::start(host, "agent", &format!("{AGENT} run --config {config}"));
    eventually("the next daemon does not serve", || ask("pods", 1).is_ok());
    assert_eq!(active(dir, "a", "pods"), claimed, "{}", log_of(dir, "agent"));
    daemon.signal(host, "KILL");
    daemon.finish();
    let fence = format!("{AGENT} fence a --by me --why 'it burns' --config {config}");
    let (is_fenced, printed) = host.try_sh(&format!("{fence} 2>&1"));
    assert!(!is_fenced && printed.contains("has a session") && printed.contains("--force"), "{printed}");
    let fenced: Value = serde_json::from_str(&host.sh(&format!("{fence} --force"))).unwrap();
    assert_eq!(fenced["freed"], claimed);
}

/// The names and types of all figures in the table of the documentation.
fn documented_figures() -> BTreeSet<(String, String)> {
    let rows = include_str!("../../../../docs/agent.md").lines().filter(|line| line.starts_with("| `cnikit_agent_"));
    let mut figures = BTreeSet::new();
    for row in rows {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        figures.insert((cells[1].trim_matches('`').to_owned(), cells[2].to_owned()));
    }
    figures
}

/// Compares the names and types that the program prints with those of the documentation.
fn check_figures(printed: &str, documented: &BTreeSet<(String, String)>) {
    let mut types = BTreeSet::new();
    for line in printed.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' ')) {
            types.insert((name.to_owned(), kind.to_owned()));
        } else if !line.starts_with('#') {
            let name = line.split(['{', ' ']).next().unwrap();
            assert!(types.iter().any(|(typed, _)| typed == name), "{line}: it has no type");
        }
    }
    assert_eq!(&types, documented, "the program, left, and docs/agent.md, right");
}

/// A sample of the figures.
fn sample(printed: &str, name: &str) -> u64 {
    let line = printed.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name}: {printed}")).parse().unwrap()
}

#[test]
fn the_figures_are_served_on_a_socket_and_count_addresses_by_pool_and_family() {
    let cluster = Cluster::start();
    let (host, dir) = (&cluster.host, cluster.host.dir());
    let config = configure(&cluster, "a");
    let pool = r#"{"name":"blue","ranges":[{"subnet":"10.8.0.0/24"},{"subnet":"fd00::/120"}],"blockSize4":28,"blockSize6":124}"#;
    std::fs::write(dir.join("blue.json"), pool).unwrap();
    host.sh(&format!("{AGENT} define {}/blue.json --config {config}", dir.display()));
    let socket = dir.join("figures.sock");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("127.0.0.1:9465", &socket.display().to_string())).unwrap();

    // A file that is no socket is nobody's that has ended.
    std::fs::write(&socket, "mine").unwrap();
    let (is_served, printed) = host.try_sh(&format!("timeout 20 {AGENT} run --config {config} 2>&1"));
    assert!(!is_served && printed.contains("serve figures at"), "{printed}");
    assert_eq!(std::fs::read_to_string(&socket).unwrap(), "mine");
    std::fs::remove_file(&socket).unwrap();

    let daemon = Running::start(host, "agent", &format!("{AGENT} run --config {config}"));
    let pods = Network::new(&dir.join("a"), &json!({}));
    let scrape = || host.sh(&format!("curl -s --unix-socket {} http://agent/metrics", socket.display()));
    host.enter(|| eventually("the daemon does not serve", || pods.status() == Called::Done(Vec::new())));
    let nothing = scrape();
    assert!(!nothing.contains("cnikit_agent_free_addresses{"), "{nothing}");
    host.enter(|| pods.add("container-1").addresses());
    let (free, reserved) = ("cnikit_agent_free_addresses", "cnikit_agent_reserved_addresses");
    let of = |name: &str, family: &str| format!("{name}{{pool=\"blue\",family=\"{family}\"}}");
    eventually("the reservation is not counted", || scrape().contains(&format!("{} 1\n", of(reserved, "v4"))));
    let before = scrape();
    check_figures(&before, &documented_figures());
    assert_eq!(sample(&before, &of(reserved, "v6")), 1);
    host.enter(|| pods.add("container-2").addresses());
    eventually("the second one is not counted", || sample(&scrape(), &of(reserved, "v4")) == 2);
    let after = scrape();
    for family in ["v4", "v6"] {
        let [had, has] = [&before, &after].map(|text| sample(text, &of(free, family)));
        assert!(had < 16 && has == had - 1, "{family}: {had} and then {has}");
    }
    assert!(
        host.sh(&format!("curl -s -o /dev/null -w '%{{http_code}}' --unix-socket {} http://agent/", socket.display()))
            == "404"
    );
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o022, 0, "only root can connect");

    // The next agent replaces the socket of one that was killed.
    daemon.signal(host, "KILL");
    daemon.finish();
    let _daemon = Running::start(host, "agent", &format!("{AGENT} run --config {config}"));
    eventually("the next agent serves no figures", || {
        host.try_sh(&format!("curl -sf --unix-socket {} http://agent/metrics", socket.display())).0
    });
}

#[test]
fn without_a_daemon_a_claim_is_made_once() {
    let cluster = Cluster::start();
    let (host, dir) = (&cluster.host, cluster.host.dir());
    let config = configure(&cluster, "a");
    host.sh(&format!("{AGENT} define {}/blue.json --config {config}", dir.display()));
    let printed = host.sh(&format!("{AGENT} claim --network pods --pool blue --config {config} 2>/dev/null"));
    assert_eq!(printed.trim(), r#"{"done":true}"#);
    assert_eq!(active(dir, "a", "pods"), 1);
    let (success, printed) = host.try_sh(&format!("{AGENT} claim --network pods --pool red --config {config}"));
    assert!(!success && printed.contains("there is no pool red"), "{printed}");
    // A definition without a block that a node has is refused.
    std::fs::write(dir.join("blue.json"), r#"{"name":"blue","ranges":[{"subnet":"10.9.0.0/24"}]}"#).unwrap();
    let (success, printed) = host.try_sh(&format!("{AGENT} define {}/blue.json --config {config} 2>&1", dir.display()));
    assert!(!success && printed.contains("node a has block"), "{printed}");
}

#[test]
fn a_node_does_not_run_with_the_files_of_another_name() {
    let cluster = Cluster::start();
    let (host, dir) = (&cluster.host, cluster.host.dir());
    let config = configure(&cluster, "a");
    host.sh(&format!("{AGENT} define {}/blue.json --config {config}", dir.display()));
    let claim = format!("{AGENT} claim --network pods --pool blue --config {config} 2>&1");
    host.sh(&claim);
    let renamed = std::fs::read_to_string(&config).unwrap().replace(r#""node":"a""#, r#""node":"b""#);
    std::fs::write(&config, renamed).unwrap();
    for command in ["run", "claim --network pods --pool blue"] {
        let (success, printed) = host.try_sh(&format!("{AGENT} {command} --config {config} 2>&1"));
        assert!(!success && printed.contains("are those of node a, and this node is b"), "{command}: {printed}");
        assert!(printed.contains("set `node` in the configuration to a"), "{printed}");
    }
    // A file without a name, as an earlier agent wrote it, gets this one's.
    let file = dir.join("a/.pool/node.json");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace(r#""node":"a","#, "")).unwrap();
    host.sh(&claim);
    assert_eq!(NodeFiles::new(dir.join("a")).node().unwrap().unwrap().node, "b");
}

#[test]
fn the_unit_is_valid_and_exposes_little() {
    let host = cnikit_testing::Host::new();
    let unit = host.dir().join("cnikit-agent.service");
    let text = include_str!("../../systemd/cnikit-agent.service").replace("/opt/cni/bin/cnikit-agent", AGENT);
    std::fs::write(&unit, text).unwrap();
    let (valid, printed) = host.try_sh(&format!("systemd-analyze verify {}", unit.display()));
    assert!(valid && !printed.contains("cnikit-agent.service:"), "{printed}");
    let (is_safe, printed) =
        host.try_sh(&format!("systemd-analyze security --offline=yes --no-pager --threshold=25 {}", unit.display()));
    assert!(is_safe, "{printed}");
}

//! Rules of many attachments are put back by `cnitool restore`, all of a network at once.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

use std::fs;
use std::time::Duration;

use cnikit_process::Deadline;
use cnikit_testkit::Container;
use cnikit_testkit::{Host, firewalld};
use serde_json::{Value, json};

/// The firewall with the same backend.
fn isolated(backend: &Value) -> Value {
    json!({"type": "firewall", "backend": backend, "ingressPolicy": "isolated"})
}

/// How many containers the network has.
const MANY: usize = 6;

/// A host with a network of a bridge, published ports and a firewall, and containers on it.
struct Node {
    host: Host,
    /// Variables that the tool and the plugins get.
    env: String,
    containers: Vec<Container>,
}

impl Node {
    /// `backend` is masquerade's and portmap's, null where the node decides; `firewall` are keys of the other one.
    fn new(host: Host, env: String, backend: &Value, firewall: &Value) -> Node {
        let mut node = Node { host, env, containers: Vec::new() };
        let subnets = json!([[{"subnet": "10.95.0.0/24"}], [{"subnet": "fd00:95::/64"}]]);
        let ipam = json!({"type": "host-local", "ranges": subnets, "dataDir": node.host.dir().join("leases")});
        let plugins = json!([
            {"type": "bridge", "bridge": "cni-r0", "isGateway": true, "ipMasq": true, "ipMasqBackend": backend, "ipam": ipam},
            {"type": "portmap", "backend": backend, "capabilities": {"portMappings": true}},
            firewall,
        ]);
        let list = json!({"cniVersion": "1.1.0", "name": "pods", "plugins": plugins});
        fs::create_dir(node.host.dir().join("net.d")).unwrap();
        fs::write(node.host.dir().join("net.d/10-pods.conflist"), list.to_string()).unwrap();
        for number in 0..MANY {
            let container = node.host.container();
            node.add(&container, number, "cache");
            node.containers.push(container);
        }
        node
    }

    /// Adds a container whose port 80 is published at a port computed from its number.
    fn add(&self, container: &Container, number: usize, cache: &str) {
        let (ok, output) = self.of_one("add", (container, number), cache);
        assert!(ok, "{output}");
    }

    /// A verb for one of them, with the arguments of its ADD.
    fn of_one(&self, verb: &str, (container, number): (&Container, usize), cache: &str) -> (bool, String) {
        let mappings = json!({"portMappings": [{"hostPort": 8000 + number, "containerPort": 80, "protocol": "tcp"}]});
        self.tool(&format!("CAP_ARGS='{mappings}'"), cache, &format!("{verb} pods {}", container.path()))
    }

    /// Runs cnitool with `before` in front of it: variables, or a program that starts it. Returns whether it succeeded, and its
    /// output.
    fn tool(&self, before: &str, cache: &str, line: &str) -> (bool, String) {
        let dir = self.host.dir().display();
        let bin = cnikit_tests::bin().display();
        let flags = format!("--conf-dir {dir}/net.d --cache-dir {dir}/{cache} --plugin-path {bin}");
        let tool = cnikit_tests::program("cnitool");
        self.host.try_sh(&format!("{} {before} {} {flags} {line}", self.env, tool.display()))
    }

    /// The containers for which CHECK reports no difference.
    fn whole(&self) -> Vec<bool> {
        let whole = |(number, one)| self.of_one("check", (one, number), "cache").0;
        self.containers.iter().enumerate().map(whole).collect()
    }

    /// Restores. Returns the calls of plugins by which that was done.
    fn restored(&self) -> Vec<String> {
        let log = self.host.dir().join("log");
        let _ = fs::remove_file(&log);
        let (ok, output) = self.tool(&format!("CNI_LOG=info CNI_LOG_FILE={}", log.display()), "cache", "restore");
        assert!(ok, "{output}");
        let lines = fs::read_to_string(&log).unwrap();
        let calls = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        calls.map(|call| call["plugin"].as_str().unwrap().to_owned()).collect()
    }

    /// Restores. Returns how many programs that was done by which write rules of iptables.
    fn writers(&self) -> usize {
        // A file per process, so that no line is in two parts.
        let calls = self.host.dir().join("calls").display().to_string();
        let starter = format!("strace -ff -qq -e trace=execve -o {calls}");
        let (ok, output) = self.tool(&starter, "cache", "restore");
        assert!(ok, "{output}");
        let lines = self.host.sh(&format!("cat {calls}.*; rm {calls}.*"));
        // A program is looked for in several directories.
        lines.lines().filter(|line| line.contains("tables-restore\", [") && line.ends_with("= 0")).count()
    }

    /// The rules without their counters, sorted.
    fn rules(&self) -> Vec<String> {
        // nft(8) shows what the programs of iptables wrote as rules of nft for the first family that it meets, and for the other
        // one without targets. Which table comes first varies: both are made at the same time.
        let listed = self.host.sh("for family in ip ip6 inet bridge; do nft list ruleset $family; done 2>/dev/null | \
            sed 's/counter packets [0-9]* bytes [0-9]*//'");
        let mut lines: Vec<String> = listed.lines().map(|line| line.trim().to_owned()).collect();
        lines.sort();
        lines
    }
}

#[test]
fn flushed_rules_of_many_are_restored_by_one_call_per_plugin() {
    for backend in [json!("nftables"), json!("iptables"), Value::Null] {
        let node = Node::new(Host::new(), String::new(), &backend, &isolated(&backend));
        let rules = node.rules();
        let links = node.host.sh("ip -o link");
        assert_eq!(node.restored(), ["bridge", "portmap", "firewall"], "{backend}");
        assert_eq!(node.rules(), rules, "{backend}: what stands stays");
        node.host.sh("nft flush ruleset");
        assert_eq!(node.whole(), [false; MANY], "{backend}");
        assert_eq!(node.restored(), ["bridge", "portmap", "firewall"], "{backend}");
        assert_eq!(node.rules(), rules, "{backend}");
        assert_eq!(node.whole(), [true; MANY], "{backend}");
        assert_eq!(node.host.sh("ip -o link"), links, "{backend}");
    }
}

#[test]
fn rules_of_iptables_are_restored_by_few_programs_however_many_they_are_for() {
    let iptables = json!("iptables");
    for backend in [&iptables, &Value::Null] {
        let node = Node::new(Host::new(), String::new(), &iptables, &isolated(backend));
        let rules = node.rules();
        node.host.sh("nft flush ruleset");
        // For each family masquerade has one set of rules; portmap and the firewall with isolation have two.
        assert_eq!(node.writers(), 10, "{backend}");
        assert_eq!(node.rules(), rules, "{backend}");
        assert_eq!(node.writers(), 0, "{backend}: nothing is missing");
    }
}

#[test]
fn missing_rules_of_one_are_restored_beside_those_of_the_others() {
    let node = Node::new(Host::new(), String::new(), &json!("nftables"), &isolated(&json!("nftables")));
    let rules = node.rules();
    for table in ["ip cni_hostport", "ip6 cni_hostport", "inet cni_plugins_masquerade", "inet cni_firewall"] {
        let found = node.host.sh(&format!("nft --handle list table {table}"));
        // Each chain loses the rules of one container.
        let mut chain = String::new();
        let mut seen = Vec::new();
        for line in found.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix("chain ") {
                chain = name.split(' ').next().unwrap().to_owned();
            } else if let Some((rule, handle)) = line.split_once(" # handle ")
                && rule.contains("95:") | rule.contains("10.95.")
                && !seen.contains(&chain)
            {
                seen.push(chain.clone());
                node.host.sh(&format!("nft delete rule {table} {chain} handle {handle}"));
            }
        }
        assert!(!seen.is_empty(), "{table}: {found}");
    }
    assert_ne!(node.rules(), rules);
    assert!(node.whole().contains(&false));
    node.restored();
    assert_eq!(node.rules(), rules);
    assert_eq!(node.whole(), [true; MANY]);
}

#[test]
fn restore_names_a_taken_port_and_restores_all_others() {
    for backend in [json!("nftables"), json!("iptables")] {
        let node = Node::new(Host::new(), String::new(), &backend, &isolated(&backend));
        node.host.sh("nft flush ruleset");
        let thief = node.host.container();
        node.add(&thief, 2, "elsewhere");
        let (ok, output) = node.tool("", "cache", "restore");
        let errors: Vec<&str> = output.lines().filter(|line| line.starts_with("Error:")).collect();
        assert!(!ok && errors.len() == 1, "{backend}: {output}");
        assert!(errors[0].contains("tcp 8002 of the host leads to"), "{backend}: {output}");
        let whole: Vec<bool> = (0..MANY).map(|number| number != 2).collect();
        assert_eq!(node.whole(), whole, "{backend}");
        let (ok, output) = node.of_one("check", (&thief, 2), "elsewhere");
        assert!(ok, "{backend}: {output}");
    }
}

/// A host with firewalld, the processes that it needs, and the variables for its clients.
fn with_firewalld() -> (Node, (firewalld::Bus, firewalld::FirewalldDaemon)) {
    let host = Host::new();
    let bus = firewalld::Bus::start(&host);
    let running = firewalld::FirewalldDaemon::start(&host, &bus);
    let env = format!("DBUS_SYSTEM_BUS_ADDRESS={}", bus.address);
    let node = Node::new(host, env, &json!("nftables"), &json!({"type": "firewall"}));
    assert_eq!(node.whole(), [true; MANY]);
    (node, (bus, running))
}

impl Node {
    /// As `firewall-cmd --reload`.
    fn reload(&self) {
        self.host.sh(&format!(
            "{} dbus-send --system --print-reply --dest=org.fedoraproject.FirewallD1 /org/fedoraproject/FirewallD1 \
             org.fedoraproject.FirewallD1.reload",
            self.env
        ));
    }
}

#[test]
fn a_reload_of_firewalld_takes_sources_and_restore_brings_them_back() {
    let (node, _running) = with_firewalld();
    node.reload();
    assert_eq!(node.whole(), [false; MANY]);
    node.restored();
    assert_eq!(node.whole(), [true; MANY]);
    let markers = node.host.sh("nft list table inet cni_firewalld");
    assert_eq!(markers.matches(" saddr ").count(), 2 * MANY, "no other backend has the rules: {markers}");
}

/// A service as systemd runs it, ended with all that it started when the test is.
struct Unit<'a> {
    host: &'a Host,
    group: String,
}

impl Unit<'_> {
    fn start<'a>(node: &'a Node, script: &str) -> Unit<'a> {
        let file = node.host.dir().join("unit");
        fs::write(&file, script).unwrap();
        let started = format!("{} setsid sh {} >/dev/null 2>&1 & echo $!", node.env, file.display());
        Unit { host: &node.host, group: node.host.sh(&started).trim().to_owned() }
    }
}

impl Drop for Unit<'_> {
    fn drop(&mut self) {
        self.host.try_sh(&format!("kill -KILL -- -{}", self.group));
    }
}

#[test]
fn the_unit_of_the_docs_restores_whenever_firewalld_has_reloaded() {
    let (node, _running) = with_firewalld();
    let docs = include_str!("../../docs/cnitool.md");
    let line = docs.lines().find_map(|line| line.strip_prefix("ExecStart=/bin/sh -c '")?.strip_suffix('\''));
    let dir = node.host.dir().display();
    let bin = cnikit_tests::bin().display();
    let flags = format!("--conf-dir {dir}/net.d --cache-dir {dir}/cache --plugin-path {bin}");
    let tool =
        format!("{} {flags} restore; echo restored >>{dir}/restored", cnikit_tests::program("cnitool").display());
    let script = line.unwrap().replace("$$", "$").replace("/usr/local/bin/cnitool restore", &tool);
    assert!(script.contains(&tool), "{script}");
    let _unit = Unit::start(&node, &script);
    let deadline = Deadline::after(Duration::from_mins(1));
    let restored = || fs::read_to_string(node.host.dir().join("restored")).unwrap_or_default().lines().count();
    // Until it listens no reload is heard.
    while restored() == 0 {
        node.reload();
        assert!(deadline.pause(Duration::from_millis(200)), "{script}");
    }
    let before = restored();
    node.reload();
    while restored() == before || node.whole() != [true; MANY] {
        assert!(deadline.pause(Duration::from_millis(200)), "{:?}", node.whole());
    }
}

//! cnitool with our plugins: they accept its configurations, and it shows their attachments.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use cnikit_libcni::{Attachment, Cache, InProcess, NetworkList, PluginOutput, Runtime, load};
use cnikit_testkit::Host;
use cnikit_testkit::syscall_trace::{self, SyscallVerdict};
use serde_json::{Value, json};

/// A host with the tool on it.
struct Node {
    host: Host,
}

impl Node {
    fn new() -> Node {
        Node { host: Host::new() }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.host.dir().join("net.d").join(name)
    }

    /// The output of cnitool, which must succeed.
    fn tool(&self, line: &str) -> String {
        let (ok, output) = self.try_tool(line);
        assert!(ok, "{line}: {output}");
        output
    }

    /// Whether cnitool succeeds, and its output: of stdout if it does, else of stderr.
    fn try_tool(&self, line: &str) -> (bool, String) {
        let dir = self.host.dir().display();
        let bin = cnikit_tests::bin().display();
        let tool = cnikit_tests::program("cnitool");
        let flags = format!("--conf-dir {dir}/net.d --cache-dir {dir}/cache --plugin-path {bin}");
        self.host.try_sh(&format!("{} {flags} {line}", tool.display()))
    }

    fn json(&self, line: &str) -> Value {
        serde_json::from_str(&self.tool(&format!("--json {line}"))).unwrap()
    }

    /// Writes the configuration of a network with `init`. Its reservations are on this host.
    fn init(&self, plugin: &str) {
        let flags = "--subnet 10.94.0.0/24 --subnet fd00:94::/64 --cni-version 1.1.0";
        self.tool(&format!("init --name pods --plugin {plugin} --bridge cni-t0 {flags} --yes"));
        let subnets = json!([[{"subnet": "10.94.0.0/24"}], [{"subnet": "fd00:94::/64"}]]);
        self.set("ipam", json!({"type": "host-local", "ranges": subnets, "dataDir": self.host.dir().join("leases")}));
        self.set("ipMasqBackend", "nftables".into());
    }

    /// Sets a key of the network's first plugin.
    fn set(&self, key: &str, value: Value) {
        let file = self.file("10-pods.conflist");
        let mut document: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        document["plugins"][0][key] = value;
        fs::write(file, document.to_string()).unwrap();
    }

    /// The rules as they stand, with the kernel's number of each.
    fn rules(&self) -> String {
        self.host.sh("nft --handle list ruleset")
    }
}

#[test]
fn the_configuration_of_init_works_with_our_plugins() {
    for plugin in ["bridge", "ptp"] {
        let node = Node::new();
        node.init(plugin);
        assert!(node.tool("validate").ends_with("nothing is wrong\n"), "{plugin}");
        assert!(node.tool("config explain").contains("network pods is the default"), "{plugin}");
        let alice = node.host.container();
        let bob = node.host.container();
        let plan = node.json(&format!("plan pods {}", alice.path()));
        assert!(plan["plugins"][0]["steps"].as_array().unwrap().len() > 3, "{plugin}: {plan}");
        for container in [&alice, &bob] {
            node.tool(&format!("add pods {}", container.path()));
        }
        let list = node.json("list --live");
        for one in list["attachments"].as_array().unwrap() {
            assert_eq!((&one["link"], &one["state"]), (&"up".into(), &"attached".into()), "{plugin}: {one}");
        }
        assert!(alice.reaches("10.94.0.3") && alice.reaches("fd00:94::3"), "{plugin}");
        node.tool("status pods");
        for container in [&alice, &bob] {
            node.tool(&format!("check pods {}", container.path()));
            node.tool(&format!("del pods {}", container.path()));
        }
        assert_eq!(node.json("list")["attachments"], Value::Array(Vec::new()));
        assert!(!node.host.sh("ip -o link").contains("veth"), "{plugin}");
    }
}

#[test]
fn each_plugin_of_a_chain_plans_with_the_expected_previous_result() {
    let node = Node::new();
    node.init("bridge");
    let file = node.file("10-pods.conflist");
    let mut document: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let behind = json!([
        {"type": "firewall", "backend": "nftables", "ingressPolicy": "isolated"},
        {"type": "portmap", "backend": "nftables", "capabilities": {"portMappings": true}},
        {"type": "tuning", "mtu": 1400, "dataDir": node.host.dir().join("tuning")},
    ]);
    let plugins = document["plugins"].as_array_mut().unwrap();
    plugins.truncate(1);
    plugins.extend(behind.as_array().unwrap().iter().cloned());
    fs::write(&file, document.to_string()).unwrap();
    let alice = node.host.container();
    let plan = node.json(&format!("plan pods {}", alice.path()));
    let steps = |place: usize| plan["plugins"][place]["steps"].to_string();
    assert!(steps(1).contains("accept packets from 10.94.0.2, fd00:94::2 and the answers"), "{plan}");
    assert!(steps(1).contains("isolated on its bridge"), "{plan}");
    assert!(!plan.to_string().contains("error"), "{plan}");
    // Alone, nothing is known of the addresses.
    document["plugins"].as_array_mut().unwrap().remove(0);
    fs::write(&file, document.to_string()).unwrap();
    let plan = node.json(&format!("plan pods {}", alice.path()));
    assert!(plan.to_string().contains("accept packets from the container and the answers"), "{plan}");
}

#[test]
fn show_has_the_links_and_rules_of_our_plugins() {
    let node = Node::new();
    node.init("bridge");
    let container = node.host.container();
    node.tool(&format!("add pods {}", container.path()));
    let shown = node.json(&format!("show {}", container.path()));
    let one = &shown["attachments"][0];
    assert!(one["peer"]["alias"].as_str().unwrap().starts_with("cnikit:"), "{one}");
    assert_eq!((&one["bridge"]["name"], &one["problems"]), (&"cni-t0".into(), &Value::Array(Vec::new())));
    let rules = one["rules"].to_string();
    assert!(rules.contains("cni_plugins_masquerade") && rules.contains("masquerade"), "{rules}");
    let usage = node.json("ipam usage --network pods");
    let taken: Vec<&Value> =
        usage["networks"][0]["ranges"].as_array().unwrap().iter().map(|one| &one["taken"]).collect();
    assert_eq!(taken, [1, 1]);
    node.tool(&format!("del pods {}", container.path()));
}

#[test]
fn check_all_verifies_what_upstream_added_for_a_runtime() {
    for reference in cnikit_tests::references() {
        let node = Node::new();
        node.init("bridge");
        node.set("ipMasq", false.into());
        // 1.1.1 has no newer version.
        let file = node.file("10-pods.conflist");
        fs::write(&file, fs::read_to_string(&file).unwrap().replace("1.1.0", "1.0.0")).unwrap();
        let list = load(&node.host.dir().join("net.d"), "pods").unwrap();
        let cache = Cache::below(&node.host.dir().join("cache"));
        let upstream = Runtime::new(reference.display().to_string(), cache);
        let containers = [node.host.container(), node.host.container()];
        for (n, container) in containers.iter().enumerate() {
            let at = Attachment::new(format!("pod-{n}"), container.path());
            node.host.enter(|| upstream.add(&list, &at)).unwrap();
        }
        let report = node.tool("check --all");
        let expected = "pods/pod-0/eth0 passed\npods/pod-1/eth0 passed\n2 passed, 0 failed, 0 skipped\n";
        assert_eq!(report, expected, "{}", reference.display());
        containers[1].sh("ip -4 address flush dev eth0");
        let (ok, report) = node.try_tool("check --all");
        assert!(!ok && report.contains("pods/pod-0/eth0 passed\npods/pod-1/eth0 failed\n"), "{report}");
        assert!(report.contains("Error: pods/pod-1/eth0: ") && report.contains("wanted 10.94.0.3/24"), "{report}");
        for (n, container) in containers.iter().enumerate() {
            let ours = Runtime { path: cnikit_tests::bin().display().to_string(), ..upstream.clone() };
            let at = Attachment::new(format!("pod-{n}"), container.path());
            node.host.enter(|| ours.del(&list, &at)).unwrap();
        }
    }
}

/// How many system calls the tool makes on a host with so many attachments and their addresses.
fn calls(attachments: u32, words: &str) -> usize {
    let node = Node::new();
    let dir = node.host.dir();
    let leases = node.host.dir().join("leases");
    fs::create_dir_all(dir.join("net.d")).unwrap();
    fs::create_dir_all(leases.join("pods")).unwrap();
    let plugin = json!({"type": "bridge", "ipam": {"type": "host-local", "dataDir": leases, "subnet": "10.94.0.0/16"}});
    let conf = json!({"cniVersion": "1.1.0", "name": "pods", "plugins": [plugin]}).to_string();
    fs::write(node.file("10-pods.conflist"), &conf).unwrap();
    let answer = br#"{"cniVersion": "1.1.0", "ips": [{"address": "10.94.1.1/16"}]}"#.to_vec();
    let bridge =
        InProcess::default().with("bridge", move |_| Ok(PluginOutput { stdout: answer.clone(), stderr: Vec::new() }));
    let runtime = Runtime { executor: Arc::new(bridge), ..Runtime::new("", Cache::below(&dir.join("cache"))) };
    let list = NetworkList::parse(conf.as_bytes()).unwrap();
    let container = node.host.container();
    for n in 0..attachments {
        runtime.add(&list, &Attachment::new(format!("c-{n}"), container.path())).unwrap();
        fs::write(leases.join(format!("pods/10.94.1.{n}")), format!("c-{n}\r\neth0")).unwrap();
    }
    let script = dir.join("script");
    let dir = dir.display();
    let flags = format!("--conf-dir {dir}/net.d --cache-dir {dir}/cache");
    let tool = cnikit_tests::program("cnitool");
    fs::write(&script, format!("#!/bin/sh\nexec {} {flags} {words}\n", tool.display())).unwrap();
    fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let (output, trace) =
        node.host.enter(|| syscall_trace::run(&script, &[], b"", &[], |_| SyscallVerdict::GoOn)).unwrap();
    let lines = output.stdout.matches("c-").count();
    assert_eq!((output.exit, lines), (0, attachments as usize), "{words}: {output:?}");
    // A debug build calls fcntl(2) before it closes a file, to find out whether it is open.
    trace.calls().filter(|(_, _, number)| syscall_trace::name(*number) != "fcntl").count()
}

#[test]
fn list_and_usage_need_few_system_calls_per_attachment() {
    // Per file: open, stat, read, close. Per namespace: one stat.
    for (words, each) in [("list", 5), ("ipam usage", 9)] {
        let few = calls(20, words);
        let many = calls(220, words);
        let asked = many - few;
        let most = 200 * each;
        // In addition, calls that list directories and allocate memory become more as these grow.
        assert!(asked <= most + 40, "{words}: {asked} system calls for 200 attachments more; {most} were enough");
    }
}

#[test]
fn flushed_rules_are_restored_and_nothing_else_is_changed() {
    for (backend, flush) in
        [("nftables", "nft flush ruleset"), ("iptables", "nft flush ruleset"), ("iptables", "iptables -t nat -F")]
    {
        let node = Node::new();
        node.init("bridge");
        node.set("ipMasqBackend", backend.into());
        node.set("macspoofchk", true.into());
        let containers = [node.host.container(), node.host.container()];
        for container in &containers {
            node.tool(&format!("add pods {}", container.path()));
        }
        let whole = node.rules();
        let links = node.host.sh("ip -o link");
        node.tool("restore");
        assert_eq!(node.rules(), whole, "{backend}: what stands stays");
        node.host.sh(flush);
        for container in &containers {
            let (ok, output) = node.try_tool(&format!("check pods {}", container.path()));
            assert!(!ok && output.contains("missing"), "{backend}, {flush}: {output}");
        }
        let report = node.json("restore");
        assert_eq!(report["attachments"].as_array().unwrap().len(), 2, "{report}");
        for container in &containers {
            node.tool(&format!("check pods {}", container.path()));
        }
        assert_eq!(node.host.sh("ip -o link"), links, "{backend}");
        for container in &containers {
            node.tool(&format!("del pods {}", container.path()));
        }
        let left = node.host.sh("nft list ruleset");
        assert!(!left.contains("10.94.0.") && !left.contains("macspoofchk"), "{backend}, {flush}: {left}");
    }
}

//! A node is upgraded from an earlier release to this one and downgraded again while containers run. How its files are exchanged
//! on a node in use is tested by `switching`.
//!
//! The earlier release is commit b2fe807, built by `scripts/test`. In a clone without history it cannot be built; then these
//! tests are reported as not run.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]
#![expect(clippy::print_stdout, reason = "what was not run is part of what a test program says")]

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use cnikit_testkit::mixed::replaced;
use cnikit_testkit::snapshot::HINTS;
use cnikit_testkit::{Container, Host, HostSnapshot, Subject};
use cnikit_tests::campaign_subjects::{connected, crowded_firewall, masquerading, spoof_checking_bridge};
use cnikit_tests::{MASTER_OF_MACVLANS, bin, earlier, flannel, macvlan, program};
use libtest_mimic::{Arguments, Completion, Trial};
use serde_json::{Value, json};

fn main() -> ExitCode {
    let is_here = earlier().join(".complete").exists();
    let trials: Vec<Trial> = tests()
        .into_iter()
        .map(|(name, run)| {
            Trial::ignorable_test(name, move || {
                if !is_here {
                    return Ok(Completion::ignored_with("needs the history of the repository"));
                }
                run();
                Ok(Completion::Completed)
            })
        })
        .collect();
    if !is_here {
        println!("releases: {} not run here for want of b2fe807\n", trials.len());
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

type Test = (String, Box<dyn FnOnce() + Send>);

fn tests() -> Vec<Test> {
    let mut tests: Vec<Test> = Vec::new();
    for subject in subjects() {
        let name = format!("plugins_are_exchanged_under_running_containers::{}", subject.title.replace(' ', "_"));
        tests.push((name, Box::new(move || exchange(&subject))));
    }
    tests.push(("a_node_of_twenty_containers::to_this_release_and_back".into(), Box::new(|| node(true))));
    tests.push(("a_node_of_twenty_containers::to_the_earlier_release_and_back".into(), Box::new(|| node(false))));
    tests
}

/// Configurations that both releases support. Not portmap: the earlier release has no guard of the host's loopback, so CHECK by
/// this release reports a difference until RESTORE. Its ports are in [`Node`].
fn subjects() -> Vec<Subject> {
    let mut subjects = vec![macvlan(), spoof_checking_bridge(), flannel()];
    for backend in ["nftables", "iptables"] {
        subjects.extend(["bridge", "ptp"].map(|plugin| masquerading(plugin, backend)));
        subjects.push(connected(&crowded_firewall(bin(), backend).background("")));
    }
    subjects
}

/// Either release may begin, and the GC of the one that began meets containers of both.
fn exchange(subject: &Subject) {
    // The link of a container that was connected by hand is removed some time after its namespace.
    let may_differ: &[&str] = if subject.after.is_some() { &["toward"] } else { &HINTS };
    let earlier = earlier();
    replaced(subject, bin(), &earlier, true, may_differ);
    replaced(subject, &earlier, bin(), true, may_differ);
}

/// A release of plugins with its tool.
#[derive(Clone, Copy)]
struct Release<'a> {
    plugins: &'a Path,
    tool: &'a Path,
    is_earlier: bool,
}

/// How many containers each network has.
const NETWORKS: [(&str, usize); 4] = [("nft", 6), ("legacy", 5), ("routed", 5), ("upper", 4)];

/// A host with four networks, which have a kind of every sort between them.
struct Node {
    host: Host,
    containers: Vec<Attached>,
}

struct Attached {
    network: &'static str,
    container: Container,
    /// Its number, from which its published port is computed.
    number: usize,
    /// Its published port is not guarded: the earlier release made its rules last.
    lacks_guard: bool,
}

impl Node {
    fn new() -> Node {
        let node = Node { host: Host::new(), containers: Vec::new() };
        node.host.sh(MASTER_OF_MACVLANS);
        fs::create_dir(node.host.dir().join("net.d")).unwrap();
        for (place, (network, _)) in NETWORKS.iter().enumerate() {
            let list = json!({"cniVersion": "1.1.0", "name": network, "plugins": node.plugins(network, place)});
            fs::write(node.host.dir().join(format!("net.d/{network}.conflist")), list.to_string()).unwrap();
        }
        node
    }

    fn plugins(&self, network: &str, place: usize) -> Value {
        let subnets = json!([[{"subnet": format!("10.6{place}.0.0/24")}], [{"subnet": format!("fd00:6{place}::/64")}]]);
        let ipam = json!({"type": "host-local", "ranges": subnets, "dataDir": self.host.dir().join("leases")});
        let chained = |backend: &str, policy: &str| {
            [
                json!({"type": "portmap", "backend": backend, "capabilities": {"portMappings": true}}),
                json!({"type": "firewall", "backend": backend, "ingressPolicy": policy}),
            ]
        };
        let tuning = json!({"type": "tuning", "mtu": 1400, "sysctl": {"net.ipv4.conf.IFNAME.arp_notify": "1"},
                            "dataDir": self.host.dir().join("tuning")});
        let bridge = |name: &str, backend: &str| {
            json!({"type": "bridge", "bridge": name, "isGateway": true, "ipMasq": true, "ipMasqBackend": backend,
                   "macspoofchk": backend == "nftables", "ipam": ipam})
        };
        let mut plugins = match network {
            "nft" => vec![bridge("cni-r0", "nftables")],
            "legacy" => vec![bridge("cni-r1", "iptables")],
            "routed" => vec![json!({"type": "ptp", "ipMasq": true, "ipMasqBackend": "nftables", "ipam": ipam})],
            _ => {
                vec![json!({"type": "macvlan", "master": "master0", "enabledad": false, "ipam": ipam}), tuning.clone()]
            }
        };
        match network {
            "nft" => plugins.extend(chained("nftables", "isolated").into_iter().chain([tuning])),
            "legacy" => plugins.extend(chained("iptables", "isolated")),
            "routed" => plugins.extend(chained("nftables", "open").into_iter().chain([tuning])),
            _ => {}
        }
        plugins.into()
    }

    /// Runs a release's tool; it has to succeed.
    fn tool(&self, by: Release, env: &str, line: &str) -> String {
        let (succeeded, output) = self.try_tool(by, env, line);
        assert!(succeeded, "{} {line}: {output}", by.tool.display());
        output
    }

    fn try_tool(&self, by: Release, env: &str, line: &str) -> (bool, String) {
        let dir = self.host.dir().display();
        let flags = format!("--conf-dir {dir}/net.d --cache-dir {dir}/cache --plugin-path {}", by.plugins.display());
        self.host.try_sh(&format!("{env} {} {flags} {line}", by.tool.display()))
    }

    /// A verb for one container, with the runtimeConfig of its ADD.
    fn about(&self, by: Release, verb: &str, one: &Attached) -> (bool, String) {
        let mappings =
            json!({"portMappings": [{"hostPort": 8000 + one.number, "containerPort": 80, "protocol": "tcp"}]});
        self.try_tool(
            by,
            &format!("CAP_ARGS='{mappings}'"),
            &format!("{verb} {} {}", one.network, one.container.path()),
        )
    }

    fn add(&mut self, by: Release, network: &'static str, number: usize) {
        let lacks_guard = by.is_earlier && network != "upper";
        let one = Attached { network, container: self.host.container(), number, lacks_guard };
        let (succeeded, output) = self.about(by, "add", &one);
        assert!(succeeded, "{network} {number}: {output}");
        self.containers.push(one);
    }

    fn del_first(&mut self, by: Release, count: usize) {
        for one in self.containers.drain(..count).collect::<Vec<_>>() {
            let (succeeded, output) = self.about(by, "del", &one);
            assert!(succeeded, "{} {}: {output}", one.network, one.number);
        }
    }

    /// CHECK reports no difference in any container.
    fn check_all(&self, by: Release, when: &str) {
        for one in &self.containers {
            let (succeeded, output) = self.about(by, "check", one);
            assert!(succeeded, "{when}, by {}: {} {}: {output}", by.plugins.display(), one.network, one.number);
        }
    }

    /// The number of containers for which CHECK reports differences.
    fn changed(&self, by: Release) -> usize {
        self.containers.iter().filter(|one| !self.about(by, "check", one).0).count()
    }

    /// All verbs but ADD, over containers that the other release made.
    fn take_over(&mut self, by: Release) {
        let unguarded = self.containers.iter().filter(|one| one.lacks_guard && !by.is_earlier).count();
        assert_eq!(self.changed(by), unguarded, "CHECK by {} before any change", by.plugins.display());
        self.tool(by, "", "restore");
        self.check_all(by, "taken over");
        self.host.sh("nft flush ruleset");
        let with_rules = self.containers.iter().filter(|one| one.network != "upper").count();
        assert_eq!(self.changed(by), with_rules, "CHECK sees that the rules are gone");
        self.tool(by, "", "restore");
        self.containers.iter_mut().for_each(|one| one.lacks_guard = by.is_earlier && one.network != "upper");
        self.check_all(by, "restored");
        NETWORKS.iter().for_each(|(network, _)| drop(self.tool(by, "", &format!("gc {network}"))));
        self.check_all(by, "after GC");
    }
}

/// Twenty containers of one release are taken over by the other, which deletes half of them and adds others, and then by the first
/// again, which deletes all. The host is then in the state in which it was after both had used each network once.
fn node(earlier_first: bool) {
    let earlier = earlier();
    let tool = program("cnitool");
    let old = Release { plugins: &earlier, tool: &earlier.join("cnitool"), is_earlier: true };
    let new = Release { plugins: bin(), tool: &tool, is_earlier: false };
    let (begins, other) = if earlier_first { (old, new) } else { (new, old) };
    let mut node = Node::new();
    for by in [begins, other] {
        for (network, _) in NETWORKS {
            node.add(by, network, 100);
            node.del_first(by, 1);
        }
    }
    let before = HostSnapshot::of(&node.host);
    let mut number = 0;
    for (network, count) in NETWORKS {
        for _ in 0..count {
            number += 1;
            node.add(begins, network, number);
        }
    }
    assert_eq!(node.containers.len(), 20);
    node.take_over(other);
    node.del_first(other, 10);
    for (network, _) in NETWORKS {
        number += 1;
        node.add(other, network, number);
    }
    node.take_over(begins);
    let all = node.containers.len();
    node.del_first(begins, all);
    // The earlier release does not restore this setting; this one does.
    let may_differ = [HINTS[0], HINTS[1], "route_localnet"];
    assert_eq!(HostSnapshot::leftovers(&node.host, &before, &may_differ), None);
}

//! A node whose plugins are exchanged while it is in use: containers run, traffic flows, and others start and end meanwhile.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use cnikit_testkit::{Container, Host};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::{copy_program, program};

/// The networks, and how many containers each has.
const NETWORKS: [(&str, usize); 2] = [("bridged", 10), ("routed", 10)];
/// How often each network gets one more container before, and again after, the exchange.
const ROUNDS: usize = 2;

/// A node with twenty containers.
pub struct SwitchedNode {
    host: Host,
    /// The directory of plugins, which is what is exchanged.
    plugins: PathBuf,
    /// The runtime's cache, from which an uninstallation learns of the containers.
    cache: PathBuf,
    containers: Vec<(&'static str, Container)>,
}

impl SwitchedNode {
    /// Starts the containers, with the plugins in the directory `plugins` of the node's root directory.
    pub fn new(root: &Path, plugins: &str) -> SwitchedNode {
        let host = Host::new();
        let [plugins, cache] = [plugins, "var/lib/cni"].map(|path| root.join(path.trim_start_matches('/')));
        fs::create_dir(host.dir().join("net.d")).unwrap();
        for (place, (network, _)) in NETWORKS.iter().enumerate() {
            let subnets =
                json!([[{"subnet": format!("10.5{place}.0.0/24")}], [{"subnet": format!("fd00:5{place}::/64")}]]);
            let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
            let ipam = json!({"type": "host-local", "ranges": subnets, "routes": routes, "dataDir": host.dir().join("leases")});
            let first = match *network {
                "bridged" => {
                    json!({"type": "bridge", "bridge": "cni-s0", "isGateway": true, "ipMasq": true, "ipam": ipam})
                }
                _ => json!({"type": "ptp", "ipMasq": true, "ipam": ipam}),
            };
            let firewall = json!({"type": "firewall", "backend": "iptables"});
            let list = json!({"cniVersion": "1.0.0", "name": network, "plugins": [first, firewall]});
            fs::write(host.dir().join(format!("net.d/{network}.conflist")), list.to_string()).unwrap();
        }
        let mut node = SwitchedNode { host, plugins, cache, containers: Vec::new() };
        for (network, count) in NETWORKS {
            for _ in 0..count {
                let container = node.host.container();
                node.call("add", network, &container);
                node.containers.push((network, container));
            }
        }
        node
    }

    /// Exchanges the plugins, while each container pings the gateway of its network, others start and end, and a plugin is executed
    /// again and again. Not one ADD or DEL fails, and no packet is lost. Returns what `exchange` returns.
    pub fn exchange<T>(&self, exchange: impl FnOnce() -> T) -> T {
        let pings = self.pings();
        let is_done = AtomicBool::new(false);
        let exchanged = thread::scope(|scope| {
            let until = Until(&is_done);
            let users: Vec<_> = NETWORKS
                .iter()
                .map(|(network, _)| {
                    let is_done = &is_done;
                    scope.spawn(move || self.use_until(network, is_done))
                })
                .collect();
            let plugin = self.plugins.join("bridge");
            let executed = scope.spawn({
                let is_done = &is_done;
                move || execute_until(&plugin, is_done)
            });
            for (network, _) in NETWORKS {
                (0..ROUNDS).for_each(|_| self.one_more(network));
            }
            let exchanged = exchange();
            for (network, _) in NETWORKS {
                (0..ROUNDS).for_each(|_| self.one_more(network));
            }
            drop(until);
            for user in users {
                let times = user.join().unwrap();
                assert!(times > 0, "no container was started meanwhile");
            }
            let (_, failures) = executed.join().unwrap();
            assert_eq!(failures, Vec::<String>::new(), "the plugin was not always there");
            exchanged
        });
        pings.into_iter().for_each(Ping::end);
        exchanged
    }

    /// The same, while no container starts or ends: for a way that leaves a moment without a plugin.
    pub fn exchange_between_calls<T>(&self, exchange: impl FnOnce() -> T) -> T {
        let pings = self.pings();
        NETWORKS.iter().for_each(|(network, _)| self.one_more(network));
        let exchanged = exchange();
        NETWORKS.iter().for_each(|(network, _)| self.one_more(network));
        pings.into_iter().for_each(Ping::end);
        exchanged
    }

    fn use_until(&self, network: &str, is_done: &AtomicBool) -> usize {
        let mut times = 0;
        while !is_done.load(Ordering::Relaxed) {
            self.one_more(network);
            times += 1;
        }
        times
    }

    /// A container starts and ends.
    fn one_more(&self, network: &str) {
        let container = self.host.container();
        self.call("add", network, &container);
        self.call("del", network, &container);
    }

    /// Deletes all containers. No reservation of an address is left.
    pub fn end(self) {
        for (network, container) in &self.containers {
            self.call("del", network, container);
        }
        for (network, _) in NETWORKS {
            for entry in fs::read_dir(self.host.dir().join("leases").join(network)).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                assert!(!name.starts_with("10.") && !name.starts_with("fd00"), "{network}: {name} is left");
            }
        }
    }

    fn call(&self, verb: &str, network: &str, container: &Container) {
        let dir = self.host.dir().display();
        let [cache, plugins] = [&self.cache, &self.plugins].map(|path| path.display());
        let flags = format!("--conf-dir {dir}/net.d --cache-dir {cache} --plugin-path {plugins}");
        let tool = program("cnitool");
        let line = format!("{} {flags} {verb} {network} {}", tool.display(), container.path());
        let (succeeded, output) = self.host.try_sh(&line);
        assert!(succeeded, "{verb} {network}: {output}");
    }

    /// Each container pings the gateway of its network.
    fn pings(&self) -> Vec<Ping> {
        let mut pings = Vec::new();
        for (network, container) in &self.containers {
            let place = NETWORKS.iter().position(|(name, _)| name == network).unwrap();
            let address = format!("10.5{place}.0.1");
            let mut ping = Command::new("nsenter");
            ping.arg(format!("--net={}", container.path())).args(["ping", "-n", "-i", "0.05", &address]);
            pings.push(Ping { process: ping.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap() });
        }
        pings
    }
}

/// A stream of packets.
struct Ping {
    process: Child,
}

impl Ping {
    /// Every packet was answered.
    fn end(self) {
        kill(Pid::from_raw(self.process.id().try_into().unwrap()), Signal::SIGINT).unwrap();
        let text = String::from_utf8(self.process.wait_with_output().unwrap().stdout).unwrap();
        let line = text.lines().find(|line| line.contains("packets transmitted")).unwrap_or(&text);
        let counts: Vec<usize> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        // The last one may have been on its way.
        assert!(counts.len() >= 2 && counts[0] > 8 && counts[0] - counts[1] <= 1, "{line}");
    }
}

/// Work of other threads goes on until this ends, also by a panic.
pub struct Until<'o>(pub &'o AtomicBool);

impl Drop for Until<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Puts the plugins of a directory into another one, each a file of its own, as a package or an archive does.
pub fn copy_plugins(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        copy_program(&entry.path(), &to.join(entry.file_name()));
    }
}

/// Executes a plugin again and again, as a busy node does, until `stop` is set. Returns the number of runs, and each failure.
pub fn execute_until(plugin: &Path, stop: &AtomicBool) -> (usize, Vec<String>) {
    let mut times = 0;
    let mut failures = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let mut call = Command::new(plugin);
        call.env_clear().env("CNI_COMMAND", "VERSION").stdin(Stdio::null());
        match call.output() {
            Ok(printed) if printed.status.success() && printed.stdout.contains(&b'}') => times += 1,
            other => failures.push(format!("{other:?}")),
        }
    }
    (times, failures)
}

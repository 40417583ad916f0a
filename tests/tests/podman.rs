//! Podman with its CNI backend drives the plugins: ours, and upstream's alone as a control. If a test fails with upstream too, the
//! test is wrong.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]
#![expect(clippy::print_stdout, reason = "what each scene took is part of what a test program says")]

use std::process::ExitCode;
use std::time::Instant;

use cnikit_testkit::{Host, HostSnapshot};
use cnikit_tests::POOL_FILES;
use cnikit_tests::dnsmasq::{DHCP_SERVER, Dnsmasq, dhcp_server_on_wire};
use cnikit_tests::mixed::UpstreamRelease;
use cnikit_tests::runtimes::{
    CONFLIST, HINTS, Maker, Node, PODMAN_CONF, UNTIL_SERVED, file, network, trials, with_backend,
};
use libtest_mimic::Arguments;
use serde_json::{Value, json};

/// A scene with Podman, and its name.
type Scene = (&'static str, fn(&Podman));

/// Each leaves nothing, and a second run the same as the first.
const SCENES: [Scene; 4] = [
    ("its own network", its_own_network),
    ("the page's network", the_pages_network),
    ("a network made and removed", a_network_made_and_removed),
    ("a port, and reloaded", a_port_and_reloaded),
];

fn main() -> ExitCode {
    let makers = [Maker::Ours, Maker::Theirs(UpstreamRelease::Packaged)];
    let scenes = makers.map(|maker| (maker.name().to_owned(), move || play(maker)));
    trials(&Arguments::from_args(), scenes.into())
}

/// A node with Podman.
struct Podman {
    node: Node,
}

fn play(maker: Maker) {
    let podman = Podman { node: Node::new(maker) };
    let node = &podman.node;
    node.write(CONFLIST, &network("1.0.0").to_string());
    node.write("/etc/containers/containers.conf", &file("/etc/containers/containers.conf"));
    node.write("/etc/containers/containers.conf.d/beside.conf", PODMAN_CONF);
    let mut took = Vec::new();
    let mut scenes = SCENES.to_vec();
    if maker.is_ours() {
        // Upstream's packaged release supports iptables only.
        node.write("/etc/cni/net.d/20-nft.conflist", &by_nftables().to_string());
        scenes.push(("a port by nftables, and reloaded", |podman| a_port(podman, "--network nft")));
        scenes.push(("a macvlan with dhcp", a_macvlan_with_dhcp));
        let files = POOL_FILES.replace("$DIR/leases", "/var/lib/cni/networks").replace("testnet", "pooled");
        node.sh(&files);
        node.write("/etc/cni/net.d/30-pooled.conflist", &pooled().to_string());
        scenes.push(("a network with addresses of a pool", addresses_of_a_pool));
    }
    for (name, scene) in scenes {
        scene(&podman);
        let left = HostSnapshot::of(&node.host);
        podman.assert_nothing_left(name);
        let begin = Instant::now();
        scene(&podman);
        took.push(format!("{name} {:.1} s", begin.elapsed().as_secs_f32()));
        podman.assert_left_alone(&left, name);
    }
    println!("{}, {}: {}", podman.sh("--version").trim(), maker.name(), took.join(", "));
}

impl Podman {
    /// Calls it; it has to succeed.
    fn sh(&self, line: &str) -> String {
        self.node.sh(&format!("podman {line}"))
    }

    /// Runs a container with busybox. Returns its output.
    fn run(&self, flags: &str, command: &str) -> String {
        let cgroup = self.node.cgroup();
        let rootfs = self.node.rootfs();
        self.sh(&format!("run --cgroup-parent {cgroup} {flags} --rootfs {rootfs}:O {command}"))
    }

    /// The JSON output of a command, for the first object.
    fn shows(&self, line: &str) -> Value {
        let output = self.sh(line);
        let list: Value = serde_json::from_str(&output).unwrap_or_else(|error| panic!("{line}: {error}: {output}"));
        list[0].clone()
    }

    fn assert_served(&self, port: u16) {
        assert_eq!(self.node.sh(&format!("curl -sS --max-time 5 http://127.0.0.1:{port}/")), "served\n");
    }

    /// No link, address or rule of a container.
    fn assert_nothing_left(&self, scene: &str) {
        let files = "find /var/lib/cni -name '*.[0-9]*' ! -name 'last_reserved_ip.*'; ls /var/lib/cni/results";
        let rules = "iptables-save | grep -E 'dport|CNI-[0-9a-f]' || :";
        let left = self.node.sh(&format!("ip -o link show type veth; {files}; {rules}"));
        assert_eq!(left, "", "{scene}");
    }

    fn assert_left_alone(&self, before: &HostSnapshot, scene: &str) {
        let after = HostSnapshot::of(&self.node.host);
        if self.node.maker.is_ours() {
            after.assert_unchanged_since(before, &HINTS, scene);
        }
        self.assert_nothing_left(scene);
    }
}

/// Podman's default network.
fn its_own_network(podman: &Podman) {
    let output = podman.run("--rm", "/bin/ip -o address show eth0");
    assert!(output.contains("inet 10.88.0."), "{output}");
}

fn the_pages_network(podman: &Podman) {
    let output = podman.run("--rm --network cnikit", "/bin/ip -o address show eth0");
    assert!(output.contains("inet 10.89.0.") && output.contains("inet6 fd00:89::"), "{output}");
}

/// Two containers on it reach each other over both families.
fn a_network_made_and_removed(podman: &Podman) {
    podman.sh("network create --subnet 10.91.0.0/24 --subnet fd00:91::/64 --ipv6 made");
    let made = podman.shows("network inspect made");
    assert_eq!((&made["driver"], &made["subnets"][1]["subnet"]), (&"bridge".into(), &"fd00:91::/64".into()), "{made}");
    let addresses = ["one", "two"].map(|name| {
        podman.run(&format!("--detach --cap-add net_raw --network made --name {name}"), "/bin/sleep 600");
        let network = podman.shows(&format!("inspect {name}"))["NetworkSettings"]["Networks"]["made"].clone();
        ["IPAddress", "GlobalIPv6Address"].map(|key| network[key].as_str().unwrap_or_default().to_owned())
    });
    podman.node.assert_made_by_its_maker();
    for (from, to) in [("one", &addresses[1]), ("two", &addresses[0])] {
        for address in to {
            podman.sh(&format!("exec {from} /bin/ping -c 1 -w 5 {address}"));
        }
    }
    podman.sh("rm --force --time 0 one two");
    podman.sh("network rm made");
    assert!(!podman.sh("network ls --quiet").contains("made"));
    assert!(!podman.node.try_sh("ls /etc/cni/net.d | grep made").0, "its configuration stays");
}

/// The port works before and after `podman network reload` with a running container, which keeps its address.
fn a_port_and_reloaded(podman: &Podman) {
    a_port(podman, "");
}

fn a_port(podman: &Podman, flags: &str) {
    podman.run(&format!("{flags} --detach --name web --publish 8091:80"), "/bin/httpd -f -p 80 -h /www");
    let [shell, flag, line] = UNTIL_SERVED;
    podman.sh(&format!("exec web {shell} {flag} \"{line}\""));
    let address = || {
        let output = podman.sh("exec web /bin/ip -o -4 address show eth0");
        output.split_whitespace().skip_while(|word| *word != "inet").nth(1).unwrap().to_owned()
    };
    let before = address();
    podman.assert_served(8091);
    podman.sh("network reload web");
    podman.assert_served(8091);
    assert_eq!(address(), before);
    podman.sh("rm --force --time 0 web");
}

/// Podman writes macvlan with dhcp. The server is elsewhere on the wire.
fn a_macvlan_with_dhcp(podman: &Podman) {
    let site = Host::new();
    dhcp_server_on_wire(&podman.node.host, &site, "uplink");
    let server = Dnsmasq::start(&site, "10.99.0.10,10.99.0.50", &[]);
    let log = podman.node.scratch().join("dhcp.log").display().to_string();
    let daemon = format!("setsid /opt/cni/bin/dhcp daemon -pidfile /run/dhcp.pid </dev/null >{log} 2>&1 &");
    let waits = format!("until grep -q serves {log}; do kill -0 $! || {{ cat {log}; exit 1; }}; sleep 0.05; done");
    podman.node.sh(&format!("{daemon} {waits}"));
    podman.sh("network create --driver macvlan --opt parent=uplink wire");
    let made = podman.shows("network inspect wire");
    assert_eq!((&made["driver"], &made["ipam_options"]["driver"]), (&json!("macvlan"), &json!("dhcp")), "{made}");
    podman.run("--detach --cap-add net_raw --network wire --name leased", "/bin/sleep 600");
    podman.sh(&format!("exec leased /bin/ping -c 1 -w 5 {DHCP_SERVER}"));
    let address = podman.shows("inspect leased")["NetworkSettings"]["Networks"]["wire"]["IPAddress"].clone();
    let leases = server.leases();
    assert!(leases.len() == 1 && leases[0].contains(address.as_str().unwrap()), "{leases:?} {address}");
    podman.sh("rm --force --time 0 leased");
    server.await_leases("the lease is given back", <[String]>::is_empty);
    podman.sh("network rm wire");
    podman.node.sh("kill $(cat /run/dhcp.pid); while [ -e /run/dhcp.pid ]; do sleep 0.05; done; ip link delete uplink");
    podman.node.sh("rm -rf /var/lib/cni/dhcp /run/cni");
}

/// The addresses come from the node's blocks, of both families, and packets arrive by each.
fn addresses_of_a_pool(podman: &Podman) {
    let files = "/var/lib/cni/networks/pooled";
    let mut seen = Vec::new();
    for name in ["one", "two"] {
        podman.run(&format!("--detach --cap-add net_raw --network pooled --name {name}"), "/bin/sleep 600");
        let network = podman.shows(&format!("inspect {name}"))["NetworkSettings"]["Networks"]["pooled"].clone();
        let addresses =
            ["IPAddress", "GlobalIPv6Address"].map(|key| network[key].as_str().unwrap_or_default().to_owned());
        assert!(addresses[0].starts_with("10.77.0.") && addresses[1].starts_with("fd00:77::"), "{network}");
        for address in &addresses {
            assert!(podman.node.sh(&format!("cat {files}/{address}")).contains("eth0"), "{address}");
            assert!(!seen.contains(address), "{address} has two containers");
            podman.node.sh(&format!("ping -c 1 -w 5 {address}"));
        }
        seen.extend(addresses);
    }
    for (from, to) in [("one", &seen[2..]), ("two", &seen[..2])] {
        for address in to {
            podman.sh(&format!("exec {from} /bin/ping -c 1 -w 5 {address}"));
        }
    }
    podman.sh("network reload one");
    podman.sh(&format!("exec two /bin/ping -c 1 -w 5 {}", seen[0]));
    podman.sh("rm --force --time 0 one two");
    for address in &seen {
        assert!(!podman.node.try_sh(&format!("ls {files}/{address}")).0, "{address} stays reserved");
    }
}

fn pooled() -> Value {
    let ipam = json!({"type": "pool", "pool": "blue", "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]});
    let bridge = json!({"type": "bridge", "bridge": "pooled0", "isGateway": true, "ipMasq": true, "ipam": ipam});
    json!({"cniVersion": "1.0.0", "name": "pooled", "plugins": [bridge]})
}

/// The network of the page with another name, bridge and subnet, and with the further keys of Podman's default network.
fn by_nftables() -> Value {
    let mut list = network("1.0.0");
    list["name"] = json!("nft");
    list["plugins"][0]["bridge"] = json!("nft0");
    list["plugins"][0]["ipam"]["ranges"] = json!([[{"subnet": "10.92.0.0/24"}], [{"subnet": "fd00:92::/64"}]]);
    list["plugins"].as_array_mut().unwrap().extend([json!({"type": "firewall"}), json!({"type": "tuning"})]);
    with_backend(list, "nftables")
}

//! Podman with its CNI backend, started by a user who is not root: plugins are then run by root of the user's namespace, in a
//! network namespace that Podman makes for all containers of the user, and with a `/run` and a `/var/lib/cni` of the user's. The
//! plugins are ours, and upstream's alone as a control. If a test fails with upstream too, the test is wrong.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]
#![expect(clippy::print_stdout, reason = "what each scene took is part of what a test program says")]

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::thread;
use std::time::Instant;

use cnikit_testkit::HostSnapshot;
use cnikit_tests::mixed::UpstreamRelease;
use cnikit_tests::runtimes::{Maker, PODMAN_CONF, Session, UNTIL_SERVED, file, network, trials_unless, with_backend};
use libtest_mimic::Arguments;
use serde_json::{Value, json};

/// A scene with Podman, and its name.
type Scene = (&'static str, fn(&Podman));

/// Each leaves nothing, and a second run the same as the first.
const SCENES: [Scene; 5] = [
    ("its own network", its_own_network),
    ("the page's network", the_pages_network),
    ("a network made and removed", a_network_made_and_removed),
    ("a port, and reloaded", |podman| a_port(podman, "cnikit", "10.89.0.1")),
    ("eight at once", eight_at_once),
];

/// Where the user has networks.
const NETWORKS: &str = ".config/cni/net.d";

/// An address of the node, for containers to reach. It is not the loopback's, which slirp4netns keeps from them.
const NODE: &str = "192.0.2.1";

/// The state of the user's network that no scene changes, without counters, what slirp4netns advertises at some time, and the
/// state of duplicate address detection, which upstream's bridge has.
const STATE: &str = r#"ip -o link | cut -d : -f 2
ip -o -4 address show
ip -o -6 address show scope global | grep -v " tap0 " | sed "s/ tentative//"
ip route | sed "s/ linkdown//"
ip -6 route | grep -v -e ^fe80 -e " tap0 " | sed "s/ linkdown//"
nft -s list ruleset
find /var/lib/cni /run/cni /run/cnikit -type f | sort
cd /proc/sys/net
grep -s . ipv4/ip_forward ipv4/conf/*/route_localnet ipv6/conf/*/forwarding ipv6/conf/*/accept_ra
"#;

fn main() -> ExitCode {
    let makers = [Maker::Ours, Maker::Theirs(UpstreamRelease::Packaged)];
    let scenes = makers.map(|maker| (maker.name().to_owned(), move || play(maker)));
    trials_unless(Session::unmet, &Arguments::from_args(), scenes.into())
}

/// Podman in the session of a user.
struct Podman {
    session: Session,
    image: String,
}

fn play(maker: Maker) {
    let session = Session::new(maker);
    session.node.write("/etc/containers/containers.conf", &file("/etc/containers/containers.conf"));
    session.node.write("/etc/containers/containers.conf.d/beside.conf", PODMAN_CONF);
    session.write(&format!("{NETWORKS}/10-cnikit.conflist"), &network("1.0.0").to_string());
    let image = session.load_image();
    let podman = Podman { session, image };
    podman.serve_on_node();
    let of_node = HostSnapshot::of(&podman.session.node.host);
    let mut scenes = SCENES.to_vec();
    if maker.is_ours() {
        // Upstream's packaged release supports iptables only, and no policy.
        podman.session.write(&format!("{NETWORKS}/20-nft.conflist"), &by_nftables().to_string());
        scenes.push(("a port by nftables, and reloaded", |podman| a_port(podman, "nft", "10.92.0.1")));
        scenes.push(("the policy of the machine's root", the_policy_of_the_machines_root));
    }
    // Podman removes the user's network, with all that is in it, after the last container.
    podman.sh("network create --subnet 10.94.0.0/24 lasting");
    podman.run("--detach --network lasting", "/bin/sleep 600");
    let mut took = Vec::new();
    for (name, scene) in scenes {
        scene(&podman);
        let before = podman.state();
        let begin = Instant::now();
        scene(&podman);
        took.push(format!("{name} {:.1} s", begin.elapsed().as_secs_f32()));
        assert_eq!(podman.state(), before, "{name}");
    }
    podman.session.log_out_and_in();
    its_own_network(&podman);
    a_port(&podman, "cnikit", "10.89.0.1");
    HostSnapshot::of(&podman.session.node.host).assert_unchanged_since(&of_node, &[], "the node's own network");
    println!("{}, {}: {}", podman.sh("--version").trim(), maker.name(), took.join(", "));
}

impl Podman {
    /// Calls it; it has to succeed.
    fn sh(&self, line: &str) -> String {
        self.session.sh(&format!("podman {line}"))
    }

    /// Runs a container of the image. Returns its output.
    fn run(&self, flags: &str, command: &str) -> String {
        self.sh(&format!("run {flags} {} {command}", self.image))
    }

    /// Runs a shell line in the network that the user's containers are in, as plugins are run.
    fn inside(&self, line: &str) -> String {
        self.sh(&format!("unshare --rootless-netns sh -ec '{}'", line.replace('\'', r"'\''")))
    }

    fn state(&self) -> String {
        self.inside(&format!("PATH=$PATH:/usr/sbin:/sbin; set +e; exec 2>/dev/null; {STATE} true"))
    }

    /// The JSON output of a command, for the first object.
    fn shows(&self, line: &str) -> Value {
        let output = self.sh(line);
        let list: Value = serde_json::from_str(&output).unwrap_or_else(|error| panic!("{line}: {error}: {output}"));
        list[0].clone()
    }

    /// The node has an address that only slirp4netns leads to, and serves a page there.
    fn serve_on_node(&self) {
        let node = &self.session.node;
        node.sh(&format!("ip address add {NODE}/32 dev lo"));
        let www = format!("{}/www", node.rootfs());
        node.daemon(&format!("busybox httpd -f -p {NODE}:80 -h {www}"), &node.scratch().join("httpd.log"));
        node.wait_for(&format!("curl -sS --max-time 5 http://{NODE}/"));
    }

    /// A container gets the page at this address. busybox's wget, linked statically, may crash.
    fn assert_served_to(&self, container: &str, address: &str, port: u16) {
        let get = format!(r"printf 'GET / HTTP/1.0\r\n\r\n' | /bin/nc -w 5 {address} {port}");
        let answer = self.sh(&format!("exec {container} /bin/sh -c \"{get}\""));
        assert!(answer.ends_with("\r\n\r\nserved\n"), "{container}, {address}:{port}: {answer:?}");
    }

    /// The alias of every container's host end shows whether our plugins made it.
    fn assert_made_by_its_maker(&self) {
        let links = self.inside("PATH=$PATH:/sbin ip -o -d link show type veth");
        assert!(!links.is_empty(), "no container has a link");
        let is_ours = self.session.node.maker.is_ours();
        assert!(links.lines().all(|link| link.contains("alias cnikit:") == is_ours), "{links}");
    }
}

/// Podman's default for users is slirp4netns without plugins: its own network has to be named.
fn its_own_network(podman: &Podman) {
    let output = podman.run("--rm --network podman", "/bin/ip -o address show eth0");
    assert!(output.contains("inet 10.88.0."), "{output}");
}

fn the_pages_network(podman: &Podman) {
    let output = podman.run("--rm --network cnikit", "/bin/ip -o address show eth0");
    assert!(output.contains("inet 10.89.0.") && output.contains("inet6 fd00:89::"), "{output}");
}

/// Two containers on it reach each other over both families, and the node.
fn a_network_made_and_removed(podman: &Podman) {
    podman.sh("network create --subnet 10.91.0.0/24 --subnet fd00:91::/64 --ipv6 made");
    let addresses = ["one", "two"].map(|name| {
        podman.run(&format!("--detach --cap-add net_raw --network made --name {name}"), "/bin/sleep 600");
        let network = podman.shows(&format!("inspect {name}"))["NetworkSettings"]["Networks"]["made"].clone();
        ["IPAddress", "GlobalIPv6Address"].map(|key| network[key].as_str().unwrap_or_default().to_owned())
    });
    podman.assert_made_by_its_maker();
    for (from, to) in [("one", &addresses[1]), ("two", &addresses[0])] {
        for address in to {
            podman.sh(&format!("exec {from} /bin/ping -c 1 -w 5 {address}"));
        }
        // Without masquerade no answer would come: slirp4netns does not know the containers' addresses.
        podman.assert_served_to(from, NODE, 80);
    }
    podman.sh("rm --force --time 0 one two");
    podman.sh("network rm made");
    assert!(!podman.sh("network ls --quiet").contains("made"));
}

/// The port works before and after `podman network reload` with a running container, which keeps its address: from the node, where
/// Podman listens, and from another container at the gateway's address, where portmap forwards it.
fn a_port(podman: &Podman, network: &str, gateway: &str) {
    podman.run(
        &format!("--network {network} --detach --name web --publish 8091:80 --publish 8092:53/udp"),
        "/bin/httpd -f -p 80 -h /www",
    );
    let [shell, flag, line] = UNTIL_SERVED;
    podman.sh(&format!("exec web {shell} {flag} \"{line}\""));
    podman.run(&format!("--network {network} --detach --name other"), "/bin/sleep 600");
    let address = || ipv4_address(&podman.sh("exec web /bin/ip -o -4 address show eth0"));
    let assert_served = || {
        assert_eq!(podman.session.node.sh("curl -sS --max-time 5 http://127.0.0.1:8091/"), "served\n");
        podman.assert_served_to("other", gateway, 8091);
    };
    let before = address();
    assert_served();
    podman.sh("network reload web");
    assert_served();
    assert_eq!(address(), before);
    podman.sh("rm --force --time 0 web other");
}

/// Each has an address of its own.
fn eight_at_once(podman: &Podman) {
    let addresses: BTreeSet<String> = thread::scope(|scope| {
        let run = || podman.run("--rm --network cnikit", "/bin/ip -o -4 address show eth0");
        let running: Vec<_> = (0..8).map(|_| scope.spawn(run)).collect();
        let outputs = running.into_iter().map(|one| one.join().unwrap());
        outputs.map(|output| ipv4_address(&output)).collect()
    });
    assert_eq!(addresses.len(), 8, "{addresses:?}");
}

/// The address in the output of `ip -o -4 address show eth0`.
fn ipv4_address(output: &str) -> String {
    output.split_whitespace().skip_while(|word| *word != "inet").nth(1).unwrap().to_owned()
}

/// Its owner has no number in the user's namespace. The policy holds there all the same, as ADD is refused with one that is wrong.
fn the_policy_of_the_machines_root(podman: &Podman) {
    let node = &podman.session.node;
    node.write("/etc/cnikit/node.json", r#"{"ignoreArgs": true}"#);
    the_pages_network(podman);
    node.write("/etc/cnikit/node.json", r#"{"ignoreNothing": true}"#);
    let (succeeded, output) =
        podman.session.try_sh(&format!("podman run --rm --network cnikit {} /bin/sleep 1", podman.image));
    assert!(!succeeded && output.contains("/etc/cnikit/node.json"), "{output}");
    node.sh("rm -r /etc/cnikit");
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

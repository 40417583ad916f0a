//! Published ports with real connections from every kind of client: one table of scenes for every backend.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

use std::io::{Error, ErrorKind, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use cnikit_netns::Netns;
use cnikit_testkit::{CallOutput, Container, Host, Subject};
use cnikit_tests::attached::Attached;
use cnikit_tests::way::{PROGRAMS, Way, noting, on_path, script, scripts, started};
use cnikit_tests::world::{read_all_from, world};
use cnikit_tests::{bin, bridge, ptp, references, subject};
use serde_json::{Value, json};

/// The backends.
const BACKENDS: [&str; 2] = ["iptables", "nftables"];
/// The host's own addresses to the world, and to its containers.
const UPLINK: [&str; 2] = ["192.0.2.1", "2001:db8:9::1"];
const GATEWAY: [&str; 2] = ["10.77.0.1", "fd00:77::1"];
/// The containers in the order of their ADD.
const FIRST: [&str; 2] = ["10.77.0.2", "fd00:77::2"];
const SECOND: [&str; 2] = ["10.77.0.3", "fd00:77::3"];
const WORLD: [&str; 2] = ["192.0.2.2", "2001:db8:9::2"];

/// A host with a world around it, and containers on a bridge.
struct Node {
    host: Host,
    world: Container,
    bridge: Subject,
}

impl Node {
    fn new() -> Node {
        Node::speaking("1.1.0")
    }

    fn speaking(version: &str) -> Node {
        let host = Host::new();
        // If the kernel passes bridged packets to the packet filter (br_netfilter), a connection of a container to itself leaves by
        // the port by which it came.
        let bridge = bridge().with("hairpinMode", json!(true)).with("ipMasqBackend", json!("nftables"));
        let world = world(&host);
        let bridge = bridge.with("cniVersion", json!(version)).at(host.dir());
        for [network, gateway] in [["10.77.0.0/24", "192.0.2.1"], ["fd00:77::/64", "2001:db8:9::1"]] {
            world.sh(&format!("ip route add {network} via {gateway}"));
        }
        Node { host, world, bridge }
    }

    fn pod(&self, id: &str) -> Attached {
        Attached::by(&self.bridge, &self.host, id)
    }

    fn call(&self, portmap: &Subject, verb: &str, pod: &Attached) -> CallOutput {
        pod.call(portmap, &self.host, verb)
    }

    /// ADD, whose result must be prevResult.
    fn publish(&self, portmap: &Subject, pod: &Attached) {
        assert_eq!(self.call(portmap, "ADD", pod).ok(), pod.prev);
        self.call(portmap, "CHECK", pod).ok();
    }

    /// One RESTORE in which these attachments are listed.
    fn restore_listed(&self, attachments: &[(&Subject, &Attached)]) {
        let mut list = Vec::new();
        for (portmap, pod) in attachments {
            let (netns, ports) = (pod.container.path(), &portmap.conf["runtimeConfig"]);
            list.push(json!({"containerID": pod.id, "ifname": "eth0", "netns": netns, "prevResult": pod.prev, "runtimeConfig": ports}));
        }
        let list = [("cni.dev/attachments", json!(list))];
        let output = attachments[0].0.call(&self.host, "RESTORE", "", "", &list).ok();
        let outcomes = output["cni.dev/attachments"].as_array().unwrap();
        assert!(
            outcomes.len() == attachments.len() && outcomes.iter().all(|one| one.get("error").is_none()),
            "{output}"
        );
    }

    fn route_localnet(&self) -> String {
        self.host.sh("cat /proc/sys/net/ipv4/conf/cni0/route_localnet").trim().to_owned()
    }

    /// All rules of both backends, without their counters.
    fn ruleset(&self) -> String {
        self.host.sh("nft --handle list ruleset | sed 's/counter packets [0-9]* bytes [0-9]*/counter/'")
    }

    /// Whether rules of a container have connections leave under the host's address.
    fn masquerades(&self, backend: &str) -> bool {
        match backend {
            "nftables" => self.host.sh("nft list chain ip cni_hostport masquerading").contains("masquerade"),
            _ => self.ruleset().contains("jump CNI-HOSTPORT-SETMARK"),
        }
    }
}

fn mapping(host_port: u16, container_port: u16, protocol: &str) -> Value {
    json!({"hostPort": host_port, "containerPort": container_port, "protocol": protocol})
}

fn portmap(backend: &str, mappings: &[Value]) -> Subject {
    subject("portmap", json!({"backend": backend, "runtimeConfig": {"portMappings": mappings}}))
}

fn web(backend: &str) -> Subject {
    portmap(backend, &[mapping(8080, 80, "tcp")])
}

/// Answers every connection with a name and the address of the client, until this program ends.
fn serves(netns: &Netns, port: u16, name: &'static str) {
    let listener = netns.enter(|_| TcpListener::bind(format!("[::]:{port}")).unwrap()).unwrap();
    thread::spawn(move || serve_name(&listener, name));
}

fn serve_name(listener: &TcpListener, name: &str) {
    for mut stream in listener.incoming().flatten() {
        let peer = stream.peer_addr().map(|peer| peer.ip().to_canonical().to_string()).unwrap_or_default();
        let _ = stream.write_all(format!("{name} {peer}").as_bytes());
    }
}

/// The same for datagrams.
fn answers(netns: &Netns, port: u16, name: &'static str) {
    let socket = netns.enter(|_| UdpSocket::bind(format!("[::]:{port}")).unwrap()).unwrap();
    thread::spawn(move || answer_name(&socket, name));
}

fn answer_name(socket: &UdpSocket, name: &str) {
    let mut buffer = [0; 16];
    while let Ok((_, peer)) = socket.recv_from(&mut buffer) {
        let _ = socket.send_to(format!("{name} {}", peer.ip().to_canonical()).as_bytes(), peer);
    }
}

fn to(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse::<IpAddr>().unwrap(), port)
}

/// The answer to a connection from this namespace; `None` if it is refused.
fn asked(from: &Netns, to: SocketAddr) -> Option<String> {
    from.enter(|_| read_all_from(to)).unwrap()
}

fn sent(from: &Netns, to: SocketAddr) -> Option<String> {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let sent = || {
        let socket = UdpSocket::bind(any)?;
        socket.set_read_timeout(Some(Duration::from_secs(2)))?;
        exchange(&socket, to)
    };
    from.enter(|_| sent()).unwrap().ok()
}

fn exchange(socket: &UdpSocket, to: SocketAddr) -> std::io::Result<String> {
    socket.connect(to)?;
    socket.send(b"?")?;
    let mut buffer = [0; 64];
    let size = socket.recv(&mut buffer)?;
    String::from_utf8(buffer[..size].to_vec()).map_err(|_| Error::from(ErrorKind::InvalidData))
}

#[track_caller]
fn reaches(from: &Netns, address: &str, port: u16, name: &str) -> String {
    let output = asked(from, to(address, port));
    let Some(output) = output else { panic!("{address} port {port} is not to be reached") };
    let (found, peer) = output.split_once(' ').unwrap();
    assert_eq!(found, name, "{address} port {port}");
    peer.to_owned()
}

fn each() -> impl Iterator<Item = (&'static str, Node)> {
    BACKENDS.into_iter().map(|backend| (backend, Node::new()))
}

#[test]
fn a_published_port_is_reached_from_everywhere() {
    for (backend, node) in each() {
        let pod = node.pod("c-one");
        let other = node.pod("c-two");
        serves(pod.container.netns(), 80, "pod");
        node.publish(&web(backend), &pod);
        for family in 0..2 {
            let outside = reaches(node.world.netns(), UPLINK[family], 8080, "pod");
            assert_eq!(outside, WORLD[family], "{backend}: the world is seen under its own address");
            reaches(node.host.netns(), UPLINK[family], 8080, "pod");
            reaches(node.host.netns(), GATEWAY[family], 8080, "pod");
            reaches(other.container.netns(), UPLINK[family], 8080, "pod");
            reaches(other.container.netns(), GATEWAY[family], 8080, "pod");
            reaches(pod.container.netns(), UPLINK[family], 8080, "pod");
            reaches(pod.container.netns(), GATEWAY[family], 8080, "pod");
            let direct = reaches(other.container.netns(), FIRST[family], 80, "pod");
            assert_eq!(direct, SECOND[family], "{backend}: what was not sent elsewhere keeps its address");
        }
        reaches(node.host.netns(), "127.0.0.1", 8080, "pod");
        node.call(&web(backend), "DEL", &pod).ok();
        for address in UPLINK.iter().chain(&GATEWAY) {
            assert_eq!(asked(node.host.netns(), to(address, 8080)), None, "{backend}");
        }
        assert_eq!(asked(node.world.netns(), to(UPLINK[0], 8080)), None, "{backend}");
    }
}

#[test]
fn connections_that_are_not_to_the_host_go_where_they_were_meant_to() {
    for (backend, node) in each() {
        let pod = node.pod("c-one");
        let other = node.pod("c-two");
        serves(pod.container.netns(), 80, "pod");
        serves(other.container.netns(), 8080, "other");
        serves(node.world.netns(), 8080, "world");
        node.publish(&web(backend), &pod);
        for family in 0..2 {
            reaches(pod.container.netns(), WORLD[family], 8080, "world");
            reaches(pod.container.netns(), SECOND[family], 8080, "other");
            reaches(node.host.netns(), WORLD[family], 8080, "world");
            reaches(node.host.netns(), SECOND[family], 8080, "other");
            // Merely forwarded through.
            reaches(node.world.netns(), SECOND[family], 8080, "other");
        }
        node.call(&web(backend), "DEL", &pod).ok();
    }
}

#[test]
fn host_addresses_udp_snat_and_masq_all_work() {
    for (backend, node) in each() {
        let pod = node.pod("c-one");
        let other = node.pod("c-two");
        serves(pod.container.netns(), 80, "pod");
        answers(pod.container.netns(), 53, "pod");
        let at = |address: &str, port: u16| json!({"hostPort": port, "containerPort": 80, "protocol": "TCP", "hostIP": address});
        let mappings =
            [at(UPLINK[0], 8081), at(UPLINK[1], 8081), at("0.0.0.0", 8082), at("::", 8082), mapping(5353, 53, "udp")];
        let some = portmap(backend, &mappings);
        node.publish(&some, &pod);
        for family in 0..2 {
            reaches(node.world.netns(), UPLINK[family], 8081, "pod");
            assert_eq!(asked(other.container.netns(), to(GATEWAY[family], 8081)), None, "{backend}");
            reaches(other.container.netns(), GATEWAY[family], 8082, "pod");
            let output = sent(node.world.netns(), to(UPLINK[family], 5353));
            assert_eq!(output, Some(format!("pod {}", WORLD[family])), "{backend}");
        }
        assert!(node.masquerades(backend), "{backend}: {}", node.ruleset());
        let quiet = some.with("snat", json!(false));
        node.publish(&quiet, &pod);
        assert_eq!(reaches(node.world.netns(), UPLINK[0], 8081, "pod"), WORLD[0]);
        assert!(!node.masquerades(backend), "{backend}: {}", node.ruleset());
        let all = some.with("masqAll", json!(true));
        node.publish(&all, &pod);
        assert_eq!(reaches(node.world.netns(), UPLINK[0], 8081, "pod"), GATEWAY[0]);
        node.call(&all, "DEL", &pod).ok();
    }
}

/// As a node has them that has services too.
const SERVICES: &str = r"nft -f - <<'NFT'
table ip kube-proxy {
    chain services { ip daddr 10.96.0.10 tcp dport 8080 dnat to 10.77.0.3:8080; }
    chain pre { type nat hook prerouting priority -100; jump services; }
    chain out { type nat hook output priority -100; jump services; }
    chain post { type nat hook postrouting priority 100; mark 0x4000 masquerade; }
}
NFT";

#[test]
fn foreign_rules_stay_and_work_beside_ours() {
    for (backend, node) in each() {
        let pod = node.pod("c-one");
        let other = node.pod("c-two");
        serves(pod.container.netns(), 80, "pod");
        serves(other.container.netns(), 8080, "other");
        node.host.sh(SERVICES);
        let theirs = node.host.sh("nft list table ip kube-proxy");
        node.publish(&web(backend), &pod);
        reaches(node.world.netns(), UPLINK[0], 8080, "pod");
        node.world.sh("ip route add 10.96.0.0/24 via 192.0.2.1");
        reaches(node.world.netns(), "10.96.0.10", 8080, "other");
        assert_eq!(node.host.sh("nft list table ip kube-proxy"), theirs);
        node.call(&web(backend), "DEL", &pod).ok();
        assert_eq!(node.host.sh("nft list table ip kube-proxy"), theirs);
    }
}

#[test]
fn a_port_of_another_container_is_refused_or_stays_there() {
    for (backend, node) in each() {
        let one = node.pod("c-one");
        let two = node.pod("c-two");
        serves(one.container.netns(), 80, "one");
        serves(two.container.netns(), 80, "two");
        node.publish(&web(backend), &one);
        let before = node.ruleset();
        let both = portmap(backend, &[mapping(8090, 80, "tcp"), mapping(8080, 80, "tcp")]);
        let (code, text) = node.call(&both, "ADD", &two).refused();
        assert_eq!(code, 101, "{text}");
        for word in ["tcp 8080", "c-one", "already"] {
            assert!(text.contains(word), "{backend}: {text}");
        }
        assert_eq!(node.ruleset(), before, "{backend}");
        // Another container has another protocol and another port.
        node.publish(&portmap(backend, &[mapping(8080, 80, "udp"), mapping(8090, 80, "tcp")]), &two);
        node.call(&both, "DEL", &two).ok();
        assert_eq!(node.ruleset(), before, "{backend}");
        let behind = both.with("hostPortTaken", json!("firstWins"));
        node.publish(&behind, &two);
        reaches(node.world.netns(), UPLINK[0], 8080, "one");
        reaches(node.world.netns(), UPLINK[0], 8090, "two");
        node.call(&web(backend), "DEL", &one).ok();
        reaches(node.world.netns(), UPLINK[0], 8080, "two");
        node.call(&behind, "DEL", &two).ok();
        assert_eq!(asked(node.host.netns(), to(UPLINK[0], 8080)), None, "{backend}");
        node.publish(&web(backend), &one);
    }
}

#[test]
fn the_same_again_changes_nothing_and_another_port_takes_its_place() {
    for (backend, node) in each() {
        let pod = node.pod(&"c".repeat(200));
        serves(pod.container.netns(), 80, "pod");
        node.publish(&web(backend), &pod);
        let before = node.ruleset();
        node.publish(&web(backend), &pod);
        assert_eq!(node.ruleset(), before, "{backend}");
        let moved = portmap(backend, &[mapping(8088, 80, "tcp")]);
        let (_, text) = node.call(&moved, "CHECK", &pod).refused();
        assert!(text.contains("8088"), "{backend}: {text}");
        node.publish(&moved, &pod);
        reaches(node.world.netns(), UPLINK[1], 8088, "pod");
        assert_eq!(asked(node.host.netns(), to(UPLINK[1], 8080)), None, "{backend}");
        let at = json!({"hostPort": 8088, "containerPort": 80, "protocol": "tcp", "hostIP": UPLINK[1]});
        let of_one_family = portmap(backend, &[at]);
        let (_, text) = node.call(&of_one_family, "CHECK", &pod).refused();
        assert!(text.contains("is not wanted") && text.contains("10.77.0.2"), "{backend}: {text}");
        node.publish(&of_one_family, &pod);
        assert_eq!(asked(node.host.netns(), to(UPLINK[0], 8088)), None, "{backend}");
        reaches(node.world.netns(), UPLINK[1], 8088, "pod");
        // Without the configuration of the ports, and without the result.
        let bare = subject("portmap", json!({}));
        bare.call(&node.host, "DEL", &pod.id, "", &[]).ok();
        assert_eq!(asked(node.host.netns(), to(UPLINK[1], 8088)), None, "{backend}");
        bare.call(&node.host, "DEL", &pod.id, "", &[]).ok();
    }
}

#[test]
fn ports_of_a_container_in_two_networks_are_removed_per_network() {
    for (backend, node) in each() {
        let pod = node.pod("c-one");
        serves(pod.container.netns(), 80, "pod");
        let named = |name: &str, port| {
            let mappings = [mapping(port, 80, "tcp"), mapping(8089, 80, "tcp")];
            portmap(backend, &mappings).with("name", json!(name))
        };
        let first = named("n1", 8080);
        let second = named("n2", 8081);
        node.publish(&first, &pod);
        // A port that leads to the same container already is not a conflict.
        node.publish(&second, &pod);
        reaches(node.world.netns(), UPLINK[0], 8089, "pod");
        node.call(&first, "DEL", &pod).ok();
        assert_eq!(asked(node.host.netns(), to(UPLINK[0], 8080)), None, "{backend}");
        reaches(node.world.netns(), UPLINK[0], 8089, "pod");
        reaches(node.world.netns(), UPLINK[0], 8081, "pod");
        node.call(&second, "CHECK", &pod).ok();
        let valid = json!([{"containerID": pod.id, "ifname": "eth0"}]);
        let gc = |valid: Value| [("cni.dev/valid-attachments", valid)];
        second.call(&node.host, "GC", "", "", &gc(valid)).ok();
        reaches(node.world.netns(), UPLINK[0], 8081, "pod");
        first.call(&node.host, "GC", "", "", &gc(json!([]))).ok();
        reaches(node.world.netns(), UPLINK[0], 8081, "pod");
        second.call(&node.host, "GC", "", "", &gc(json!([]))).ok();
        assert_eq!(asked(node.host.netns(), to(UPLINK[0], 8081)), None, "{backend}");
    }
}

#[test]
fn conditions_are_the_containers_own() {
    for (backend, node) in each() {
        let one = node.pod("c-one");
        let two = node.pod("c-two");
        serves(one.container.netns(), 80, "one");
        serves(two.container.netns(), 80, "two");
        let words = |text: &[&str], other: &[&str]| if backend == "nftables" { json!(text) } else { json!(other) };
        let world = words(&["ip saddr", "192.0.2.2"], &["-s", "192.0.2.2"]);
        let rest = words(&["ip saddr != 192.0.2.2"], &["!", "-s", "192.0.2.2"]);
        node.publish(&web(backend).with("conditionsV4", world), &one);
        assert_eq!(asked(node.host.netns(), to(UPLINK[0], 8080)), None, "{backend}");
        let v4 = |family: &Subject| family.with("conditionsV6", words(&["ip6 saddr fd00:1::1"], &["-s", "fd00:1::1"]));
        // Under other conditions another container has the same port.
        node.publish(&v4(&web(backend).with("conditionsV4", rest)).with("hostPortTaken", json!("firstWins")), &two);
        reaches(node.world.netns(), UPLINK[0], 8080, "one");
        reaches(node.host.netns(), UPLINK[0], 8080, "two");
        let before = node.ruleset();
        let unknown = words(&["ip saddr 192.0.2.2 flush ruleset"], &["-j", "ACCEPT"]);
        let (code, text) = node.call(&web(backend).with("conditionsV4", unknown), "ADD", &two).refused();
        assert_eq!(code, 7, "{text}");
        assert!(text.contains("conditionsV4"), "{backend}: {text}");
        assert_eq!(node.ruleset(), before);
    }
}

/// The port for clients with these sources.
fn web_for(backend: &str, source: [&str; 2]) -> Subject {
    let words = |key: &str, source: &str| match backend {
        "nftables" => json!([format!("{key} saddr {source}")]),
        _ => json!(["-s", source]),
    };
    let [v4, v6] = source;
    web(backend).with("conditionsV4", words("ip", v4)).with("conditionsV6", words("ip6", v6))
}

#[test]
fn containers_share_a_port_if_each_has_conditions_and_no_two_have_the_same() {
    for (backend, node) in each() {
        let near = web_for(backend, ["192.0.2.2", "fd00:1::2"]);
        let far = web_for(backend, ["198.51.100.0/24", "fd00:5::/64"]);
        node.publish(&near, &node.pod("c-one"));
        node.publish(&far, &node.pod("c-two"));
        let pod = node.pod("c-three");
        let before = node.ruleset();
        for (subject, holder) in [(&near, "c-one"), (&far, "c-two"), (&web(backend), "c-")] {
            let (_, text) = node.call(subject, "ADD", &pod).refused();
            assert!(text.contains("8080") && text.contains(holder), "{backend}: {text}");
        }
        assert_eq!(node.ruleset(), before, "{backend}");
    }
}

/// Whether the words of both backends mean the same is not known, so they are taken to differ.
#[test]
fn containers_of_two_backends_share_a_port_if_both_have_conditions() {
    for (first, second) in [("iptables", "nftables"), ("nftables", "iptables")] {
        let node = Node::new();
        let [one, two] = ["c-one", "c-two"].map(|id| node.pod(id));
        let near = web_for(first, ["192.0.2.2", "fd00:1::2"]);
        let far = web_for(second, ["198.51.100.0/24", "fd00:5::/64"]);
        for (holds, wants) in [(&near, &web(second)), (&web(first), &far), (&web(first), &web(second))] {
            node.publish(holds, &one);
            let (code, text) = node.call(wants, "ADD", &two).refused();
            assert!(code == 101 && text.contains("tcp 8080") && text.contains("c-one"), "{second}: {text}");
        }
        node.publish(&near, &one);
        node.publish(&far, &two);
    }
}

/// iptables-save prints `-m mark --mark 0x1`.
#[test]
fn conditions_are_found_again_in_other_words() {
    let node = Node::new();
    let pod = node.pod("c-one");
    let under = |mark: &str| {
        let words = json!(["--match", "mark", "--mark", mark]);
        web("iptables").with("conditionsV4", words.clone()).with("conditionsV6", words)
    };
    node.publish(&under("1"), &pod);
    let (code, text) = node.call(&under("2"), "CHECK", &pod).refused();
    assert!(code == 102 && text.contains("--mark 0x1"), "{text}");
    node.publish(&under("2"), &pod);
}

#[test]
fn a_foreign_chain_for_marks_has_to_exist_and_is_used() {
    let node = Node::new();
    let pod = node.pod("c-one");
    serves(pod.container.netns(), 80, "pod");
    let marked = web("iptables").with("externalSetMarkChain", json!("THEIR-MARK"));
    let (code, text) = node.call(&marked, "ADD", &pod).refused();
    assert!(code == 7 && text.contains("there is no chain \"THEIR-MARK\""), "{text}");
    assert!(!node.ruleset().contains("CNI-DN-"), "{}", node.ruleset());
    for program in ["iptables", "ip6tables"] {
        for line in [
            "-N THEIR-MARK",
            "-A THEIR-MARK -j MARK --set-xmark 0x4000/0x4000",
            "-A POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE",
        ] {
            node.host.sh(&format!("{program} -t nat {line}"));
        }
    }
    node.publish(&marked, &pod);
    for address in UPLINK {
        reaches(pod.container.netns(), address, 8080, "pod");
    }
}

/// No client reaches the container that had the port before.
#[test]
fn datagrams_of_a_continuing_sender_follow_the_port() {
    for (backend, node) in each() {
        let one = node.pod("c-one");
        let two = node.pod("c-two");
        answers(one.container.netns(), 53, "one");
        answers(two.container.netns(), 53, "two");
        let dns = portmap(backend, &[mapping(5353, 53, "udp")]);
        let client = node.world.netns().enter(|_| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        let asked = || exchange(&client, to(UPLINK[0], 5353)).ok();
        let by = |name: &str| Some(format!("{name} {}", WORLD[0]));
        node.publish(&dns, &one);
        assert_eq!(asked(), by("one"), "{backend}");
        node.call(&dns, "DEL", &one).ok();
        assert_eq!(asked(), None, "{backend}");
        node.publish(&dns, &two);
        assert_eq!(asked(), by("two"), "{backend}");
        node.call(&dns, "DEL", &two).ok();
    }
}

/// nft(8) prints no owners: after the reload the rules have no more information than upstream's.
#[test]
fn rules_that_were_saved_and_loaded_are_found_again() {
    let node = Node::new();
    let pods = ["c-one", "c-two"].map(|id| node.pod(id));
    let confs = [web("nftables"), portmap("nftables", &[mapping(8081, 80, "tcp")])];
    serves(pods[0].container.netns(), 80, "one");
    confs.iter().zip(&pods).for_each(|(conf, pod)| node.publish(conf, pod));
    let saved = |family: &str| format!("{}/{family}", node.host.dir().display());
    let tables = ["ip", "ip6"].map(|family| (format!("{family} cni_hostport"), saved(family)));
    let sorted = || {
        let listed = tables.each_ref().map(|(table, _)| node.host.sh(&format!("nft list table {table}")));
        let mut lines: Vec<String> = listed.iter().flat_map(|table| table.lines()).map(str::to_owned).collect();
        lines.retain(|line| !line.contains("elements = ") && !line.trim_start().starts_with("0x"));
        lines.sort();
        lines
    };
    let before = sorted();
    let load = || {
        for (table, file) in &tables {
            node.host.sh(&format!("nft list table {table} > {file} && nft delete table {table} && nft -f {file}"));
        }
    };
    load();
    confs.iter().zip(&pods).for_each(|(conf, pod)| drop(node.call(conf, "CHECK", pod).ok()));
    // The next one has them as they should be.
    confs.iter().zip(&pods).for_each(|(conf, pod)| node.publish(conf, pod));
    assert_eq!(sorted(), before, "nothing is doubled");
    reaches(node.world.netns(), UPLINK[0], 8080, "one");
    load();
    node.call(&confs[1], "DEL", &pods[1]).ok();
    node.call(&confs[0], "CHECK", &pods[0]).ok();
    node.call(&confs[0], "DEL", &pods[0]).ok();
    for (table, _) in &tables {
        let left = node.host.sh(&format!("nft list table {table}"));
        assert!(!left.contains("dnat") && !left.contains("masquerade\n") && !left.contains("elements"), "{left}");
    }
}

/// The releases of upstream, each with a backend that it supports.
fn of_references() -> [(PathBuf, &'static str); 3] {
    let [packaged, newest] = references();
    [(packaged, "iptables"), (newest.clone(), "iptables"), (newest, "nftables")]
}

#[test]
fn containers_of_upstream_and_ours_are_reached_in_either_order() {
    for (release, backend) in of_references() {
        reached_in_either_order(&release, backend);
    }
}

fn reached_in_either_order(release: &Path, backend: &str) {
    let node = Node::speaking("1.0.0");
    let pods = ["c-one", "c-two", "c-three"].map(|id| node.pod(id));
    serves(pods[0].container.netns(), 80, "one");
    serves(pods[1].container.netns(), 80, "two");
    serves(pods[2].container.netns(), 80, "three");
    let conf = |port| portmap(backend, &[mapping(port, 80, "tcp")]).with("cniVersion", json!("1.0.0"));
    let theirs = |port| conf(port).in_directory(release);
    let reached = |expected: &[(u16, &str)]| {
        for (family, (port, name)) in (0..2).flat_map(|family| expected.iter().map(move |one| (family, one))) {
            reaches(node.world.netns(), UPLINK[family], *port, name);
        }
    };
    let guarded = |is: bool| {
        let found = node.ruleset().contains("@hostports_in_use jump hostports");
        assert!(backend != "nftables" || found == is, "{}", node.ruleset());
    };
    node.call(&theirs(8001), "ADD", &pods[0]).ok();
    guarded(false);
    node.publish(&conf(8002), &pods[1]);
    guarded(true);
    reached(&[(8001, "one"), (8002, "two")]);
    let (_, text) = node.call(&conf(8001), "ADD", &pods[1]).refused();
    assert!(text.contains("c-one"), "{text}");
    node.call(&theirs(8003), "ADD", &pods[2]).ok();
    // Upstream's ADD writes this chain again.
    guarded(false);
    reached(&[(8001, "one"), (8002, "two"), (8003, "three")]);
    node.call(&conf(8002), "CHECK", &pods[1]).ok();
    if backend == "nftables" {
        // With iptables its CHECK of both families fails with its own rules too.
        node.call(&theirs(8002), "CHECK", &pods[1]).ok();
    }
    node.call(&conf(8003), "CHECK", &pods[2]).ok();
    node.publish(&conf(8002), &pods[1]);
    guarded(true);
    reached(&[(8001, "one"), (8002, "two"), (8003, "three")]);
    // Our DEL removes upstream's rules, and upstream's DEL removes ours.
    node.call(&conf(8001), "DEL", &pods[0]).ok();
    node.call(&theirs(8002), "DEL", &pods[1]).ok();
    reached(&[(8003, "three")]);
    for port in [8001, 8002] {
        assert_eq!(asked(node.host.netns(), to(UPLINK[0], port)), None);
    }
    let left = node.host.sh("nft list ruleset | sed '/cni_plugins_masquerade/,/^}/d'; iptables-save; ip6tables-save");
    assert!(left.contains("c-three") && !left.contains("c-one") && !left.contains("c-two"), "{left}");
    // The elements that upstream's DEL left in our set have no owner.
    node.publish(&conf(8002), &pods[0]);
    reached(&[(8002, "one"), (8003, "three")]);
}

/// Without `snat` upstream's plugin makes no chain for masquerade, and no rule names the container's address but those of DNAT.
#[test]
fn ports_of_upstream_without_snat_are_accepted_and_removed() {
    let [_, newest] = references();
    let node = Node::speaking("1.0.0");
    let pod = node.pod("c-one");
    serves(pod.container.netns(), 80, "pod");
    let ours = web("nftables").with("cniVersion", json!("1.0.0")).with("snat", json!(false));
    node.call(&ours.in_directory(newest), "ADD", &pod).ok();
    reaches(node.world.netns(), UPLINK[0], 8080, "pod");
    node.call(&ours, "CHECK", &pod).ok();
    let (code, text) = node.call(&ours.with("snat", json!(true)), "CHECK", &pod).refused();
    assert!(code == 102 && text.contains("masquerade"), "{text}");
    node.call(&ours, "DEL", &pod).ok();
    assert!(!node.ruleset().contains(" dnat to "), "{}", node.ruleset());
    assert_eq!(asked(node.world.netns(), to(UPLINK[0], 8080)), None);
}

/// A chain of another program that leads to a neighbour in the same network.
const NOT_UPSTREAMS: &str = "iptables -t nat -N THEIRS && iptables -t nat -A CNI-HOSTPORT-DNAT -j THEIRS && \
     iptables -t nat -A THEIRS -p tcp --dport 8009 -j DNAT --to-destination 10.77.0.9:80";

/// Our DEL gives `route_localnet` back, unless a port of upstream leads to the same link. Another one leads elsewhere.
#[test]
fn a_port_of_upstream_is_reached_from_loopback_after_our_del() {
    for ((release, backend), stays) in of_references().iter().flat_map(|of| [(of, true), (of, false)]) {
        let node = Node::speaking("1.0.0");
        let mut elsewhere = node.bridge.with("name", json!("testnet-2")).with("bridge", json!("cni1"));
        elsewhere.conf["ipam"]["ranges"] = json!([[{"subnet": "10.78.0.0/24"}]]);
        let far = Attached::by(&elsewhere, &node.host, "c-far");
        let [near, own] = ["c-near", "c-own"].map(|id| node.pod(id));
        serves(near.container.netns(), 80, "near");
        let conf = |port| portmap(backend, &[mapping(port, 80, "tcp")]).with("cniVersion", json!("1.0.0"));
        let theirs = |port| conf(port).in_directory(release);
        node.publish(&conf(8003), &own);
        node.call(&theirs(8001), "ADD", &far).ok();
        node.call(&theirs(8002), "ADD", &near).ok();
        if !stays {
            node.call(&theirs(8002), "DEL", &near).ok();
        }
        if *backend == "iptables" {
            node.host.sh(NOT_UPSTREAMS);
        }
        node.call(&conf(8003), "DEL", &own).ok();
        assert_eq!(node.route_localnet() == "1", stays, "{backend}: {}", node.ruleset());
        if stays {
            reaches(node.host.netns(), "127.0.0.1", 8002, "near");
        }
    }
}

/// Changes of rules of nftables, and the text of CHECK's error.
const NFTABLES_HARMED: &[(&str, &str)] = &[
    ("nft flush chain ip cni_hostport hostports", "tcp dport 8080 dnat to 10.77.0.2:80"),
    ("nft flush chain ip6 cni_hostport masquerading", "masquerade"),
    // Upstream's plugin has no rule for neighbours.
    (
        "nft delete rule ip cni_hostport masquerading handle \
         $(nft -a list chain ip cni_hostport masquerading | sed -n 's/.*ct status dnat.*handle //p')",
        "`ct status dnat",
    ),
    ("nft flush chain ip cni_hostport output", "output"),
    ("nft flush chain ip cni_hostport hostports_all", "hostports_all"),
    ("nft delete table ip6 cni_hostport", "table ip6 cni_hostport is missing"),
    ("nft delete element ip cni_hostport hostports_in_use '{ tcp . 8080 }'", "element tcp . 8080"),
    LOCALNET,
];

/// The same of iptables.
const IPTABLES_HARMED: &[(&str, &str)] = &[
    ("iptables -t nat -F CNI-HOSTPORT-DNAT", "is missing from chain CNI-HOSTPORT-DNAT of table nat of iptables"),
    ("ip6tables -t nat -F OUTPUT", "is missing from chain OUTPUT of table nat of ip6tables"),
    ("iptables -t nat -F CNI-HOSTPORT-SETMARK", "is missing from chain CNI-HOSTPORT-SETMARK"),
    ("ip6tables -t nat -F CNI-HOSTPORT-MASQ", "-j MASQUERADE` is missing"),
    ("iptables -t nat -F $(iptables -t nat -S | sed -n 's/^-N \\(CNI-DN-.*\\)/\\1/p')", "-j DNAT --to-destination"),
    ("ip6tables -t nat -F && ip6tables -t nat -X", "of table nat of ip6tables is missing"),
    LOCALNET,
];

const LOCALNET: (&str, &str) = ("echo 0 > /proc/sys/net/ipv4/conf/cni0/route_localnet", "route_localnet");

#[test]
fn missing_rules_are_named_by_check_and_restored() {
    for (backend, node) in each() {
        let pod = node.pod("c-one");
        let web = web(backend);
        node.publish(&web, &pod);
        for (harm, reported) in if backend == "nftables" { NFTABLES_HARMED } else { IPTABLES_HARMED } {
            node.host.sh(harm);
            let (code, text) = node.call(&web, "CHECK", &pod).refused();
            assert_eq!(code, 102, "{text}");
            assert!(text.contains(*reported), "{harm}: {text}");
            node.call(&web, "RESTORE", &pod);
            node.call(&web, "CHECK", &pod).ok();
        }
    }
}

/// What the rules alone do not admit: connections from the host's loopback, and of a sender whose flow was tracked without them.
#[test]
fn a_restore_of_listed_attachments_admits_what_an_add_admits() {
    for (backend, node) in each() {
        let pod = node.pod("c-one");
        serves(pod.container.netns(), 80, "pod");
        answers(pod.container.netns(), 53, "pod");
        let both = portmap(backend, &[mapping(8080, 80, "tcp"), mapping(5353, 53, "udp")]);
        node.publish(&both, &pod);
        let client = node.world.netns().enter(|_| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        let asked = || exchange(&client, to(UPLINK[0], 5353)).ok();
        node.host.sh(match backend {
            "nftables" => "nft delete table ip cni_hostport",
            _ => "iptables -t nat -F && iptables -t nat -X",
        });
        assert_eq!(asked(), None, "{backend}");
        node.restore_listed(&[(&both, &pod)]);
        assert_eq!(asked(), Some(format!("pod {}", WORLD[0])), "{backend}");
        for harm in ["nft delete table ip cnikit_loopback", LOCALNET.0] {
            node.host.sh(harm);
            node.call(&both, "CHECK", &pod).refused();
            node.restore_listed(&[(&both, &pod)]);
            node.call(&both, "CHECK", &pod).ok();
            reaches(node.host.netns(), "127.0.0.1", 8080, "pod");
        }
    }
}

#[test]
fn without_a_configured_backend_rules_of_nftables_stay_the_only_ones_when_iptables_works_again() {
    let node = Node::new();
    let pod = node.pod("c-one");
    serves(pod.container.netns(), 80, "pod");
    let broken = node.host.dir().join("broken");
    std::fs::create_dir(&broken).unwrap();
    let line = "echo 'Table does not exist (do you need to insmod?)' >&2; exit 3";
    PROGRAMS.iter().for_each(|name| script(&broken, name, line));
    let any = web("nftables").with("backend", Value::Null);
    node.publish(&on_path(&any, &broken), &pod);
    reaches(node.world.netns(), UPLINK[0], 8080, "pod");
    let rules = || node.host.sh("nft --stateless list ruleset");
    let before = rules();
    let restores: [&dyn Fn(); 2] =
        [&|| drop(node.call(&any, "RESTORE", &pod)), &|| node.restore_listed(&[(&any, &pod)])];
    for restore in restores {
        node.call(&any, "CHECK", &pod).ok();
        restore();
        assert_eq!(rules(), before);
        // Where some are missing, a set of both backends would never be whole.
        node.host.sh("nft flush chain ip cni_hostport hostports");
        restore();
        assert_eq!(rules(), before);
    }
    node.call(&any, "CHECK", &pod).ok();
    node.call(&any, "DEL", &pod).ok();
    node.publish(&any, &pod);
    assert!(!node.host.sh("nft list table ip cni_hostport").contains("dnat"), "iptables is preferred");
}

/// The guard stays where the setting cannot be changed, and does where its link is gone.
#[test]
fn a_del_succeeds_with_settings_that_are_read_only_or_gone() {
    for (backend, node) in each() {
        let pod = node.pod("c-one");
        let web = web(backend);
        node.publish(&web, &pod);
        let fixed = node.host.dir().join("fixed");
        std::fs::create_dir(&fixed).unwrap();
        let mounts = "mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys";
        let plugin = bin().join("portmap");
        script(&fixed, "portmap", &format!("exec unshare -m sh -c '{mounts} && exec {}'", plugin.display()));
        node.call(&web.in_directory(fixed), "DEL", &pod).ok();
        let is_guarded = || node.ruleset().contains("iifname \"cni0\" jump link-cni0");
        assert!(is_guarded() && node.route_localnet() == "1", "{backend}: {}", node.ruleset());
        node.publish(&web, &pod);
        node.call(&web, "DEL", &pod).ok();
        assert!(!is_guarded() && node.route_localnet() == "0", "{backend}: {}", node.ruleset());
        node.publish(&web, &pod);
        node.host.sh("ip link del cni0");
        node.call(&web, "DEL", &pod).ok();
        assert!(!is_guarded(), "{backend}: {}", node.ruleset());
    }
}

#[test]
fn status_names_a_chain_of_nftables_that_hangs_elsewhere() {
    let node = Node::new();
    let status = || web("nftables").call(&node.host, "STATUS", "", "", &[]);
    status().ok();
    node.host.sh("nft 'add table ip cni_hostport; add chain ip cni_hostport prerouting { type nat hook prerouting priority 7; }'");
    let (code, text) = status().refused();
    assert!(code == 50 && text.contains("priority 7"), "{code}: {text}");
}

#[test]
fn no_program_is_started_for_nftables_and_at_most_two_a_family_for_iptables() {
    let node = Node::new();
    let pod = node.pod("c-one");
    let (programs, log) = noting(node.host.dir());
    let begun = |subject: &Subject, verb: &str| {
        node.call(&on_path(subject, &programs), verb, &pod).ok();
        let mut names = started(&log);
        names.sort();
        names
    };
    let without = || {
        for verb in ["ADD", "ADD", "CHECK", "DEL"] {
            assert_eq!(begun(&web("nftables"), verb), [""; 0], "{verb}");
        }
    };
    without();
    // The kernel is asked whether iptables leads the port to another container.
    let other = node.pod("c-two");
    node.publish(&portmap("iptables", &[mapping(8081, 80, "tcp")]), &other);
    without();
    node.call(&portmap("iptables", &[]), "DEL", &other).ok();
    let all = ["ip6tables-restore", "ip6tables-save", "iptables-restore", "iptables-save"];
    let saves = ["ip6tables-save", "iptables-save"];
    let none = [""; 0];
    for (verb, names) in [
        ("ADD", &all[..]),
        ("ADD", &saves),
        ("CHECK", &saves),
        ("DEL", &saves),
        ("DEL", &none),
        ("STATUS", &saves[1..]),
    ] {
        assert_eq!(begun(&web("iptables"), verb), names, "{verb}");
    }
}

#[test]
fn ports_work_with_both_iptables_variants_and_are_removed_after_a_switch() {
    let node = Node::new();
    let [nft, legacy] = Way::HALVES.map(Way::directory);
    let pod = node.pod("c-one");
    serves(pod.container.netns(), 80, "pod");
    let [chosen, other] = [&legacy, &nft].map(|dir| on_path(&web("iptables"), dir.path()));
    node.publish(&chosen, &pod);
    for family in 0..2 {
        assert_eq!(reaches(node.world.netns(), UPLINK[family], 8080, "pod"), WORLD[family]);
        reaches(pod.container.netns(), UPLINK[family], 8080, "pod");
    }
    reaches(node.host.netns(), "127.0.0.1", 8080, "pod");
    assert!(!node.ruleset().contains("CNI-"), "{}", node.ruleset());
    node.call(&other, "CHECK", &pod).ok();
    node.call(&other, "DEL", &pod).ok();
    assert_eq!(asked(node.world.netns(), to(UPLINK[0], 8080)), None);
    let left = Way::IptablesLegacy.rules(&node.host, "nat");
    assert!(!left.contains("CNI-DN-") && left.contains("CNI-HOSTPORT-DNAT"), "{left}");
}

/// The most rules that another program adds. If its table grew without limit, each change would be slower than the one before.
const OTHERS_MOST: usize = 300;

/// Another program that changes the table all the time: it adds rules, and then replaces one of them. The file has the count.
fn others(dir: &Path) -> String {
    format!(
        r#"
cd {}
iptables -t nat -N OTHERS
n=0
while [ -e go ]; do
    n=$((n + 1))
    if [ $n -le {OTHERS_MOST} ]; then change='-A OTHERS'; else change='-R OTHERS 1'; fi
    printf '*nat\n%s -s 10.9.%d.%d/32 -j RETURN\nCOMMIT\n' "$change" $((n / 256 % 256)) $((n % 256)) |
        iptables-restore --noflush || exit 1
    echo $n >count
done
"#,
        dir.display()
    )
}

#[test]
fn sixty_four_concurrent_adds_beside_another_writer_leave_nothing() {
    let node = Node::new();
    let pod = node.pod("c-one");
    node.publish(&web("iptables"), &pod);
    node.call(&web("iptables"), "DEL", &pod).ok();
    let rules = || node.host.sh("for of in iptables ip6tables; do $of-save -t nat | grep '^-A.*CNI-'; done");
    let before = rules();
    let go = node.host.dir().join("go");
    let count = node.host.dir().join("count");
    std::fs::write(&go, "").unwrap();
    let many: Vec<(Subject, Attached)> = (0..64).map(|n| one_of_many(&node, n, &pod)).collect();
    let (added, there, deleted) = thread::scope(|scope| {
        let others = scope.spawn(|| node.host.try_sh(&others(node.host.dir())));
        let results = (at_once(&node, "ADD", &many), rules(), at_once(&node, "DEL", &many));
        std::fs::remove_file(&go).unwrap();
        let (written, output) = others.join().unwrap();
        assert!(written, "{output}");
        results
    });
    added.into_iter().chain(deleted).for_each(|output| drop(output.ok()));
    let times = |text: &str| there.lines().filter(|line| line.ends_with(text)).count();
    for n in 10..74 {
        assert_eq!(times(&format!("--to-destination 10.77.0.{n}:80")), 1, "{there}");
        assert_eq!(times(&format!("--to-destination [fd00:77::{n}]:53")), 1, "{there}");
    }
    let often = |text: &str| text.lines().filter(|line| !line.contains("CNI-DN-")).count();
    assert_eq!(often(&there), often(&before), "{there}");
    assert_eq!(rules(), before);
    let count: usize = std::fs::read_to_string(count).unwrap().trim().parse().unwrap();
    let theirs = node.host.sh("iptables -t nat -S OTHERS").lines().filter(|line| line.starts_with("-A")).count();
    assert!(count > 1 && theirs == count.min(OTHERS_MOST), "{theirs} rules of another program after {count} changes");
}

/// A container without a namespace: portmap works on the host only.
fn one_of_many(node: &Node, n: usize, pod: &Attached) -> (Subject, Attached) {
    let port = u16::try_from(9000 + n).unwrap();
    let mut prev = pod.prev.clone();
    for (at, address) in [format!("10.77.0.{}/24", n + 10), format!("fd00:77::{}/64", n + 10)].into_iter().enumerate() {
        prev["ips"][at]["address"] = json!(address);
    }
    let pod = Attached { container: node.host.container(), id: format!("c-{n}"), prev };
    (portmap("iptables", &[mapping(port, 80, "tcp"), mapping(port, 53, "udp")]), pod)
}

/// The rules of upstream before 1.9 for a container that publishes port 8001 (CVE-2025-67499).
const LED_ASTRAY: &str = r#"nft -f - <<'NFT'
table ip cni_hostport {
    comment "CNI portmap plugin"
    chain hostports { tcp dport 8001 dnat to 10.77.0.2:80 comment "c-one"; }
    chain hostip_hostports { }
    chain prerouting { type nat hook prerouting priority -100; jump hostip_hostports; jump hostports; }
    chain output { type nat hook output priority -100; jump hostip_hostports; jump hostports; }
    chain masquerading { type nat hook postrouting priority 100; ip saddr 10.77.0.2 ip daddr 10.77.0.2 masquerade comment "c-one"; }
}
NFT"#;

#[test]
fn an_add_corrects_ports_misdirected_by_old_upstream() {
    let node = Node::new();
    let one = node.pod("c-one");
    let two = node.pod("c-two");
    serves(one.container.netns(), 80, "one");
    serves(two.container.netns(), 80, "two");
    serves(two.container.netns(), 8001, "other");
    node.host.sh(LED_ASTRAY);
    // Forwarded through, and made by the host: both were meant for another.
    reaches(node.world.netns(), SECOND[0], 8001, "one");
    reaches(node.host.netns(), SECOND[0], 8001, "one");
    let conf = portmap("nftables", &[mapping(8002, 80, "tcp")]);
    node.publish(&conf, &two);
    reaches(node.world.netns(), SECOND[0], 8001, "other");
    reaches(node.host.netns(), SECOND[0], 8001, "other");
    for (port, name) in [(8001, "one"), (8002, "two")] {
        reaches(node.world.netns(), UPLINK[0], port, name);
    }
    for (chain, target) in [("prerouting", "hostports"), ("output", "hostip_hostports"), ("output", "hostports_all")] {
        node.host.sh(&format!("nft add rule ip cni_hostport {chain} jump {target}"));
        let (code, text) = node.call(&conf, "CHECK", &two).refused();
        assert_eq!(code, 102, "{text}");
        assert!(text.contains(&format!("`jump {target}` in chain {chain} of table ip cni_hostport")), "{text}");
        node.publish(&conf, &two);
    }
}

#[test]
fn a_client_of_a_service_rule_is_seen_with_its_own_address() {
    for backend in BACKENDS {
        let mut node = Node::new();
        // With a link each, replies to neighbours are routed by the host too.
        node.bridge = ptp().with("ipMasqBackend", json!("nftables")).at(node.host.dir());
        let pod = node.pod("c-one");
        let other = node.pod("c-two");
        serves(other.container.netns(), 8080, "other");
        node.host.sh(SERVICES);
        node.world.sh("ip route add 10.96.0.0/24 via 192.0.2.1");
        let published = portmap(backend, &[mapping(8090, 8080, "tcp")]);
        let one = pod.container.netns();
        let world = node.world.netns();
        node.publish(&published, &other);
        assert_eq!(reaches(one, "10.96.0.10", 8080, "other"), FIRST[0], "{backend}");
        assert_ne!(reaches(one, UPLINK[0], 8090, "other"), FIRST[0], "{backend}: a neighbour");
        assert_eq!(reaches(world, UPLINK[0], 8090, "other"), WORLD[0], "{backend}");
        node.publish(&published.with("masqAll", json!(true)), &other);
        assert_eq!(reaches(one, "10.96.0.10", 8080, "other"), FIRST[0], "{backend}: everybody");
        assert_eq!(reaches(world, "10.96.0.10", 8080, "other"), WORLD[0], "{backend}: everybody");
        assert_ne!(reaches(world, UPLINK[0], 8090, "other"), WORLD[0], "{backend}: everybody");
    }
}

#[test]
fn a_container_of_upstream_is_checked_and_adopted_after_our_add() {
    let [_, newest] = references();
    let node = Node::speaking("1.0.0");
    let one = node.pod("c-one");
    let two = node.pod("c-two");
    let conf = |port| portmap("nftables", &[mapping(port, 80, "tcp")]).with("cniVersion", json!("1.0.0"));
    node.call(&conf(8001).in_directory(newest), "ADD", &one).ok();
    let rules = || node.ruleset().lines().filter(|line| line.contains("comment \"c-one\"")).count();
    assert_eq!(rules(), 5);
    node.publish(&conf(8002), &two);
    node.call(&conf(8001), "CHECK", &one).ok();
    node.publish(&conf(8001), &one);
    node.publish(&conf(8001), &one);
    // With its neighbours'.
    assert_eq!(rules(), 7, "{}", node.ruleset());
}

#[test]
fn a_listener_on_ipv6_loopback_is_reached_beside_a_published_port() {
    let node = Node::new();
    let pod = node.pod("c-one");
    serves(pod.container.netns(), 80, "pod");
    serves(node.host.netns(), 8080, "host");
    node.publish(&web("nftables"), &pod);
    assert_eq!(reaches(node.host.netns(), "::1", 8080, "host"), "::1");
    reaches(node.host.netns(), UPLINK[1], 8080, "pod");
    reaches(node.world.netns(), UPLINK[1], 8080, "pod");
}

#[test]
fn conditions_that_no_packet_to_these_ports_meets_are_refused_by_their_key() {
    let node = Node::new();
    let pod = node.pod("c-one");
    let before = node.ruleset();
    for (key, words, why) in [
        ("conditionsV4", "ip6 saddr fd00::1", "mixes families"),
        ("conditionsV6", "ip saddr 10.0.0.1", "mixes families"),
        ("conditionsV6", "udp sport 53", "mixes protocols"),
    ] {
        let (code, text) = node.call(&web("nftables").with(key, json!([words])), "ADD", &pod).refused();
        assert_eq!(code, 7, "{text}");
        assert!(text.contains(&format!("{key}: ")) && text.contains(why), "{text}");
        assert_eq!(node.ruleset(), before);
    }
}

/// The outcome of each of these calls, which run at once.
fn at_once(node: &Node, verb: &str, many: &[(Subject, Attached)]) -> Vec<CallOutput> {
    thread::scope(|scope| {
        let begun = many.iter().map(|(portmap, pod)| scope.spawn(|| node.call(portmap, verb, pod)));
        let begun: Vec<_> = begun.collect();
        begun.into_iter().map(|call| call.join().unwrap()).collect()
    })
}

#[test]
fn one_of_many_concurrent_requests_for_one_port_gets_it() {
    let node = Node::new();
    let pod = node.pod("c-one");
    // Each has read long before another one has written.
    let (slow, _) = noting(node.host.dir());
    for name in ["iptables-restore", "ip6tables-restore"] {
        scripts(&slow, name, &format!("sleep 0.5; exec /usr/sbin/{name} \"$@\""));
    }
    let same = |n| (on_path(&web("iptables"), &slow), one_of_many(&node, n, &pod).1);
    let many: Vec<(Subject, Attached)> = (0..16).map(same).collect();
    let outputs = at_once(&node, "ADD", &many);
    let (won, lost): (Vec<_>, Vec<_>) = outputs.iter().partition(|output| output.exit == 0);
    let rules = node.host.sh("iptables-save -t nat; ip6tables-save -t nat");
    assert_eq!(won.len(), 1, "{rules}");
    for output in lost {
        let (code, text) = output.refused();
        assert!(code == 101 && text.contains("tcp 8080 of the host leads to container"), "{text}");
    }
    let times = |text: &str| rules.lines().filter(|line| line.contains(text)).count();
    assert_eq!(
        [times("-j DNAT"), times("-A PREROUTING"), times("-A OUTPUT"), times("-A POSTROUTING")],
        [2; 4],
        "{rules}"
    );
    at_once(&node, "DEL", &many).into_iter().for_each(|output| drop(output.ok()));
}

/// A jump with its position, because it exists and has no effect.
const MISPLACED: [(&str, &str); 3] = [
    (
        "iptables -t nat -I POSTROUTING -s 10.9.9.9 -j ACCEPT",
        "is not the first of chain POSTROUTING of table nat of iptables",
    ),
    (
        "ip6tables -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT",
        "is 2 times in chain PREROUTING of table nat of ip6tables",
    ),
    (
        "iptables -t nat -A POSTROUTING -m comment --comment 'CNI portfwd requiring masquerade' -j CNI-HOSTPORT-MASQ",
        "is 2 times in chain POSTROUTING of table nat of iptables",
    ),
];

#[test]
fn a_misplaced_or_duplicate_jump_is_named_and_repaired() {
    let node = Node::new();
    let pod = node.pod("c-one");
    let web = web("iptables");
    node.publish(&web, &pod);
    let (programs, log) = noting(node.host.dir());
    for (harm, named) in MISPLACED {
        node.host.sh(harm);
        let (code, text) = node.call(&web, "CHECK", &pod).refused();
        assert_eq!(code, 102, "{text}");
        assert!(text.contains(named), "{harm}: {text}");
        node.call(&on_path(&web, &programs), "ADD", &pod).ok();
        let begun = started(&log);
        assert_eq!(begun.len(), 3, "both families are read, and one is written: {begun:?}");
        node.call(&web, "CHECK", &pod).ok();
    }
}

#[test]
fn datagrams_of_a_continuing_sender_reach_no_container_after_a_gc() {
    for (backend, node) in each() {
        let stale = node.pod("c-one");
        let valid = node.pod("c-two");
        answers(stale.container.netns(), 53, "stale");
        answers(valid.container.netns(), 53, "valid");
        let dns = |port| portmap(backend, &[mapping(port, 53, "udp")]);
        let client = node.world.netns().enter(|_| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        let asked = |port| exchange(&client, to(UPLINK[0], port)).ok();
        let by = |name: &str| Some(format!("{name} {}", WORLD[0]));
        node.publish(&dns(5353), &stale);
        node.publish(&dns(5354), &valid);
        assert_eq!([asked(5353), asked(5354)], [by("stale"), by("valid")], "{backend}");
        let gc = json!([{"containerID": "c-two", "ifname": "eth0"}]);
        dns(5353).call(&node.host, "GC", "", "", &[("cni.dev/valid-attachments", gc)]).ok();
        assert_eq!([asked(5353), asked(5354)], [None, by("valid")], "{backend}");
    }
}

#[test]
fn traffic_from_every_address_of_the_container_is_masqueraded() {
    for (backend, node) in each() {
        let mut pod = node.pod("c-one");
        serves(pod.container.netns(), 80, "pod");
        pod.container.sh("ip address add 10.78.0.2/24 dev eth0; ip address add 10.78.0.3/24 dev eth0");
        node.host.sh("ip address add 10.78.0.1/24 dev cni0");
        for address in ["10.78.0.2/24", "10.78.0.3/24"] {
            let mut more = pod.prev["ips"][0].clone();
            more["address"] = json!(address);
            pod.prev["ips"].as_array_mut().unwrap().push(more);
        }
        node.publish(&web(backend), &pod);
        // From its second address, which is in the network of the address that it connects to.
        assert_eq!(reaches(pod.container.netns(), "10.78.0.1", 8080, "pod"), GATEWAY[0], "{backend}");
        let neighbour = node.pod("c-two");
        neighbour.container.sh("ip address add 10.78.0.4/24 dev eth0");
        assert_eq!(reaches(neighbour.container.netns(), "10.78.0.1", 8080, "pod"), GATEWAY[0], "{backend}");
        node.call(&web(backend), "DEL", &pod).ok();
        let left = node.ruleset();
        assert!(!left.contains("CNI-DN-") && !left.contains("8080"), "{left}");
    }
}

/// Each detects the rules of the other, by asking the kernel.
#[test]
fn a_port_of_another_container_by_the_other_backend_is_refused() {
    for (first, second) in [("iptables", "nftables"), ("nftables", "iptables")] {
        let node = Node::new();
        let one = node.pod("c-one");
        let two = node.pod("c-two");
        serves(one.container.netns(), 80, "one");
        serves(two.container.netns(), 80, "two");
        node.publish(&web(first), &one);
        let before = node.ruleset();
        let both = portmap(second, &[mapping(8090, 80, "tcp"), mapping(8080, 80, "tcp")]);
        let (code, text) = node.call(&both, "ADD", &two).refused();
        assert_eq!(code, 101, "{text}");
        for word in ["tcp 8080", "c-one", first, "already"] {
            assert!(text.contains(word), "{second}: {text}");
        }
        assert_eq!(node.ruleset(), before, "{second}");
        // Not a conflict: the same container, another protocol, another address of the host.
        let itself = web(second).with("name", json!("n2"));
        node.publish(&itself, &one);
        node.call(&itself, "DEL", &one).ok();
        let at = |address: &str| json!({"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": address});
        node.publish(&portmap(first, &[at(UPLINK[0])]), &one);
        node.publish(&portmap(second, &[at(GATEWAY[0]), at(UPLINK[1]), mapping(8080, 80, "udp")]), &two);
        let (_, text) = node.call(&both, "ADD", &two).refused();
        assert!(text.contains("c-one"), "{second}: {text}");
        node.publish(&web(second).with("hostPortTaken", json!("firstWins")), &two);
        node.call(&both, "DEL", &two).ok();
        node.publish(&web(first), &one);
        let behind = both.with("hostPortTaken", json!("firstWins"));
        node.publish(&behind, &two);
        for address in UPLINK {
            reaches(node.world.netns(), address, 8080, "one");
            reaches(node.world.netns(), address, 8090, "two");
        }
        node.call(&web(first), "DEL", &one).ok();
        node.publish(&behind, &two);
        reaches(node.world.netns(), UPLINK[0], 8080, "two");
        let (_, text) = node.call(&web(first), "ADD", &one).refused();
        assert!(text.contains("c-two") && text.contains(second), "{first}: {text}");
        node.call(&behind, "DEL", &two).ok();
        node.publish(&web(first), &one);
    }
}

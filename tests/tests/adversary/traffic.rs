//! Packets to published ports, through the rules of other programs.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use cnikit_netns::Netns;
use cnikit_testkit::{Container, Host, Subject};
use cnikit_tests::world::world;
use cnikit_tests::{bridge, references, subject};
use serde_json::{Value, json};

use crate::actor::{BROADCAST, Ear, IPV4, ethernet, mac, send, udp4};

const UPLINK: &str = "192.0.2.1";
const FIRST: &str = "10.77.0.2";

/// A host with a world around it, and two containers on a bridge.
struct Node {
    host: Host,
    world: Container,
    pods: [(Container, Value); 2],
}

impl Node {
    fn new() -> Node {
        let host = Host::new();
        let world = world(&host);
        let bridge = bridge().with("ipMasqBackend", json!("nftables")).at(host.dir());
        let pods = ["c-one", "c-two"].map(|id| {
            let container = host.container();
            let result = bridge.add(&host, id, &container);
            (container, result)
        });
        Node { host, world, pods }
    }

    /// Publishes port 8080 for the first container.
    fn publish(&self, backend: &str, mut mapping: Value) -> Subject {
        mapping["hostPort"] = json!(8080);
        mapping["containerPort"] = json!(80);
        let keys = json!({"backend": backend, "runtimeConfig": {"portMappings": [mapping]}});
        self.publish_by(subject("portmap", keys))
    }

    fn publish_by(&self, portmap: Subject) -> Subject {
        let (container, prev) = &self.pods[0];
        portmap.call(&self.host, "ADD", "c-one", &container.path(), &[("prevResult", prev.clone())]).ok();
        portmap
    }
}

/// Sends a name over every connection.
fn serves(netns: &Netns, port: u16, name: &'static str) {
    let listener = netns.enter(|_| TcpListener::bind(("0.0.0.0", port)).unwrap()).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(name.as_bytes());
        }
    });
}

/// The answer to a connection; empty if it is refused.
fn asked(from: &Netns, address: &str, port: u16) -> String {
    let to: SocketAddr = format!("{address}:{port}").parse().unwrap();
    let ask = || {
        let stream = TcpStream::connect_timeout(&to, Duration::from_secs(2))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        std::io::read_to_string(stream)
    };
    from.enter(|_| ask()).unwrap().unwrap_or_default()
}

fn mac_of(shown: &str) -> [u8; 6] {
    mac(shown.split_whitespace().find(|word| word.matches(':').count() == 5).unwrap())
}

/// It is reached from the host by that address only, and not from outside, not even with a raw frame. For addresses of other
/// containers see `host_loopback`.
#[test]
fn a_port_published_on_127_0_0_1_is_not_reached_from_outside() {
    for backend in ["iptables", "nftables"] {
        let node = Node::new();
        let pod = &node.pods[0].0;
        serves(pod.netns(), 80, "pod");
        for protocol in ["tcp", "udp"] {
            node.publish(backend, json!({"hostIP": "127.0.0.1", "protocol": protocol}));
            if protocol == "tcp" {
                assert_eq!(asked(node.host.netns(), "127.0.0.1", 8080), "pod", "{backend}");
                for (from, address) in
                    [(&node.world, UPLINK), (&node.pods[1].0, UPLINK), (&node.pods[1].0, "10.77.0.1")]
                {
                    assert_eq!(asked(from.netns(), address, 8080), "", "{backend}: {address}");
                }
            }
        }
        let ear = Ear::of(pod.netns());
        let control = Ear::of(pod.netns());
        let own = mac_of(&node.world.sh("ip -br link show uplink"));
        for to in ["127.0.0.1", "127.1.2.3"] {
            let frame = |port| ethernet(BROADCAST, own, &[], IPV4, &udp4(("192.0.2.2", 7777), (to, port), b"raw"));
            send(&node.world, "uplink", &[frame(8080), frame(80)]);
        }
        let packet = udp4(("192.0.2.2", 7777), (FIRST, 80), b"a control");
        node.host.sh("sysctl -qw net.ipv4.ip_forward=1");
        send(
            &node.world,
            "uplink",
            &[ethernet(mac_of(&node.host.sh("ip -br link show world")), own, &[], IPV4, &packet)],
        );
        pod.sh("timeout 10 sh -c 'until nstat -asz UdpNoPorts | grep -q \"UdpNoPorts *[1-9]\"; do sleep 0.02; done'");
        assert!(control.heard(b"a control") >= 1, "{backend}: what is sent to the container arrives");
        assert_eq!(ear.heard(b"raw"), 0, "{backend}");
    }
}

/// The rules of kube-proxy: the address of the host and the port belong to a service, which leads to the second container.
const SERVICE: &str = "iptables -t nat -N KUBE-SERVICES
    iptables -t nat -A KUBE-SERVICES -d 192.0.2.1 -p tcp --dport 8080 -j DNAT --to-destination 10.77.0.3:80
    iptables -t nat -I PREROUTING -j KUBE-SERVICES; iptables -t nat -I OUTPUT -j KUBE-SERVICES";

/// With iptables. Of two chains of nftables with one priority the kernel runs the one first that was made last: see below.
#[test]
fn a_host_port_takes_nothing_from_a_service_of_kubernetes_cve_2019_9946() {
    let node = Node::new();
    serves(node.pods[0].0.netns(), 80, "pod");
    serves(node.pods[1].0.netns(), 80, "service");
    node.host.sh(SERVICE);
    for time in ["once", "twice"] {
        let portmap = node.publish("iptables", json!({"protocol": "tcp"}));
        assert_eq!(asked(node.world.netns(), UPLINK, 8080), "service", "published {time}");
        assert_eq!(asked(node.host.netns(), UPLINK, 8080), "service", "published {time}");
        assert_eq!(asked(node.host.netns(), "10.77.0.1", 8080), "pod", "what is not the service's");
        let rules = node.host.sh("iptables -t nat -S");
        for chain in ["PREROUTING", "OUTPUT"] {
            let own: Vec<&str> = rules.lines().filter(|line| line.starts_with(&format!("-A {chain} "))).collect();
            let place = |to: &str| own.iter().position(|line| line.contains(to)).unwrap();
            assert!(place("KUBE-SERVICES") < place("CNI-HOSTPORT-DNAT"), "{own:#?}");
        }
        if time == "twice" {
            let (container, prev) = &node.pods[0];
            portmap.del(&node.host, "c-one", container, prev);
            assert_eq!(asked(node.world.netns(), UPLINK, 8080), "service", "after DEL");
        }
    }
}

/// Both have their chains at one hook with one priority, which is fixed because the table is shared with the upstream plugin: the
/// kernel runs those first that were made last. iptables-legacy makes its chains when it is first used. The same is true of the
/// upstream plugin.
#[test]
fn with_nftables_the_chains_made_last_run_first_as_upstream_cve_2019_9946() {
    let mapping = json!({"hostPort": 8080, "containerPort": 80, "protocol": "tcp"});
    let ours = subject("portmap", json!({"backend": "nftables", "runtimeConfig": {"portMappings": [mapping]}}));
    let theirs = ours.with("cniVersion", json!("1.0.0")).in_directory(references()[1].clone());
    for (portmap, whose) in [(&ours, "ours"), (&theirs, "theirs")] {
        for (program, service_is_last, answers) in [
            ("iptables-nft", false, "pod"),
            ("iptables-nft", true, "service"),
            ("iptables-legacy", false, "pod"),
            ("iptables-legacy", true, "service"),
        ] {
            let node = Node::new();
            serves(node.pods[0].0.netns(), 80, "pod");
            serves(node.pods[1].0.netns(), 80, "service");
            let service = SERVICE.replace("iptables ", &format!("{program} "));
            if service_is_last {
                node.publish_by(portmap.clone());
                node.host.sh(&service);
            } else {
                node.host.sh(&service);
                node.publish_by(portmap.clone());
            }
            for from in [&node.world.netns(), &node.host.netns()] {
                let output = asked(from, UPLINK, 8080);
                assert_eq!(output, answers, "{whose}, {program}, the service last: {service_is_last}");
            }
        }
    }
}

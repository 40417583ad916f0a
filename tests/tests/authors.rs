//! What authors use: the programs that the page for authors of runtimes shows, and the runtime of `cnikit::testing`, with real
//! plugins.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

use std::fs;
use std::path::Path;

use cnikit_testing::{PluginDir, in_own_namespaces};
use cnikit_testkit::{Host, HostSnapshot};
use cnikit_tests::docs::page;
use cnikit_tests::scene::Scene;
use cnikit_tests::{bin, program};
use serde_json::{Value, json};

/// An example's code, which the page has to show.
fn shown(name: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/libcni/examples").join(name);
    let source = fs::read_to_string(file).unwrap();
    let (_, code) = source.split_once("\n\nuse ").unwrap();
    let block = format!("```rust,no_run\nuse {}\n```", code.trim_end());
    assert!(page("docs/runtime-authors.md").text.contains(&block), "the page does not show {name}");
    code.to_owned()
}

/// The networks `front` and `back`, as files.
fn configured(scene: &Scene) {
    fs::create_dir(scene.path("net.d")).unwrap();
    for (name, number) in [("front", 1), ("back", 2)] {
        let ipam =
            json!({"type": "host-local", "subnet": format!("10.{number}.0.0/24"), "dataDir": scene.path("leases")});
        let bridge = json!({"type": "bridge", "bridge": name, "isGateway": true, "ipam": ipam});
        let list: Value = json!({"cniVersion": "1.1.0", "name": name, "plugins": [bridge]});
        fs::write(scene.path(&format!("net.d/{name}.conflist")), list.to_string()).unwrap();
    }
}

/// An example's call on the host of the scene.
fn example(scene: &Scene, name: &str, rest: &str) -> String {
    let example = program("examples").join(name);
    let dir = scene.host.dir().display();
    scene.host.sh(&format!("{} {} {dir}/net.d {dir}/state {rest}", example.display(), bin().display()))
}

#[test]
fn ten_lines_attach_a_container_to_many_networks() {
    let code = shown("attach.rs");
    let (_, body) = code.split_once("fn main").unwrap();
    let lines = body.lines().skip(1).filter(|line| !line.trim().is_empty() && line.trim() != "}").count();
    assert!(lines <= 10, "{lines} lines");
    let scene = Scene::new();
    configured(&scene);
    let output = example(&scene, "attach", &format!("{} front back", scene.container.path()));
    assert!(output.contains("cni-loopback lo") && output.contains("back eth1"), "{output}");
    for (ifname, address) in [("eth0", "10.1.0.2/24"), ("eth1", "10.2.0.2/24")] {
        assert!(scene.container.sh(&format!("ip address show {ifname}")).contains(address));
    }
}

#[test]
fn the_node_example_lists_attachments_and_removes_stale_ones() {
    shown("node.rs");
    let scene = Scene::new();
    configured(&scene);
    example(&scene, "attach", &format!("{} front back", scene.container.path()));
    let output = example(&scene, "node", "front web-1");
    assert!(output.contains("web-1 eth0 [\"10.1.0.2/24\"]"), "{output}");
    assert_eq!(scene.leases("front"), ["10.1.0.2"]);
    example(&scene, "node", "front");
    assert_eq!((scene.leases("front").len(), scene.leases("back").len()), (0, 1));
}

#[test]
fn a_test_calls_all_verbs_as_a_container_runtime_does() {
    in_own_namespaces(|| {
        let host = Host::new();
        let plugins = PluginDir::of(&[bin().join("ptp"), bin().join("host-local")]);
        let network = host.runtime(&plugins, json!({
            "type": "ptp", "ipam": {"type": "host-local", "subnet": "10.9.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]},
        }));
        let outside = host.peer("uplink0", "192.0.2.1/24", "192.0.2.2/24").routed_back();
        host.sh("sysctl -qw net.ipv4.ip_forward=1"); // ptp would enable it, and leave it so
        let before = HostSnapshot::of(&host);
        let [one, two] = [host.container(), host.container()];
        assert_eq!(network.add(&one)["ips"][0]["address"], "10.9.0.2/24");
        assert_eq!(network.add(&two)["ips"][0]["address"], "10.9.0.3/24");
        assert!(one.reaches("10.9.0.1") && one.reaches(outside.address()) && two.reaches("10.9.0.2"));
        network.check(&one);
        one.sh("ip route del default");
        let difference = network.try_check(&one).unwrap_err();
        assert!(difference.contains("ptp") && difference.contains("0.0.0.0/0"), "{difference}");
        network.gc(&[&two]);
        assert!(one.links().is_empty() && two.reaches("10.9.0.1"));
        network.del(&two);
        network.del(&two);
        assert_eq!(HostSnapshot::leftovers(&host, &before, &["leases"]), None);
        let ipam = json!({"type": "host-local", "subnet": "10.9.0.0/33"});
        let refusal = host.runtime(&plugins, json!({"type": "ptp", "ipam": ipam})).try_add(&one).unwrap_err();
        assert!(refusal.contains("10.9.0.0/33"), "{refusal}");
    });
}

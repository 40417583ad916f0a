//! Many networks of one container, with real plugins: one after another, all or none.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

use std::fs;
use std::future::Future;
use std::io::Write;
use std::net::TcpListener;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, JoinHandle, Thread};

use cnikit::{Input, InterfaceShape, Plugin, serve};
use cnikit_libcni::{
    Attachment, Bandwidth, Deadline, Error, InProcess, NetworkList, Networks, PluginCall, PortMapping, PortProtocol,
    Runtime,
};
use cnikit_testkit::life::SHARED;
use cnikit_testkit::{Container, HostSnapshot};
use cnikit_tests::scene::{ANSWER, Scene};
use cnikit_tests::world::{ping, undisturbed, world};
use serde_json::{Value, json};

fn bridge(scene: &Scene, number: usize) -> NetworkList {
    let ipam = json!({"type": "host-local", "subnet": format!("10.{number}.0.0/24"), "dataDir": scene.path("leases")});
    let bridge = json!({"type": "bridge", "bridge": format!("br{number}"), "isGateway": true, "ipam": ipam});
    scene.list(&format!("net{number}"), &json!([bridge]))
}

fn three(scene: &Scene) -> Networks {
    let all = Networks::new(scene.runtime()).with_loopback();
    (1..=3).fold(all, |all, number| all.with(bridge(scene, number)))
}

fn container(scene: &Scene) -> Attachment {
    Attachment::new("c1", scene.container.path())
}

#[test]
fn a_container_gets_many_networks_with_an_interface_each_and_one_result() {
    let scene = Scene::new();
    let networks = three(&scene);
    scene.host.enter(|| {
        networks.status().unwrap();
        let merged = networks.setup(&container(&scene)).unwrap();
        for (ifname, address) in [("eth0", "10.1.0.2/24"), ("eth1", "10.2.0.2/24"), ("eth2", "10.3.0.2/24")] {
            let joined = merged.interface(ifname).unwrap();
            assert_eq!(joined.ips[0].address.to_string(), address);
            assert!(scene.container.sh(&format!("ip address show {ifname}")).contains(address));
        }
        assert_eq!(merged.interface("lo").unwrap().ips[0].address.to_string(), "127.0.0.1/8");
        assert_eq!((merged.results.len(), merged.interface("br1")), (4, None));
        assert!(scene.container.reaches("10.3.0.1"));
        networks.check(&container(&scene)).unwrap();
        networks.gc(&["c1"]).unwrap();
        networks.check(&container(&scene)).unwrap();
        networks.remove(&container(&scene)).unwrap();
        networks.remove(&container(&scene)).unwrap();
    });
    scene.assert_clean("net1");
    assert!(scene.container.sh("ip link show lo").contains("state DOWN"));
}

#[test]
fn a_network_that_fails_rolls_back_the_other_networks() {
    let scene = Scene::new();
    scene.plugin("refuses", r#"ADD) echo '{"code": 101, "msg": "never"}'; exit 1 ;;"#);
    let networks = three(&scene).with(scene.list("last", &json!([{"type": "refuses"}])));
    let error = scene.host.enter(|| networks.setup(&container(&scene)).unwrap_err());
    assert_refused(&scene, &error);
    let first = HostSnapshot::of(&scene.host);
    let error_at_once = scene.host.enter(|| networks.setup_at_once(&container(&scene)).unwrap_err());
    assert_refused(&scene, &error_at_once);
    let counted = ["last_reserved_ip.", ".idx", "refuses.", "calls"];
    HostSnapshot::of(&scene.host).assert_unchanged_since(&first, &counted, "at once");
}

/// The last network failed, and none is left.
fn assert_refused(scene: &Scene, error: &Error) {
    assert_eq!(error.code(), 101, "{error}");
    assert!(error.to_string().starts_with("network last, eth3: plugin type=\"refuses\""), "{error}");
    for number in 1..=3 {
        scene.assert_clean(&format!("net{number}"));
    }
}

#[test]
fn at_once_it_is_the_same_where_the_plugins_allow_it() {
    let scene = Scene::new();
    let networks = three(&scene);
    scene.host.enter(|| {
        let merged = networks.setup_at_once(&container(&scene)).unwrap();
        assert_eq!(merged.interface("eth2").unwrap().ips.len(), 1);
        networks.check(&container(&scene)).unwrap();
        networks.remove(&container(&scene)).unwrap();
    });
    scene.assert_clean("net3");
}

#[test]
fn an_unloaded_network_is_deleted_too_and_gc_spares_valid_attachments() {
    let scene = Scene::new();
    let networks = three(&scene);
    let fewer = Networks::new(scene.runtime()).with(bridge(&scene, 2));
    scene.host.enter(|| {
        networks.setup(&container(&scene)).unwrap();
        // Here the second network would be eth0: its cached attachment has eth1.
        fewer.gc(&["c1"]).unwrap();
        networks.check(&container(&scene)).unwrap();
        fewer.remove(&container(&scene)).unwrap();
    });
    for number in 1..=3 {
        scene.assert_clean(&format!("net{number}"));
    }
    scene.host.enter(|| {
        networks.setup(&container(&scene)).unwrap();
        networks.gc(&[]).unwrap();
    });
    scene.assert_clean("net1");
}

#[test]
fn too_few_networks_are_an_error_and_the_prefix_is_configurable() {
    let scene = Scene::new();
    let none = Networks::new(scene.runtime()).with_loopback();
    for error in [none.status().unwrap_err(), none.setup(&container(&scene)).unwrap_err()] {
        assert!(matches!(error, Error::TooFew { found: 0, wanted: 1 }) && error.code() == 50, "{error}");
    }
    assert!(none.clone().at_least(0).status().is_ok());
    let named = Networks::new(scene.runtime()).prefix("net").with(bridge(&scene, 1)).with(bridge(&scene, 2));
    let names: Vec<&str> = named.networks.iter().map(|network| network.ifname.as_str()).collect();
    assert_eq!(names, ["net0", "net1"]);
    assert!(matches!(named.at_least(3).status(), Err(Error::TooFew { found: 2, wanted: 3 })));
}

/// A plugin of ours as a function of this process.
fn served<P: Plugin>(name: &'static str) -> impl Fn(&PluginCall<'_>, &mut Vec<u8>) -> u8 {
    move |call, out| serve::<P>(name, input_of(call), &[], out)
}

fn input_of(call: &PluginCall<'_>) -> Input {
    let given = call.environment;
    let mut input = Input::new(&given.command, call.stdin);
    input.container_id.clone_from(&given.container_id);
    input.netns.clone_from(&given.netns);
    input.ifname.clone_from(&given.ifname);
    input.args.clone_from(&given.args);
    input.path.clone_from(&given.path);
    input
}

#[test]
fn our_own_plugins_are_functions_where_the_runtime_wants_them_so() {
    let scene = Scene::new();
    let own = InProcess::default()
        .with_served("loopback", served::<loopback::LoopbackPlugin>("loopback"))
        .with_served("bridge", served::<InterfaceShape<bridge::BridgePlugin>>("bridge"));
    let runtime = Runtime { executor: Arc::new(own), ..scene.runtime() };
    let networks = Networks { runtime, ..three(&scene) };
    scene.host.enter(|| {
        let merged = networks.setup(&container(&scene)).unwrap();
        assert_eq!(merged.interface("eth2").unwrap().ips[0].address.to_string(), "10.3.0.2/24");
        assert!(scene.container.reaches("10.2.0.1"));
        let error = networks.setup(&container(&scene)).unwrap_err();
        assert!(error.code() == 101 && error.to_string().contains("eth0"), "{error}");
        networks.check(&container(&scene)).unwrap();
        networks.remove(&container(&scene)).unwrap();
    });
    scene.assert_clean("net3");
}

/// Wakes the thread that waits.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(done) => return done,
            Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn any_call_is_a_future_and_one_that_is_dropped_ends_its_plugin() {
    let scene = Scene::new();
    scene.plugin("one", ANSWER);
    scene.plugin("slow", "ADD) echo $$ >$dir/pid; exec sleep 63 ;;");
    let quick = scene.list("quick", &json!([{"type": "one"}]));
    let at = scene.at();
    let added = scene.runtime().in_background(move |runtime| runtime.add(&quick, &at)).unwrap();
    let result: Value = block_on(added).unwrap();
    assert_eq!(result["ips"][0]["address"], "10.9.0.2/24");
    let slow = scene.list("slow", &json!([{"type": "slow"}]));
    let at = scene.at();
    let dropped = scene.runtime().in_background(move |runtime| runtime.add(&slow, &at)).unwrap();
    scene.until_called("ADD slow");
    let deadline = Deadline::after(std::time::Duration::from_secs(20));
    let pid = || fs::read_to_string(scene.path("pid")).unwrap_or_default();
    while pid().trim().is_empty() {
        assert!(deadline.pause(std::time::Duration::from_millis(5)));
    }
    drop(dropped);
    let is_gone = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid().trim())).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    };
    while !is_gone() {
        assert!(deadline.pause(std::time::Duration::from_millis(5)), "it still runs");
    }
}

/// The first network of a container as people configure it: a bridge, limits and published ports.
fn published(scene: &Scene) -> NetworkList {
    let bridge = scene.bridge();
    let bandwidth = json!({"type": "bandwidth", "capabilities": {"bandwidth": true}});
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}, "backend": "nftables"});
    scene.list("published", &json!([bridge, bandwidth, portmap]))
}

/// A second network as Multus adds it: a link of the host's own LAN, with replies by the interface that was asked.
fn on_lan(scene: &Scene) -> NetworkList {
    let addresses = json!([{"address": "10.88.0.2/24", "gateway": "10.88.0.1"},
        {"address": "fd00:88::2/64", "gateway": "fd00:88::1"}]);
    let ipam = json!({"type": "static", "addresses": addresses});
    let macvlan = json!({"type": "macvlan", "master": "lan", "ipam": ipam});
    scene.list("on-lan", &json!([macvlan, {"type": "sbr", "dataDir": scene.path("sbr")}]))
}

/// The router of that LAN, which also has addresses that only it knows the way to.
fn lan_router(scene: &Scene) -> Container {
    let router = scene.host.container();
    scene.host.sh(&format!("ip link add lan type veth peer name port netns {} && ip link set lan up", router.path()));
    router.sh("echo 0 > /proc/sys/net/ipv6/conf/all/accept_dad; echo 0 > /proc/sys/net/ipv6/conf/port/accept_dad
        ip link set lo up && ip link set port up
        ip address add 10.88.0.1/24 dev port && ip address add fd00:88::1/64 dev port nodad
        ip address add 198.51.100.1/32 dev lo && ip address add 2001:db8:88::1/128 dev lo");
    router
}

/// Whether a host of another network reaches the container's address in the LAN, for each family.
fn lan_reaches(router: &Container) -> [bool; 2] {
    [("198.51.100.1", "10.88.0.2"), ("2001:db8:88::1", "fd00:88::2")]
        .map(|(from, to)| router.try_sh(&ping(&format!("-I {from} {to}"))).0)
}

/// Answers two connections to port 80 of a container.
fn answer_twice(container: &Container) -> JoinHandle<()> {
    let listener = container.netns().enter(|_| TcpListener::bind("0.0.0.0:80").unwrap()).unwrap();
    thread::spawn(move || {
        for _ in 0..2 {
            listener.accept().unwrap().0.write_all(b"from the container").unwrap();
        }
    })
}

#[test]
fn limits_and_ports_of_a_first_network_and_replies_of_a_second_one_work_together() {
    let scene = Scene::new();
    let world = world(&scene.host);
    let router = lan_router(&scene);
    scene.host.sh("echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding");
    let bare = [HostSnapshot::of(&scene.host), HostSnapshot::inside(&scene.container)];
    let all = Networks::new(scene.runtime()).with_as(published(&scene), "eth0").with_as(on_lan(&scene), "net1");
    let port = PortMapping { host_port: 8080, container_port: 80, protocol: PortProtocol::Tcp, host_ip: None };
    let limits = Bandwidth { ingress_rate: 80_000_000, ingress_burst: 1_600_000, ..Bandwidth::default() };
    let at = container(&scene).with_port_mappings(&[port]).with_bandwidth(&limits);
    let answer = || world.try_sh("timeout 5 bash -c 'cat </dev/tcp/192.0.2.1/8080'");
    scene.host.enter(|| {
        all.status().unwrap();
        all.setup(&at).unwrap();
        let server = answer_twice(&scene.container);
        assert_eq!(answer(), (true, "from the container".to_owned()), "by the published port");
        assert!(scene.host.sh("tc qdisc show").contains("tbf 1: dev veth"), "{}", scene.host.sh("tc qdisc show"));
        assert_eq!(lan_reaches(&router), [true; 2], "replies leave by net1");
        all.check(&at).unwrap();
        all.gc(&["c1"]).unwrap();
        all.check(&at).unwrap();
        // Multus removes the second network of a container that runs.
        let second = container(&scene).on("net1");
        undisturbed(&scene.container, "192.0.2.2", || scene.runtime().del(&on_lan(&scene), &second).unwrap());
        assert_eq!(answer(), (true, "from the container".to_owned()), "after the second network's DEL");
        server.join().unwrap();
        all.remove(&at).unwrap();
        all.gc(&[]).unwrap();
    });
    scene.assert_clean("published");
    HostSnapshot::inside(&scene.container).assert_unchanged_since(&bare[1], &[], "left in the container");
    let shared = [&SHARED[..], &["cni0", "state", "leases", "sbr"]].concat();
    HostSnapshot::of(&scene.host).assert_unchanged_since(&bare[0], &shared, "left on the host");
}

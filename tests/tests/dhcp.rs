//! The plugin dhcp behind bridge and macvlan, with its daemon, against dnsmasq.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

use std::collections::BTreeSet;
use std::time::Duration;

use cnikit_process::Deadline;
use cnikit_testkit::campaign::{SummaryLine, case_limit, seeded_rng};
use cnikit_testkit::{CallOutput, Container, Host, HostSnapshot, Subject, flood, life};
use cnikit_tests::campaign_subjects::leased;
use cnikit_tests::dnsmasq::{DHCP_BRIDGE, DHCP_SERVER, DHCP6_OPTIONS, Dnsmasq, dhcp_bridge, dhcp_site, dhcp6_address};
use cnikit_tests::lease_daemon::{LeaseDaemon, assert_confined, assert_waits, lease_records};
use cnikit_tests::world::ping;
use cnikit_tests::{references, subject};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// Of three digits each, so that none is a part of another address: 10.99.0.25 is one of the broadcast address.
const RANGE: &str = "10.99.0.100,10.99.0.140";
/// What the server configures beside addresses.
const OPTIONS: [&str; 4] = [
    "--dhcp-option=option:dns-server,10.99.0.53",
    "--dhcp-option=option:domain-name,example.com",
    "--dhcp-option=option:domain-search,a.example.com,b.example.com",
    "--dhcp-option=option:mtu,1400",
];

/// A host with the bridge of the server.
fn host() -> Host {
    let host = Host::new();
    dhcp_bridge(&host);
    host
}

/// The plugin on this host with these keys, and these under `ipam`.
fn with_dhcp(host: &Host, plugin: &str, keys: &Value, ipam: &Value) -> Subject {
    let mut subject = subject(plugin, keys.clone());
    subject.conf["ipam"] = ipam.clone();
    subject.conf["ipam"]["type"] = json!("dhcp");
    subject.conf["ipam"]["daemonSocketPath"] = json!(host.dir().join("dhcp.sock"));
    subject.conf["ipam"]["dataDir"] = json!(host.dir().join("dhcp-leases"));
    subject
}

fn on_bridge(host: &Host) -> Subject {
    with_dhcp(host, "bridge", &json!({"bridge": DHCP_BRIDGE}), &json!({}))
}

fn address(result: &Value) -> &str {
    result["ips"][0]["address"].as_str().unwrap()
}

/// The file of notes and records has none.
fn has_no_record(host: &Host) -> bool {
    lease_records(host).is_empty()
}

#[test]
fn bridge_gets_address_routes_dns_and_mtu_of_the_server() {
    let host = host();
    let server = Dnsmasq::start(&host, RANGE, &OPTIONS);
    let _daemon = LeaseDaemon::start(&host, &[]);
    let container = host.container();
    let bridge = on_bridge(&host);
    let result = bridge.add(&host, "c-one", &container);
    assert!(address(&result).starts_with("10.99.0.") && address(&result).ends_with("/24"), "{result}");
    assert_eq!(result["ips"][0]["gateway"], json!(DHCP_SERVER));
    assert_eq!(result["routes"], json!([{"dst": "0.0.0.0/0", "gw": DHCP_SERVER}]));
    let dns =
        json!({"nameservers": ["10.99.0.53"], "domain": "example.com", "search": ["a.example.com", "b.example.com"]});
    assert_eq!(result["dns"], dns);
    let interfaces = result["interfaces"].as_array().unwrap();
    let own = interfaces.iter().find(|one| one["name"] == "eth0").unwrap();
    assert_eq!(own["mtu"], json!(1400));
    container.sh(&ping(DHCP_SERVER));
    assert!(container.sh("ip route").contains("default via 10.99.0.1"));
    bridge.call(&host, "CHECK", "c-one", &container.path(), &[("prevResult", result.clone())]).ok();
    // A result with another address is not that of this lease.
    let mut other = result.clone();
    other["ips"][0]["address"] = json!("10.99.0.99/24");
    let checked = call(&host, "CHECK", &container, &[("prevResult", other)]).refused();
    assert!(checked.0 == 102 && checked.1.contains("prevResult does not have 10.99.0."), "{checked:?}");
    container.sh("ip link set eth0 mtu 1300; ip address flush dev eth0");
    let checked = bridge.call(&host, "CHECK", "c-one", &container.path(), &[("prevResult", result)]);
    assert!(checked.json()["msg"].as_str().unwrap().contains("the address of the lease"), "{checked:?}");
    bridge.call(&host, "DEL", "c-one", &container.path(), &[]).ok();
    bridge.call(&host, "DEL", "c-one", &container.path(), &[]).ok();
    server.await_leases("the lease is given back", <[String]>::is_empty);
    assert!(has_no_record(&host) && !container.sh("ip -o link").contains("eth0"));
}

#[test]
fn the_tool_shows_the_lease_and_that_no_daemon_runs() {
    let host = host();
    let server = Dnsmasq::start(&host, RANGE, &["--dhcp-option=option:mtu,1400"]);
    let daemon = LeaseDaemon::start(&host, &[]);
    let container = host.container();
    let plugin = on_bridge(&host).conf;
    let list = json!({"cniVersion": "1.1.0", "name": "site", "plugins": [plugin]});
    std::fs::create_dir(host.dir().join("net.d")).unwrap();
    std::fs::write(host.dir().join("net.d/10-site.conflist"), list.to_string()).unwrap();
    let tool = |line: &str| {
        let (program, bin) = (cnikit_tests::program("cnitool"), cnikit_tests::bin());
        let (program, bin, dir) = (program.display(), bin.display(), host.dir().display());
        host.try_sh(&format!("{program} --conf-dir {dir}/net.d --cache-dir {dir}/cache --plugin-path {bin} {line}"))
    };
    let (is_added, said) = tool(&format!("--json add site {}", container.path()));
    assert!(is_added, "{said}");
    let lease = daemon.list()[0].lease.clone().unwrap();
    let (_, shown) = tool("show");
    let of_server = format!("{} of {DHCP_SERVER}", lease.address);
    assert!(
        shown.contains(&format!("{of_server} by {DHCP_SERVER}, MTU 1400, ")) && shown.contains(" s left"),
        "{shown}"
    );
    // What the server has changed meanwhile.
    daemon.kill();
    drop(server);
    let options = ["--dhcp-option=option:mtu,1300", "--dhcp-option=option:router,10.99.0.7,10.99.0.8"];
    let _server = Dnsmasq::start(&host, RANGE, &options);
    let daemon = LeaseDaemon::start(&host, &[]);
    daemon.await_list("it is renewed", |list| list[0].lease.as_ref().is_some_and(|one| one.since > lease.since));
    let (_, shown) = tool("show");
    assert!(shown.contains(&format!("{of_server} by 10.99.0.7 and 10.99.0.8, MTU 1300, ")), "{shown}");
    assert!(shown.contains("mtu 1300, up)") && shown.contains("route default via 10.99.0.7"), "{shown}");
    daemon.kill();
    let (_, shown) = tool("show");
    assert!(shown.contains("unknown: no DHCP daemon listens on"), "{shown}");
    let (is_healthy, said) = tool("doctor");
    assert!(!is_healthy && said.contains("no DHCP daemon listens on"), "{said}");
    let (is_deleted, said) = tool(&format!("del site {}", container.path()));
    assert!(is_deleted, "{said}");
}

#[test]
fn a_configured_mtu_is_not_replaced() {
    let host = host();
    let _server = Dnsmasq::start(&host, RANGE, &OPTIONS);
    let _daemon = LeaseDaemon::start(&host, &[]);
    let container = host.container();
    let bridge = with_dhcp(&host, "bridge", &json!({"bridge": DHCP_BRIDGE, "mtu": 1450}), &json!({}));
    bridge.add(&host, "c-one", &container);
    assert!(container.sh("ip link show eth0").contains("mtu 1450"));
}

#[test]
fn the_configuration_of_init_gets_addresses_of_the_server() {
    let host = host();
    let _server = Dnsmasq::start(&host, RANGE, &[]);
    let _daemon = LeaseDaemon::start(&host, &[]);
    let container = host.container();
    let dir = host.dir().display();
    let (program, bin) = (cnikit_tests::program("cnitool"), cnikit_tests::bin());
    let tool = |line: &str| {
        let (program, bin) = (program.display(), bin.display());
        host.sh(&format!("{program} --conf-dir {dir}/net.d --cache-dir {dir}/cache --plugin-path {bin} {line}"))
    };
    tool(&format!("init bridge lan --bridge {DHCP_BRIDGE} --dhcp --yes"));
    assert!(tool("validate").ends_with("nothing is wrong\n"));
    let file = host.dir().join("net.d/10-lan.conflist");
    let mut list: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(list["plugins"], json!([{"type": "bridge", "bridge": DHCP_BRIDGE, "ipam": {"type": "dhcp"}}]));
    list["plugins"][0]["ipam"] = json!({"type": "dhcp", "daemonSocketPath": host.dir().join("dhcp.sock"), "dataDir": host.dir().join("dhcp-leases")});
    std::fs::write(&file, list.to_string()).unwrap();
    tool(&format!("add lan {}", container.path()));
    container.sh(&ping(DHCP_SERVER));
    tool(&format!("del lan {}", container.path()));
    for refused in ["init ptp lan --dhcp --yes -o -", "init bridge lan --dhcp --subnet 10.1.0.0/24 --yes -o -"] {
        let (is_written, said) = host.try_sh(&format!("{} {refused}", program.display()));
        assert!(!is_written && said.contains("--dhcp"), "{said}");
    }
}

#[test]
fn macvlan_gets_an_address_and_provided_options_reach_the_server() {
    let host = host();
    host.sh(
        "ip link add uplink type veth peer name uport && ip link set uport master br-dhcp up && ip link set uplink up",
    );
    let server = Dnsmasq::start(&host, RANGE, &["--dhcp-option=66,boot.example.com"]);
    let _daemon = LeaseDaemon::start(&host, &[]);
    let container = host.container();
    let ipam = json!({"priority": 77,
        "provide": [{"option": "host-name", "value": "x", "fromArg": "K8S_POD_NAME"}],
        "request": [{"option": "66"}]});
    let mut macvlan = with_dhcp(&host, "macvlan", &json!({"master": "uplink"}), &ipam);
    macvlan.env.push(("CNI_ARGS".into(), "IgnoreUnknown=1;K8S_POD_NAME=pod-7".into()));
    let result = macvlan.add(&host, "c-one", &container);
    assert_eq!(result["routes"][0]["priority"], json!(77));
    assert!(container.sh("ip route").contains("metric 77"));
    container.sh(&ping(DHCP_SERVER));
    let leases = server.leases();
    assert!(leases[0].contains(" pod-7 "), "{leases:?}");
    macvlan.call(&host, "DEL", "c-one", &container.path(), &[]).ok();
    server.await_leases("the lease is given back", <[String]>::is_empty);
}

#[test]
fn a_device_of_the_host_gets_an_address_and_comes_back() {
    let host = host();
    let server = Dnsmasq::start(&host, RANGE, &OPTIONS);
    let daemon = LeaseDaemon::start(&host, &[]);
    host.sh(&format!("ip link add dev0 type veth peer name dport && ip link set dport master {DHCP_BRIDGE} up"));
    let container = host.container();
    let keys = json!({"device": "dev0", "dataDir": host.dir().join("devices")});
    let device = with_dhcp(&host, "host-device", &keys, &json!({}));
    let result = device.add(&host, "c-one", &container);
    assert!(address(&result).starts_with("10.99.0."), "{result}");
    container.sh(&ping(DHCP_SERVER));
    device.check(&host, "c-one", &container, &result).ok();
    device.del(&host, "c-one", &container, &result);
    server.await_leases("the lease is given back", <[String]>::is_empty);
    assert!(daemon.list().is_empty() && host.sh("ip -o link show dev0").contains("mtu 1500"));
}

#[test]
fn del_succeeds_without_a_daemon_and_the_next_one_makes_it_good() {
    let host = host();
    let _server = Dnsmasq::start(&host, RANGE, &[]);
    let daemon = LeaseDaemon::start(&host, &[]);
    let [one, two] = [host.container(), host.container()];
    let bridge = on_bridge(&host);
    bridge.add(&host, "c-one", &one);
    let kept = bridge.add(&host, "c-two", &two);
    daemon.kill();
    two.sh(&ping(DHCP_SERVER));
    bridge.call(&host, "DEL", "c-one", &one.path(), &[]).ok();
    bridge.call(&host, "DEL", "c-one", "", &[]).ok();
    let refused = bridge.call(&host, "ADD", "c-one", &one.path(), &[]).json();
    let msg = refused["msg"].as_str().unwrap();
    assert!(msg.contains("no DHCP daemon listens on"), "{refused}");
    assert!(refused["details"].as_str().unwrap().contains("start it: `dhcp daemon -socketpath "), "{refused}");
    assert!(!one.sh("ip -o link").contains("eth0"), "the ADD that failed leaves nothing");

    let daemon = LeaseDaemon::start(&host, &[]);
    daemon.await_list("the other lease is there", |list| list.len() == 1 && list[0].lease.is_some());
    bridge.call(&host, "CHECK", "c-two", &two.path(), &[("prevResult", kept.clone())]).ok();
    two.sh(&ping(DHCP_SERVER));
    bridge.call(&host, "DEL", "c-two", &two.path(), &[("prevResult", kept)]).ok();
    assert!(has_no_record(&host));
}

#[test]
fn an_add_without_a_server_names_packet_and_link_and_leaves_nothing() {
    let host = host();
    let daemon = LeaseDaemon::start(&host, &["-timeout", "300ms"]);
    let container = host.container();
    let bridge = with_dhcp(&host, "bridge", &json!({"bridge": DHCP_BRIDGE}), &json!({"timeout": 2}));
    let refused = bridge.call(&host, "ADD", "c-one", &container.path(), &[]).json();
    let msg = refused["msg"].as_str().unwrap();
    assert!(msg.contains("no lease for eth0: DHCPDISCOVER got no answer: it was sent "), "{refused}");
    assert!(!container.sh("ip -o link").contains("eth0") && !host.sh("ip -o link").contains("veth"));
    assert!(daemon.list().is_empty() && has_no_record(&host));
}

#[test]
fn a_lease_is_given_back_if_the_add_fails_later() {
    let host = host();
    // The gateway of the route is the broadcast address: the kernel refuses it when the lease is there already.
    let own = ["--dhcp-option=option:classless-static-route,10.98.0.0/16,10.99.0.255"];
    let server = Dnsmasq::start(&host, "10.99.0.10,10.99.0.10", &own);
    let daemon = LeaseDaemon::start(&host, &[]);
    let container = host.container();
    let bridge = on_bridge(&host);
    let refused = bridge.call(&host, "ADD", "c-one", &container.path(), &[]);
    assert_ne!(refused.exit, 0, "{refused:?}");
    server.await_leases("the lease is given back", <[String]>::is_empty);
    assert!(daemon.list().is_empty() && has_no_record(&host), "{refused:?}");
}

/// Any host of the link can answer as a DHCP server, so it does not choose addresses of the node.
#[test]
fn a_server_gives_the_host_no_address() {
    let host = host();
    let daemon = LeaseDaemon::start(&host, &[]);
    let container = host.container();
    let with =
        |ipam: &Value| with_dhcp(&host, "bridge", &json!({"bridge": DHCP_BRIDGE, "isDefaultGateway": true}), ipam);
    // Not those of the link itself, which the kernel marks until it has found no duplicate.
    let own = || host.sh(&format!("ip -o address show dev {DHCP_BRIDGE} scope global"));
    let before = own();
    {
        let server = Dnsmasq::start(&host, RANGE, &["--dhcp-option=option:router,10.99.0.77"]);
        let refused = with(&json!({})).call(&host, "ADD", "c-one", &container.path(), &[]).refused();
        let why =
            "the gateway 10.99.0.77/24 comes from the reply of a DHCP server, and br-dhcp does not have that address";
        assert!(refused.0 == 7 && refused.1.contains(why), "{refused:?}");
        assert_eq!(own(), before);
        server.await_leases("the lease is given back", <[String]>::is_empty);
        let allowed = with(&json!({"allowedSubnets": ["10.99.0.0/24"]}));
        let refused = allowed.call(&host, "ADD", "c-one", &container.path(), &[]).refused();
        assert!(refused.0 == 101 && refused.1.contains("already has an IP address different from"), "{refused:?}");
    }
    // The host is the gateway that the server names.
    dhcp6_address(&host);
    let before = own();
    let _server = Dnsmasq::start(&host, RANGE, &DHCP6_OPTIONS);
    for ipam in [json!({}), json!({"families": ["v4", "v6"]})] {
        let result = with(&ipam).add(&host, "c-one", &container);
        container.sh(&ping(DHCP_SERVER));
        with(&ipam).del(&host, "c-one", &container, &result);
    }
    assert!(daemon.list().is_empty() && own() == before, "{}", own());
}

/// A call of dhcp itself, as its caller makes it.
fn call(host: &Host, verb: &str, container: &Container, keys: &[(&str, Value)]) -> CallOutput {
    with_dhcp(host, "dhcp", &json!({}), &json!({})).call(host, verb, "c-one", &container.path(), keys)
}

#[test]
fn status_says_whether_a_daemon_runs_and_gc_gives_back_what_is_not_valid() {
    let host = host();
    let server = Dnsmasq::start(&host, RANGE, &[]);
    let container = host.container();
    let down = call(&host, "STATUS", &container, &[]).json();
    assert_eq!(down["code"], json!(50), "{down}");
    assert!(down["msg"].as_str().unwrap().contains("no DHCP daemon listens on"), "{down}");
    let daemon = LeaseDaemon::start(&host, &[]);
    call(&host, "STATUS", &container, &[]).ok();
    let bridge = on_bridge(&host);
    bridge.add(&host, "c-one", &container);
    let valid = json!([{"containerID": "c-one", "ifname": "eth0"}]);
    call(&host, "GC", &container, &[("cni.dev/valid-attachments", valid)]).ok();
    assert_eq!(daemon.list().len(), 1);
    call(&host, "GC", &container, &[("cni.dev/valid-attachments", json!([]))]).ok();
    assert!(daemon.list().is_empty());
    server.await_leases("the lease is given back", <[String]>::is_empty);
    let drift = call(&host, "CHECK", &container, &[("prevResult", json!({"cniVersion": "1.1.0", "ips": []}))]).json();
    assert_eq!(drift["code"], json!(102), "{drift}");
    assert!(drift["msg"].as_str().unwrap().contains("the DHCP daemon has no lease of c-one/"), "{drift}");
}

/// The daemons that use this host's socket.
fn daemons(host: &Host) -> Vec<i32> {
    let socket = host.dir().join("dhcp.sock").display().to_string();
    let numbers =
        std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let is_daemon = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        words.starts_with(&[b"dhcp", b"daemon"]) && words.contains(&socket.as_bytes())
    };
    numbers.filter(is_daemon).collect()
}

#[test]
fn of_many_adds_at_once_one_starts_the_daemon_which_outlives_it() {
    let host = host();
    let server = Dnsmasq::start(&host, RANGE, &[]);
    let bridge = with_dhcp(&host, "bridge", &json!({"bridge": DHCP_BRIDGE}), &json!({"daemon": "auto"}));
    let dhcp = with_dhcp(&host, "dhcp", &json!({}), &json!({"daemon": "auto"}));
    dhcp.call(&host, "STATUS", "c-one", "", &[]).ok();
    assert!(daemons(&host).is_empty(), "STATUS starts none");
    let containers: Vec<Container> = (0..8).map(|_| host.container()).collect();
    let results: Vec<Value> = std::thread::scope(|scope| {
        let add = |number: usize| bridge.add(&host, &format!("c-{number}"), &containers[number]);
        let threads: Vec<_> = (0..8).map(|number| scope.spawn(move || add(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let running = daemons(&host);
    let [pid] = running[..] else { panic!("{running:?}") };
    assert_confined(pid);
    // A session of its own, a child of init, and only its socket of all that the plugins had open.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    assert_eq!(fields[1], "1", "its parent: {stat}");
    assert_eq!(std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap().to_str(), Some("/"));
    for number in 1..=2 {
        assert_eq!(std::fs::read_link(format!("/proc/{pid}/fd/{number}")).unwrap().to_str(), Some("/dev/null"));
    }
    let deadline = Deadline::after(Duration::from_secs(20));
    // Its listening socket, twice; what is a pipe, or a third socket when no exchange runs, would be its caller's.
    let open = || -> Vec<String> {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        let targets = files.filter_map(|file| std::fs::read_link(file.unwrap().path()).ok());
        targets.map(|target| target.display().to_string()).collect()
    };
    let is_own = |targets: &[String]| {
        let sockets = targets.iter().filter(|target| target.starts_with("socket:")).count();
        sockets == 2 && !targets.iter().any(|target| target.starts_with("pipe:") || target.starts_with("net:"))
    };
    while !is_own(&open()) {
        assert!(deadline.pause(Duration::from_millis(20)), "{:?}", open());
    }
    for (number, result) in results.iter().enumerate() {
        bridge.check(&host, &format!("c-{number}"), &containers[number], result).ok();
        bridge.del(&host, &format!("c-{number}"), &containers[number], result);
    }
    server.await_leases("all are given back", <[String]>::is_empty);
    // Killed, its socket stays, and the next ADD starts another one.
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    while daemons(&host) == [pid] {
        assert!(deadline.pause(Duration::from_millis(20)), "it does not end");
    }
    bridge.add(&host, "c-0", &containers[0]);
    let [other] = daemons(&host)[..] else { panic!("{:?}", daemons(&host)) };
    bridge.call(&host, "DEL", "c-0", &containers[0].path(), &[]).ok();
    end(&host, other);
}

/// Ends the only daemon of the host, which a plugin has started.
fn end(host: &Host, pid: i32) {
    kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap();
    let deadline = Deadline::after(Duration::from_secs(20));
    while !daemons(host).is_empty() {
        assert!(deadline.pause(Duration::from_millis(20)), "it does not end");
    }
    assert!(!host.dir().join("dhcp.sock").exists());
}

#[test]
fn an_add_whose_daemon_is_killed_meanwhile_starts_another_one() {
    let host = host();
    let server = Dnsmasq::start(&host, RANGE, &[]);
    let bridge = with_dhcp(&host, "bridge", &json!({"bridge": DHCP_BRIDGE}), &json!({"daemon": "auto"}));
    let container = host.container();
    let daemon = LeaseDaemon::start(&host, &[]);
    // It has the request, and does not get to it.
    kill(Pid::from_raw(daemon.pid().unwrap()), Signal::SIGSTOP).unwrap();
    let result = std::thread::scope(|scope| {
        let add = scope.spawn(|| bridge.add(&host, "c-one", &container));
        assert_waits(|| add.is_finished());
        daemon.kill();
        add.join().unwrap()
    });
    let [other] = daemons(&host)[..] else { panic!("{:?}", daemons(&host)) };
    bridge.check(&host, "c-one", &container, &result).ok();
    bridge.del(&host, "c-one", &container, &result);
    server.await_leases("it is given back", <[String]>::is_empty);
    end(&host, other);
}

/// An argument that the runtime does not send has no value, and one identifier for all containers would be that of one client.
#[test]
fn an_option_without_a_value_is_not_sent() {
    let host = host();
    let server = Dnsmasq::start(&host, RANGE, &[]);
    let _daemon = LeaseDaemon::start(&host, &[]);
    let provide = json!({"provide": [{"option": "dhcp-client-identifier", "fromArg": "ID_OF_MINE"},
        {"option": "host-name", "fromArg": "K8S_POD_NAME"}]});
    let mut bridge = with_dhcp(&host, "bridge", &json!({"bridge": DHCP_BRIDGE}), &provide);
    let containers = [host.container(), host.container()];
    for (container, id) in containers.iter().zip(["c-one", "c-two"]) {
        bridge.add(&host, id, container);
    }
    let leases = server.leases();
    assert_eq!(leases.len(), 2, "{leases:?}");
    for id in ["c-one", "c-two"] {
        let bytes: Vec<String> = id.bytes().map(|byte| format!("{byte:02x}")).collect();
        assert!(leases.iter().any(|line| line.contains(&format!(" 00:{}", bytes.join(":")))), "{id}: {leases:?}");
    }
    bridge.env.push(("CNI_ARGS".into(), "IgnoreUnknown=1;ID_OF_MINE=x".into()));
    let container = host.container();
    let refused = bridge.call(&host, "ADD", "c-three", &container.path(), &[]).json();
    assert_eq!(refused["code"], json!(7), "{refused}");
    assert!(
        refused["msg"].as_str().unwrap().contains("the client identifier has 1 bytes, and needs at least 2"),
        "{refused}"
    );
}

/// As a tenant of the node may send them.
#[test]
fn long_ids_and_hostile_args_are_served_and_leave_nothing() {
    let host = host();
    let server = Dnsmasq::start(&host, RANGE, &[]);
    let daemon = LeaseDaemon::start(&host, &[]);
    let container = host.container();
    let provide = json!({"provide": [{"option": "host-name", "value": "x", "fromArg": "K8S_POD_NAME"}]});
    let bridge = with_dhcp(&host, "bridge", &json!({"bridge": DHCP_BRIDGE}), &provide);
    let hostile = "IgnoreUnknown=1;K8S_POD_NAMESPACE=../../x;K8S_POD_NAME=$(touch ran)\u{1b}[2J;K8S_POD_UID=`id`";
    for (id, args) in [("c".repeat(4001), "IgnoreUnknown=1".to_owned()), ("c-one".to_owned(), hostile.to_owned())] {
        let call = |verb: &str, conf: &Value| {
            let stdin = conf.to_string().into_bytes();
            bridge.call_raw(&host, verb, &id, &container.path(), &stdin, &[("CNI_ARGS", &args)]).ok()
        };
        let mut conf = bridge.conf.clone();
        conf["prevResult"] = call("ADD", &bridge.conf);
        call("CHECK", &conf);
        (0..2).for_each(|_| drop(call("DEL", &conf)));
        server.await_leases("the lease is given back", <[String]>::is_empty);
        assert!(daemon.list().is_empty() && has_no_record(&host));
    }
    // An argument that is longer than an option is refused before anything is made.
    let long = format!("IgnoreUnknown=1;K8S_POD_NAME={}", "x".repeat(100_000));
    let stdin = bridge.conf.to_string().into_bytes();
    let refused = bridge.call_raw(&host, "ADD", "c-one", &container.path(), &stdin, &[("CNI_ARGS", &long)]);
    assert!(refused.refused().1.contains("ipam.provide[0] (host-name): the value has 100000"), "{refused:?}");
    assert!(container.links().is_empty());
}

#[test]
fn garbage_is_noted_without_a_daemon_and_given_back_by_the_next_one() {
    let host = host();
    let server = Dnsmasq::start(&host, RANGE, &[]);
    let daemon = LeaseDaemon::start(&host, &[]);
    let [one, two] = [host.container(), host.container()];
    let bridge = on_bridge(&host);
    bridge.add(&host, "c-one", &one);
    bridge.add(&host, "c-two", &two);
    daemon.kill();
    let valid = json!([{"containerID": "c-two", "ifname": "eth0"}]);
    call(&host, "GC", &one, &[("cni.dev/valid-attachments", valid)]).ok();
    let daemon = LeaseDaemon::start(&host, &[]);
    daemon.await_list("the valid one is left", |list| list.len() == 1 && list[0].owner.container == "c-two");
    server.await_leases("the lease is given back", |leases| leases.len() == 1);
}

#[test]
fn an_option_that_cannot_be_sent_is_refused_before_anything_is_made() {
    let host = host();
    let container = host.container();
    let ipam = json!({"provide": [{"option": "nonsense"}]});
    let refused =
        with_dhcp(&host, "dhcp", &json!({}), &ipam).call(&host, "ADD", "c-one", &container.path(), &[]).json();
    assert_eq!(refused["code"], json!(7), "{refused}");
    assert!(
        refused["msg"].as_str().unwrap().contains("ipam.provide[0].option: \"nonsense\" is no option"),
        "{refused}"
    );
}

/// Without a daemon, a server, a bridge or a namespace.
#[test]
fn a_dry_run_says_what_is_asked_for_and_changes_nothing() {
    let host = Host::new();
    let before = HostSnapshot::of(&host);
    let socket = host.dir().join("dhcp.sock").display().to_string();
    let plan = |ipam: Value| {
        let bridge = with_dhcp(&host, "bridge", &json!({"bridge": DHCP_BRIDGE}), &ipam);
        bridge.call(&host, "PLAN", "c-one", "", &[])
    };
    let printed = plan(json!({"families": ["v4", "v6", "slaac"], "daemon": "auto", "timeout": 7})).ok().to_string();
    let asked = |what: &str| {
        format!(
            "ask the DHCP daemon at {socket}, which is started if it does not run, for {what} for c-one/testnet/eth0, at most 7 s"
        )
    };
    for step in [
        asked("a lease"),
        asked("a lease of IPv6"),
        "wait for an address of eth0 by router advertisement, at most 7 s".to_owned(),
    ] {
        assert!(printed.contains(&step), "{step}: {printed}");
    }
    for example in ["192.0.2.2/24", "2001:db8::2/128", "2001:db8::ff:fe00:2/64"] {
        assert!(printed.contains(example), "{example}: {printed}");
    }
    let refused = plan(json!({"provide": [{"option": "53", "value": "x"}]})).refused();
    assert!(refused.0 == 7 && refused.1.contains("the DHCP client writes option 53"), "{refused:?}");
    HostSnapshot::of(&host).assert_unchanged_since(&before, &[], "after two dry runs");
    assert!(!host.dir().join("dhcp.sock").exists() && !host.dir().join("dhcp-leases").exists());
}

#[test]
fn an_attachment_leaves_no_trace() {
    life::leaves_no_trace(&leased());
}

#[test]
fn del_succeeds_with_incomplete_input() {
    life::survives_incomplete_dels(&leased());
}

#[test]
fn many_containers_at_once_get_an_address_each() {
    flood::survives(&leased(), 64);
}

/// What an address, or the name of an interface, differs in between two containers.
fn without(text: &str, own: &[&str]) -> String {
    own.iter().fold(text.to_owned(), |text, one| text.replace(one, "OWN"))
}

/// The rest of the results, and what is inside: the same, except that the result of ours has the DNS of the server and the MTU of
/// each interface, and that the container's interface gets the MTU of the server.
fn assert_alike(theirs: (&Value, &Container), ours: (&Value, &Container)) {
    let shape = |(result, container): (&Value, &Container)| {
        let own = address(result).split('/').next().unwrap().to_owned();
        let mut rest = result.clone();
        rest.as_object_mut().unwrap().remove("dns");
        for interface in rest["interfaces"].as_array_mut().unwrap() {
            assert!(interface["mac"].take().is_string(), "{result}");
            interface.as_object_mut().unwrap().remove("mtu");
            if interface["name"].as_str().unwrap().starts_with("veth") {
                interface["name"] = json!("OWN");
            }
        }
        // As a value: the releases write the keys in different orders.
        let result: Value = serde_json::from_str(&without(&rest.to_string(), &[&own, &container.path()])).unwrap();
        let addresses = container.sh("ip -4 address show dev eth0 | sed '1s/.*//; s/ valid_lft.*//'");
        let routes = container.sh("ip -4 route; ip -4 rule; ip -6 rule");
        let inside = [addresses, routes, container.sh("ip -o link | wc -l")];
        (result, inside.map(|text| without(&text, &[&own])))
    };
    assert_eq!(shape(theirs), shape(ours));
    assert!(theirs.0["dns"].as_object().is_none_or(serde_json::Map::is_empty), "{}", theirs.0);
    assert_eq!([&theirs.0["interfaces"][2]["mtu"], &ours.0["interfaces"][2]["mtu"]], [&Value::Null, &json!(1400)]);
    assert_eq!(
        ours.0["dns"],
        json!({"nameservers": ["10.99.0.53"], "domain": "example.com", "search": ["a.example.com", "b.example.com"]})
    );
    let mtu = |container: &Container| container.sh("ip -o link show eth0 | grep -o 'mtu [0-9]*'").trim().to_owned();
    assert_eq!([mtu(theirs.1), mtu(ours.1)], ["mtu 1500", "mtu 1400"]);
}

/// Both releases. A node that goes from one to the other has containers of both at the same time.
#[test]
fn upstreams_plugin_and_daemon_serve_beside_ours_and_each_deletes_what_the_other_added() {
    for bin in references() {
        let host = host();
        let server = Dnsmasq::start(&host, RANGE, &OPTIONS);
        let daemon = LeaseDaemon::start(&host, &[]);
        let socket = host.dir().join("upstream.sock");
        let theirs = LeaseDaemon::begin_in(&host, &bin, &[], &[], &socket);
        let deadline = Deadline::after(Duration::from_secs(30));
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            assert!(deadline.pause(Duration::from_millis(10)), "upstream's daemon does not serve");
        }
        let ours = on_bridge(&host).with("cniVersion", json!("1.0.0"));
        let mut upstream = ours.in_directory(bin.clone());
        upstream.conf["ipam"] = json!({"type": "dhcp", "daemonSocketPath": socket});
        let [one, two] = [host.container(), host.container()];
        let first = upstream.add(&host, "c-one", &one);
        let second = ours.add(&host, "c-two", &two);
        assert_ne!(address(&first), address(&second));
        assert_eq!((&first["routes"], &first["ips"][0]["gateway"]), (&second["routes"], &second["ips"][0]["gateway"]));
        assert_alike((&first, &one), (&second, &two));
        for container in [&one, &two] {
            container.sh(&ping(DHCP_SERVER));
        }
        // Each DEL succeeds, removes the interface, and leaves the lease to the daemon that holds it.
        ours.call(&host, "DEL", "c-one", &one.path(), &[("prevResult", first.clone())]).ok();
        upstream.call(&host, "DEL", "c-two", &two.path(), &[("prevResult", second.clone())]).ok();
        assert!(one.links().is_empty() && two.links().is_empty(), "{:?} {:?}", one.links(), two.links());
        assert_eq!((server.leases().len(), daemon.list().len()), (2, 1));
        // The client identifiers are the same: a container that is added by the other one keeps its address.
        assert_eq!(address(&ours.add(&host, "c-one", &one)), address(&first));
        assert_eq!(address(&upstream.add(&host, "c-two", &two)), address(&second));
        ours.call(&host, "DEL", "c-one", &one.path(), &[]).ok();
        upstream.call(&host, "DEL", "c-two", &two.path(), &[]).ok();
        let own = address(&first).split('/').next().unwrap();
        server.await_leases("ours is given back", |leases| !leases.iter().any(|line| line.contains(own)));
        theirs.stop();
    }
}

/// The containers of [`Model`].
const CONTAINERS: usize = 4;
/// The calls that it makes unless more are asked for, and the most of them.
const CALLS: usize = 30;
const MOST_CALLS: usize = 10_000;

/// Containers, what is known of each, and a daemon that is there at times.
struct Model {
    host: Host,
    /// The host of the server.
    site: Host,
    plugin: Subject,
    families: usize,
    containers: Vec<Container>,
    results: Vec<Option<Value>>,
    daemon: Option<LeaseDaemon>,
    /// How often the daemon was killed.
    kills: usize,
    /// The containers whose last ADD failed because the daemon was killed: the server may have given them leases without a record.
    killed: BTreeSet<usize>,
}

impl Model {
    /// On the bridge of the host, or by macvlans on its link to the server.
    fn new(plugin: &str, families: &[&str]) -> Model {
        let (host, site) = dhcp_site();
        dhcp6_address(&site);
        let keys = if plugin == "macvlan" {
            host.sh("ip link set uplink nomaster");
            json!({"master": "uplink"})
        } else {
            json!({"bridge": DHCP_BRIDGE})
        };
        let plugin = with_dhcp(&host, plugin, &keys, &json!({"families": families}));
        let containers: Vec<Container> = (0..CONTAINERS).map(|_| host.container()).collect();
        for container in &containers {
            // A link-local address can be used at once.
            container.sh("echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad");
        }
        let (results, families) = (vec![None; CONTAINERS], families.len());
        Model { plugin, families, containers, results, daemon: None, kills: 0, killed: BTreeSet::new(), host, site }
    }

    fn call(&self, verb: &str, number: usize, keys: &[(&str, Value)]) -> CallOutput {
        self.plugin.call(&self.host, verb, &format!("c-{number}"), &self.containers[number].path(), keys)
    }

    fn start(&mut self) {
        if self.daemon.is_none() {
            self.daemon = Some(LeaseDaemon::start(&self.host, &[]));
        }
    }

    fn kill(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            self.kills += 1;
            daemon.kill();
        }
    }

    fn add(&mut self, number: usize) {
        let added = self.call("ADD", number, &[]);
        if self.daemon.is_some() {
            self.results[number] = Some(added.ok());
            self.killed.remove(&number);
        } else {
            assert!(added.json()["msg"].as_str().unwrap().contains("no DHCP daemon listens on"), "{added:?}");
        }
    }

    /// The daemon is killed this long after the call has begun. `None`: there is none.
    fn call_while_it_is_killed(
        &mut self,
        verb: &str,
        number: usize,
        after: Duration,
        keys: &[(&str, Value)],
    ) -> Option<CallOutput> {
        let daemon = self.daemon.take()?;
        self.kills += 1;
        let this = &*self;
        Some(std::thread::scope(|scope| {
            scope.spawn(move || {
                Deadline::after(after).pause(after);
                daemon.kill();
            });
            this.call(verb, number, keys)
        }))
    }

    fn add_while_it_is_killed(&mut self, number: usize, after: Duration) {
        let Some(added) = self.call_while_it_is_killed("ADD", number, after, &[]) else { return };
        if added.exit == 0 {
            self.results[number] = Some(added.ok());
            self.killed.remove(&number);
        } else {
            self.killed.insert(number);
            self.del(number);
        }
    }

    /// A container ends, or is not valid any more: neither fails, and the next daemon gives the lease back.
    fn del_while_it_is_killed(&mut self, number: usize, after: Duration) {
        if let Some(deleted) = self.call_while_it_is_killed("DEL", number, after, &[]) {
            deleted.ok();
            self.results[number] = None;
        }
    }

    fn gc_while_it_is_killed(&mut self, after: Duration) {
        let valid = ("cni.dev/valid-attachments", self.valid());
        if let Some(swept) = self.call_while_it_is_killed("GC", 0, after, &[valid]) {
            swept.ok();
        }
    }

    fn del(&mut self, number: usize) {
        let prev = self.results[number].take().map(|result| ("prevResult", result));
        self.call("DEL", number, prev.as_slice()).ok();
    }

    fn check(&self, number: usize) {
        if let (Some(result), Some(_)) = (&self.results[number], &self.daemon) {
            self.call("CHECK", number, &[("prevResult", result.clone())]).ok();
        }
    }

    /// The containers that are held.
    fn valid(&self) -> Value {
        let held = (0..CONTAINERS).filter(|number| self.results[*number].is_some());
        held.map(|number| json!({"containerID": format!("c-{number}"), "ifname": "eth0"})).collect()
    }

    fn gc(&self) {
        if self.daemon.is_some() {
            self.call("GC", 0, &[("cni.dev/valid-attachments", self.valid())]).ok();
        }
    }

    /// Each container has the lease that its ADD reported, no two the same, and the daemon has no other.
    fn audit(&self) {
        let daemon = self.daemon.as_ref().unwrap();
        let mut held = BTreeSet::new();
        for result in self.results.iter().flatten() {
            for ip in result["ips"].as_array().unwrap() {
                held.insert(ip["address"].as_str().unwrap().to_owned());
            }
        }
        let count = self.results.iter().flatten().count() * self.families;
        assert_eq!(held.len(), count, "an address was assigned twice");
        daemon.await_list("the leases are those of the containers", |list| {
            let mut found = BTreeSet::new();
            for one in list {
                found.extend(one.lease.as_ref().map(|lease| format!("{}/24", lease.address)));
                found.extend(one.lease6.as_ref().map(|lease| format!("{}/128", lease.addresses[0].address)));
            }
            list.len() == held.len() && found == held
        });
        for (container, result) in self.containers.iter().zip(&self.results) {
            if result.is_some() {
                container.sh(&ping(DHCP_SERVER));
            }
        }
    }
}

/// How dnsmasq writes a client identifier that begins with this text.
fn identifier(text: &str) -> String {
    let bytes: Vec<String> = text.bytes().map(|byte| format!(":{byte:02x}")).collect();
    format!(" 00{}", bytes.concat())
}

fn no_lease_is_lost_doubled_or_left(plugin: &str, families: &[&str]) {
    let mut model = Model::new(plugin, families);
    let server = Dnsmasq::start(&model.site, RANGE, &DHCP6_OPTIONS);
    let campaign = format!("kill the DHCP daemon, {plugin} {}", families.join(" "));
    let mut rng = seeded_rng(&campaign);
    let calls = case_limit(CALLS).min(MOST_CALLS);
    model.start();
    for _ in 0..calls {
        let number = rng.usize(..CONTAINERS);
        let is_free = model.results[number].is_none();
        match rng.u8(..10) {
            0 => model.kill(),
            1 | 2 => model.start(),
            3 | 4 if is_free => model.add(number),
            5 if is_free => model.add_while_it_is_killed(number, Duration::from_millis(rng.u64(..400))),
            6 => model.del_while_it_is_killed(number, Duration::from_millis(rng.u64(..30))),
            3..=5 => model.del(number),
            7 if is_free => model.gc_while_it_is_killed(Duration::from_millis(rng.u64(..30))),
            7 => model.gc(),
            _ => model.check(number),
        }
    }
    model.start();
    model.audit();
    (0..CONTAINERS).for_each(|number| model.del(number));
    assert!(model.daemon.as_ref().unwrap().list().is_empty() && has_no_record(&model.host));
    // What is left is of a container whose last ADD was killed: expiry, hardware address, address, name, client identifier.
    let of_killed: Vec<String> = model.killed.iter().map(|number| identifier(&format!("c-{number}/"))).collect();
    server.await_leases("all leases with a record are given back", |lines| {
        let leases: Vec<&String> = lines.iter().filter(|line| !line.starts_with("duid ")).collect();
        let (v6, v4): (Vec<&String>, Vec<&String>) = leases.into_iter().partition(|line| line.contains("fd00:99::"));
        let is_of_killed = |line: &&String| of_killed.iter().any(|id| line.contains(id.as_str()));
        v4.iter().all(is_of_killed) && v4.len() <= of_killed.len() && v6.len() <= of_killed.len()
    });
    let mut line = SummaryLine::new(&campaign, "calls").with_seed();
    line.notes.push(format!("{} kills", model.kills));
    SummaryLine { tried: calls, of: MOST_CALLS, ..line }.print();
}

#[test]
fn no_lease_of_bridge_is_lost_doubled_or_left_by_a_daemon_that_is_killed_again_and_again() {
    no_lease_is_lost_doubled_or_left("bridge", &["v4"]);
}

#[test]
fn no_lease_of_both_families_is_lost_doubled_or_left_by_a_daemon_that_is_killed_again_and_again() {
    no_lease_is_lost_doubled_or_left("bridge", &["v4", "v6"]);
}

#[test]
fn no_lease_of_macvlan_is_lost_doubled_or_left_by_a_daemon_that_is_killed_again_and_again() {
    no_lease_is_lost_doubled_or_left("macvlan", &["v4", "v6"]);
}

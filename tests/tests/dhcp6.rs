//! The plugin dhcp with `ipam.families`: leases of IPv6 and addresses by router advertisement, against dnsmasq and Kea.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

use std::time::Duration;

use cnikit_dhcp_daemon::{LeaseFamily, LeaseReport};
use cnikit_process::{Deadline, Env, Program, find_program};
use cnikit_testkit::{Container, Host, Subject};
use cnikit_tests::dhcp_servers::{DhcpServer, ServerMaker};
use cnikit_tests::dnsmasq::{DHCP_BRIDGE, DHCP6_OPTIONS, DHCP6_SERVER, Dnsmasq, dhcp_bridge, dhcp_site, dhcp6_address};
use cnikit_tests::lease_daemon::{LeaseDaemon, assert_threads, lease_records};
use cnikit_tests::running_server::RunningServer;
use cnikit_tests::subject;
use cnikit_tests::world::{UNTIL_DETECTED, ping};
use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};

const RANGE: &str = "10.99.0.10,10.99.0.50";
/// Router advertisements for addresses, without DHCP.
const ROUTER: [&str; 2] = ["--dhcp-range=fd00:99::,ra-only,64,2m", "--enable-ra"];

/// Until a router advertisement has brought the default route.
const UNTIL_ROUTED: &str = "timeout 20 sh -c 'until ip -6 route show default | grep -q ra; do sleep 0.1; done'";

fn host() -> Host {
    let host = Host::new();
    dhcp_bridge(&host);
    dhcp6_address(&host);
    host
}

/// The plugin on this host with these families.
fn on(host: &Host, plugin: &str, keys: &Value, families: &[&str]) -> Subject {
    let mut subject = subject(plugin, keys.clone());
    subject.conf["ipam"] = json!({"type": "dhcp", "families": families, "timeout": 40,
        "daemonSocketPath": host.dir().join("dhcp.sock"), "dataDir": host.dir().join("dhcp-leases")});
    subject
}

fn on_bridge(host: &Host, families: &[&str]) -> Subject {
    on(host, "bridge", &json!({"bridge": DHCP_BRIDGE}), families)
}

/// A macvlan on a link of the host that is connected to the bridge.
fn on_macvlan(host: &Host, families: &[&str]) -> Subject {
    host.sh("ip link add uplink type veth peer name uport");
    host.sh(&format!("ip link set uport master {DHCP_BRIDGE} up && ip link set uplink up"));
    on(host, "macvlan", &json!({"master": "uplink"}), families)
}

/// The addresses of a result.
fn addresses(result: &Value) -> Vec<String> {
    let ips = result["ips"].as_array().unwrap();
    ips.iter().map(|ip| ip["address"].as_str().unwrap().to_owned()).collect()
}

fn has_no_record(host: &Host) -> bool {
    lease_records(host).is_empty()
}

/// The lease of IPv6 in a list: its first address, and when it was requested.
fn lease6(list: &[LeaseReport]) -> Option<(String, Duration)> {
    let lease = list.iter().find(|one| one.family == LeaseFamily::V6)?.lease6.as_ref()?;
    Some((lease.addresses[0].address.to_string(), lease.since))
}

/// The addresses of a container's `eth0` beside the link-local one.
fn addresses_of(container: &Container) -> String {
    container.sh("ip -6 -o address show dev eth0 scope global")
}

/// A whole life with leases of both families.
fn both_families_live(host: &Host, plugin: &Subject) {
    let server = Dnsmasq::start(host, RANGE, &DHCP6_OPTIONS);
    let daemon = LeaseDaemon::start(host, &[]);
    let container = host.container();
    let result = plugin.add(host, "c-one", &container);
    let [v4, v6] = &addresses(&result)[..] else { panic!("{result}") };
    assert!(v4.starts_with("10.99.0.") && v4.ends_with("/24"), "{result}");
    assert!(v6.starts_with("fd00:99::") && v6.ends_with("/128"), "{result}");
    let nameservers = result["dns"]["nameservers"].to_string();
    assert!(nameservers.contains("fd00:99::53"), "{result}");
    assert_eq!(addresses_of(&container).lines().count(), 1, "the lease is all there is: {}", addresses_of(&container));
    container.sh(UNTIL_ROUTED);
    container.sh(&ping(DHCP6_SERVER));
    assert_eq!((daemon.list().len(), server.leases().iter().filter(|line| line.contains("fd00:99::")).count()), (2, 1));
    plugin.check(host, "c-one", &container, &result).ok();
    container.sh(&format!("ip address del {v6} dev eth0"));
    let drift = plugin.call(host, "CHECK", "c-one", &container.path(), &[("prevResult", result.clone())]).json();
    assert!(drift["code"] == json!(102) && drift["msg"].as_str().unwrap().contains(v6.as_str()), "{drift}");
    plugin.del(host, "c-one", &container, &result);
    plugin.call(host, "DEL", "c-one", "", &[]).ok();
    server.await_leases("both are given back", |lines| lines.iter().all(|line| line.starts_with("duid ")));
    assert!(daemon.list().is_empty() && has_no_record(host));
}

#[test]
fn bridge_has_leases_of_both_families() {
    let host = host();
    both_families_live(&host, &on_bridge(&host, &["v4", "v6"]));
}

#[test]
fn macvlan_has_leases_of_both_families() {
    let host = host();
    both_families_live(&host, &on_macvlan(&host, &["v6", "v4"]));
}

#[test]
fn a_device_of_the_host_has_leases_of_both_families() {
    let host = host();
    host.sh(&format!("ip link add dev0 type veth peer name dport && ip link set dport master {DHCP_BRIDGE} up"));
    let keys = json!({"device": "dev0", "dataDir": host.dir().join("devices")});
    both_families_live(&host, &on(&host, "host-device", &keys, &["v4", "v6"]));
    assert!(host.sh("ip -o link show dev0").contains("dev0"), "it is back");
}

/// Answers whatever a client multicasts: with garbage, with other numbers and clients, without end, and with good offers of
/// addresses that no interface may get.
const ROGUE6: &str = r#"
import os, random, socket, struct
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("::", 547))
index = socket.if_nametoindex("rogue0")
group = socket.inet_pton(socket.AF_INET6, "ff02::1:2")
s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group + struct.pack("@I", index))
option = lambda code, value: struct.pack("!HH", code, len(value)) + value
while True:
    asked, client = s.recvfrom(2000)
    if len(asked) < 4: continue
    found, at = {}, 4
    while at + 4 <= len(asked):
        code, length = struct.unpack("!HH", asked[at:at + 4])
        found.setdefault(code, asked[at + 4:at + 4 + length])
        at += 4 + length
    duid, iaid = found.get(1, b""), found.get(3, bytes(4))[:4]
    def say(data):
        try: s.sendto(data, client)
        except OSError: pass
    address = lambda text, valid=9: option(5, socket.inet_pton(socket.AF_INET6, text) + struct.pack("!II", 9, valid))
    def reply(kind, xid, duid, inside, more=b"", server=b"\0\3rogue"):
        ia = option(3, iaid + struct.pack("!II", 4, 6) + inside)
        return bytes([kind]) + xid + option(1, duid) + option(2, server) + ia + more
    xid, other = asked[1:4], os.urandom(3)
    kind = 2 if asked[0] == 1 else 7
    say(os.urandom(random.randrange(900)))
    say(reply(kind, other, duid, address("fd00:66::1")))
    say(reply(kind, xid, duid[:-1] + b"x", address("fd00:66::2")))
    say(reply(kind, xid, b"", address("fd00:66::3")))
    say(reply(kind, xid, duid, address("fd00:66::4"), server=bytes(200)))
    say(reply(kind, xid, duid, b"".join(address(text) for text in ("::1", "ff02::1", "fe80::1", "::ffff:10.0.0.1", "::"))))
    say(reply(kind, xid, duid, address("fd00:66::5", 0)))
    say(reply(kind, xid, duid, b"\0\5\xff\xff"))
    say(bytes([10]) + asked[1:])
    say(reply(kind, xid, duid, b"", b"".join(option(random.randrange(100, 999), b"x") for _ in range(1500))))
    say(bytes([kind]) + xid + b"".join(option(random.randrange(999), b"") for _ in range(1500)))
    for _ in range(100): say(reply(kind, os.urandom(3), duid, address("fd00:66::6")))
"#;

#[test]
fn a_rogue_server_of_ipv6_keeps_no_container_from_its_lease_and_writes_nowhere_else() {
    let host = host();
    let rogue = host.container();
    host.sh(&format!("ip link add rport type veth peer name rogue0 netns {}", rogue.path()));
    host.sh(&format!("ip link set rport master {DHCP_BRIDGE} up"));
    rogue.sh("ip link set rogue0 up");
    let script = host.dir().join("rogue.py");
    std::fs::write(&script, ROGUE6).unwrap();
    let program = Program::new(find_program("nsenter").unwrap(), Env::Clean(&[])).args(vec![
        format!("--net={}", rogue.path()).into(),
        "python3".into(),
        script.into(),
    ]);
    let rogue_server = RunningServer::start(&host, program);
    rogue.sh("timeout 30 sh -c 'until ss -Hlun | grep -q :547; do sleep 0.05; done'");
    let server = DhcpServer::start6(&host, ServerMaker::Kea, 600, [0x10, 0x20]);
    let daemon = LeaseDaemon::start(&host, &[]);
    let other = host.container();
    let bridge = on_bridge(&host, &["v6"]);
    bridge.add(&host, "c-other", &other);
    host.sh(UNTIL_DETECTED);
    other.sh(UNTIL_DETECTED);
    let before = (host.sh("ip -6 -o address show"), other.sh("ip -6 -o address show; ip -6 route"));
    let container = host.container();
    let result = bridge.add(&host, "c-one", &container);
    let [address] = &addresses(&result)[..] else { panic!("{result}") };
    assert!(address.starts_with("fd00:99::"), "{result}");
    assert!(!rogue_server.has_ended(), "it attacked to the end");
    let found = addresses_of(&container);
    assert!(found.contains(address.as_str()) && found.lines().count() == 1, "{found}");
    assert!(!container.sh("ip -6 route; cat /proc/net/if_inet6").contains("fd000066"), "nothing of the rogue's");
    let own =
        |text: &str| -> Vec<String> { text.lines().filter(|line| !line.contains("veth")).map(str::to_owned).collect() };
    assert_eq!(own(&host.sh("ip -6 -o address show")), own(&before.0));
    assert_eq!(other.sh("ip -6 -o address show; ip -6 route"), before.1);
    assert_threads(&daemon);
    bridge.check(&host, "c-one", &container, &result).ok();
    bridge.call(&host, "DEL", "c-one", &container.path(), &[]).ok();
    server.await_free(address.strip_suffix("/128").unwrap());
    let received = host.sh("awk '$1 == \"rport:\" {print $3}' /proc/net/dev");
    assert!(received.trim().parse::<u32>().unwrap() > 300, "{received}");
}

#[test]
fn without_one_of_the_families_nothing_is_left() {
    let host = host();
    let server = Dnsmasq::start(&host, RANGE, &[]);
    let daemon = LeaseDaemon::start(&host, &[]);
    let container = host.container();
    let mut bridge = on_bridge(&host, &["v4", "v6"]);
    bridge.conf["ipam"]["timeout"] = json!(5);
    let refused = bridge.call(&host, "ADD", "c-one", &container.path(), &[]).json();
    let msg = refused["msg"].as_str().unwrap();
    assert!(msg.contains("no lease of IPv6 for eth0: SOLICIT got no answer: it was sent "), "{refused}");
    server.await_leases("the other one is given back", <[String]>::is_empty);
    assert!(server.log().contains("DHCPACK("), "there was one: {}", server.log());
    assert!(daemon.list().is_empty() && has_no_record(&host) && !container.sh("ip -o link").contains("eth0"));
}

/// Leases of twelve seconds.
fn short_leases_live(host: &Host, plugin: &Subject) {
    let server = DhcpServer::start6(host, ServerMaker::Kea, 12, [0x10, 0x20]);
    let daemon = LeaseDaemon::start(host, &[]);
    let container = host.container();
    let result = plugin.add(host, "c-one", &container);
    let network = addresses(&result).remove(0);
    let address = network.strip_suffix("/128").unwrap().to_owned();
    let (first, begun) = lease6(&daemon.list()).unwrap();
    assert_eq!(first, address);
    let is_renewed = |since: Duration| {
        let address = address.clone();
        move |list: &[LeaseReport]| lease6(list).is_some_and(|(found, at)| found == address && at > since)
    };
    daemon.await_list("the server renews it at T1", is_renewed(begun));
    // A server with the same addresses and another DUID does not answer RENEW, which is for the one before, but REBIND.
    let (_, begun) = lease6(&daemon.list()).unwrap();
    drop(server);
    let dir = host.dir().join("Kea6");
    std::fs::remove_file(dir.join("kea-dhcp6-serverid")).unwrap();
    let server = DhcpServer::start6(host, ServerMaker::Kea, 12, [0x10, 0x20]);
    daemon.await_list("another server renews it at T2", is_renewed(begun));
    plugin.check(host, "c-one", &container, &result).ok();
    // Without a server it ends.
    drop(server);
    daemon.await_list("it expires", |list| lease6(list).is_none());
    assert!(!addresses_of(&container).contains(&address), "{}", addresses_of(&container));
    std::fs::remove_file(dir.join("leases")).unwrap();
    let server = DhcpServer::start6(host, ServerMaker::Kea, 12, [0x30, 0x40]);
    daemon.await_list("another one is got", |list| {
        lease6(list).is_some_and(|(address, _)| address.starts_with("fd00:99::3"))
    });
    let (next, _) = lease6(&daemon.list()).unwrap();
    assert!(addresses_of(&container).contains(&format!("{next}/128")), "{}", addresses_of(&container));
    plugin.call(host, "DEL", "c-one", &container.path(), &[]).ok();
    server.await_free(&next);
    assert!(has_no_record(host));
    let log = daemon.stop();
    assert!(log.contains(&format!("{address} is lost: no server renewed it in time")), "{log}");
}

#[test]
fn leases_of_seconds_are_renewed_rebound_and_end_on_bridge() {
    let host = host();
    short_leases_live(&host, &on_bridge(&host, &["v6"]));
}

#[test]
fn leases_of_seconds_are_renewed_rebound_and_end_on_macvlan() {
    let host = host();
    short_leases_live(&host, &on_macvlan(&host, &["v6"]));
}

#[test]
fn leases_survive_a_kill_and_are_given_back_without_a_daemon_or_an_interface() {
    let (host, site) = dhcp_site();
    dhcp6_address(&site);
    let server = DhcpServer::start6(&site, ServerMaker::Kea, 600, [0x10, 0x20]);
    let daemon = LeaseDaemon::start(&host, &[]);
    let bridge = on_bridge(&host, &["v6"]);
    let [one, two, three, four] = [host.container(), host.container(), host.container(), host.container()];
    let add = |id: &str, container: &Container| {
        let network = addresses(&bridge.add(&host, id, container)).remove(0);
        network.strip_suffix("/128").unwrap().to_owned()
    };
    let leases = [add("c-one", &one), add("c-two", &two), add("c-three", &three), add("c-four", &four)];
    daemon.kill();
    bridge.call(&host, "DEL", "c-one", &one.path(), &[]).ok();
    // The namespace of the second is gone when the next daemon starts.
    drop(two);
    let daemon = LeaseDaemon::start(&host, &[]);
    server.await_free(&leases[0]);
    server.await_free(&leases[1]);
    daemon
        .await_list("the others are confirmed", |list| list.len() == 2 && list.iter().all(|one| one.lease6.is_some()));
    // That of the third is gone before its DEL.
    drop(three);
    bridge.call(&host, "DEL", "c-three", "", &[]).ok();
    server.await_free(&leases[2]);
    let valid = json!([]);
    bridge.call(&host, "GC", "", "", &[("cni.dev/valid-attachments", valid)]).ok();
    server.await_free(&leases[3]);
    assert!(daemon.list().is_empty() && has_no_record(&host));
    let log = daemon.stop();
    assert!(log.contains("the lease of IPv6 is given back by br-dhcp"), "{log}");
}

/// The socket on which the answer is waited for is of an interface that is gone.
#[test]
fn a_lease_about_which_a_server_is_asked_is_given_back_by_the_bridge() {
    let (host, site) = dhcp_site();
    dhcp6_address(&site);
    let server = DhcpServer::start6(&site, ServerMaker::Kea, 600, [0x10, 0x20]);
    let daemon = LeaseDaemon::start(&host, &[]);
    let bridge = on_bridge(&host, &["v6"]);
    let container = host.container();
    let network = addresses(&bridge.add(&host, "c-one", &container)).remove(0);
    daemon.kill();
    let kea = server.pid();
    kill(kea, Signal::SIGSTOP).unwrap();
    let daemon = LeaseDaemon::start(&host, &[]);
    // 546, the port of clients.
    container.sh("timeout 20 sh -c 'until grep -q :0222 /proc/net/udp6; do sleep 0.05; done'");
    container.sh("ip link del eth0");
    bridge.call(&host, "GC", "", "", &[("cni.dev/valid-attachments", json!([]))]).ok();
    kill(kea, Signal::SIGCONT).unwrap();
    server.await_free(network.strip_suffix("/128").unwrap());
    assert!(daemon.list().is_empty() && has_no_record(&host));
}

#[test]
fn after_a_reboot_a_container_gets_its_address_again() {
    let host = host();
    let _server = DhcpServer::start6(&host, ServerMaker::Kea, 600, [0x10, 0x20]);
    let daemon = LeaseDaemon::start(&host, &[]);
    let bridge = on_bridge(&host, &["v6"]);
    let container = host.container();
    let before = addresses(&bridge.add(&host, "c-one", &container));
    daemon.kill();
    for path in lease_records(&host) {
        let mut record: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        record["place"]["boot"] = json!("00000000-0000-4000-8000-000000000000");
        std::fs::write(&path, record.to_string()).unwrap();
    }
    container.sh("ip link delete eth0");
    drop(container);
    let daemon = LeaseDaemon::start(&host, &[]);
    assert!(daemon.list().is_empty());
    let container = host.container();
    assert_eq!(addresses(&bridge.add(&host, "c-one", &container)), before);
    bridge.call(&host, "DEL", "c-one", &container.path(), &[]).ok();
}

#[test]
fn an_address_by_router_advertisement_is_waited_for_and_reported() {
    for make in [on_bridge as fn(&Host, &[&str]) -> Subject, on_macvlan] {
        let host = host();
        let router = Dnsmasq::start(&host, RANGE, &ROUTER);
        let plugin = make(&host, &["slaac"]);
        let container = host.container();
        let result = plugin.add(&host, "c-one", &container);
        let [address] = &addresses(&result)[..] else { panic!("{result}") };
        assert!(address.starts_with("fd00:99::") && address.ends_with("/64"), "{result}");
        assert!(addresses_of(&container).contains("dynamic"), "the router's lifetime: {}", addresses_of(&container));
        container.sh(UNTIL_ROUTED);
        container.sh(&ping(DHCP6_SERVER));
        plugin.check(&host, "c-one", &container, &result).ok();
        container.sh(&format!("ip address del {address} dev eth0"));
        let drift = plugin.call(&host, "CHECK", "c-one", &container.path(), &[("prevResult", result.clone())]).json();
        assert!(drift.to_string().contains("has no address of prevResult by router advertisement"), "{drift}");
        plugin.del(&host, "c-one", &container, &result);
        drop(router);
        // Without a router the wait ends.
        let mut plugin = plugin;
        plugin.conf["ipam"]["timeout"] = json!(3);
        let begun = Deadline::after(Duration::from_secs(30));
        let refused = plugin.call(&host, "ADD", "c-one", &container.path(), &[]).json();
        let msg = refused["msg"].as_str().unwrap();
        assert!(
            msg.contains("no address by router advertisement for eth0: no router advertised a prefix"),
            "{refused}"
        );
        assert!(!begun.passed() && !container.sh("ip -o link").contains("eth0"));
    }
}

#[test]
fn all_families_are_in_one_result_and_an_unknown_one_is_refused() {
    let host = host();
    // The flag for addresses beside DHCP.
    let options = ["--dhcp-range=fd00:99::10,fd00:99::50,slaac,64,2m", "--enable-ra"];
    let server = Dnsmasq::start(&host, RANGE, &options);
    let daemon = LeaseDaemon::start(&host, &[]);
    let container = host.container();
    let bridge = on_bridge(&host, &["v4", "v6", "slaac"]);
    let result = bridge.add(&host, "c-one", &container);
    let found = addresses(&result);
    let ends: Vec<&str> = found.iter().map(|one| one.split_once('/').unwrap().1).collect();
    assert_eq!(ends, ["24", "128", "64"], "{result}");
    bridge.check(&host, "c-one", &container, &result).ok();
    bridge.del(&host, "c-one", &container, &result);
    server.await_leases("both are given back", |lines| lines.iter().all(|line| line.starts_with("duid ")));
    assert!(daemon.list().is_empty());
    let refused = on_bridge(&host, &["v5"]).call(&host, "ADD", "c-one", &container.path(), &[]).json();
    assert!(
        refused["code"] == json!(7) && refused["msg"].as_str().unwrap().contains("ipam.families: \"v5\" is not"),
        "{refused}"
    );
}

/// tuning gives the interface another hardware address after the leases were reported.
#[test]
fn leases_of_both_families_survive_another_mac_and_the_daemon() {
    let host = host();
    let server = Dnsmasq::start(&host, RANGE, &DHCP6_OPTIONS);
    let daemon = LeaseDaemon::start(&host, &[]);
    let bridge = on_bridge(&host, &["v4", "v6"]);
    let container = host.container();
    let result = bridge.add(&host, "c-one", &container);
    let tuning = subject("tuning", json!({"mac": "02:00:00:00:99:07", "dataDir": host.dir().join("tuning")}));
    let result = tuning.call(&host, "ADD", "c-one", &container.path(), &[("prevResult", result)]).ok();
    assert!(container.sh("ip link show eth0").contains("02:00:00:00:99:07"));
    let reported = addresses(&result);
    let is_kept = |list: &[LeaseReport], since: [Duration; 2]| {
        let v4 = list.iter().find_map(|one| one.lease.as_ref()).map(|one| (one.address.to_string(), one.since));
        let (Some(v4), Some(v6)) = (v4, lease6(list)) else { return false };
        let address = |network: &String| network.split('/').next().unwrap().to_owned();
        v4.0 == address(&reported[0]) && v6.0 == address(&reported[1]) && v4.1 > since[0] && v6.1 > since[1]
    };
    let since = |daemon: &LeaseDaemon| {
        let list = daemon.list();
        [list.iter().find_map(|one| one.lease.as_ref()).unwrap().since, lease6(&list).unwrap().1]
    };
    let before = since(&daemon);
    daemon.kill();
    let daemon = LeaseDaemon::start(&host, &[]);
    daemon.await_list("both are renewed", |list| is_kept(list, before));
    bridge.check(&host, "c-one", &container, &result).ok();
    bridge.del(&host, "c-one", &container, &result);
    server.await_leases("both are given back", |lines| lines.iter().all(|line| line.starts_with("duid ")));
}

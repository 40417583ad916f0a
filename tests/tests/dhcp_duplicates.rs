//! Addresses of leases that another host uses already: found by probes during ADD, or soon after it, and declined.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

use std::time::Duration;

use cnikit_dhcp_daemon::{Lease6Order, LeaseReply, LeaseRequest};
use cnikit_netlink::Netlink;
use cnikit_process::Deadline;
use cnikit_testkit::{Container, Host, Subject};
use cnikit_tests::dhcp_servers::{DhcpServer, ServerMaker};
use cnikit_tests::dnsmasq::{DHCP_BRIDGE, DHCP_SERVER, Dnsmasq, connect, dhcp_bridge, dhcp6_address};
use cnikit_tests::lease_daemon::{LeaseDaemon, ORDER_MS, configure, owner};
use cnikit_tests::subject;
use cnikit_tests::world::ping;
use serde_json::json;

/// A bridge with an address of each family, and a container beside it that has addresses which a server may assign.
struct Scene {
    host: Host,
    holder: Container,
}

impl Scene {
    fn new() -> Scene {
        let host = Host::new();
        dhcp_bridge(&host);
        dhcp6_address(&host);
        let holder = host.container();
        connect(&host, &holder, "holder", "eth0");
        Scene { host, holder }
    }

    /// The plugin with these families.
    fn bridge(&self, families: &[&str]) -> Subject {
        let mut bridge = subject("bridge", json!({"bridge": DHCP_BRIDGE}));
        bridge.conf["ipam"] = json!({"type": "dhcp", "families": families,
            "daemonSocketPath": self.host.dir().join("dhcp.sock"), "dataDir": self.host.dir().join("dhcp-leases")});
        bridge
    }

    fn take(&self, address: &str) {
        let nodad = if address.contains(':') { "nodad" } else { "" };
        self.holder.sh(&format!("ip address add {address} dev eth0 {nodad}"));
    }

    /// The hardware address of the container that has them.
    fn by(&self) -> String {
        let link = Netlink::inside(self.holder.netns()).unwrap().link("eth0").unwrap();
        link.mac.unwrap().to_string()
    }
}

fn kea6(host: &Host) -> DhcpServer {
    DhcpServer::start6(host, ServerMaker::Kea, 600, [0x10, 0x11])
}

/// Whether the last line of the server's file about this address says that it was declined.
fn is_declined(server: &DhcpServer, address: &str) -> bool {
    let text = server.leases();
    let last = text.lines().rfind(|line| line.starts_with(&format!("{address},")));
    last.is_some_and(|line| line.split(',').nth(13) == Some("1"))
}

#[test]
fn add_reports_another_address_if_a_host_uses_the_first_one() {
    let scene = Scene::new();
    scene.take("10.99.0.10/24");
    let server = Dnsmasq::start(&scene.host, "10.99.0.10,10.99.0.11", &["--dhcp-sequential-ip"]);
    let daemon = LeaseDaemon::start(&scene.host, &[]);
    let container = scene.host.container();
    let bridge = scene.bridge(&["v4"]);
    let result = bridge.add(&scene.host, "c-one", &container);
    assert_eq!(result["ips"][0]["address"], json!("10.99.0.11/24"));
    container.sh(&ping(DHCP_SERVER));
    bridge.check(&scene.host, "c-one", &container, &result).ok();
    assert!(server.log().contains("DHCPDECLINE("), "{}", server.log());
    bridge.del(&scene.host, "c-one", &container, &result);
    let log = daemon.stop();
    assert!(log.contains(&format!("10.99.0.10 is declined: {} already uses it", scene.by())), "{log}");
}

#[test]
fn an_address_that_a_host_answers_for_after_add_is_replaced() {
    let scene = Scene::new();
    let server = Dnsmasq::start(&scene.host, "10.99.0.10,10.99.0.11", &["--dhcp-sequential-ip"]);
    let daemon = LeaseDaemon::start(&scene.host, &[]);
    let container = scene.host.container();
    let result = scene.bridge(&["v4"]).add(&scene.host, "c-one", &container);
    assert_eq!(result["ips"][0]["address"], json!("10.99.0.10/24"));
    // It answers no probe of the ADD, and the one that follows a second later.
    scene.take("10.99.0.10/24");
    daemon.await_list("it is given up", |list| list[0].lease.is_none());
    assert!(daemon.list()[0].hindrance.as_ref().unwrap().contains("already uses 10.99.0.10"), "{:?}", daemon.list());
    assert_eq!(container.sh("ip -4 -o address show dev eth0"), "");
    daemon.await_list("there is another one", |list| list[0].lease.is_some());
    assert_eq!(daemon.list()[0].lease.as_ref().unwrap().address.to_string(), "10.99.0.11");
    let addresses = container.sh("ip -4 -o address show dev eth0");
    assert!(addresses.contains("10.99.0.11/24") && addresses.lines().count() == 1, "{addresses}");
    container.sh(&ping(DHCP_SERVER));
    assert!(server.log().contains("DHCPDECLINE("), "{}", server.log());
    let log = daemon.stop();
    assert!(log.contains(&format!("10.99.0.10 is lost: {} uses it too", scene.by())), "{log}");
}

#[test]
fn add_reports_another_address_of_ipv6_if_a_host_uses_the_first_one() {
    let scene = Scene::new();
    scene.take("fd00:99::10/64");
    let server = kea6(&scene.host);
    let daemon = LeaseDaemon::start(&scene.host, &[]);
    let container = scene.host.container();
    let bridge = scene.bridge(&["v6"]);
    let result = bridge.add(&scene.host, "c-one", &container);
    assert_eq!(result["ips"][0]["address"], json!("fd00:99::11/128"));
    bridge.check(&scene.host, "c-one", &container, &result).ok();
    assert!(is_declined(&server, "fd00:99::10") && !is_declined(&server, "fd00:99::11"), "{}", server.leases());
    bridge.del(&scene.host, "c-one", &container, &result);
    let log = daemon.stop();
    assert!(log.contains(&format!("fd00:99::10 is declined: {} already uses it", scene.by())), "{log}");
}

#[test]
fn an_address_of_ipv6_that_a_host_answers_for_after_add_is_replaced() {
    let scene = Scene::new();
    let server = kea6(&scene.host);
    let daemon = LeaseDaemon::start(&scene.host, &[]);
    let container = scene.host.container();
    let result = scene.bridge(&["v6"]).add(&scene.host, "c-one", &container);
    assert_eq!(result["ips"][0]["address"], json!("fd00:99::10/128"));
    scene.take("fd00:99::10/64");
    daemon.await_list("there is another one", |list| {
        list[0].lease6.as_ref().is_some_and(|lease| lease.addresses[0].address.to_string() == "fd00:99::11")
    });
    let addresses = container.sh("ip -6 -o address show dev eth0 scope global");
    assert!(addresses.contains("fd00:99::11/128") && addresses.lines().count() == 1, "{addresses}");
    assert!(is_declined(&server, "fd00:99::10"), "{}", server.leases());
    let log = daemon.stop();
    assert!(log.contains(&format!("fd00:99::10 is lost: {} uses fd00:99::10 too", scene.by())), "{log}");
}

/// A host that knows an address of the container that had it before sends to the next one.
#[test]
fn hosts_learn_the_hardware_address_of_a_lease() {
    let scene = Scene::new();
    let _server = Dnsmasq::start(&scene.host, "10.99.0.10,10.99.0.11", &["--dhcp-sequential-ip"]);
    let _server6 = kea6(&scene.host);
    let daemon = LeaseDaemon::start(&scene.host, &[]);
    scene.take("10.99.0.5/24");
    scene.take("fd00:99::5/64");
    for address in ["10.99.0.10", "fd00:99::10"] {
        scene.holder.sh(&format!("ip neigh replace {address} lladdr 02:00:00:00:00:99 dev eth0 nud reachable"));
    }
    let container = scene.host.container();
    connect(&scene.host, &container, "port1", "eth0");
    let mac = Netlink::inside(container.netns()).unwrap().link("eth0").unwrap().mac.unwrap().to_string();
    configure(&container, &daemon.add(&container, "one"));
    let order = Lease6Order { owner: owner("one"), netns: container.path(), timeout_ms: ORDER_MS };
    let LeaseReply::Lease6 { lease, .. } = daemon.call(&LeaseRequest::Add6(order)) else { panic!("no lease") };
    container.sh(&format!("ip address add {}/128 dev eth0 nodad", lease.addresses[0].address));
    let deadline = Deadline::after(Duration::from_secs(30));
    let knows = |address: &str| scene.holder.sh(&format!("ip neigh show {address}")).contains(&mac);
    while !(knows("10.99.0.10") && knows("fd00:99::10")) {
        assert!(deadline.pause(Duration::from_millis(20)), "{mac}: {}", scene.holder.sh("ip neigh"));
    }
    scene.holder.sh("ping -c 1 -W 5 10.99.0.10");
}

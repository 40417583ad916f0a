//! dhcp behind plugins whose kind of link not every kernel has.

use cnikit_testkit::need::Need;
use cnikit_testkit::{Host, Subject};
use cnikit_tests::dhcp_servers::{DhcpServer, ServerMaker};
use cnikit_tests::dnsmasq::{
    DHCP_BRIDGE, DHCP_SERVER, DHCP6_OPTIONS, Dnsmasq, dhcp_server_in_vlan, dhcp_server_on_wire, dhcp6_address,
};
use cnikit_tests::lease_daemon::LeaseDaemon;
use cnikit_tests::subject;
use cnikit_tests::world::ping;
use serde_json::{Value, json};

use crate::test::{Test, test};

pub(crate) const TESTS: &[Test] = &[
    test!(a_vlan_gets_its_address_from_the_server_of_the_vlan_and_gives_it_back_by_its_master needs Need::NETNS_COOKIE, Need::VLAN),
    test!(an_ipvlan_gets_its_address_and_gives_it_back_by_its_master needs Need::NETNS_COOKIE, Need::IPVLAN),
    test!(behind_a_bridge_with_a_vlan_a_lease_is_given_back_in_the_vlan needs Need::NETNS_COOKIE, Need::VLAN, Need::BRIDGE_VLAN_FILTERING),
    test!(a_vlan_has_leases_of_both_families needs Need::NETNS_COOKIE, Need::VLAN),
    test!(an_ipvlan_has_leases_of_both_families needs Need::NETNS_COOKIE, Need::IPVLAN),
];

const RANGE: &str = "10.99.0.10,10.99.0.50";

/// The plugin on this host with these keys, and leases of these families.
fn with_dhcp(host: &Host, plugin: &str, mut keys: Value, families: &[&str]) -> Subject {
    keys["ipam"] = json!({"type": "dhcp", "families": families, "timeout": 40,
        "daemonSocketPath": host.dir().join("dhcp.sock"), "dataDir": host.dir().join("dhcp-leases")});
    subject(plugin, keys)
}

/// ADD, CHECK and DEL; then an ADD whose namespace is gone at its DEL, which `by` gives back.
fn lives_and_is_given_back(host: &Host, site: &Host, plugin: &Subject, by: &str) {
    let server = Dnsmasq::start(site, RANGE, &[]);
    let daemon = LeaseDaemon::start(host, &[]);
    let container = host.container();
    let result = plugin.add(host, "c-one", &container);
    assert!(result["ips"][0]["address"].as_str().unwrap().starts_with("10.99.0."), "{result}");
    container.sh(&ping(DHCP_SERVER));
    plugin.check(host, "c-one", &container, &result).ok();
    plugin.del(host, "c-one", &container, &result);
    server.await_leases("the lease is given back", <[String]>::is_empty);

    let gone = host.container();
    plugin.add(host, "c-two", &gone);
    let path = gone.path();
    drop(gone);
    plugin.call(host, "DEL", "c-two", &path, &[]).ok();
    server.await_leases("the lease is given back without its interface", <[String]>::is_empty);
    let log = daemon.stop();
    assert!(log.contains(&format!("the lease is given back by {by}")), "{log}");
}

fn a_vlan_gets_its_address_from_the_server_of_the_vlan_and_gives_it_back_by_its_master() {
    let (host, site) = (Host::new(), Host::new());
    dhcp_server_in_vlan(&host, &site, "master0", 7);
    let vlan = with_dhcp(&host, "vlan", json!({"master": "master0", "vlanId": 7}), &["v4"]);
    lives_and_is_given_back(&host, &site, &vlan, "master0");
}

fn an_ipvlan_gets_its_address_and_gives_it_back_by_its_master() {
    let (host, site) = (Host::new(), Host::new());
    dhcp_server_on_wire(&host, &site, "master0");
    let ipvlan = with_dhcp(&host, "ipvlan", json!({"master": "master0"}), &["v4"]);
    lives_and_is_given_back(&host, &site, &ipvlan, "master0");
}

/// The port to the server has the VLAN with a tag, then without one.
fn behind_a_bridge_with_a_vlan_a_lease_is_given_back_in_the_vlan() {
    for is_tagged in [true, false] {
        let (host, site) = (Host::new(), Host::new());
        if is_tagged {
            dhcp_server_in_vlan(&host, &site, "uplink", 7);
        } else {
            dhcp_server_on_wire(&host, &site, "uplink");
        }
        host.sh(&format!("ip link add {DHCP_BRIDGE} type bridge vlan_filtering 1 && ip link set {DHCP_BRIDGE} up"));
        let flags = if is_tagged { "" } else { "pvid untagged" };
        host.sh(&format!(
            "ip link set uplink master {DHCP_BRIDGE} up && bridge vlan add dev uplink vid 7 {flags} && \
             bridge vlan del dev uplink vid 1"
        ));
        let bridge = with_dhcp(&host, "bridge", json!({"bridge": DHCP_BRIDGE, "vlan": 7}), &["v4"]);
        lives_and_is_given_back(&host, &site, &bridge, DHCP_BRIDGE);
    }
}

/// A whole life with leases of both families, and one of IPv6 whose interface is gone at its DEL.
fn both_families_live(host: &Host, site: &Host, plugin: &Subject) {
    dhcp6_address(site);
    let server = Dnsmasq::start(site, RANGE, &DHCP6_OPTIONS);
    let daemon = LeaseDaemon::start(host, &[]);
    let container = host.container();
    let result = plugin.add(host, "c-one", &container);
    let addresses: Vec<&str> =
        result["ips"].as_array().unwrap().iter().map(|ip| ip["address"].as_str().unwrap()).collect();
    let [v4, v6] = addresses[..] else { panic!("{result}") };
    assert!(v4.starts_with("10.99.0.") && v6.starts_with("fd00:99::") && v6.ends_with("/128"), "{result}");
    plugin.check(host, "c-one", &container, &result).ok();
    plugin.del(host, "c-one", &container, &result);
    server.await_leases("both are given back", |lines| lines.iter().all(|line| line.starts_with("duid ")));
    assert!(daemon.list().is_empty());
    drop(server);

    let kea = DhcpServer::start6(site, ServerMaker::Kea, 600, [0x60, 0x70]);
    let mut plugin = plugin.clone();
    plugin.conf["ipam"]["families"] = json!(["v6"]);
    let gone = host.container();
    let result = plugin.add(host, "c-two", &gone);
    let address = result["ips"][0]["address"].as_str().unwrap().strip_suffix("/128").unwrap().to_owned();
    let path = gone.path();
    drop(gone);
    plugin.call(host, "DEL", "c-two", &path, &[]).ok();
    kea.await_free(&address);
}

fn a_vlan_has_leases_of_both_families() {
    let (host, site) = (Host::new(), Host::new());
    dhcp_server_in_vlan(&host, &site, "master0", 7);
    let vlan = with_dhcp(&host, "vlan", json!({"master": "master0", "vlanId": 7}), &["v4", "v6"]);
    both_families_live(&host, &site, &vlan);
}

fn an_ipvlan_has_leases_of_both_families() {
    let (host, site) = (Host::new(), Host::new());
    dhcp_server_on_wire(&host, &site, "master0");
    let ipvlan = with_dhcp(&host, "ipvlan", json!({"master": "master0"}), &["v4", "v6"]);
    both_families_live(&host, &site, &ipvlan);
}

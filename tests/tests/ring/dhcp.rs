//! dhcp behind plugins whose kind of link not every kernel has.

use cnikit_testkit::Host;
use cnikit_testkit::need::Need;
use cnikit_tests::dnsmasq::{DHCP_SERVER, Dnsmasq, dhcp_server_in_vlan};
use cnikit_tests::lease_daemon::LeaseDaemon;
use cnikit_tests::subject;
use cnikit_tests::world::ping;
use serde_json::json;

use crate::test::{Test, test};

pub(crate) const TESTS: &[Test] =
    &[test!(a_vlan_gets_its_address_from_the_server_of_the_vlan_and_gives_it_back_by_its_master needs Need::VLAN)];

fn a_vlan_gets_its_address_from_the_server_of_the_vlan_and_gives_it_back_by_its_master() {
    let (host, site) = (Host::new(), Host::new());
    dhcp_server_in_vlan(&host, &site, "master0", 7);
    let server = Dnsmasq::start(&site, "10.99.0.10,10.99.0.50", &[]);
    let daemon = LeaseDaemon::start(&host, &[]);
    let ipam = json!({"type": "dhcp", "daemonSocketPath": host.dir().join("dhcp.sock"),
        "dataDir": host.dir().join("dhcp-leases")});
    let vlan = subject("vlan", json!({"master": "master0", "vlanId": 7, "ipam": ipam}));
    let container = host.container();
    let result = vlan.add(&host, "c-one", &container);
    assert!(result["ips"][0]["address"].as_str().unwrap().starts_with("10.99.0."), "{result}");
    container.sh(&ping(DHCP_SERVER));
    vlan.check(&host, "c-one", &container, &result).ok();
    vlan.del(&host, "c-one", &container, &result);
    server.await_leases("the lease is given back", <[String]>::is_empty);

    let gone = host.container();
    vlan.add(&host, "c-two", &gone);
    let path = gone.path();
    drop(gone);
    vlan.call(&host, "DEL", "c-two", &path, &[]).ok();
    server.await_leases("a frame in the VLAN gives it back", <[String]>::is_empty);
    assert!(daemon.stop().contains("the lease is given back by master0"));
}

//! The DHCP daemon and the clients against Kea and ISC dhcpd: leases of seconds, servers that go and come back, two at once.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

use cnikit_testkit::{Container, Host};
use cnikit_tests::dhcp_servers::{DhcpServer, ServerMaker};
use cnikit_tests::dnsmasq::{DHCP_BRIDGE, DHCP_SERVER, connect, dhcp_bridge, dhcp_site};
use cnikit_tests::lease_daemon::{LeaseDaemon, configure};
use cnikit_tests::world::ping;

/// The flags of a daemon that is as impatient as the leases are short.
const IMPATIENT: [&str; 4] = ["-timeout", "500ms", "-resendmax", "2s"];
const POOL: [u8; 2] = [10, 50];

fn host() -> Host {
    let host = Host::new();
    dhcp_bridge(&host);
    host
}

fn container(host: &Host, number: usize) -> Container {
    let container = host.container();
    connect(host, &container, &format!("port{number}"), "eth0");
    container
}

/// Got, renewed beyond its end, lost with the server, got again when it is back, and given back.
fn a_lease_lives(maker: ServerMaker) {
    let host = host();
    let server = DhcpServer::start(&host, maker, 8, POOL);
    let daemon = LeaseDaemon::start(&host, &IMPATIENT);
    let container = container(&host, 1);
    let lease = daemon.add(&container, "one");
    configure(&container, &lease);
    assert_eq!(lease.parameters.prefix, Some(24));
    container.sh(&ping(DHCP_SERVER));
    let end = lease.expires_at().unwrap();
    daemon.await_list("it is renewed beyond its end", |list| {
        list[0].lease.as_ref().is_some_and(|one| one.since >= end && one.address == lease.address)
    });
    assert!(!server.is_free(&lease.address.to_string()), "{}", server.leases());
    let log = server.stop();
    daemon.await_list("it ends without the server", |list| list[0].lease.is_none());
    assert_eq!(container.sh("ip -4 -o address show dev eth0"), "", "its address may not be used any more: {log}");
    let server = DhcpServer::start(&host, maker, 8, POOL);
    daemon.await_list("it has a lease again", |list| list[0].lease.is_some());
    assert_eq!(daemon.check(&container, "one"), [] as [String; 0]);
    let address = daemon.list()[0].lease.as_ref().unwrap().address.to_string();
    daemon.del("one");
    server.await_free(&address);
    assert!(daemon.list().is_empty());
}

#[test]
fn a_lease_of_kea_lives_and_is_given_back() {
    a_lease_lives(ServerMaker::Kea);
}

#[test]
fn a_lease_of_isc_dhcpd_lives_and_is_given_back() {
    a_lease_lives(ServerMaker::Isc);
}

/// A daemon that is killed asks the server to confirm its lease.
fn a_lease_survives_the_daemon(maker: ServerMaker) {
    let host = host();
    let server = DhcpServer::start(&host, maker, 600, POOL);
    let daemon = LeaseDaemon::start(&host, &IMPATIENT);
    let container = container(&host, 1);
    let lease = daemon.add(&container, "one");
    configure(&container, &lease);
    daemon.kill();
    let daemon = LeaseDaemon::start(&host, &IMPATIENT);
    daemon.await_list("the server has confirmed it", |list| {
        list[0].lease.as_ref().is_some_and(|one| one.address == lease.address && one.since > lease.since)
    });
    assert_eq!(daemon.check(&container, "one"), [] as [String; 0]);
    daemon.del("one");
    server.await_free(&lease.address.to_string());
}

#[test]
fn a_lease_of_kea_survives_the_daemon() {
    a_lease_survives_the_daemon(ServerMaker::Kea);
}

#[test]
fn a_lease_of_isc_dhcpd_survives_the_daemon() {
    a_lease_survives_the_daemon(ServerMaker::Isc);
}

#[test]
fn of_two_servers_one_goes_and_the_other_takes_the_container_over() {
    // Both want port 67, so each is on a host of its own.
    let (host, site) = dhcp_site();
    host.sh(&format!("ip address add 10.99.0.2/24 dev {DHCP_BRIDGE}"));
    let mut kea = Some(DhcpServer::start(&host, ServerMaker::Kea, 8, [10, 50]));
    let mut isc = Some(DhcpServer::start(&site, ServerMaker::Isc, 8, [100, 150]));
    let daemon = LeaseDaemon::start(&host, &IMPATIENT);
    let container = container(&host, 1);
    let lease = daemon.add(&container, "one");
    configure(&container, &lease);
    let is_of_kea = lease.address.octets()[3] <= 50;
    drop(if is_of_kea { kea.take() } else { isc.take() });
    daemon.await_list("it has an address of the other one", |list| {
        list[0].lease.as_ref().is_some_and(|one| (one.address.octets()[3] <= 50) != is_of_kea)
    });
    assert_eq!(daemon.check(&container, "one"), [] as [String; 0]);
    let addresses = container.sh("ip -4 -o address show dev eth0");
    assert_eq!(addresses.lines().count(), 1, "{addresses}");
    container.sh(&ping(DHCP_SERVER));
}

/// It knows the lease, and has another identifier: it does not hear the renewal, which is sent to the first one.
#[test]
fn of_two_servers_with_the_same_leases_one_goes_and_the_other_one_rebinds_the_lease() {
    let (host, site) = dhcp_site();
    host.sh(&format!("ip address add 10.99.0.2/24 dev {DHCP_BRIDGE}"));
    let first = DhcpServer::start(&host, ServerMaker::Kea, 24, POOL);
    let daemon = LeaseDaemon::start(&host, &IMPATIENT);
    let container = container(&host, 1);
    let lease = daemon.add(&container, "one");
    assert_eq!(lease.server.to_string(), "10.99.0.2");
    configure(&container, &lease);
    first.stop();
    let [from, to] = [&host, &site].map(|one| one.dir().join("Kea4"));
    std::fs::create_dir(&to).unwrap();
    std::fs::copy(from.join("leases"), to.join("leases")).unwrap();
    let second = DhcpServer::start(&site, ServerMaker::Kea, 24, POOL);
    daemon.await_list("the other server has it", |list| {
        list[0].lease.as_ref().is_some_and(|one| one.server.to_string() == DHCP_SERVER)
    });
    let rebound = daemon.list()[0].lease.clone().unwrap();
    assert_eq!(rebound.address, lease.address);
    let at = rebound.since;
    assert!(at >= lease.since + lease.times.rebinding && at < lease.expires_at().unwrap(), "{lease:?} {rebound:?}");
    assert_eq!(daemon.check(&container, "one"), [] as [String; 0]);
    daemon.del("one");
    second.await_free(&lease.address.to_string());
    let log = daemon.stop();
    assert!(!log.contains("is lost"), "{log}");
}

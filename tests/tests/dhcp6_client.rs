//! The DHCP client for IPv6 against dnsmasq, over a bridge. Hours of a lease pass by a clock that is put forward.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

use std::net::{Ipv6Addr, SocketAddrV6, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use cnikit_dhcp::v6::{ALL_SERVERS, Client6, Client6Event, Client6Settings, Lease6, Lease6Loss, Transmit6};
use cnikit_netlink::Netlink;
use cnikit_testkit::{Container, Host};
use cnikit_tests::dhcp_servers::{DhcpServer, ServerMaker};
use cnikit_tests::dnsmasq::{DHCP_BRIDGE, Dnsmasq, connect, dhcp_bridge};
use cnikit_tests::world::UNTIL_DETECTED;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

const RANGE: &str = "10.99.0.10,10.99.0.20";
/// The range of IPv6, with leases of two minutes.
const RANGE6: &str = "--dhcp-range=fd00:99::10,fd00:99::20,64,2m";
/// The longest that an answer of a server on the same machine may take.
const SOON: Duration = Duration::from_secs(20);
const CLIENT_PORT: u16 = 546;
const SERVER_PORT: u16 = 547;

/// Until the link has a link-local address that can be used.
const UNTIL_LOCAL: &str =
    "timeout 20 sh -c 'until ip -6 address show dev eth0 scope link -tentative | grep -q inet6; do sleep 0.05; done'";

/// A client on `eth0` of a container, its socket, and a clock.
struct Station {
    container: Container,
    socket: UdpSocket,
    index: u32,
    client: Client6,
    began: Instant,
    skipped: Duration,
}

fn client(number: u8) -> Client6 {
    let mut random = fastrand::Rng::new();
    let settings = Client6Settings { duid: vec![0, 4, 1, 2, 3, number], iaid: 7 };
    Client6::new(settings, move || random.u32(..))
}

impl Station {
    fn new(host: &Host, number: u8) -> Station {
        let container = host.container();
        connect(host, &container, &format!("port{number}"), "eth0");
        container.sh(UNTIL_LOCAL);
        let netlink = Netlink::inside(container.netns()).unwrap();
        let index = netlink.link("eth0").unwrap().index;
        let own = netlink.addresses(index).unwrap();
        let local = own.iter().find_map(|one| match one.address.ip() {
            std::net::IpAddr::V6(address) if address.is_unicast_link_local() => Some(address),
            _ => None,
        });
        let at = SocketAddrV6::new(local.unwrap(), CLIENT_PORT, 0, index);
        let socket = container.netns().enter(|_| UdpSocket::bind(at)).unwrap().unwrap();
        socket.set_nonblocking(true).unwrap();
        let (began, skipped) = (Instant::now(), Duration::from_hours(1));
        Station { container, socket, index, client: client(number), began, skipped }
    }

    fn now(&self) -> Duration {
        self.began.elapsed() + self.skipped
    }

    /// Puts the clock forward to this time.
    fn skip_to(&mut self, time: Option<Duration>) {
        self.skipped += time.unwrap().saturating_sub(self.now());
        self.client.advance(self.now());
    }

    /// Runs the client until its next event.
    fn event(&mut self) -> Client6Event {
        let end = Instant::now() + SOON;
        loop {
            while let Some(sent) = self.client.transmit() {
                // The tests of the daemon are about duplicates of addresses.
                let Transmit6::Message(payload) = sent else { continue };
                let to = SocketAddrV6::new(ALL_SERVERS, SERVER_PORT, 0, self.index);
                self.socket.send_to(&payload, to).unwrap();
            }
            if let Some(event) = self.client.event() {
                return event;
            }
            assert!(Instant::now() < end, "nothing happened: {:?}", self.client.hindrance(self.now()));
            let left = self.client.deadline().map_or(SOON, |deadline| deadline.saturating_sub(self.now()));
            let timeout = u16::try_from(left.min(SOON).as_millis() + 1).unwrap();
            poll(&mut [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)], PollTimeout::from(timeout)).unwrap();
            let now = self.now();
            let mut buffer = [0; 4_096];
            while let Ok(length) = self.socket.recv(&mut buffer) {
                self.client.receive(now, &buffer[..length]);
            }
            self.client.advance(now);
        }
    }

    fn lease(&mut self) -> Lease6 {
        self.client.start(self.now());
        match self.event() {
            Client6Event::Bound(lease) => lease,
            other => panic!("{other:?}"),
        }
    }
}

fn host() -> Host {
    let host = Host::new();
    dhcp_bridge(&host);
    host.sh(&format!("ip address add fd00:99::1/64 dev {DHCP_BRIDGE} nodad"));
    host.sh(UNTIL_DETECTED);
    host
}

#[test]
fn a_lease_is_bound_renewed_and_released() {
    let host = host();
    let options =
        [RANGE6, "--dhcp-option=option6:dns-server,[fd00:99::53]", "--dhcp-option=option6:domain-search,a.example.com"];
    let server = Dnsmasq::start(&host, RANGE, &options);
    let mut station = Station::new(&host, 1);
    let lease = station.lease();
    let address = lease.addresses[0].address;
    let segments = address.segments();
    assert!(segments[..4] == [0xfd00, 0x99, 0, 0] && (0x10..=0x20).contains(&segments[7]), "{lease:?}");
    assert_eq!(lease.addresses[0].valid, Duration::from_mins(2));
    assert_eq!(lease.dns, ["fd00:99::53".parse::<Ipv6Addr>().unwrap()]);
    assert_eq!(lease.search, ["a.example.com"]);
    let of_server = |lines: &[String]| lines.iter().any(|line| line.contains(&address.to_string()));
    server.await_leases("the server knows the lease", of_server);

    station.container.sh(&format!("ip address add {address}/128 dev eth0"));
    station.skip_to(lease.renewal_at());
    match station.event() {
        Client6Event::Renewed(renewed) => assert_eq!(renewed.addresses[0].address, address),
        other => panic!("{other:?}"),
    }
    let now = station.now();
    assert!(station.client.release(now));
    assert_eq!(station.event(), Client6Event::Released);
    server.await_leases("the server has it back", |lines| !of_server(lines));
}

/// Kea and ISC dhcpd.
#[test]
fn other_servers_assign_renew_and_take_back() {
    for maker in [ServerMaker::Kea, ServerMaker::Isc] {
        let host = host();
        let server = DhcpServer::start6(&host, maker, 120, [0x10, 0x20]);
        let mut station = Station::new(&host, 1);
        let lease = station.lease();
        let address = lease.addresses[0].address;
        assert!((0x10..=0x20).contains(&address.segments()[7]), "{maker:?}: {lease:?}");
        assert_eq!(lease.dns, ["fd00:99::53".parse::<Ipv6Addr>().unwrap()], "{maker:?}");
        assert!(!server.is_free(&address.to_string()), "{maker:?}: {}", server.leases());
        station.skip_to(lease.renewal_at());
        match station.event() {
            Client6Event::Renewed(renewed) => assert_eq!(renewed.addresses[0].address, address, "{maker:?}"),
            other => panic!("{maker:?}: {other:?}"),
        }
        let now = station.now();
        assert!(station.client.release(now));
        assert_eq!(station.event(), Client6Event::Released, "{maker:?}");
        server.await_free(&address.to_string());
    }
}

#[test]
fn a_restarted_client_keeps_its_address_and_two_clients_have_two() {
    let host = host();
    let _server = Dnsmasq::start(&host, RANGE, &[RANGE6]);
    let mut station = Station::new(&host, 1);
    let lease = station.lease();
    let now = station.now();
    station.client = client(1);
    station.client.reboot(now, lease.clone());
    match station.event() {
        Client6Event::Renewed(renewed) => assert_eq!(renewed.addresses[0].address, lease.addresses[0].address),
        other => panic!("{other:?}"),
    }
    let other = Station::new(&host, 2).lease();
    assert_ne!(other.addresses[0].address, lease.addresses[0].address);
}

/// A server without the lease, in place of the one that assigned it, with these ranges. It has another DUID, so it answers REBIND
/// and not RENEW.
fn replaced(host: &Host, server: Dnsmasq, range: &str) -> Dnsmasq {
    drop(server);
    std::fs::remove_file(host.dir().join("dnsmasq/leases")).unwrap();
    Dnsmasq::start(host, RANGE, &[range])
}

#[test]
fn another_server_renews_the_lease_when_its_own_is_gone() {
    let host = host();
    let server = Dnsmasq::start(&host, RANGE, &[RANGE6]);
    let mut station = Station::new(&host, 1);
    let lease = station.lease();
    let _server = replaced(&host, server, RANGE6);
    station.skip_to(lease.rebinding_at());
    match station.event() {
        Client6Event::Renewed(renewed) => {
            assert_eq!(renewed.addresses[0].address, lease.addresses[0].address);
            assert_ne!(renewed.server, lease.server);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_server_of_another_network_ends_the_lease_and_assigns_another_one() {
    let host = host();
    let server = Dnsmasq::start(&host, RANGE, &[RANGE6]);
    let mut station = Station::new(&host, 1);
    let lease = station.lease();
    host.sh(&format!(
        "ip address del fd00:99::1/64 dev {DHCP_BRIDGE}; ip address add fd00:98::1/64 dev {DHCP_BRIDGE} nodad"
    ));
    host.sh(UNTIL_DETECTED);
    let _server = replaced(&host, server, "--dhcp-range=fd00:98::10,fd00:98::20,64,2m");
    station.skip_to(lease.rebinding_at());
    match station.event() {
        Client6Event::Lost { lease: lost, reason: Lease6Loss::Refused { .. } } => assert_eq!(lost, lease),
        other => panic!("{other:?}"),
    }
    match station.event() {
        Client6Event::Bound(next) => assert_eq!(next.addresses[0].address.segments()[1], 0x98),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_segment_without_a_server_is_named() {
    let host = host();
    let mut station = Station::new(&host, 1);
    let now = station.now();
    station.client.start(now);
    assert!(station.client.transmit().is_some());
    let why = station.client.hindrance(station.now()).unwrap().to_string();
    assert!(why.starts_with("SOLICIT got no answer: it was sent once"), "{why}");
}

//! The DHCP client and its sockets against dnsmasq, over a bridge. Hours of a lease pass by a clock that is put forward.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use cnikit_dhcp::v4::{
    Client, ClientEvent, ClientOptions, ClientSettings, Lease, LossReason, Timing, Transmit, client_id,
};
use cnikit_dhcp::{ArpSocket, LinkSocket, RoutedSocket};
use cnikit_netlink::{Mac, Netlink};
use cnikit_testkit::{Container, Host};
use cnikit_tests::dnsmasq::{DHCP_BRIDGE, DHCP_SERVER, Dnsmasq, connect, dhcp_bridge};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

const RANGE: &str = "10.99.0.10,10.99.0.20";
/// The longest that an answer of a server on the same machine may take.
const SOON: Duration = Duration::from_secs(20);

/// A client on `eth0` of a container, its sockets, and a clock.
struct Station {
    container: Container,
    index: u32,
    mac: Mac,
    client: Client,
    link: Option<LinkSocket>,
    arp: Option<ArpSocket>,
    began: Instant,
    skipped: Duration,
}

impl Station {
    fn new(host: &Host, number: u8) -> Station {
        let container = host.container();
        connect(host, &container, &format!("port{number}"), "eth0");
        let link = Netlink::inside(container.netns()).unwrap().link("eth0").unwrap();
        let mac = link.mac.unwrap();
        let client = client(mac, number);
        let (index, began, skipped) = (link.index, Instant::now(), Duration::from_hours(1));
        Station { container, index, mac, client, link: None, arp: None, began, skipped }
    }

    fn now(&self) -> Duration {
        self.began.elapsed() + self.skipped
    }

    fn start(&mut self) {
        self.client.start(self.now(), None);
    }

    /// The program that had the client is started again, and knows the lease.
    fn restart(&mut self, number: u8, lease: &Lease, in_use: bool) {
        self.client = client(self.mac, number);
        self.client.reboot(self.now(), lease.clone(), in_use);
    }

    /// Gives the link the address of the lease.
    fn configure(&self, lease: &Lease) {
        self.container.sh(&format!("ip address add {}/24 dev eth0", lease.address));
    }

    /// Puts the clock forward to the client's deadline, that of its lease if it has one: the probes for an address in use pass.
    fn skip_to_deadline(&mut self) {
        while self.client.lease().is_some() && self.client.probed().is_some() {
            self.skip();
            self.send();
        }
        self.skip();
    }

    fn skip(&mut self) {
        let deadline = self.client.deadline().unwrap();
        self.skipped += deadline.saturating_sub(self.now());
        self.client.advance(self.now());
    }

    /// Runs the client until its next event.
    fn event(&mut self) -> ClientEvent {
        let end = Instant::now() + SOON;
        loop {
            if let Some(event) = self.client.event() {
                self.send();
                return event;
            }
            assert!(Instant::now() < end, "nothing happened: {:?}", self.client.hindrance(self.now()));
            self.step();
        }
    }

    fn lease(&mut self) -> Lease {
        match self.event() {
            ClientEvent::Bound(lease) => lease,
            other => panic!("{other:?}"),
        }
    }

    fn renewed(&mut self) -> Lease {
        match self.event() {
            ClientEvent::Renewed(lease) => lease,
            other => panic!("{other:?}"),
        }
    }

    /// Sends what there is to send, waits for a packet or the deadline, and handles it.
    fn step(&mut self) {
        self.send();
        let link = self.link.as_ref().map(AsFd::as_fd);
        let arp = self.arp.as_ref().map(AsFd::as_fd);
        let mut sockets: Vec<_> = link.into_iter().chain(arp).map(|one| PollFd::new(one, PollFlags::POLLIN)).collect();
        let left = self.client.deadline().map_or(SOON, |deadline| deadline.saturating_sub(self.now()));
        let timeout = u16::try_from(left.min(SOON).as_millis() + 1).unwrap();
        poll(&mut sockets, PollTimeout::from(timeout)).unwrap();
        let now = self.now();
        if let Some(link) = &self.link {
            while let Some((from, packet)) = link.receive().unwrap() {
                self.client.receive(now, from, &packet);
            }
        }
        if let Some(arp) = &self.arp {
            while let Some(packet) = arp.receive().unwrap() {
                self.client.receive_arp(now, &packet);
            }
        }
        self.client.advance(now);
    }

    /// Opens the sockets that the client needs, closes the others, and sends.
    fn send(&mut self) {
        let netns = self.container.netns();
        if self.client.is_listening() && self.link.is_none() {
            self.link = Some(LinkSocket::open(netns, "eth0", self.index, self.mac).unwrap());
        }
        if !self.client.is_listening() {
            self.link = None;
        }
        match self.client.probed() {
            None => self.arp = None,
            Some(address) if self.arp.is_none() => {
                self.arp = Some(ArpSocket::open(netns, "eth0", self.index, address).unwrap());
            }
            Some(_) => {}
        }
        while let Some(transmit) = self.client.transmit() {
            match transmit {
                Transmit::Packet { to, packet } => {
                    let once = LinkSocket::open(netns, "eth0", self.index, self.mac).unwrap();
                    self.link.as_ref().unwrap_or(&once).send(to, &packet).unwrap();
                }
                Transmit::Datagram { from, to, payload } => {
                    RoutedSocket::open(netns, "eth0", self.index, from).unwrap().send(to, &payload).unwrap();
                }
                Transmit::Arp(packet) => self.arp.as_ref().unwrap().send(&packet).unwrap(),
            }
        }
    }
}

fn client(mac: Mac, number: u8) -> Client {
    let mut options = ClientOptions::new(client_id(&format!("c-{number}/net/eth0")));
    options.provide(12, format!("host-{number}").into_bytes()).unwrap();
    let settings = ClientSettings { mac, options, timing: Timing::default(), broadcast: false };
    let mut random = fastrand::Rng::new();
    Client::new(settings, move || random.u32(..))
}

fn host() -> Host {
    let host = Host::new();
    dhcp_bridge(&host);
    host
}

fn server_address() -> Ipv4Addr {
    DHCP_SERVER.parse().unwrap()
}

/// The client identifier as dnsmasq writes it.
fn identifier(number: u8) -> String {
    let bytes: Vec<String> =
        client_id(&format!("c-{number}/net/eth0")).iter().map(|byte| format!("{byte:02x}")).collect();
    bytes.join(":")
}

#[test]
fn a_lease_has_what_the_server_configures() {
    let host = host();
    let options = [
        "--dhcp-option=option:dns-server,10.99.0.53,10.99.0.54",
        "--dhcp-option=option:domain-name,example.com",
        "--dhcp-option=option:domain-search,a.example.com,b.example.com",
        "--dhcp-option=option:mtu,1400",
        "--dhcp-option=option:ntp-server,10.99.0.123",
        "--dhcp-option=option:classless-static-route,10.98.0.0/16,10.99.0.2,0.0.0.0/0,10.99.0.1",
    ];
    let server = Dnsmasq::start(&host, RANGE, &options);
    let mut station = Station::new(&host, 1);
    station.start();
    let lease = station.lease();
    assert!((10..=20).contains(&lease.address.octets()[3]), "{lease:?}");
    assert_eq!((lease.server, lease.times.expiry), (server_address(), Some(Duration::from_mins(2))));
    let bridge = Netlink::inside(host.netns()).unwrap().link(DHCP_BRIDGE).unwrap();
    assert_eq!(Some(lease.server_mac), bridge.mac);
    let parameters = &lease.parameters;
    let routes: Vec<String> =
        parameters.routes.iter().map(|route| format!("{} {:?}", route.destination, route.gateway.unwrap())).collect();
    assert_eq!(routes, ["10.98.0.0/16 10.99.0.2", "0.0.0.0/0 10.99.0.1"]);
    assert_eq!(
        (parameters.prefix, parameters.mtu, parameters.routers.as_slice()),
        (Some(24), Some(1_400), &[server_address()][..])
    );
    assert_eq!(parameters.dns, ["10.99.0.53", "10.99.0.54"].map(|one| one.parse::<Ipv4Addr>().unwrap()));
    assert_eq!(parameters.ntp, [Ipv4Addr::new(10, 99, 0, 123)]);
    assert_eq!(parameters.domain.as_deref(), Some("example.com"));
    assert_eq!(parameters.search, ["a.example.com", "b.example.com"]);
    assert!(parameters.ignored.is_empty());
    let leases = server.leases();
    let witness = format!("{} {} host-1 {}", station.mac, lease.address, identifier(1));
    assert!(leases.len() == 1 && leases[0].ends_with(&witness), "{leases:?}");
}

#[test]
fn a_lease_is_renewed_by_unicast_and_by_broadcast_if_that_gets_no_answer() {
    let host = host();
    let mut station = Station::new(&host, 1);
    let server = Dnsmasq::start(&host, RANGE, &[]);
    station.start();
    let lease = station.lease();
    station.configure(&lease);
    station.skip_to_deadline();
    let renewed = station.renewed();
    assert!(renewed.address == lease.address && renewed.since > lease.since);
    assert_eq!(server.log().matches("DHCPDISCOVER(").count(), 1, "{}", server.log());

    drop(server);
    while station.now() < renewed.rebinding_at().unwrap() {
        station.skip_to_deadline();
        station.send();
    }
    assert_eq!(station.client.lease(), Some(&renewed));
    let why = station.client.hindrance(station.now()).unwrap().to_string();
    assert!(why.starts_with("DHCPREQUEST to any server to renew the lease got no answer"), "{why}");
    let _server = Dnsmasq::start(&host, RANGE, &[]);
    station.skip_to_deadline();
    assert_eq!(station.renewed().address, lease.address);
}

#[test]
fn a_restarted_client_keeps_its_address() {
    let host = host();
    let server = Dnsmasq::start(&host, RANGE, &[]);
    let mut station = Station::new(&host, 1);
    station.start();
    let lease = station.lease();
    station.restart(1, &lease, false);
    assert_eq!(station.lease().address, lease.address);
    station.configure(&lease);
    station.restart(1, &lease, true);
    assert_eq!(station.renewed().address, lease.address);
    assert_eq!(server.log().matches("DHCPDISCOVER(").count(), 1, "{}", server.log());

    drop(server);
    std::fs::remove_file(host.dir().join("dnsmasq/leases")).unwrap();
    let _server = Dnsmasq::start(&host, "10.99.0.30,10.99.0.40", &[]);
    station.restart(1, &lease, true);
    match station.event() {
        ClientEvent::Lost { reason: LossReason::Refused { server, .. }, .. } => assert_eq!(server, server_address()),
        other => panic!("{other:?}"),
    }
    station.skip_to_deadline();
    assert!((30..=40).contains(&station.lease().address.octets()[3]));
}

#[test]
fn an_address_that_another_container_has_is_declined() {
    let host = host();
    let holder = host.container();
    connect(&host, &holder, "holder", "eth0");
    holder.sh("ip address add 10.99.0.10/24 dev eth0");
    let mut station = Station::new(&host, 1);
    let server = Dnsmasq::start(&host, "10.99.0.10,10.99.0.11", &["--dhcp-sequential-ip"]);
    station.start();
    let mac = Netlink::inside(holder.netns()).unwrap().link("eth0").unwrap().mac.unwrap();
    assert_eq!(station.event(), ClientEvent::Declined { address: Ipv4Addr::new(10, 99, 0, 10), by: mac });
    station.skip_to_deadline();
    assert_eq!(station.lease().address, Ipv4Addr::new(10, 99, 0, 11));
    assert!(server.log().contains("DHCPDECLINE("), "{}", server.log());
}

#[test]
fn a_released_lease_is_free_at_once() {
    let host = host();
    let server = Dnsmasq::start(&host, RANGE, &[]);
    let mut station = Station::new(&host, 1);
    station.start();
    station.lease();
    assert_eq!(server.leases().len(), 1);
    assert!(station.client.release(station.now()));
    station.send();
    server.await_leases("the lease is given back", <[String]>::is_empty);
}

#[test]
fn the_other_clients_of_a_link_hear_nothing_of_a_lease() {
    let host = host();
    let _server = Dnsmasq::start(&host, RANGE, &["--dhcp-broadcast"]);
    let mut one = Station::new(&host, 1);
    let mut other = Station::new(&host, 2);
    other.client.start(other.now(), None);
    other.link = Some(LinkSocket::open(other.container.netns(), "eth0", other.index, other.mac).unwrap());
    one.start();
    let lease = one.lease();
    assert!(other.link.as_ref().unwrap().receive().unwrap().is_none(), "the filter drops what is for another client");
    assert_ne!(other.lease().address, lease.address);
}

#[test]
fn a_link_without_a_server_is_reported_with_the_packet() {
    let host = host();
    let mut station = Station::new(&host, 1);
    station.start();
    for _ in 0..3 {
        station.send();
        station.skip_to_deadline();
    }
    let why = station.client.hindrance(station.now()).unwrap().to_string();
    assert!(why.starts_with("DHCPDISCOVER got no answer: it was sent 4 times in"), "{why}");
}

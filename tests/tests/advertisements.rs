//! A neighbour that floods router advertisements (CVE-2020-10749): links of ours hear nothing of it.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

use std::net::{Ipv6Addr, SocketAddrV6};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use cnikit_process::Deadline;
use cnikit_testkit::{Container, Host};
use cnikit_tests::{dual_stack, subject};
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn6, sendto, setsockopt, socket, sockopt,
};
use serde_json::{Value, json};

/// The prefix of the advertisements. A host with an address in it, or with a route `proto ra`, has processed one.
const ADVERTISED: &str = "2001:db8:bad:";
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const PAUSE: Duration = Duration::from_millis(2);

/// A router advertisement (RFC 4861, 4.2): a default router for half an hour, and a prefix to make addresses of. The
/// kernel puts the checksum in.
fn advertisement() -> Vec<u8> {
    let mut packet = vec![134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    let prefix = Ipv6Addr::new(0x2001, 0xdb8, 0xbad, 0, 0, 0, 0, 0);
    packet.extend([3, 4, 64, 0xc0, 0, 0, 14, 16, 0, 0, 14, 16, 0, 0, 0, 0]);
    packet.extend(prefix.octets());
    packet
}

/// Sends advertisements from this namespace until `stop` is set, and counts them.
fn advertise(stop: &AtomicBool, sent: &AtomicU32) {
    let socket = socket(AddressFamily::Inet6, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::IcmpV6).unwrap();
    setsockopt(&socket, sockopt::Ipv6MulticastHops, &255).unwrap();
    let all_nodes = SockaddrIn6::from(SocketAddrV6::new(ALL_NODES, 0, 0, if_nametoindex("eth0").unwrap()));
    while !stop.load(Ordering::Relaxed) {
        sendto(socket.as_raw_fd(), &advertisement(), &all_nodes, MsgFlags::empty()).unwrap();
        sent.fetch_add(1, Ordering::Relaxed);
        Deadline::never().pause(PAUSE);
    }
}

/// Does `work` while a container on the segment floods it. Returns how many advertisements that were.
fn flooded_by<T>(from: &Container, work: impl FnOnce() -> T) -> (T, u32) {
    from.sh("ip -6 address add fe80::bad/64 dev eth0 nodad");
    let stop = AtomicBool::new(false);
    let sent = AtomicU32::new(0);
    let done = thread::scope(|scope| {
        let flood = scope.spawn(|| from.netns().enter(|_| advertise(&stop, &sent)).unwrap());
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        stop.store(true, Ordering::Relaxed);
        flood.join().unwrap();
        done
    });
    (done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)), sent.into_inner())
}

const HEARD: &str = "ip -6 -o address show; ip -6 route show table all";

fn heard_nothing(output: &str, who: &str) {
    assert!(!output.contains(ADVERTISED) && !output.contains("proto ra"), "{who} has listened: {output}");
}

/// Until a container on the segment has an address from an advertisement.
const UNTIL_HEARD: &str =
    "timeout 20 sh -c 'until ip -6 address show dev eth0 | grep -q 2001:db8:bad:; do sleep 0.05; done'";

/// This many ADDs during the flood. A container that accepts advertisements shows that they arrive.
fn adds_under_a_flood(host: &Host, ipam: &Value, count: usize) {
    let subject = subject("bridge", json!({"isGateway": true, "ipam": ipam})).at(host.dir());
    let layer2 = self::subject("bridge", json!({"name": "layer2"}));
    let neighbour = host.container();
    let witness = host.container();
    let deaf = host.container();
    layer2.add(host, "c-neighbour", &neighbour);
    layer2.add(host, "c-witness", &witness);
    layer2.with("slaac", json!(false)).add(host, "c-deaf", &deaf);
    let containers: Vec<Container> = (0..count).map(|_| host.container()).collect();
    let ((), sent) = flooded_by(&neighbour, || {
        for (n, container) in containers.iter().enumerate() {
            subject.add(host, &format!("c-{n}"), container);
        }
        witness.sh(UNTIL_HEARD);
    });
    assert!(sent as usize > count, "{sent} advertisements during {count} ADDs are no flood");
    containers.iter().for_each(|container| heard_nothing(&container.sh(HEARD), "a container"));
    heard_nothing(&deaf.sh(HEARD), "a container with `slaac` false");
    heard_nothing(&host.sh(HEARD), "the host");
    assert!(witness.sh("ip -6 route show").contains("proto ra"), "the kernel's default is kept on layer 2");
}

#[test]
fn during_a_hundred_ipv6_adds_no_advertisement_is_accepted() {
    let host = Host::new();
    adds_under_a_flood(&host, &dual_stack(), 100);
}

/// The host does not forward IPv6 here, so only our setting prevents that it accepts advertisements.
#[test]
fn on_an_adopted_bridge_a_hundred_adds_accept_no_advertisement() {
    let host = Host::new();
    host.sh("ip link add cni0 type bridge && ip link set cni0 up");
    adds_under_a_flood(&host, &json!({"type": "host-local", "subnet": "10.77.0.0/24"}), 100);
}

#[test]
fn the_host_hears_no_advertisement_of_its_own_containers() {
    let bridge = subject("bridge", json!({"ipam": {"type": "host-local", "subnet": "10.77.0.0/24"}}));
    let ptp = subject("ptp", json!({"ipam": {"type": "host-local", "subnet": "10.77.0.0/24"}}));
    for subject in [bridge, ptp] {
        let host = Host::new();
        let container = Host::new().container();
        subject.at(host.dir()).add(&host, "c-one", &container);
        let ((), _) = flooded_by(&container, || drop(host.sh("sleep 0.5")));
        heard_nothing(&host.sh(HEARD), &subject.plugin);
        assert!(
            host.sh("nstat -asz Icmp6InRouterAdvertisements").lines().last().is_some_and(|line| !line.contains(" 0 "))
        );
    }
}

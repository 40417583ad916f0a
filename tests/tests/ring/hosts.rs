//! Two hosts, and containers on both that talk to each other.

use cnikit_testkit::need::Need;
use cnikit_testkit::{Container, Host, Subject};
use cnikit_tests::world::UNTIL_DETECTED;
use cnikit_tests::{flannel, subnet_env};
use serde_json::json;

use crate::test::{Test, test};

pub(crate) const TESTS: &[Test] = &[test!(containers_of_two_hosts_talk_over_vxlan needs Need::VXLAN)];

/// The MTU between the hosts; VXLAN needs 50 bytes of it over IPv4.
const WIRE: u32 = 1500;
const TUNNEL: u32 = WIRE - 50;

/// The number of a host is in all its addresses.
fn mac(host: u8) -> String {
    format!("0a:00:00:00:00:0{host}")
}

/// The work of flanneld with its VXLAN backend: a device without learning, the file, and for each other host a neighbour of either
/// family, the forwarding entry of its MAC, and routes to its subnets.
fn flanneld(host: &Host, own: u8, other: u8) {
    let own_mac = mac(own);
    let others = mac(other);
    host.sh(&format!(
        "echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
         ip link add flannel.1 address {own_mac} mtu {TUNNEL} type vxlan id 1 dstport 8472 local 192.0.2.{own} nolearning
         ip address add 10.77.{own}.0/32 dev flannel.1 && ip address add fd00:77:0:{own}::/128 dev flannel.1 nodad
         ip link set flannel.1 up
         ip neigh add 10.77.{other}.0 lladdr {others} dev flannel.1 nud permanent
         ip neigh add fd00:77:0:{other}:: lladdr {others} dev flannel.1 nud permanent
         bridge fdb add {others} dev flannel.1 dst 192.0.2.{other}
         ip route add 10.77.{other}.0/24 via 10.77.{other}.0 dev flannel.1 onlink
         ip route add fd00:77:0:{other}::/64 via fd00:77:0:{other}:: dev flannel.1 onlink"
    ));
    let subnets = [format!("10.77.{own}.1/24"), format!("fd00:77:0:{own}::1/64")];
    let content = subnet_env([&subnets[0], &subnets[1]], TUNNEL).replace("IPMASQ=false", "IPMASQ=true");
    std::fs::write(host.dir().join("subnet.env"), content).unwrap();
}

/// A host of that number, its end of the wire up.
fn wired(host: &Host, number: u8) {
    host.sh(&format!("ip address add 192.0.2.{number}/24 dev wire && ip link set wire mtu {WIRE} up"));
}

fn pod(host: &Host, subject: &Subject) -> (Container, [String; 2]) {
    let container = host.container();
    let result = subject.add(host, "c-pod", &container);
    container.sh(UNTIL_DETECTED);
    let eth0 = result["interfaces"].as_array().unwrap().iter().find(|one| one["name"] == "eth0").unwrap();
    assert_eq!(eth0["mtu"], TUNNEL, "{result}");
    let address = |n: usize| result["ips"][n]["address"].as_str().unwrap().split('/').next().unwrap().to_owned();
    (container, [address(0), address(1)])
}

/// Counts packets from these addresses.
fn seen([ipv4, ipv6]: &[String; 2]) -> String {
    format!(
        "nft 'table inet seen {{ chain input {{ type filter hook input priority 0;
             ip saddr {ipv4} icmp type echo-request counter
             ip6 saddr {ipv6} icmpv6 type echo-request counter; }}; }}'"
    )
}

fn containers_of_two_hosts_talk_over_vxlan() {
    let hosts = [Host::new(), Host::new()];
    let namespace = format!("/proc/{}/fd/{}", std::process::id(), number_of(&hosts[1]));
    hosts[0].sh(&format!("ip link add wire type veth peer name wire netns {namespace}"));
    for (host, number) in hosts.iter().zip([1, 2]) {
        wired(host, number);
        flanneld(host, number, 3 - number);
    }
    let subject = flannel().with("subnetFile", json!("$DIR/subnet.env"));
    let subjects = hosts.each_ref().map(|host| subject.at(host.dir()));
    let [one, two] = [0, 1].map(|n| pod(&hosts[n], &subjects[n]));
    for ((from, own), (there, to)) in [(&one, &two), (&two, &one)] {
        there.sh(&seen(own));
        for (address, header) in to.iter().zip([28, 48]) {
            assert!(from.reaches(address), "{address}");
            // A packet of exactly the tunnel's MTU arrives, and one with a byte more does not: no packet is lost or fragmented.
            let ping = |size| format!("ping -n -q -c 1 -W 2 -M do -s {size} {address}");
            from.sh(&ping(TUNNEL - header));
            assert!(!from.try_sh(&ping(TUNNEL - header + 1)).0, "{address}: more than the tunnel takes");
        }
        let counted = there.sh("nft list table inet seen");
        assert!(!counted.contains("packets 0 "), "under its own address, for flanneld masquerades: {counted}");
    }
    for (host, subject) in hosts.iter().zip(&subjects) {
        subject.call(host, "DEL", "c-pod", "", &[]).ok();
        assert!(!host.sh("ip -o link").contains("veth"), "the pod's link is gone");
    }
}

fn number_of(host: &Host) -> i32 {
    use std::os::fd::{AsFd, AsRawFd};
    host.netns().as_fd().as_raw_fd()
}

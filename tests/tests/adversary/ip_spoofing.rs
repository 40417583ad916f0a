//! `ipspoofchk`: a container on the same bridge poses as the gateway, as a router or as a DHCP server. Each attack has its
//! control: without the key it succeeds.

use cnikit_testkit::life::{self, Tampering};
use cnikit_testkit::{Container, Host, Subject, fault};
use cnikit_tests::{HOST_LOCAL, dual_stack, subject};
use serde_json::{Value, json};

use crate::actor::{ARP, BROADCAST, DOT1AD, DOT1Q, Ear, IPV4, IPV6, arp, checksum, ethernet, icmpv6, mac, send, udp4};

const GATEWAY: &str = "10.77.0.1";
const GATEWAY6: &str = "fd00:77::1";

fn bridge(ipspoofchk: bool) -> Subject {
    subject("bridge", json!({"isGateway": true, "ipspoofchk": ipspoofchk, "ipam": dual_stack()}))
}

fn ptp(ipspoofchk: bool) -> Subject {
    let mut ipam = dual_stack();
    ipam["routes"] = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
    subject("ptp", json!({"ipspoofchk": ipspoofchk, "ipam": ipam}))
}

/// The addresses and the MAC of a container, from its result.
struct Of {
    mac: [u8; 6],
    ipv4: String,
    ipv6: String,
    link_local: String,
}

impl Of {
    fn result(result: &Value) -> Of {
        let text = result["interfaces"].as_array().unwrap().last().unwrap()["mac"].as_str().unwrap();
        let mac = mac(text);
        let address = |n: usize| result["ips"][n]["address"].as_str().unwrap().split('/').next().unwrap().to_owned();
        let pair = |high: u8, low: u8| format!("{high:02x}{low:02x}");
        let pairs = [pair(mac[0] ^ 2, mac[1]), pair(mac[2], 0xff), pair(0xfe, mac[3]), pair(mac[4], mac[5])];
        Of { mac, ipv4: address(0), ipv6: address(1), link_local: format!("fe80::{}", pairs.join(":")) }
    }
}

/// A victim and an attacker on one network.
struct Scene {
    host: Host,
    victim: Container,
    attacker: Container,
    of_victim: Of,
    own: Of,
}

/// A frame, and by which bytes it is recognised.
struct Sent {
    what: &'static str,
    frame: Vec<u8>,
    bytes: Vec<u8>,
}

fn sent(what: &'static str, to: [u8; 6], from: [u8; 6], ethertype: u16, packet: Vec<u8>) -> Sent {
    Sent { what, frame: ethernet(to, from, &[], ethertype, &packet), bytes: packet }
}

impl Scene {
    fn of(subject: &Subject) -> Scene {
        let host = Host::new();
        let subject = subject.at(host.dir());
        let [victim, attacker] = [host.container(), host.container()];
        let [of_victim, own] = [("c-victim", &victim), ("c-attacker", &attacker)]
            .map(|(id, one)| Of::result(&subject.add(&host, id, one)));
        Scene { host, victim, attacker, of_victim, own }
    }

    /// Which of the frames arrive at the victim.
    fn arrive(&self, frames: &[Sent]) -> Vec<&'static str> {
        let ears: Vec<Ear> = frames.iter().map(|_| Ear::of(self.victim.netns())).collect();
        send(&self.attacker, "eth0", &frames.iter().map(|one| one.frame.clone()).collect::<Vec<_>>());
        let arrived = frames.iter().zip(&ears).filter(|(one, ear)| ear.heard(&one.bytes) > 0);
        arrived.map(|(one, _)| one.what).collect()
    }

    fn to_victim(&self, what: &'static str, ethertype: u16, packet: Vec<u8>) -> Sent {
        sent(what, self.of_victim.mac, self.own.mac, ethertype, packet)
    }

    /// The MAC that the victim has for this neighbour.
    fn neighbour(&self, address: &str) -> String {
        self.victim.sh(&format!("ip neigh show {address}"))
    }
}

fn names(frames: &[Sent]) -> Vec<&str> {
    frames.iter().map(|one| one.what).collect()
}

fn written(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// A neighbour solicitation or advertisement: flags, target, and an option with a MAC.
fn neighbour(flags: u8, target: &str, option: Option<(u8, [u8; 6])>) -> Vec<u8> {
    let target = target.parse::<std::net::Ipv6Addr>().unwrap().octets();
    let mut body = [&[flags, 0, 0, 0], &target[..]].concat();
    if let Some((kind, mac)) = option {
        body.extend([kind, 1]);
        body.extend(mac);
    }
    body
}

/// A router advertisement with a prefix (RFC 4861). The byte distinguishes it from other advertisements.
fn advertisement(lifetime: u8) -> Vec<u8> {
    let mut body = vec![64, 0, 7, lifetime, 0, 0, 0, 0, 0, 0, 0, 0];
    body.extend([3, 4, 64, 0xc0, 0, 0, 14, 16, 0, 0, 14, 16, 0, 0, 0, 0]);
    body.extend("2001:db8:bad::".parse::<std::net::Ipv6Addr>().unwrap().octets());
    body
}

/// The same packet with this header between its own header and the message.
fn behind(packet: &[u8], kind: u8, header: &[u8], message: &[u8]) -> Vec<u8> {
    let size = u16::try_from(header.len() + message.len()).unwrap().to_be_bytes();
    [&packet[..4], &size, &[kind], &packet[7..40], header, message].concat()
}

const SOLICIT: u8 = 135;
const ADVERT: u8 = 136;
const ROUTER: u8 = 134;
const REDIRECT: u8 = 137;
const UDP: u8 = 17;

/// Experiment 8.
mod gateway {
    use super::*;

    #[test]
    fn arp_cannot_tell_the_victim_that_the_attacker_is_the_gateway() {
        for ipspoofchk in [true, false] {
            let scene = Scene::of(&bridge(ipspoofchk));
            let own = scene.own.mac;
            let other = scene.of_victim.mac;
            let victim = ([0; 6], scene.of_victim.ipv4.as_str());
            let packet = |what, packet| scene.to_victim(what, ARP, packet);
            let tagged = |what, tags: &[(u16, u16)], last: &str| {
                let packet = arp(1, (own, last), victim);
                Sent { what, frame: ethernet(BROADCAST, own, tags, ARP, &packet), bytes: packet }
            };
            let frames = [
                packet("a question in the gateway's name", arp(1, (own, GATEWAY), victim)),
                packet("an answer in the gateway's name", arp(2, (own, GATEWAY), (other, &scene.of_victim.ipv4))),
                packet("its own address at another MAC", arp(2, (other, &scene.own.ipv4), victim)),
                packet("a probe for the gateway's address", arp(1, (own, "0.0.0.0"), ([0; 6], GATEWAY))),
                tagged("with a priority tag", &[(DOT1Q, 0)], "10.77.0.201"),
                tagged("with a tag of 802.1ad", &[(DOT1AD, 0)], "10.77.0.202"),
                tagged("with two tags", &[(DOT1Q, 0), (DOT1Q, 0)], "10.77.0.203"),
            ];
            scene.victim.sh("ip neigh flush all");
            let arrived = scene.arrive(&frames);
            let is_poisoned = scene.neighbour(GATEWAY).contains(&written(own));
            if ipspoofchk {
                assert_eq!((arrived, is_poisoned), (vec![], false));
            } else {
                assert_eq!((arrived, is_poisoned), (names(&frames), true));
            }
        }
    }

    #[test]
    fn neighbour_discovery_cannot_either() {
        for ipspoofchk in [true, false] {
            let scene = Scene::of(&bridge(ipspoofchk));
            let own = &scene.own;
            let victim = &scene.of_victim;
            let message = |what, from: &str, kind, body: Vec<u8>| {
                scene.to_victim(what, IPV6, icmpv6(from, &victim.ipv6, kind, &body))
            };
            let mine = |kind| Some((kind, own.mac));
            let nonce = [neighbour(0x20, &own.ipv6, None), vec![14, 1, 1, 2, 3, 4, 5, 6], vec![2, 1], own.mac.to_vec()];
            let frames = [
                message(
                    "advert from its own address for the gateway",
                    &own.ipv6,
                    ADVERT,
                    neighbour(0x20, GATEWAY6, mine(2)),
                ),
                message("advert in the gateway's name", GATEWAY6, ADVERT, neighbour(0x20, GATEWAY6, mine(2))),
                message(
                    "advert of its own address at another MAC",
                    &own.ipv6,
                    ADVERT,
                    neighbour(0x20, &own.ipv6, Some((2, victim.mac))),
                ),
                message("question in the gateway's name", GATEWAY6, SOLICIT, neighbour(0, &victim.ipv6, mine(1))),
                message(
                    "question with another MAC",
                    &own.ipv6,
                    SOLICIT,
                    neighbour(0, &victim.ipv6, Some((1, victim.mac))),
                ),
                message("detection for the gateway's address", "::", SOLICIT, neighbour(0, GATEWAY6, None)),
                message("an option before the MAC", &own.ipv6, ADVERT, nonce.concat()),
                message("from another link-local address", "fe80::1234", SOLICIT, neighbour(0, &victim.ipv6, mine(1))),
                message(
                    "router solicitation with another MAC",
                    &own.link_local,
                    133,
                    [&[0, 0, 0, 0, 1, 1][..], &victim.mac].concat(),
                ),
            ];
            // An advertisement changes existing entries only.
            scene.victim.sh("ping -n -q -c 1 -W 5 fd00:77::1");
            let arrived = scene.arrive(&frames);
            let is_poisoned = scene.neighbour(GATEWAY6).contains(&written(own.mac));
            if ipspoofchk {
                assert_eq!((arrived, is_poisoned), (vec![], false));
            } else {
                assert_eq!((arrived, is_poisoned), (names(&frames), true));
            }
        }
    }
}

#[test]
fn packets_under_anothers_address_are_dropped_and_those_of_other_protocols() {
    for ipspoofchk in [true, false] {
        let scene = Scene::of(&bridge(ipspoofchk));
        let own = &scene.own;
        let victim = &scene.of_victim;
        let v4 =
            |what, from: &str| scene.to_victim(what, IPV4, udp4((from, 5000), (&victim.ipv4, 5001), what.as_bytes()));
        let v6 = |what, from: &str| scene.to_victim(what, IPV6, icmpv6(from, &victim.ipv6, 128, what.as_bytes()));
        let tagged = |what, tags: &[(u16, u16)]| {
            let packet = udp4((GATEWAY, 5000), (&victim.ipv4, 5001), format!("tagged {what}").as_bytes());
            Sent { what, frame: ethernet(victim.mac, own.mac, tags, IPV4, &packet), bytes: what.as_bytes().to_vec() }
        };
        let frames = [
            v4("the gateway's", GATEWAY),
            v4("a neighbour's", "10.77.0.77"),
            v4("no address", "0.0.0.0"),
            v6("the gateway's of IPv6", GATEWAY6),
            v6("a neighbour's of IPv6", "fd00:77::77"),
            v6("another link-local", "fe80::77"),
            tagged("priority tag", &[(DOT1Q, 0)]),
            tagged("a VLAN", &[(DOT1Q, 9)]),
            tagged("two tags", &[(DOT1AD, 9), (DOT1Q, 7)]),
            scene.to_victim("another protocol", 0x88b5, b"another protocol".to_vec()),
        ];
        let arrived = scene.arrive(&frames);
        if ipspoofchk {
            assert_eq!(arrived, [""; 0]);
        } else {
            // If br_netfilter is loaded, it drops packets from 0.0.0.0.
            let missing: Vec<&str> = names(&frames).into_iter().filter(|what| !arrived.contains(what)).collect();
            assert!(missing.is_empty() || missing == ["no address"], "{missing:?}");
        }
        let own_packets =
            [v4("its own", &own.ipv4), v6("its own of IPv6", &own.ipv6), v6("its own link-local", &own.link_local)];
        assert_eq!(scene.arrive(&own_packets), names(&own_packets), "ipspoofchk {ipspoofchk}");
    }
}

#[test]
fn a_container_cannot_pose_as_a_router_or_dhcp_server() {
    for ipspoofchk in [true, false] {
        let scene = Scene::of(&bridge(ipspoofchk));
        let own = &scene.own;
        let victim = &scene.of_victim;
        let from_router = |lifetime| icmpv6(&own.link_local, &victim.ipv6, ROUTER, &advertisement(lifetime));
        let padding = [58, 0, 1, 4, 0, 0, 0, 0];
        let plain = from_router(1);
        let hidden = from_router(2);
        let hidden = behind(&hidden, 60, &padding, &hidden[40..]);
        // The header of the message is in the second fragment (RFC 7113).
        let whole = from_router(3);
        let options = [58, 1, 1, 12, 0x5a, 0x5a, 0x5a, 0x5a, 0, 0, 0, 0, 0, 0, 0, 0];
        // Receivers read the next header in the first fragment only, so the second one may have any.
        let fragment = |next: u8, offset: u8| [next, 0, 0, offset, 7, 7, 7, 7];
        let first = behind(&whole, 44, &fragment(60, 1), &options[..8]);
        let second = behind(&whole, 44, &fragment(60, 8), &[&options[8..], &whole[40..]].concat());
        let redirect = [&[0; 4][..], &[0xfd; 16], &[0xfd; 16]].concat();
        let message = [&b"a DHCPv6 answer"[..], &[0]].concat();
        let datagram =
            [&547_u16.to_be_bytes()[..], &546_u16.to_be_bytes(), &24_u16.to_be_bytes(), &[0, 0], &message].concat();
        let dhcp6 = behind(&whole, UDP, &[], &datagram);
        let answer = udp4((&own.ipv4, 67), (&victim.ipv4, 68), b"a DHCP answer");
        let from_any_port = udp4((&own.ipv4, 1067), (&victim.ipv4, 68), b"DHCP of any port");
        // All of the header of UDP is in the first fragment: no packet can be cut smaller.
        let mut in_pieces = udp4((&own.ipv4, 67), (&victim.ipv4, 68), b"DHCP, in pieces.");
        in_pieces[6] = 0x20;
        in_pieces[10..12].fill(0);
        let sum = checksum(&in_pieces[..20]);
        in_pieces[10..12].copy_from_slice(&sum);
        let frames = [
            scene.to_victim("a router", IPV6, plain),
            scene.to_victim("a router behind another header", IPV6, hidden),
            scene.to_victim("the first fragment", IPV6, first),
            scene.to_victim("the second fragment", IPV6, second),
            scene.to_victim("a redirect", IPV6, icmpv6(&own.link_local, &victim.ipv6, REDIRECT, &redirect)),
            scene.to_victim("a DHCPv6 server", IPV6, dhcp6),
            scene.to_victim("a DHCP server", IPV4, answer),
            scene.to_victim("a DHCP server that uses another port", IPV4, from_any_port),
            scene.to_victim("a DHCP server, first fragment", IPV4, in_pieces),
        ];
        let expected = if ipspoofchk { Vec::new() } else { names(&frames) };
        assert_eq!(scene.arrive(&frames), expected, "ipspoofchk {ipspoofchk}");
        let client = udp4(("0.0.0.0", 68), ("255.255.255.255", 67), b"a DHCP request");
        let client = [sent("a DHCP client", BROADCAST, own.mac, IPV4, client)];
        assert_eq!(scene.arrive(&client), ["a DHCP client"]);
    }
}

/// An IPv4 packet of this protocol with 8 bytes of data, as long as those of [`udp4`].
fn ipv4(protocol: u8, from: &str, to: &str, data: [u8; 8]) -> Vec<u8> {
    let mut packet = udp4((from, 0), (to, 0), b"");
    packet[9] = protocol;
    packet[10..12].fill(0);
    let sum = checksum(&packet[..20]);
    packet[10..12].copy_from_slice(&sum);
    packet[20..].copy_from_slice(&data);
    packet
}

/// A bridge that treats a port as that of a multicast router sends the traffic of all groups there.
#[test]
fn a_container_cannot_pose_as_a_multicast_router() {
    for ipspoofchk in [true, false] {
        let scene = Scene::of(&bridge(ipspoofchk));
        let own = &scene.own;
        let groups: [([u8; 6], &str); 2] =
            [([1, 0, 0x5e, 0, 0, 1], "224.0.0.1"), ([1, 0, 0x5e, 0, 0, 13], "224.0.0.13")];
        let igmp = |kind: u8| ipv4(2, &own.ipv4, groups[0].1, [kind, 10, !kind, 0xf5, 0, 0, 0, 0]);
        let hello = ipv4(103, &own.ipv4, groups[1].1, [0x20, 0, 0xdf, 0xff, 0, 0, 0, 0]);
        let all_nodes = [0x33, 0x33, 0, 0, 0, 1];
        let mld = |kind: u8, length: usize| icmpv6(&own.link_local, "ff02::1", kind, &vec![0; length]);
        let alert = [58, 0, 5, 2, 0, 0, 1, 0];
        let query = mld(130, 20);
        let alerted = behind(&query, 0, &alert, &query[40..]);
        let frames = [
            sent("an IGMP query", groups[0].0, own.mac, IPV4, igmp(0x11)),
            sent("an advertisement of a multicast router", groups[0].0, own.mac, IPV4, igmp(0x30)),
            sent("a hello of PIM", groups[1].0, own.mac, IPV4, hello),
            sent("an MLD query", all_nodes, own.mac, IPV6, query),
            sent("an MLD query with a router alert", all_nodes, own.mac, IPV6, alerted),
            sent("an advertisement of a multicast router, IPv6", all_nodes, own.mac, IPV6, mld(151, 4)),
        ];
        let expected = if ipspoofchk { Vec::new() } else { names(&frames) };
        assert_eq!(scene.arrive(&frames), expected, "ipspoofchk {ipspoofchk}");
        let routers = scene.host.sh("bridge -d mdb show dev cni0");
        assert_eq!(routers.contains("router ports on cni0: veth"), !ipspoofchk, "{routers}");
        // Memberships are reported.
        let reports = [
            scene.to_victim("a report of IGMP", IPV4, igmp(0x16)),
            scene.to_victim("a report of MLD", IPV6, mld(131, 20)),
            scene.to_victim("a report of MLDv2", IPV6, mld(143, 24)),
        ];
        assert_eq!(scene.arrive(&reports), names(&reports), "ipspoofchk {ipspoofchk}");
    }
}

/// Another network on the same bridge, without the key, sends redirects to a container that has it.
#[test]
fn a_port_with_the_key_gets_no_redirects() {
    for ipspoofchk in [true, false] {
        let scene = Scene::of(&bridge(ipspoofchk));
        let open = scene.host.container();
        let victim = &scene.of_victim;
        let result = subject("bridge", json!({"name": "open"})).add(&scene.host, "c-open", &open);
        let from = mac(result["interfaces"][2]["mac"].as_str().unwrap());
        let redirect = icmpv6("fe80::1", &victim.ipv6, REDIRECT, &[&[0; 4][..], &[0xfd; 32]].concat());
        let frame = ethernet(victim.mac, from, &[], IPV6, &redirect);
        let ear = Ear::of(scene.victim.netns());
        send(&open, "eth0", &[frame]);
        assert_eq!(ear.heard(&redirect) > 0, !ipspoofchk);
        for family in ["ipv4", "ipv6"] {
            let value = scene.victim.sh(&format!("cat /proc/sys/net/{family}/conf/eth0/accept_redirects"));
            assert_eq!(value.trim() == "0", ipspoofchk, "{family}");
        }
    }
}

#[test]
fn usual_traffic_passes_with_macspoofchk_and_address_detection() {
    let subject = bridge(true).with("macspoofchk", json!(true)).with("enabledad", json!(true));
    let scene = Scene::of(&subject);
    for (from, to) in [(&scene.attacker, &scene.of_victim), (&scene.victim, &scene.own)] {
        from.sh("ip neigh flush all");
        for address in [GATEWAY, GATEWAY6, &to.ipv4, &to.ipv6] {
            from.sh(&format!("ping -n -q -c 1 -W 10 {address}"));
            from.sh(&format!("ping -n -q -c 1 -W 10 -s 4000 {address}"));
        }
        from.sh(&format!("ping -n -q -c 1 -W 10 {}%eth0", to.link_local));
        // The gateway and the neighbour resolve the address again.
        scene.host.sh("ip neigh flush all");
        scene.host.sh(&format!("ping -n -q -c 1 -W 10 {}", to.ipv4));
        scene.host.sh(&format!("ping -n -q -c 1 -W 10 {}", to.ipv6));
    }
}

mod routed {
    use super::*;

    #[test]
    fn the_host_passes_nothing_on_that_has_anothers_address() {
        for ipspoofchk in [true, false] {
            let scene = Scene::of(&ptp(ipspoofchk));
            scene.host.sh("for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $f; done");
            let end = scene.attacker.sh("ip route get 192.0.2.1 >/dev/null; ip neigh flush all; ping -n -q -c 1 -W 5 10.77.0.1 >/dev/null; ip neigh show 10.77.0.1");
            let gateway = mac(end.split_whitespace().skip_while(|word| *word != "lladdr").nth(1).unwrap());
            let own = &scene.own;
            let victim = &scene.of_victim;
            let v4 = |what, from: &str| {
                sent(what, gateway, own.mac, IPV4, udp4((from, 5000), (&victim.ipv4, 5001), what.as_bytes()))
            };
            let v6 =
                |what, from: &str| sent(what, gateway, own.mac, IPV6, icmpv6(from, &victim.ipv6, 128, what.as_bytes()));
            let recognised = |frames: [Sent; 2]| frames.map(|one| Sent { bytes: one.what.as_bytes().to_vec(), ..one });
            let spoofed =
                recognised([v4("a neighbour's address", "10.77.0.77"), v6("a neighbour's of IPv6", "fd00:77::77")]);
            let expected = if ipspoofchk { Vec::new() } else { names(&spoofed) };
            assert_eq!(scene.arrive(&spoofed), expected, "ipspoofchk {ipspoofchk}");
            let honest = recognised([v4("its own address", &own.ipv4), v6("its own of IPv6", &own.ipv6)]);
            assert_eq!(scene.arrive(&honest), names(&honest), "ipspoofchk {ipspoofchk}");
            for address in [GATEWAY, GATEWAY6, &victim.ipv4, &victim.ipv6] {
                scene.attacker.sh(&format!("ping -n -q -c 1 -W 10 {address}"));
            }
        }
    }
}

mod life_of_it {
    use super::*;
    use bridge::BridgePlugin;
    use ptp::PtpPlugin;

    fn both() -> [Subject; 2] {
        [bridge(true).called("bridge with ipspoofchk"), ptp(true).called("ptp with ipspoofchk")]
    }

    #[test]
    fn an_attachment_leaves_no_trace_and_incomplete_dels_succeed() {
        for subject in both() {
            life::leaves_no_trace(&subject);
            life::survives_incomplete_dels(&subject);
        }
    }

    #[test]
    fn a_fault_before_any_step_leaves_nothing() {
        let [bridge, ptp] = both();
        assert!(fault::leaves_nothing::<BridgePlugin>(&bridge, HOST_LOCAL) > 0);
        assert!(fault::leaves_nothing::<PtpPlugin>(&ptp, HOST_LOCAL) > 0);
    }

    const DRIFTS: [Tampering; 4] = [
        Tampering::on_host("nft flush chain FAMILY cni_ipspoofchk prerouting", "ipspoofchk: rule `iifname"),
        Tampering::on_host("nft delete table FAMILY cni_ipspoofchk", "cni_ipspoofchk is missing"),
        Tampering::on_host(
            "nft insert rule FAMILY cni_ipspoofchk $(nft list ruleset | grep -o 'chain ipspoofchk-[0-9a-f]* ' | cut -d ' ' -f 2) accept",
            "has `accept`",
        ),
        Tampering::on_host(
            "c=$(nft list ruleset | grep -o 'chain ipspoofchk-[0-9a-f]* ' | cut -d ' ' -f 2); \
             nft delete rule FAMILY cni_ipspoofchk $c handle $(nft -a list chain FAMILY cni_ipspoofchk $c | sed -n 's/.*\\tdrop comment.*handle //p')",
            "cni_ipspoofchk has `",
        ),
    ];

    #[test]
    fn check_names_each_drift() {
        for (subject, family) in both().iter().zip(["bridge", "inet"]) {
            let drifts = DRIFTS.map(|one| Tampering { line: one.line.replace("FAMILY", family).leak(), ..one });
            life::names_tampering(subject, &drifts);
        }
    }

    #[test]
    fn restore_restores_flushed_rules_and_gc_removes_stale_ones() {
        for subject in both() {
            let host = Host::new();
            let container = Host::new().container();
            let subject = subject.at(host.dir());
            let result = subject.add(&host, "c-one", &container);
            let rules = || host.sh("nft list ruleset");
            let before = rules();
            host.sh("nft flush ruleset");
            subject.check(&host, "c-one", &container, &result).refused();
            subject.call(&host, "RESTORE", "c-one", &container.path(), &[("prevResult", result.clone())]);
            assert_eq!(rules(), before);
            subject.check(&host, "c-one", &container, &result).ok();
            let valid = |ids: Value| [("cni.dev/valid-attachments", ids)];
            let mine = json!([{"containerID": "c-one", "ifname": "eth0"}]);
            subject.call(&host, "GC", "", "", &valid(mine)).ok();
            assert_eq!(rules(), before);
            subject.call(&host, "GC", "", "", &valid(json!([]))).ok();
            assert!(!rules().contains("ipspoofchk-"), "{}", rules());
        }
    }

    /// A foreign IPAM plugin is called after the link is made. The host end is down at that time, and is set up with the rules.
    #[test]
    fn the_container_cannot_send_before_its_rules_exist() {
        for subject in both() {
            let host = Host::new();
            let container = host.container();
            let bin = tempfile::tempdir().unwrap();
            let seen = host.dir().join("seen");
            let ipam = "#!/bin/sh\ncat >/dev/null\n[ $CNI_COMMAND = ADD ] || exit 0\nip -br link show type veth >SEEN\n\
                echo '{\"cniVersion\":\"1.1.0\",\"ips\":[{\"address\":\"10.77.0.2/24\",\"gateway\":\"10.77.0.1\"}]}'\n";
            std::fs::write(bin.path().join("late"), ipam.replace("SEEN", &seen.display().to_string())).unwrap();
            host.sh(&format!("chmod 755 {}/late", bin.path().display()));
            let subject = subject.with("ipam", json!({"type": "late"}));
            let path = format!("{}:{}", subject.bin.display(), bin.path().display());
            let netns = container.path();
            let call = subject.call_raw(
                &host,
                "ADD",
                "c-one",
                &netns,
                subject.conf.to_string().as_bytes(),
                &[("CNI_PATH", &path)],
            );
            call.ok();
            let seen = std::fs::read_to_string(&seen).unwrap();
            assert!(seen.contains("veth") && seen.contains("DOWN") && !seen.contains("UP"), "{seen}");
            assert!(host.sh("ip -br link show type veth").contains("UP"));
        }
    }

    #[test]
    fn without_addresses_the_key_is_refused() {
        for (ipam, why) in
            [(json!({}), "needs the container's addresses"), (json!({"type": "dhcp"}), "cannot be used with dhcp")]
        {
            let host = Host::new();
            let container = Host::new().container();
            let subject = bridge(true).with("ipam", ipam);
            let (code, text) = subject.call(&host, "ADD", "c-one", &container.path(), &[]).refused();
            assert!(code == 7 && text.contains(why), "{code} {text}");
        }
    }
}

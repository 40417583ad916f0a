//! host-device: what the container gets, what the host gets back, and what containers and other programs do in between.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

use cnikit_testkit::life::{self, Tampering};
use cnikit_testkit::transcripts::survives;
use cnikit_testkit::{Container, Host, HostSnapshot, Subject, fault, flood};
use cnikit_tests::dnsmasq::{Dnsmasq, dhcp_server_on_wire, dhcp6_address};
use cnikit_tests::state_files::{forgets_an_earlier_boot, state_file, state_files};
use cnikit_tests::transcripts::scenes;
use cnikit_tests::{HOST_LOCAL, bin, crowded_host_device, host_device, references, subject};
use serde_json::{Value, json};

/// It has no addresses.
fn layer2() -> Subject {
    host_device(bin()).with("ipam", json!({})).called("host-device of layer 2")
}

#[test]
fn an_attachment_leaves_no_trace_and_the_host_has_its_device_back() {
    [host_device(bin()), layer2()].iter().for_each(life::leaves_no_trace);
}

#[test]
fn del_succeeds_with_incomplete_input() {
    [host_device(bin()), layer2()].iter().for_each(life::survives_incomplete_dels);
}

#[test]
fn sixty_four_at_once_get_sixty_four_devices() {
    flood::survives(&crowded_host_device(bin()), 64);
}

#[test]
fn no_flood_leaves_an_orphan_or_a_file() {
    flood::random_calls(&crowded_host_device(bin()), 80);
}

#[test]
fn a_fault_before_any_step_leaves_nothing() {
    let tried = fault::leaves_nothing::<host_device::HostDevicePlugin>(&host_device(bin()), HOST_LOCAL);
    assert_eq!(tried, 4, "1 step of the link, 1 of layer 3, and the place behind each");
}

#[test]
fn recorded_requests_of_a_runtime_are_answered() {
    survives(&crowded_host_device(bin()).with("ipam", json!({})), &scenes("podman-4.3-run"), 1);
}

#[test]
fn check_names_what_was_tampered_with() {
    let another = "ip link set eth0 down; ip link set eth0 name away && ip link add eth0 type ifb";
    let things = [
        Tampering::inside("ip link set eth0 down", "eth0: wanted up, found down"),
        Tampering::inside("ip link set eth0 down; ip link set eth0 name away", "interface eth0: wanted device hd"),
        Tampering::inside(another, "found another interface"),
        Tampering::inside("ip address del 10.77.0.2/24 dev eth0", "address of eth0: wanted 10.77.0.2/24"),
        Tampering::inside("ip address del fd00:77::2/64 dev eth0", "address of eth0: wanted fd00:77::2/64"),
        Tampering::inside("ip route del 10.77.0.0/24", "route of eth0: wanted 10.77.0.0/24"),
        Tampering::on_host("rm $DIR/leases/testnet/10.77.0.2", "10.77.0.2"),
    ];
    life::names_tampering_of_all(&host_device(bin()), &things);
    life::names_tampering_of_all(&layer2(), &things[..3]);
    // The others remove each other.
    life::names_all_at_once(&host_device(bin()), &things[4..]);
}

/// A host with a veth whose other end, `wire0`, is on the host too, and a container.
struct Scene {
    host: Host,
    container: Container,
    before: HostSnapshot,
}

impl Scene {
    fn new() -> Scene {
        let host = Host::new();
        host.sh("ip link add dev0 address 02:00:5e:10:00:02 type veth peer name wire0 address 02:00:5e:10:00:03 && \
             ip link set dev0 alias 'the one in front' && ip link property add dev dev0 altname the-card-in-front && \
             ip address add 192.0.2.1/24 dev dev0 && ip address add 2001:db8::1/64 dev dev0 nodad && \
             ip link set dev0 mtu 1400 up && ip link set wire0 mtu 1400 up && \
             until ip -6 route show table local dev dev0 | grep -q '2001:db8::1 '; do :; done");
        let container = host.container();
        std::fs::create_dir(host.dir().join("devices")).unwrap();
        Scene { before: HostSnapshot::of(&host), container, host }
    }

    fn subject(&self, selection: &Value) -> Subject {
        let addresses = json!([{"address": "10.77.0.5/24"}, {"address": "fd00:77::5/64"}]);
        let ipam = json!({"type": "static", "addresses": addresses});
        let mut subject = subject("host-device", json!({"dataDir": "$DIR/devices", "ipam": ipam})).at(self.host.dir());
        for (key, value) in selection.as_object().unwrap() {
            subject = subject.with(key, value.clone());
        }
        subject
    }

    fn named(&self) -> Subject {
        self.subject(&json!({"device": "dev0"}))
    }

    fn add(&self) -> Value {
        self.named().add(&self.host, "c-one", &self.container)
    }

    fn del(&self) {
        self.named().call(&self.host, "DEL", "c-one", &self.container.path(), &[]).ok();
    }

    fn assert_given_back(&self, when: &str) {
        // The kernel adds some routes of an IPv6 address after a delay.
        let left = HostSnapshot::leftovers(&self.host, &self.before, &[]);
        assert!(left.is_none(), "{when}: {left:?}");
    }

    fn assert_absent(&self) {
        assert!(!self.host.try_sh("ip link show dev0").0);
    }
}

/// The number of a link that `ip -o link show` prints.
fn number(shown: &str) -> u32 {
    shown.split_once(':').unwrap().0.parse().unwrap()
}

#[test]
fn a_device_is_selected_by_each_of_its_names_and_by_its_address() {
    let scene = Scene::new();
    // A link on top of it has its address.
    scene.host.sh("ip link add above0 link wire0 type macvlan mode passthru; ip link del above0");
    for selection in [
        json!({"device": "dev0"}),
        json!({"device": "the-card-in-front"}),
        json!({"hwaddr": "02-00-5E-10-00-02"}),
        json!({"hwaddr": "0200.5e10.0002"}),
        json!({"device": "dev0", "hwaddr": "02:00:5e:10:00:03"}),
    ] {
        let subject = scene.subject(&selection);
        let result = subject.add(&scene.host, "c-one", &scene.container);
        let interface = &result["interfaces"][0];
        assert_eq!(interface["mac"], "02:00:5e:10:00:02", "{selection}");
        assert_eq!((&interface["name"], &interface["mtu"]), (&json!("eth0"), &json!(1400)));
        assert_eq!(interface["sandbox"], scene.container.path());
        subject.check(&scene.host, "c-one", &scene.container, &result).ok();
        scene.assert_absent();
        subject.del(&scene.host, "c-one", &scene.container, &result);
        scene.assert_given_back(&selection.to_string());
    }
}

#[test]
fn the_container_talks_over_the_device() {
    let scene = Scene::new();
    scene.host.sh("ip address add 10.77.0.1/24 dev wire0; ip address add fd00:77::1/64 dev wire0 nodad");
    scene.add();
    for address in ["10.77.0.1", "fd00:77::1"] {
        scene.container.sh(&format!("ping -n -q -c 1 -w 10 {address}"));
    }
    for address in ["10.77.0.5", "fd00:77::5"] {
        scene.host.sh(&format!("ping -n -q -c 1 -w 10 {address}"));
    }
    scene.del();
    scene.host.sh("ip address del 10.77.0.1/24 dev wire0; ip address del fd00:77::1/64 dev wire0");
    scene.assert_given_back("after DEL");
}

/// Everything that a container with `CAP_NET_ADMIN` can do to the device, and to be confused with it.
#[test]
fn whatever_the_container_did_to_it_the_host_has_it_back_as_it_was() {
    for line in [
        "ip link set eth0 down; ip link set eth0 name away",
        "ip link set eth0 alias cnikit:0000000000000000:00000000000000000000000000000000",
        "ip link set eth0 alias wire0",
        "ip link set eth0 alias ''",
        "ip link set eth0 address 0a:00:00:00:00:01; ip link set eth0 mtu 1300; ip link set eth0 promisc on",
        "ip link set eth0 txqueuelen 7; ip link set eth0 group 9; ip link set eth0 allmulticast on",
        "ip link property add dev eth0 altname wire0",
        r"ip link property add dev eth0 altname $(printf 'any\377bytes')",
        "ip link property del dev eth0 altname the-card-in-front",
        "ip link property add dev eth0 altname dev0",
        "ip link add dev0 type ifb; ip link set dev0 up",
        "ip link set eth0 down; ip link set eth0 name wire0; ip link add eth0 type veth peer name other0",
        "ip link add br0 type bridge; ip link set eth0 master br0",
        "ip link add above0 link eth0 type macvlan; ip link set above0 up",
        "ip link add below1 type ifb; ip link add above1 link below1 type macvlan",
        "ip address add 192.0.2.7/24 dev eth0; ip route add 203.0.113.0/24 dev eth0",
        "ip link set eth0 xdp off; tc qdisc add dev eth0 clsact",
    ] {
        let scene = Scene::new();
        scene.add();
        scene.container.sh(line);
        scene.del();
        scene.assert_given_back(line);
        assert!(!scene.container.try_sh("ip link show above0").0, "{line}: nothing stays connected with it");
        assert_eq!(scene.container.try_sh("ip link show above1").0, line.contains("above1"), "{line}");
    }
}

/// It deletes the device, and puts one with the same number, name and address in its place. A veth goes with its other end, so that
/// the host sees that it is not the device.
#[test]
fn a_link_that_the_container_put_in_its_place_is_not_taken() {
    let scene = Scene::new();
    let index = scene.host.sh("cat /proc/net/dev_mcast | awk '$2 == \"dev0\" { print $1; exit }'");
    scene.add();
    scene.container.sh(&format!(
        "ip link del eth0 && ip link add eth0 index {} address 02:00:5e:10:00:02 type veth peer name peer0 && \
         ip link set eth0 alias dev0",
        index.trim()
    ));
    scene.del();
    assert!(scene.container.sh("ip -o link").contains("eth0@peer0"), "it is the container's");
    scene.assert_absent();
    assert_eq!(std::fs::read_dir(scene.host.dir().join("devices")).unwrap().count(), 0);
}

/// It moves the device away, puts a veth with the same number in its place, and moves the device back, which gets another
/// number. The other end of the device is on the host still, but is not that of the link in its place.
#[test]
fn a_link_in_the_place_of_a_device_that_the_container_moved_away_and_back_is_not_taken() {
    let scene = Scene::new();
    scene.add();
    let nested = scene.host.container();
    let index = number(&scene.container.sh("ip -o link show eth0"));
    scene.container.sh(&format!(
        "ip link set eth0 netns {} && ip link add eth0 index {index} address 02:00:5e:10:00:02 type veth peer name peer0 && \
         ip link set eth0 alias dev0",
        nested.path()
    ));
    nested.sh(&format!("ip link set eth0 name back0 && ip link set back0 netns {}", scene.container.path()));
    scene.del();
    let links = scene.container.sh("ip -o link");
    assert!(links.contains("eth0@peer0"), "it is the container's: {links}");
    scene.assert_absent();
}

/// The device has its number in the other namespace too.
#[test]
fn a_link_in_the_place_of_a_device_that_the_container_moved_on_is_not_taken() {
    let scene = Scene::new();
    scene.add();
    let index = number(&scene.container.sh("ip -o link show eth0"));
    let nested = scene.host.container();
    scene.container.sh(&format!(
        "ip link set eth0 netns {} && ip link add eth0 index {index} type veth peer name peer0",
        nested.path()
    ));
    scene.del();
    let links = scene.container.sh("ip -o link");
    assert!(links.contains("eth0@peer0"), "it is the container's: {links}");
    scene.assert_absent();
}

/// The container has a link with the number that the device has on the host.
#[test]
fn a_device_with_another_number_in_the_container_is_given_back_whatever_the_container_did_to_it() {
    let scene = Scene::new();
    let index = number(&scene.host.sh("ip -o link show dev0"));
    scene.container.sh(&format!("ip link add there0 index {index} type ifb"));
    scene.add();
    scene.container.sh("ip link set eth0 down; ip link set eth0 name away alias ''; ip link add eth0 type ifb");
    scene.del();
    scene.assert_given_back("after DEL");
    let links = scene.container.sh("ip -o link");
    assert!(links.contains("there0") && links.contains("eth0") && !links.contains("away"), "{links}");
}

/// As after an ADD that was killed when it had moved the device and not stored its number in the container.
#[test]
fn a_device_whose_number_in_the_container_is_not_known_is_given_back() {
    let scene = Scene::new();
    scene.add();
    let file = state_file(&scene.named());
    let mut stored: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert!(stored["state"]["identity"]["inside"].take().is_u64(), "{stored}");
    std::fs::write(&file, stored.to_string()).unwrap();
    scene.del();
    scene.assert_given_back("after DEL");
}

#[test]
fn a_port_of_a_bridge_is_one_again() {
    let scene = Scene::new();
    scene.host.sh("ip link add of0 type bridge && ip link add other0 type bridge && ip link set dev0 master of0");
    let master = || scene.host.sh("ip -o link show dev0").contains("master of0");
    assert!(master());
    scene.add();
    scene.del();
    assert!(master(), "{}", scene.host.sh("ip -o link show dev0"));
    // An operator took it back, and made it a port of another bridge.
    scene.add();
    scene.container.sh(&format!("ip link set eth0 netns {} name dev0", scene.host.path()));
    scene.host.sh("ip link set dev0 master other0");
    scene.del();
    assert!(master(), "{}", scene.host.sh("ip -o link show dev0"));
}

#[test]
fn an_address_that_the_host_refuses_by_then_does_not_make_del_fail() {
    let scene = Scene::new();
    scene.add();
    scene.host.sh("echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6");
    let conf = scene.named().conf.to_string();
    let path = scene.container.path();
    let output = scene.named().call_raw(&scene.host, "DEL", "c-one", &path, conf.as_bytes(), &[("CNI_LOG", "info")]);
    assert_eq!(output.exit, 0, "{output:?}");
    assert!(output.stderr.contains("2001:db8::1/64") && output.stderr.contains("is not given back"), "{output:?}");
    assert!(scene.host.sh("ip -o address show dev dev0").contains("192.0.2.1/24"));
}

#[test]
fn a_device_whose_number_the_host_has_given_to_another_link_is_given_back_with_another_one() {
    let scene = Scene::new();
    let index = number(&scene.host.sh("ip -o link show dev0"));
    scene.add();
    scene.host.sh(&format!("ip link add there0 index {index} type ifb"));
    scene.del();
    scene.host.sh("ip link del there0");
    scene.assert_given_back("after DEL");
}

/// An operator did that by hand, under the name that it had there, before the container ended.
#[test]
fn a_device_that_was_moved_out_of_a_container_is_given_back_by_the_next_add() {
    let Scene { host, container, before } = Scene::new();
    let subject = subject("host-device", json!({"device": "dev0", "dataDir": "$DIR/devices"})).at(host.dir());
    subject.add(&host, "c-one", &container);
    container.sh(&format!("ip link property add dev eth0 altname theirs0 && ip link set eth0 netns {}", host.path()));
    let other = host.container();
    let (code, text) = subject.call(&host, "ADD", "c-two", &other.path(), &[]).refused();
    assert!(code == 101 && text.contains("testnet/c-one/eth0 has it"), "as long as c-one runs: {code} {text}");
    drop(container);
    assert!(!host.try_sh("ip link show dev0").0);
    let result = subject.add(&host, "c-two", &other);
    assert_eq!(std::fs::read_dir(host.dir().join("devices")).unwrap().count(), 1, "that of the second ADD");
    subject.check(&host, "c-two", &other, &result).ok();
    subject.del(&host, "c-two", &other, &result);
    let left = HostSnapshot::leftovers(&host, &before, &[]);
    assert!(left.is_none(), "{left:?}");
}

/// The container moved it to a namespace of its own. Without hardware it is destroyed there; it is not taken from there.
#[test]
fn a_device_that_was_moved_on_does_not_make_del_fail() {
    let scene = Scene::new();
    scene.add();
    let nested = scene.host.container();
    scene.container.sh(&format!("ip link set eth0 netns {}", nested.path()));
    scene.del();
    assert!(nested.sh("ip -o link").contains("eth0"));
    scene.del();
}

#[test]
fn a_name_that_the_host_has_given_to_another_link_stays_with_that_one() {
    let scene = Scene::new();
    scene.add();
    scene.host.sh("ip link add dev0 type bridge; ip link property add dev dev0 altname the-card-in-front");
    let conf = scene.named().conf.to_string();
    let path = scene.container.path();
    let output = scene.named().call_raw(&scene.host, "DEL", "c-one", &path, conf.as_bytes(), &[("CNI_LOG", "info")]);
    assert_eq!(output.exit, 0, "{output:?}");
    assert!(output.stderr.contains("dev0 is back on the host as"), "{}", output.stderr);
    let links = scene.host.sh("ip -o address show to 192.0.2.1; ip -o link show type bridge");
    assert!(links.contains(" dev0: ") && !links.contains("dev0    inet"), "{links}");
    assert!(scene.host.sh("ip -o link show type veth").contains("02:00:5e:10:00:02"));
}

#[test]
fn a_device_of_a_container_or_none_at_all_is_refused_by_name() {
    let scene = Scene::new();
    let before = HostSnapshot::of(&scene.host);
    let other = scene.host.container();
    let refused = |selection: &Value, container: &Container| {
        scene.subject(selection).call(&scene.host, "ADD", "c-two", &container.path(), &[]).refused()
    };
    for (selection, code, says) in [
        (json!({}), 7, "specify either \"device\", \"hwaddr\", \"kernelpath\" or \"pciBusID\""),
        (json!({"device": "nosuch0"}), 101, "failed to find host device: the host has no device nosuch0"),
        (json!({"device": "lo"}), 7, "lo is the host's loopback"),
        (json!({"hwaddr": "02:00:5e:10:00:77"}), 101, "no device with the address 02:00:5e:10:00:77"),
        (json!({"kernelpath": "/sys/devices/no/such"}), 100, "failed to read directory /sys/devices/no/such"),
        (json!({"pciBusID": "ffff:ff:1f.7"}), 101, "the host has no PCI device ffff:ff:1f.7"),
        (json!({"runtimeConfig": {"deviceID": "ffff:ff:1f.7"}}), 7, "runtime config DeviceID ffff:ff:1f.7 not found"),
    ] {
        let (found, text) = refused(&selection, &other);
        assert!(found == code && text.contains(says), "{selection}: {found} {text}");
    }
    HostSnapshot::of(&scene.host).assert_unchanged_since(&before, &[], "after refusals");
    // The interface of another container, and one that another container has.
    scene.host.sh("ip link set wire0 alias cnikit:0123456789abcdef:0123456789abcdef0123456789abcdef");
    let (_, text) = refused(&json!({"device": "wire0"}), &other);
    assert!(text.contains("wire0 is the host end of"), "{text}");
    scene.host.sh("ip link set wire0 alias ''");
    scene.add();
    let (code, text) = refused(&json!({"device": "the-card-in-front"}), &other);
    assert!(code == 101 && text.contains("testnet/c-one/eth0 has it"), "{text}");
    let (code, text) = refused(&json!({"device": "nosuch0"}), &other);
    assert!(code == 101 && !text.contains("has it"), "{text}");
    scene.del();
    // The name in the container is taken, or the kind of link cannot be moved.
    other.sh("ip link add eth0 type ifb");
    let (code, text) = refused(&json!({"device": "dev0"}), &other);
    assert!(code == 101 && text.contains("interface \"eth0\" already exists in"), "{text}");
    scene.assert_given_back("after refusals");
    scene.host.sh("ip link add br0 type bridge");
    let (code, text) = refused(&json!({"device": "br0"}), &scene.container);
    assert!(code == 101 && text.contains("failed to move link br0: this kind of link cannot leave"), "{code} {text}");
}

/// tuning and sbr are behind it in the chain, and store their changes in the same directory. A DEL may leave them out, or call them
/// last: then the device is on the host already.
#[test]
fn a_tuned_device_is_given_back_as_the_host_had_it() {
    for tuning_is_first in [true, false] {
        let scene = Scene::new();
        let keys = json!({"mac": "0a:00:00:00:00:07", "mtu": 1300, "promisc": true, "allmulti": true, "txQLen": 500,
            "sysctl": {"net.ipv4.conf.IFNAME.arp_notify": "1"}, "dataDir": "$DIR/devices"});
        let tuning = subject("tuning", keys).at(scene.host.dir());
        let sbr = subject("sbr", json!({"dataDir": "$DIR/devices"})).at(scene.host.dir());
        let prev = |result: &Value| [("prevResult", result.clone())];
        let path = scene.container.path();
        let made = scene.add();
        let tuned = tuning.call(&scene.host, "ADD", "c-one", &path, &prev(&made)).ok();
        sbr.call(&scene.host, "ADD", "c-one", &path, &prev(&tuned)).ok();
        assert!(scene.container.sh("ip rule").contains("from 10.77.0.5 lookup 100"));
        for plugin in [&scene.named(), &tuning, &sbr] {
            plugin.check(&scene.host, "c-one", &scene.container, &tuned).ok();
        }
        let link = scene.container.sh("ip -o -d link show eth0");
        for setting in ["mtu 1300", "0a:00:00:00:00:07", "qlen 500", "PROMISC", "ALLMULTI"] {
            assert!(link.contains(setting), "{setting}: {link}");
        }
        if tuning_is_first {
            sbr.del(&scene.host, "c-one", &scene.container, &tuned);
            tuning.del(&scene.host, "c-one", &scene.container, &tuned);
        }
        scene.named().del(&scene.host, "c-one", &scene.container, &tuned);
        if !tuning_is_first {
            let left = HostSnapshot::leftovers(&scene.host, &scene.before, &["file: devices/c-one_eth0."]);
            assert!(left.is_none(), "without DEL of tuning: {left:?}");
            tuning.del(&scene.host, "c-one", &scene.container, &tuned);
            sbr.del(&scene.host, "c-one", &scene.container, &tuned);
        }
        assert!(!scene.container.sh("ip rule; ip -6 rule").contains("proto 203"));
        scene.assert_given_back(if tuning_is_first { "tuning first" } else { "tuning last" });
    }
}

/// An address with a lifetime was leased, and is not given back: by then another machine may have it.
#[test]
fn an_address_with_a_lifetime_is_not_given_back() {
    let scene = Scene::new();
    scene.host.sh("ip address add 192.0.2.99/24 dev dev0 valid_lft 600 preferred_lft 600 && \
         ip address add 2001:db8:9::1/64 dev dev0 nodad valid_lft 600 preferred_lft 600");
    scene.add();
    scene.del();
    let found = scene.host.sh("ip address show dev0");
    assert!(!found.contains("192.0.2.99") && !found.contains("2001:db8:9::"), "{found}");
    scene.assert_given_back("after DEL");
}

/// The router says that its prefix never ends: the address made of it is not the administrator's all the same.
#[test]
fn an_advertised_address_without_an_end_is_not_given_back() {
    let (host, site) = (Host::new(), Host::new());
    dhcp_server_on_wire(&host, &site, "dev0");
    dhcp6_address(&site);
    host.sh("ip address add 192.0.2.1/24 dev dev0 && ip address add 2001:db8::1/64 dev dev0 nodad");
    let router =
        Dnsmasq::start(&site, "10.99.0.10,10.99.0.20", &["--dhcp-range=fd00:99::,ra-only,infinite", "--enable-ra"]);
    let addresses = || host.sh("ip -6 address show dev dev0 scope global");
    host.sh("timeout 30 sh -c 'until ip -6 address show dev dev0 scope global -tentative | grep -q fd00:99:; do sleep 0.05; done'");
    let shown = addresses();
    let at = shown.find("inet6 fd00:99:").unwrap();
    assert!(shown[at..].lines().nth(1).unwrap().contains("valid_lft forever"), "{shown}");
    std::fs::create_dir(host.dir().join("devices")).unwrap();
    let ipam = json!({"type": "static", "addresses": [{"address": "10.77.0.5/24"}]});
    let subject = subject("host-device", json!({"device": "dev0", "dataDir": "$DIR/devices", "ipam": ipam}));
    let subject = subject.at(host.dir());
    let container = host.container();
    let result = subject.add(&host, "c-one", &container);
    // It would be advertised again.
    drop(router);
    subject.del(&host, "c-one", &container, &result);
    let shown = addresses();
    assert!(shown.contains("2001:db8::1/64") && !shown.contains("fd00:99:"), "{shown}");
    assert!(host.sh("ip -4 address show dev dev0").contains("192.0.2.1/24"));
}

/// A failed ADD gives it back too: the IPAM plugin has no address.
#[test]
fn a_failed_add_gives_the_device_back() {
    let scene = Scene::new();
    let addresses = json!([{"address": "10.77.0.5/24"}]);
    let routes = json!([{"dst": "192.0.2.0/24", "gw": "198.51.100.1", "scope": 254}]);
    let ipam = json!({"type": "static", "addresses": addresses, "routes": routes});
    let subject = scene.named().with("ipam", ipam);
    subject.call(&scene.host, "ADD", "c-one", &scene.container.path(), &[]).refused();
    scene.assert_given_back("after a failed ADD");
}

#[test]
fn gc_gives_back_the_devices_of_attachments_that_are_not_valid() {
    let scene = Scene::new();
    scene.add();
    let gc = |network: &str, valid: Value| {
        let subject = scene.named().with("name", json!(network));
        subject.call(&scene.host, "GC", "", "", &[("cni.dev/valid-attachments", valid)]).ok();
    };
    gc("testnet", json!([{"containerID": "c-one", "ifname": "eth0"}]));
    gc("othernet", json!([]));
    scene.assert_absent();
    // The namespace is found by the path of the ADD.
    gc("testnet", json!([]));
    scene.assert_given_back("after GC");
}

/// Both releases of upstream's plugin.
#[test]
fn upstreams_plugin_and_ours_give_back_each_others_devices() {
    for bin in references() {
        let scene = Scene::new();
        let ipam = json!({"type": "static", "addresses": [{"address": "10.77.0.5/24"}]});
        let ours = scene.named().with("cniVersion", json!("1.0.0")).with("ipam", ipam);
        let theirs = ours.in_directory(bin.clone());
        let result = theirs.add(&scene.host, "c-one", &scene.container);
        scene.assert_absent();
        ours.check(&scene.host, "c-one", &scene.container, &result).ok();
        ours.del(&scene.host, "c-one", &scene.container, &result);
        let link = scene.host.sh("ip -o link show dev0");
        assert!(link.contains("02:00:5e:10:00:02") && !link.contains("alias"), "{}: {link}", bin.display());

        let scene = Scene::new();
        let at = |subject: &Subject| subject.with("dataDir", json!(scene.host.dir().join("devices")));
        let result = at(&ours).add(&scene.host, "c-one", &scene.container);
        at(&theirs).check(&scene.host, "c-one", &scene.container, &result).ok();
        let path_now = scene.container.path();
        at(&theirs).call(&scene.host, "DEL", "c-one", &path_now, &[("prevResult", result)]).ok();
        assert!(scene.host.sh("ip -o link show dev0").contains("state DOWN"), "upstream leaves it down");
        let gc = ("cni.dev/valid-attachments", json!([]));
        at(&ours).with("cniVersion", json!("1.1.0")).call(&scene.host, "GC", "", "", &[gc]).ok();
        scene.assert_given_back("after upstream's DEL and our GC");
    }
}

/// As upstream's plugin leaves it: its name is in the alias, and nothing is stored.
#[test]
fn what_upstream_moved_is_given_back_and_what_upstream_gave_back_is_completed() {
    let scene = Scene::new();
    let move_as_upstream =
        format!("ip link set dev0 alias dev0 && ip link set dev0 netns {} name eth0", scene.container.path());
    let mac = json!([{"name": "eth0", "mac": "02:00:5e:10:00:02", "sandbox": scene.container.path()}]);
    let records = [vec![("prevResult", json!({"cniVersion": "1.1.0", "interfaces": mac}))], vec![]];
    scene.host.sh("ip link set dev0 group 7");
    for record in records {
        scene.host.sh(&move_as_upstream);
        scene.named().call(&scene.host, "DEL", "c-one", &scene.container.path(), &record).ok();
        let link = scene.host.sh("ip -o link show dev0");
        assert!(link.contains("02:00:5e:10:00:02") && !link.contains("alias"), "{link}");
        assert!(link.contains(" group 7 "), "{link}");
    }
    // Another device, of another container.
    scene.host.sh(&move_as_upstream);
    let other = json!([{"name": "eth0", "mac": "02:00:5e:10:00:77", "sandbox": scene.container.path()}]);
    let other = [("prevResult", json!({"cniVersion": "1.1.0", "interfaces": other}))];
    scene.named().call(&scene.host, "DEL", "c-one", &scene.container.path(), &other).ok();
    scene.assert_absent();

    let scene = Scene::new();
    scene.add();
    scene.container.sh("ip link set eth0 down; ip link set eth0 name dev0 alias ''");
    scene.container.sh(&format!("ip link set dev0 netns {}", scene.host.path()));
    assert!(scene.host.sh("ip -o link show dev0").contains("state DOWN"));
    let gc = ("cni.dev/valid-attachments", json!([]));
    scene.named().call(&scene.host, "GC", "", "", &[gc]).ok();
    scene.assert_given_back("after upstream's DEL and our GC");
}

/// As after a backup that was restored under wrong names.
#[test]
fn a_file_that_names_another_attachment_takes_no_device_from_it() {
    let scene = Scene::new();
    scene.host.sh("ip link add dev1 type veth peer name wire1 && ip link set dev1 up && ip link set wire1 up");
    scene.add();
    let own = state_file(&scene.named());
    let other = scene.host.container();
    scene.subject(&json!({"device": "dev1", "ipam": {}})).add(&scene.host, "c-two", &other);
    let others = state_files(&scene.named()).into_iter().find(|file| *file != own).unwrap();
    std::fs::copy(others, &own).unwrap();
    scene.del();
    assert!(!own.exists());
    other.sh("ip link show eth0");
}

/// The kernel destroys links of a kind with their namespace.
#[test]
fn a_device_that_went_with_its_namespace_leaves_no_file() {
    let Scene { host, container, .. } = Scene::new();
    let subject = subject("host-device", json!({"device": "dev0", "dataDir": "$DIR/devices"})).at(host.dir());
    subject.add(&host, "c-one", &container);
    let path = container.path();
    drop(container);
    subject.call(&host, "DEL", "c-one", &path, &[]).ok();
    assert_eq!(std::fs::read_dir(host.dir().join("devices")).unwrap().count(), 0);
}

#[test]
fn state_of_an_earlier_boot_is_removed_and_nothing_is_given_back() {
    forgets_an_earlier_boot(&host_device(bin()));
}

#[test]
fn a_dry_run_moves_nothing() {
    let scene = Scene::new();
    let output = scene.named().call(&scene.host, "PLAN", "c-one", &scene.container.path(), &[]).ok();
    let steps = output["plan"].to_string();
    assert!(steps.contains("device dev0 of the host, in the container as eth0; what it was is stored in"), "{steps}");
    scene.assert_given_back("after a dry run");
}

/// The other end belongs to the host, which may leave it down.
#[test]
fn a_device_whose_other_end_is_down_is_moved_at_once() {
    let scene = Scene::new();
    scene.host.sh("ip link set wire0 down");
    let before = HostSnapshot::of(&scene.host);
    let result = scene.add();
    scene.named().check(&scene.host, "c-one", &scene.container, &result).ok();
    scene.del();
    let left = HostSnapshot::leftovers(&scene.host, &before, &[]);
    assert!(left.is_none(), "{left:?}");
}

/// After a DEL nothing is stored. A repeated one must not take what the container made in the meantime.
#[test]
fn a_repeated_del_takes_no_link_that_the_container_made() {
    let scene = Scene::new();
    let result = scene.add();
    scene.named().del(&scene.host, "c-one", &scene.container, &result);
    scene
        .container
        .sh("ip link add eth0 address 02:00:5e:10:00:02 type veth peer name other0; ip link set eth0 alias evil0");
    scene.named().del(&scene.host, "c-one", &scene.container, &result);
    scene.container.sh("ip link show eth0");
    assert!(!scene.host.try_sh("ip link show evil0").0, "a link of the container is on the host");
}

/// Its namespace never had a link to the host, so the kernel gave the host no number there.
#[test]
fn a_del_without_an_add_takes_no_link_that_the_container_made() {
    let scene = Scene::new();
    scene
        .container
        .sh("ip link add eth0 address 02:00:5e:10:00:02 type veth peer name other0; ip link set eth0 alias evil0");
    let made = json!([{"name": "eth0", "mac": "02:00:5e:10:00:02", "sandbox": scene.container.path()}]);
    let record = [("prevResult", json!({"cniVersion": "1.1.0", "interfaces": made}))];
    scene.named().call(&scene.host, "DEL", "c-one", &scene.container.path(), &record).ok();
    scene.container.sh("ip link show eth0");
    assert!(!scene.host.try_sh("ip link show evil0").0, "a link of the container is on the host");
}

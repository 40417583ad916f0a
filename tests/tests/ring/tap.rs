//! tap: its life, the guest at the other end of the device, and what other users may do with it.

use std::path::Path;
use std::thread;
use std::time::Duration;

use cnikit_process::Deadline;
use cnikit_testkit::campaign::case_limit;
use cnikit_testkit::life::{self, Tampering};
use cnikit_testkit::need::Need;
use cnikit_testkit::transcripts::survives;
use cnikit_testkit::{Container, Host, HostSnapshot, Subject, errno, fault, flood, kill};
use cnikit_tests::guest::{Guest, MULTI_QUEUE, NO_PI, TAP, VNET_HDR, behind_eth0};
use cnikit_tests::transcripts::scenes;
use cnikit_tests::{HOST_LOCAL, dual_stack, subject, tap, traced, upper};
use serde_json::{Value, json};

use crate::test::{Test, test};

pub(crate) const TESTS: &[Test] = &[
    test!(an_attachment_leaves_no_trace needs Need::TUN),
    test!(del_succeeds_with_incomplete_input needs Need::TUN),
    test!(sixty_four_at_once_get_sixty_four_addresses needs Need::TUN),
    test!(no_flood_leaves_an_orphan_or_gives_an_address_twice needs Need::TUN),
    test!(a_fault_before_any_step_leaves_nothing needs Need::TUN),
    test!(it_is_killed_at_some_calls needs Need::TUN),
    test!(it_is_terminated_at_some_moments needs Need::TUN),
    test!(it_lacks_memory_or_files needs Need::TUN),
    test!(recorded_requests_of_a_runtime_are_answered needs Need::TUN),
    test!(it_meets_some_errors needs Need::TUN),
    test!(check_names_what_was_tampered_with needs Need::TUN),
    test!(a_guest_and_the_container_exchange_packets needs Need::TUN),
    test!(guests_exchange_frames_over_a_bridge_in_the_container needs Need::TUN),
    test!(each_key_has_its_effect_with_every_other_one needs Need::TUN),
    test!(no_program_is_started needs Need::TUN),
    test!(the_mac_is_that_of_the_source_with_the_highest_priority needs Need::TUN),
    test!(only_owner_and_group_attach needs Need::TUN),
    test!(what_the_owner_does_is_reported_and_stops_no_del needs Need::TUN),
    test!(an_existing_interface_is_refused_and_stays needs Need::TUN),
    test!(invalid_configurations_are_refused_before_anything_is_made needs Need::TUN),
    test!(tun_devices_of_other_programs_stay needs Need::TUN),
    test!(foreign_links_stay needs Need::TUN),
    test!(gc_removes_invalid_links_in_named_namespaces needs Need::TUN),
    test!(a_dry_run_makes_nothing needs Need::TUN),
    test!(a_node_without_the_file_is_named),
    test!(a_label_is_that_of_the_device_or_refused_where_selinux_is_off),
];

/// It has no addresses.
fn layer2() -> Subject {
    subject("tap", json!({})).called("tap of layer 2")
}

/// A port of a bridge of the container, with all keys.
fn on_bridge() -> Subject {
    let keys = json!({"bridge": "br0", "multiQueue": true, "owner": 0, "vnetHdr": true, "mtu": 1400,
                      "mac": "0a:00:00:00:00:05"});
    let bridge = "ip link add br0 type bridge && ip link set br0 up";
    subject("tap", keys).after(bridge, json!({})).called("tap on a bridge")
}

fn an_attachment_leaves_no_trace() {
    let mut routed = dual_stack();
    routed["routes"] = json!([{"dst": "10.9.0.0/16", "gw": "10.77.0.9", "priority": 7}, {"dst": "fd09::/64"}]);
    [tap(), layer2(), tap().with("ipam", routed)].iter().for_each(life::leaves_no_trace);
}

fn del_succeeds_with_incomplete_input() {
    [tap(), layer2()].iter().for_each(life::survives_incomplete_dels);
}

fn sixty_four_at_once_get_sixty_four_addresses() {
    flood::survives(&tap(), 64);
}

fn no_flood_leaves_an_orphan_or_gives_an_address_twice() {
    flood::random_calls(&tap(), 80);
}

fn a_fault_before_any_step_leaves_nothing() {
    let tried = fault::leaves_nothing::<tap::TapPlugin>(&tap(), HOST_LOCAL);
    assert_eq!(tried, 4, "1 step of the link, 1 of layer 3, and the place behind each");
}

/// Its addresses have no gateway: the campaigns have the other container talk to that, which no device without a guest can.
fn without_gateway() -> Subject {
    let addresses = json!([{"address": "10.77.0.5/24"}, {"address": "fd00:77::5/64"}]);
    tap().with("ipam", json!({"type": "static", "addresses": addresses}))
}

fn it_is_killed_at_some_calls() {
    kill::at_every_call(&without_gateway(), 1);
}

fn it_is_terminated_at_some_moments() {
    kill::at_moments(&without_gateway(), case_limit(1).min(50));
}

fn it_lacks_memory_or_files() {
    kill::with_resource_limits(&without_gateway(), 1);
}

fn recorded_requests_of_a_runtime_are_answered() {
    survives(&layer2(), &scenes("podman-4.3-run"), 1);
}

fn it_meets_some_errors() {
    errno::at_every_call(&without_gateway(), 1);
}

fn check_names_what_was_tampered_with() {
    let things = [
        Tampering::inside("ip link set eth0 down", "eth0: wanted up, found down"),
        Tampering::inside("ip link del eth0", "interface eth0: wanted tun, found none"),
        Tampering::inside("ip link del eth0 && ip link add eth0 type bridge", "kind of eth0: wanted tun, found bridge"),
        Tampering::inside("ip link del eth0 && ip tuntap add eth0 mode tun", "type of eth0: wanted tap, found tun"),
        Tampering::inside(
            "ip link del eth0 && ip tuntap add eth0 mode tap user 1002 group 1001",
            "owner of eth0: wanted 1000, found 1002",
        ),
        Tampering::inside(
            "ip link del eth0 && ip tuntap add eth0 mode tap user 1000",
            "group of eth0: wanted 1001, found none",
        ),
        Tampering::inside(
            "ip link del eth0 && ip tuntap add eth0 mode tap user 1000 group 1001 multi_queue",
            "multi_queue of eth0: wanted false, found true",
        ),
        Tampering::inside("ip link set eth0 address 0a:00:00:00:00:01", "MAC of eth0"),
        Tampering::inside(upper::ALIAS_OF_ANOTHER, "found the alias"),
        Tampering::inside("ip address del 10.77.0.2/24 dev eth0", "address of eth0: wanted 10.77.0.2/24"),
        Tampering::inside("ip address del fd00:77::2/64 dev eth0", "address of eth0: wanted fd00:77::2/64"),
        Tampering::inside("ip route del 10.77.0.0/24", "route of eth0: wanted 10.77.0.0/24"),
        Tampering::on_host("rm $DIR/leases/testnet/10.77.0.2", "10.77.0.2"),
    ];
    life::names_tampering_of_all(&tap(), &things);
    // The others remove each other.
    life::names_all_at_once(&tap(), &[&things[7..9], &things[10..]].concat());
    let things = [things[0], things[1]];
    life::names_tampering_of_all(&layer2(), &things);
    let on_bridge_of_container = [
        Tampering::inside("ip link set eth0 nomaster", "bridge of eth0: wanted br0, found none"),
        Tampering::inside(
            "ip link add br1 type bridge && ip link set eth0 master br1",
            "bridge of eth0: wanted br0, found br1",
        ),
        Tampering::inside("ip link set eth0 mtu 1300", "MTU of eth0: wanted 1400, found 1300"),
        Tampering::inside("ip link set eth0 down", "eth0: wanted up, found down"),
    ];
    life::names_tampering_of_all(&on_bridge(), &on_bridge_of_container);
}

/// The container's `eth0` as `ip` describes its kind.
fn kind_of_eth0(container: &Container) -> String {
    let shown = container.sh("ip -d link show eth0");
    shown
        .lines()
        .find(|line| line.trim_start().starts_with("tun "))
        .unwrap_or_else(|| panic!("{shown}"))
        .trim()
        .to_owned()
}

fn a_guest_and_the_container_exchange_packets() {
    for flags in [TAP | NO_PI, TAP | NO_PI | VNET_HDR] {
        let host = Host::new();
        let container = host.container();
        let subject = tap().at(host.dir());
        let result = subject.add(&host, "c-one", &container);
        let mac = result["interfaces"][0]["mac"].as_str().unwrap();
        let guest = Guest { devices: &[("eth0", flags)], ..behind_eth0(&container) };
        let answered = guest.obeys(&format!("ping4 10.77.0.9 10.77.0.2\nping6 fd00:77::9 fd00:77::2 {mac}"));
        assert_eq!(answered, "pong\npong\n", "{flags:#x}");
        subject.check(&host, "c-one", &container, &result).ok();
        subject.del(&host, "c-one", &container, &result);
    }
}

/// Two attachments of one container; each device is a port of its bridge.
fn guests_exchange_frames_over_a_bridge_in_the_container() {
    let host = Host::new();
    let container = host.container();
    container.sh("ip link add br0 type bridge && ip link set br0 up");
    let subject = subject("tap", json!({"bridge": "br0"})).at(host.dir());
    for ifname in ["tap0", "tap1"] {
        let conf = subject.conf.to_string();
        subject.call_raw(&host, "ADD", "c-one", &container.path(), conf.as_bytes(), &[("CNI_IFNAME", ifname)]).ok();
    }
    let devices = [("tap0", TAP | NO_PI), ("tap1", TAP | NO_PI)];
    let guest = Guest { devices: &devices, ..behind_eth0(&container) };
    let one = format!("ffffffffffff0200000000aa88b5{}", "5a".repeat(60));
    let other = format!("0200000000aa0200000000bb88b5{}", "a5".repeat(60));
    assert_eq!(guest.obeys(&format!("exchange 0 1 {one}\nexchange 1 0 {other}")), "exchanged\nexchanged\n");
}

fn each_key_has_its_effect_with_every_other_one() {
    let host = Host::new();
    for (keys, shown) in [
        (json!({}), "tun type tap pi off vnet_hdr off persist on"),
        (json!({"vnetHdr": true}), "tun type tap pi off vnet_hdr on persist on"),
        (
            json!({"multiQueue": true}),
            "tun type tap pi off vnet_hdr off multi_queue numqueues 0 numdisabled 0 persist on",
        ),
        (json!({"owner": 0}), "tun type tap pi off vnet_hdr off persist on user root"),
        (json!({"group": 0}), "tun type tap pi off vnet_hdr off persist on group root"),
        (
            json!({"owner": 4_294_967_294_u32, "group": 7777}),
            "tun type tap pi off vnet_hdr on persist on user 4294967294 group 7777",
        ),
        (
            json!({"owner": 0, "group": 0, "vnetHdr": false}),
            "tun type tap pi off vnet_hdr off persist on user root group root",
        ),
    ] {
        for more in [json!({}), json!({"mtu": 1400, "mac": "0a:00:00:00:00:05"}), json!({"bridge": "br0"})] {
            let container = host.container();
            container.sh("ip link add br0 type bridge && ip link set br0 up");
            let mut subject = subject("tap", keys.clone());
            for (key, value) in more.as_object().unwrap() {
                subject = subject.with(key, value.clone());
            }
            let result = subject.add(&host, "c-one", &container);
            let kind = kind_of_eth0(&container);
            assert!(kind.starts_with(shown), "{keys} {more}: {kind}");
            let link = container.sh("ip -o link show eth0");
            assert_eq!(link.contains("mtu 1400") && link.contains("0a:00:00:00:00:05"), more["mtu"] == 1400, "{link}");
            assert_eq!(link.contains("master br0"), more["bridge"] == "br0", "{link}");
            assert!(link.contains(result["interfaces"][0]["mac"].as_str().unwrap()), "{link} {result}");
            subject.check(&host, "c-one", &container, &result).ok();
            subject.del(&host, "c-one", &container, &result);
            assert_eq!(container.links(), ["br0"]);
        }
    }
}

/// Whatever the keys are: upstream starts ip(8) for some of them.
fn no_program_is_started() {
    for keys in
        [json!({}), json!({"multiQueue": true, "owner": 1000, "group": 7, "mac": "0a:00:00:00:00:01", "mtu": 1400})]
    {
        let subject = subject("tap", keys.clone());
        let (bin, calls) = traced(&subject, "execve");
        let host = Host::new();
        let container = host.container();
        let traced = subject.in_directory(bin.path());
        traced.add(&host, "c-one", &container);
        let programs: Vec<String> = calls().into_iter().filter(|call| call.contains("execve(")).collect();
        assert!(programs.len() == 1 && programs[0].contains("/tap\""), "{keys}: the plugin alone: {programs:?}");
    }
}

fn the_mac_is_that_of_the_source_with_the_highest_priority() {
    let host = Host::new();
    let mac = |conf: Value, args: &str| {
        let container = host.container();
        let subject = subject("tap", conf);
        let stdin = subject.conf.to_string();
        let env = [("CNI_ARGS", args)];
        let result = subject.call_raw(&host, "ADD", "c-one", &container.path(), stdin.as_bytes(), &env).ok();
        result["interfaces"][0]["mac"].as_str().unwrap().to_owned()
    };
    let [key, arg, runtime] = ["0a:00:00:00:00:01", "0a:00:00:00:00:02", "0a:00:00:00:00:03"];
    let args = format!("IgnoreUnknown=1;MAC={arg}");
    assert_eq!(mac(json!({"mac": key}), ""), key);
    assert_eq!(mac(json!({"mac": key}), &args), arg);
    assert_eq!(mac(json!({"mac": key, "runtimeConfig": {"mac": runtime}}), &args), runtime);
    // The same attachment has the same MAC each time.
    assert_eq!(mac(json!({}), ""), mac(json!({}), ""));
    assert_eq!(mac(json!({"args": {"cni": {"mac": key}}}), ""), mac(json!({}), ""), "no source");
}

fn only_owner_and_group_attach() {
    let host = Host::new();
    for (keys, attaches, refused) in [
        (json!({"owner": 1000}), vec![(1000, 9)], vec![(1001, 9), (9, 1000)]),
        (json!({"group": 1001}), vec![(7, 1001)], vec![(1001, 7)]),
        (json!({"owner": 0, "multiQueue": true}), vec![], vec![(1000, 1000), (65534, 65534)]),
    ] {
        let container = host.container();
        subject("tap", keys.clone()).add(&host, "c-one", &container);
        let queues = if keys["multiQueue"] == true { MULTI_QUEUE } else { 0 };
        let devices = [("eth0", TAP | NO_PI | queues)];
        let says = |(uid, gid): (u32, u32)| Guest { container: &container, uid, gid, devices: &devices }.attaches();
        assert!(attaches.iter().all(|who| says(*who) == "attached"), "{keys}");
        assert!(refused.iter().all(|who| says(*who) == "EPERM"), "{keys}");
    }
}

/// The owner is another user of the node, without a capability. It may send frames, change the MAC and the flags, give the device
/// away, and hold a queue open. It cannot remove or change what identifies the attachment.
fn what_the_owner_does_is_reported_and_stops_no_del() {
    let host = Host::new();
    let container = host.container();
    let before = HostSnapshot::inside(&container);
    let subject = subject("tap", json!({"owner": 1000, "multiQueue": true, "vnetHdr": false}));
    let result = subject.add(&host, "c-one", &container);
    let devices = [("eth0", TAP | VNET_HDR | MULTI_QUEUE)];
    let owner = Guest { container: &container, uid: 1000, gid: 1000, devices: &devices };
    // It attaches with packet information and with virtio_net_hdr.
    assert_eq!(owner.attaches(), "attached");
    assert!(kind_of_eth0(&container).contains("pi on vnet_hdr on"), "{}", kind_of_eth0(&container));
    subject.check(&host, "c-one", &container, &result).ok();
    // TUNSETOWNER.
    assert_eq!(owner.obeys("ioctl 0x400454cc 1001"), "done\n");
    let (code, text) = subject.check(&host, "c-one", &container, &result).refused();
    assert!(code == 102 && text.contains("owner of eth0: wanted 1000, found 1001"), "{code} {text}");
    assert_eq!(owner.attaches(), "EPERM", "it has given the device away");
    // A queue is held open by the new owner while another ADD, CHECK and DEL run.
    thread::scope(|scope| {
        let heir = Guest { uid: 1001, ..owner };
        let order = format!("hold /tmp/{}", unique());
        let holding = scope.spawn({
            let order = order.clone();
            move || heir.obeys(&order)
        });
        let file = order.split_once(' ').unwrap().1;
        wait_for(Path::new(file));
        let (code, text) = subject.call(&host, "ADD", "c-two", &container.path(), &[]).refused();
        assert!(code == 101 && text.contains("already exists in"), "{code} {text}");
        subject.check(&host, "c-one", &container, &result).refused();
        subject.call(&host, "DEL", "c-one", &container.path(), &[]).ok();
        assert_eq!(holding.join().unwrap(), "EBADFD\n", "the queue is detached");
        std::fs::remove_file(file).unwrap();
    });
    HostSnapshot::inside(&container).assert_unchanged_since(&before, &[], "after the DEL");
    // TUNSETPERSIST: the owner removes the device. CHECK says so, and DEL has nothing to do.
    let result = subject.add(&host, "c-one", &container);
    assert_eq!(owner.obeys("ioctl 0x400454cb 0"), "done\n");
    let (_, text) = subject.check(&host, "c-one", &container, &result).refused();
    assert!(text.contains("interface eth0: wanted tun, found none"), "{text}");
    subject.del(&host, "c-one", &container, &result);
}

fn unique() -> String {
    format!("cnikit-guest-{}", fastrand::u64(..))
}

fn wait_for(file: &Path) {
    let deadline = Deadline::after(Duration::from_secs(20));
    while !file.exists() {
        assert!(deadline.pause(Duration::from_millis(5)), "{} never came", file.display());
    }
}

fn an_existing_interface_is_refused_and_stays() {
    let host = Host::new();
    for existing in [
        "ip tuntap add eth0 mode tap",
        "ip tuntap add eth0 mode tap multi_queue user 1000",
        "ip link add other type bridge && ip link property add dev other altname eth0",
    ] {
        let container = host.container();
        container.sh(existing);
        let before = HostSnapshot::inside(&container);
        let (code, text) = tap().at(host.dir()).call(&host, "ADD", "c-one", &container.path(), &[]).refused();
        assert!(code == 101 && text.contains("interface \"eth0\" already exists in"), "{code} {text}");
        HostSnapshot::inside(&container).assert_unchanged_since(&before, &[], existing);
    }
}

fn invalid_configurations_are_refused_before_anything_is_made() {
    let host = Host::new();
    let container = host.container();
    container.sh("ip link add other type veth peer name peer0");
    let inside = HostSnapshot::inside(&container);
    let before = HostSnapshot::of(&host);
    for (keys, wanted, says) in [
        (json!({"bridge": "br0"}), 101, "there is no bridge \"br0\" in"),
        (json!({"bridge": "other"}), 101, "\"other\" in"),
        (json!({"bridge": "lo"}), 101, "is not a bridge: its kind is no virtual link"),
        (json!({"mtu": 65522}), 7, "invalid MTU 65522, must be 0 or [68, 65521]"),
        (json!({"owner": u32::MAX}), 7, "owner 4294967295 is -1, which is not a valid id"),
        (json!({"ipam": {"type": "static"}}), 11, "IPAM plugin returned missing IP config"),
    ] {
        let (code, text) = subject("tap", keys.clone()).call(&host, "ADD", "c-one", &container.path(), &[]).refused();
        assert!(text.contains(says), "{keys}: {code} {text}");
        assert!(code == wanted || wanted == 11, "{keys}: {code} {text}");
        HostSnapshot::inside(&container).assert_unchanged_since(&inside, &[], says);
        HostSnapshot::of(&host).assert_unchanged_since(&before, &life::SHARED, says);
    }
}

/// A VPN's device has the attachment's name. No upstream plugin makes such a device, so a DEL without a record leaves it.
fn tun_devices_of_other_programs_stay() {
    let host = Host::new();
    let container = host.container();
    container.sh("ip tuntap add eth0 mode tun");
    let inside = HostSnapshot::inside(&container);
    layer2().call(&host, "DEL", "c-one", &container.path(), &[]).ok();
    HostSnapshot::inside(&container).assert_unchanged_since(&inside, &[], "after the DEL");
    // Upstream's is removed.
    container.sh("ip link del eth0 && ip tuntap add eth0 mode tap");
    layer2().call(&host, "DEL", "c-one", &container.path(), &[]).ok();
    assert_eq!(container.links(), [""; 0]);
}

fn foreign_links_stay() {
    upper::foreign_links_on_the_master_stay(&tap());
}

fn gc_removes_invalid_links_in_named_namespaces() {
    upper::gc_removes_invalid_links_in_named_namespaces(&tap());
}

fn a_dry_run_makes_nothing() {
    upper::a_dry_run_makes_nothing(&tap(), "tap eth0 in the container, owner 1000, group 1001, vnet_hdr");
}

/// The file is hidden from the plugin, by an empty directory over its own, in a mount namespace of the call.
fn a_node_without_the_file_is_named() {
    let host = Host::new();
    let container = host.container();
    let hidden = "mount -t tmpfs tmpfs /dev/net";
    let program = cnikit_tests::bin().join("tap");
    for (verb, code) in [("ADD", "\"code\":100"), ("STATUS", "\"code\":50")] {
        let set = format!(
            "CNI_COMMAND={verb} CNI_CONTAINERID=c-one CNI_IFNAME=eth0 CNI_NETNS={} CNI_PATH=/nowhere",
            container.path()
        );
        let conf = r#"{"cniVersion":"1.1.0","name":"testnet","type":"tap"}"#;
        let line = format!("mkdir -p /dev/net && {hidden} && echo '\\''{conf}'\\'' | {set} {}", program.display());
        let (_, text) = host.try_sh(&format!("unshare --mount sh -c '{line}'"));
        assert!(text.contains(code) && text.contains("this node has no /dev/net/tun"), "{verb}: {text}");
        assert!(text.contains("`modprobe tun`"), "{verb}: {text}");
    }
    assert_eq!(container.links(), [""; 0]);
}

/// `scripts/selinux` runs it where SELinux is on, with Debian's policy: there the kernel logs that a process with another label
/// attaches to the device, with both labels, and allows it.
fn a_label_is_that_of_the_device_or_refused_where_selinux_is_off() {
    let [label, other] = ["system_u:system_r:svirt_t:s0", "system_u:system_r:ping_t:s0"];
    let host = Host::new();
    let container = host.container();
    let subject = subject("tap", json!({"selinuxContext": label, "mtu": 1400}));
    let add = subject.call(&host, "ADD", "c-one", &container.path(), &[]);
    let status = subject.call(&host, "STATUS", "", "", &[]);
    // Debian's kernel has SELinux on where AppArmor is off; without a policy every process is `kernel`.
    let why = match std::fs::read_to_string("/proc/self/attr/current") {
        Ok(ours) if ours.contains(':') => None,
        _ if std::fs::read_to_string("/proc/filesystems").unwrap().contains("selinuxfs") => {
            Some("SELinux has no policy")
        }
        _ => Some("SELinux is off"),
    };
    if let Some(why) = why {
        for (output, wanted) in [(add, 7), (status, 50)] {
            let (code, text) = output.refused();
            assert!(code == wanted && text.contains(&format!("{why} on this node")), "{code} {text}");
        }
        assert_eq!(container.links(), [""; 0]);
        return;
    }
    let result = add.ok();
    status.ok();
    subject.check(&host, "c-one", &container, &result).ok();
    container.sh(&format!(
        "printf %s {other} >/proc/self/attr/exec
         exec python3 -c 'import fcntl, struct
file = open(\"/dev/net/tun\", \"r+b\", buffering=0)
fcntl.ioctl(file, 0x400454ca, struct.pack(\"16sH22x\", b\"eth0\", 0x1002))'"
    ));
    let log = host.sh("dmesg");
    let has = |words: [&str; 2]| log.lines().any(|line| words.iter().all(|one| line.contains(one)));
    let pair = format!("scontext={other} tcontext={label} tclass=tun_socket");
    assert!(has(["{ relabelfrom }", &pair]), "{log}");
    subject.del(&host, "c-one", &container, &result);
    assert_eq!(container.links(), [""; 0]);
    let several = subject.with("multiQueue", json!(true));
    let result = several.add(&host, "c-one", &container);
    let shown = container.sh("ip -d link show eth0");
    assert!(shown.contains(" vnet_hdr off multi_queue "), "{shown}");
    several.del(&host, "c-one", &container, &result);
    let unknown = subject.with("selinuxContext", json!("nonsense"));
    let (code, text) = unknown.call(&host, "ADD", "c-two", &container.path(), &[]).refused();
    assert!(code == 7 && text.contains("\"nonsense\" is not a label of this node's policy"), "{code} {text}");
    assert_eq!(container.links(), [""; 0]);
}

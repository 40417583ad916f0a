//! tuning: the precedence of its sources, what is refused, and that all settings are restored.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

use std::fs;
use std::os::unix::fs::PermissionsExt;

use cnikit_testkit::{Container, Host, HostSnapshot, Subject};
use cnikit_tests::campaign_subjects::{INTERFACE, interface_result, tuned};
use cnikit_tests::way::{WITH_READ_ONLY_SYSCTLS, started_by};
use cnikit_tests::{bin, subject, traced};
use serde_json::{Value, json};

/// tuning with these keys, behind a plugin that made `eth0`, on this host.
fn tuning(host: &Host, mut keys: Value) -> Subject {
    keys["dataDir"] = "$DIR/tuning".into();
    subject("tuning", keys).after(INTERFACE, interface_result()).at(host.dir())
}

/// A host with a container that has an interface of another program, and the state of both before.
struct Scene {
    host: Host,
    container: Container,
    inside: HostSnapshot,
}

impl Scene {
    fn new() -> Scene {
        let host = Host::new();
        let container = tuning(&host, json!({})).container(&host);
        Scene { inside: HostSnapshot::inside(&container), container, host }
    }

    fn tuning(&self, keys: Value) -> Subject {
        tuning(&self.host, keys)
    }

    fn add(&self, keys: Value) -> Value {
        self.tuning(keys).add(&self.host, "c-one", &self.container)
    }

    fn del(&self, keys: Value) {
        self.tuning(keys).call(&self.host, "DEL", "c-one", &self.container.path(), &[]).ok();
    }

    fn refused(&self, keys: Value) -> (u64, String) {
        self.tuning(keys).call(&self.host, "ADD", "c-one", &self.container.path(), &[]).refused()
    }

    fn link(&self) -> String {
        self.container.sh("ip -o link show dev eth0")
    }

    fn sysctl(&self, key: &str) -> String {
        self.container.sh(&format!("sysctl -n {key}")).trim().to_owned()
    }

    /// The container is in its first state, and no file is stored.
    fn assert_given_back(&self, when: &str) {
        HostSnapshot::inside(&self.container).assert_unchanged_since(&self.inside, &[], when);
        assert_eq!(self.stored_files(), [""; 0], "{when}");
    }

    /// The stored files.
    fn stored_files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.host.dir().join("tuning")).into_iter().flatten();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

#[test]
fn the_result_has_the_current_mac_and_mtu_of_the_interface() {
    let scene = Scene::new();
    let result = scene.add(json!({"mac": "0A:00:00:00:00:07", "mtu": 1400}));
    let interfaces = &result["interfaces"];
    assert_eq!((&interfaces[0]["mac"], &interfaces[0]["mtu"]), (&json!("0a:00:00:00:00:02"), &Value::Null));
    assert_eq!((&interfaces[1]["mac"], &interfaces[1]["mtu"]), (&json!("0a:00:00:00:00:07"), &json!(1400)));
    assert!(scene.link().contains("mtu 1400") && scene.link().contains("0a:00:00:00:00:07"), "{}", scene.link());
    let untouched = scene.add(json!({}));
    assert_eq!(untouched["interfaces"][1]["mtu"], 1500, "a plugin without keys passes on what it got");
}

/// The MACs of the result's interfaces, if the plugins before tuning named the sandbox of `eth0` so.
fn macs_with_sandboxes(scene: &Scene, sandboxes: &[&str]) -> Vec<String> {
    let interface = |sandbox: &&str| json!({"name": "eth0", "mac": "0a:00:00:00:00:01", "sandbox": sandbox});
    let interfaces: Vec<Value> = sandboxes.iter().map(interface).collect();
    let prev = json!({"cniVersion": "1.1.0", "interfaces": interfaces, "ips": [], "routes": [], "dns": {}});
    let tuning = scene.tuning(json!({"mac": "0a:00:00:00:00:07"}));
    let result = tuning.call(&scene.host, "ADD", "c-one", &scene.container.path(), &[("prevResult", prev)]).ok();
    let macs = result["interfaces"].as_array().unwrap().iter().map(|one| one["mac"].as_str().unwrap().to_owned());
    macs.collect()
}

#[test]
fn the_containers_interface_is_found_in_the_result_however_its_sandbox_is_written() {
    let scene = Scene::new();
    let other = scene.host.container();
    let path = scene.container.path();
    let respelled = path.replace("/proc/", "/proc/./self/../");
    let other = other.path();
    let not_there = "netns";
    let old = "0a:00:00:00:00:01";
    let new = "0a:00:00:00:00:07";
    for (sandboxes, macs) in [
        (vec![path.as_str()], vec![new]),
        (vec![respelled.as_str()], vec![new]),
        (vec!["", respelled.as_str(), other.as_str()], vec![old, new, old]),
        (vec![other.as_str(), "/proc/self/ns/net"], vec![old, old]),
        // A path without a target is not another container's; if one leads to this namespace, it is this container's.
        (vec!["", not_there], vec![old, new]),
        (vec![not_there, path.as_str()], vec![old, new]),
        (vec![not_there, respelled.as_str()], vec![old, new]),
    ] {
        assert_eq!(macs_with_sandboxes(&scene, &sandboxes), macs, "{sandboxes:?}");
    }
}

#[test]
fn a_duplicate_sysctl_is_refused_by_add_and_restored_by_del() {
    let scene = Scene::new();
    let keys = json!({"sysctl": {"net.core.somaxconn": "100"}, "restoreSysctls": true});
    let subject = scene.tuning(keys.clone());
    let path = scene.container.path();
    let twice = |subject: &Subject, verb: &str, prev: &Value| {
        let mut conf = subject.conf.clone();
        conf["prevResult"] = prev.clone();
        let once = r#""net.core.somaxconn":"100""#;
        let text = conf.to_string().replace(once, &format!(r#"{once},"net.core.somaxconn":"200""#));
        subject.call_raw(&scene.host, verb, "c-one", &path, text.as_bytes(), &[])
    };
    let prev = json!({"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": path}], "ips": []});
    let (code, text) = twice(&subject, "ADD", &prev).refused();
    let says = "duplicated sysctl keys are not allowed: \"net.core.somaxconn\" is given more than once";
    assert!(code == 7 && text.contains(says), "{code} {text}");
    scene.assert_given_back("after an ADD that was refused");
    scene.add(keys);
    assert_eq!(scene.sysctl("net.core.somaxconn"), "100");
    twice(&subject, "DEL", &prev).ok();
    scene.assert_given_back("after DEL");
}

#[test]
fn the_oldest_values_are_restored_after_several_adds() {
    let scene = Scene::new();
    let first = json!({"mtu": 1400, "sysctl": {"net.core.somaxconn": "100"}, "restoreSysctls": true});
    scene.add(first.clone());
    scene.add(json!({"mtu": 1300, "txQLen": 7, "sysctl": {"net.core.somaxconn": "99"}, "restoreSysctls": true}));
    let second = json!({"mac": "0a:00:00:00:00:07", "mtu": 1350, "sysctl": {"net.ipv4.tcp_syn_retries": "1"},
        "restoreSysctls": true});
    scene.add(second.clone());
    assert!(scene.link().contains("mtu 1350"), "{}", scene.link());
    assert_eq!(scene.stored_files(), ["c-one_eth0.json"]);
    // The last plugin of the chain is deleted first.
    scene.del(second);
    scene.assert_given_back("after DEL of the second entry");
    scene.del(first);
    scene.assert_given_back("after DEL of the first entry");
}

#[test]
fn an_add_that_fails_takes_nothing_from_the_one_before_it() {
    let scene = Scene::new();
    let first = json!({"mtu": 1400, "mac": "0a:00:00:00:00:07"});
    scene.add(first.clone());
    let tuned = HostSnapshot::inside(&scene.container);
    let refused = json!({"net.core.somaxconn": "100", "net.ipv4.ip_local_port_range": "none"});
    let (code, text) = scene.refused(json!({"sysctl": refused, "restoreSysctls": true}));
    assert!(code == 100 && text.contains("Invalid argument"), "{code} {text}");
    HostSnapshot::inside(&scene.container).assert_unchanged_since(&tuned, &[], "after an ADD that failed");
    scene.del(first);
    scene.assert_given_back("after DEL");
}

#[test]
fn a_refused_setting_reverts_those_that_were_set() {
    let scene = Scene::new();
    let range = "net.ipv4.ip_local_port_range";
    let sysctl = json!({"net.core.somaxconn": "100", "net.ipv4.conf.IFNAME.arp_notify": "1", range: "none"});
    for restores in [false, true] {
        let (code, text) = scene.refused(json!({"sysctl": sysctl, "restoreSysctls": restores, "mtu": 1400}));
        let says = text.contains("net/ipv4/ip_local_port_range") && text.contains("Invalid argument");
        assert!(code == 100 && says, "{code} {text}");
        scene.assert_given_back("after an ADD that failed");
    }
}

/// A setting that cannot be restored while the namespace exists prevents neither DEL nor the other settings.
#[test]
fn a_value_that_cannot_be_restored_blocks_no_other() {
    let scene = Scene::new();
    let range = "net.ipv4.ip_local_port_range";
    let first = "net.ipv4.ip_unprivileged_port_start";
    let sysctl = json!({"net.core.somaxconn": "100", range: "50000 60000", "net.ipv4.tcp_syn_retries": "1"});
    let keys = json!({"mtu": 1400, "mac": "0a:00:00:00:00:07", "promisc": true, "txQLen": 7,
        "sysctl": sysctl, "restoreSysctls": true});
    for verb in ["DEL", "GC"] {
        scene.add(keys.clone());
        scene.container.sh(&format!("sysctl -qw {first}=40000"));
        let file = scene.host.dir().join("tuning/c-one_eth0.json");
        let stored = fs::read_to_string(&file).unwrap();
        fs::write(&file, stored.replace("\"mtu\":1500", "\"mtu\":4000000")).unwrap();
        let none = [("cni.dev/valid-attachments", json!([]))];
        let path = if verb == "DEL" { scene.container.path() } else { String::new() };
        scene.tuning(keys.clone()).call(&scene.host, verb, "c-one", &path, &none).ok();
        assert_eq!(scene.sysctl(range), "50000\t60000", "{verb}");
        assert!(scene.link().contains("mtu 1400"), "{verb}: {}", scene.link());
        scene.container.sh(&format!("sysctl -qw {first}=1024 {range}='32768 60999'; ip link set eth0 mtu 1500"));
        scene.assert_given_back(verb);
    }
}

/// What keeps the kernel from writing may be over at the next DEL, unlike a value that the kernel refuses.
#[test]
fn del_fails_while_sysctls_cannot_be_written_and_the_next_one_gives_them_back() {
    let scene = Scene::new();
    let keys = json!({"sysctl": {"net.core.somaxconn": "100"}, "restoreSysctls": true});
    scene.add(keys.clone());
    let (unable, _dir) = started_by(&scene.tuning(keys.clone()), WITH_READ_ONLY_SYSCTLS);
    let (_, text) = unable.call(&scene.host, "DEL", "c-one", &scene.container.path(), &[]).refused();
    assert!(text.contains("Read-only file system"), "{text}");
    assert_eq!(scene.sysctl("net.core.somaxconn"), "100");
    scene.del(keys);
    scene.assert_given_back("after the second DEL");
}

/// The kernel passes the first 512 bytes to a reader, and no more.
#[test]
fn a_long_value_is_compared_and_given_back_whole() {
    let scene = Scene::new();
    let key = "net.ipv4.ip_local_reserved_ports";
    let ports = |first: u32| (0..300).map(|n| (first + 2 * n).to_string()).collect::<Vec<_>>().join(",");
    scene.container.sh(&format!("sysctl -qw {key}={}", ports(30001)));
    let keys = json!({"sysctl": {key: ports(20001)}, "restoreSysctls": true});
    let subject = scene.tuning(keys.clone());
    let path = scene.container.path();
    let result = subject.add(&scene.host, "c-one", &scene.container);
    assert_eq!(scene.sysctl(key), ports(20001));
    subject.call(&scene.host, "CHECK", "c-one", &path, &[("prevResult", result)]).ok();
    scene.del(keys);
    assert_eq!(scene.sysctl(key), ports(30001));
}

#[test]
fn a_directory_in_place_of_a_record_stays() {
    let scene = Scene::new();
    let directory = scene.host.dir().join("tuning/c-one_eth0.json");
    fs::create_dir_all(&directory).unwrap();
    let keys = json!({"mtu": 1400});
    scene.add(keys.clone());
    assert_eq!(scene.stored_files().len(), 2);
    scene.del(keys.clone());
    scene.del(keys);
    HostSnapshot::inside(&scene.container).assert_unchanged_since(&scene.inside, &[], "after DEL");
    assert_eq!(scene.stored_files(), ["c-one_eth0.json"]);
    assert!(directory.is_dir());
}

/// Values that can be refused before anything is written, at the end of a list of valid ones.
#[test]
fn everything_is_validated_before_the_first_write() {
    let scene = Scene::new();
    let sysctl = |key: &str| json!({"sysctl": {"net.core.somaxconn": "100", key: "1"}, "mtu": 1400});
    let not_there = "there is no sysctl net/";
    for (keys, code, says) in [
        (sysctl("kernel.domainname"), 7, "invalid net sysctl key: \"kernel/domainname\""),
        (sysctl("/proc/sys/net/core/rmem_max"), 7, "invalid net sysctl key"),
        (sysctl("../net.core.nothing"), 7, not_there),
        (sysctl("net/../../../etc/hostname"), 7, not_there),
        (sysctl("net/ipv4/conf/../../../kernel/hostname"), 7, not_there),
        (sysctl("net.ipv4.conf.eth9.arp_notify"), 7, "there is no sysctl net/ipv4/conf/eth9/arp_notify"),
        (sysctl("net/core.somaxconn"), 7, "duplicated sysctl keys are not allowed: \"net.core.somaxconn\""),
        (sysctl("net.core.a\0b"), 7, "zero byte"),
        (json!({"sysctl": {"net.core.somaxconn": "100"}, "mac": "01:00:5e:00:00:01"}), 7, "cannot be the MAC"),
        (json!({"sysctl": {"net.core.somaxconn": "100"}, "mac": "nonsense"}), 7, "is not a MAC address"),
        (
            json!({"sysctl": {"net.core.somaxconn": "100"}, "mtu": 50}),
            7,
            "eth0 cannot have the MTU 50: it takes 68 to 65535",
        ),
    ] {
        let (found, text) = scene.refused(keys.clone());
        assert!(found == code && text.contains(says), "{keys}: {found} {text}");
        scene.assert_given_back(says);
    }
    let file = scene.host.dir().join("file");
    fs::write(&file, "").unwrap();
    for more in [json!({"mtu": 1400}), json!({"restoreSysctls": true})] {
        let mut nowhere = scene.tuning(more).with("sysctl", json!({"net.core.somaxconn": "100"}));
        nowhere = nowhere.with("dataDir", json!(file.join("below")));
        let (code, text) = nowhere.call(&scene.host, "ADD", "c-one", &scene.container.path(), &[]).refused();
        assert!(code == 100 && text.contains("Not a directory"), "{code} {text}");
        scene.assert_given_back("nothing can be kept");
    }
    scene.container.sh("ip link set eth0 down; ip link set eth0 name eth5");
    let (code, text) = scene.refused(json!({"sysctl": {"net.core.somaxconn": "100"}, "mtu": 1400}));
    assert!(code == 101 && text.contains("Cannot find container link eth0"), "{code} {text}");
    assert_ne!(scene.sysctl("net.core.somaxconn"), "100");
}

#[test]
fn sysctls_are_set_in_document_order_and_restored_only_if_configured() {
    let scene = Scene::new();
    let all = "net.ipv6.conf.all.forwarding";
    let one = "net.ipv6.conf.eth0.forwarding";
    for (first, second, found) in [((all, "1"), (one, "0"), "0"), ((one, "0"), (all, "1"), "1")] {
        let keys = format!(r#"{{"{}":"{}","{}":"{}"}}"#, first.0, first.1, second.0, second.1);
        let sysctl: Value = serde_json::from_str(&keys).unwrap();
        let restoring = json!({"sysctl": sysctl, "restoreSysctls": true});
        scene.add(restoring.clone());
        assert_eq!(scene.sysctl(one), found, "{keys}");
        scene.del(restoring);
        scene.assert_given_back(&keys);
    }
    let staying = json!({"sysctl": {"net.core.somaxconn": "100"}});
    scene.add(staying.clone());
    scene.del(staying);
    assert_eq!(scene.sysctl("net.core.somaxconn"), "100");
    assert_eq!(scene.stored_files(), [""; 0]);
}

#[test]
fn a_name_with_dots_is_one_name_and_only_the_containers_settings_change() {
    let scene = Scene::new();
    let before = HostSnapshot::of(&scene.host);
    scene.container.sh("ip link add eth0.7 type veth peer name peer7");
    for (key, setting) in [
        ("net.ipv4.conf.IFNAME.arp_notify", "arp_notify"),
        ("net/ipv4/conf/eth0.7/arp_accept", "arp_accept"),
        ("net.ipv4.conf.eth0.7.arp_announce", "arp_announce"),
    ] {
        let conf = scene.tuning(json!({"sysctl": {key: "1"}, "prevResult": {"cniVersion": "1.1.0"}})).conf.to_string();
        let ifname = [("CNI_IFNAME", "eth0.7")];
        let called = scene.tuning(json!({}));
        called.call_raw(&scene.host, "ADD", "c-one", &scene.container.path(), conf.as_bytes(), &ifname).ok();
        assert_eq!(scene.container.sh(&format!("cat /proc/sys/net/ipv4/conf/eth0.7/{setting}")), "1\n", "{key}");
    }
    HostSnapshot::of(&scene.host).assert_unchanged_since(&before, &[], "on the host");
}

#[test]
fn the_source_with_the_highest_priority_wins() {
    let scene = Scene::new();
    let mac = |last: u8| format!("0a:00:00:00:00:{last:02x}");
    let plan = |conf: Value, args: &str| {
        let subject = scene.tuning(conf);
        let env = [("CNI_ARGS", args)];
        subject.call_raw(&scene.host, "PLAN", "c", "", subject.conf.to_string().as_bytes(), &env).ok().to_string()
    };
    let all = json!({"mac": mac(1), "mtu": 1401, "promisc": true, "txQLen": 1, "allmulti": true,
        "sysctl": {"net.core.a": "1", "net.core.b": "1"}, "runtimeConfig": {"mac": mac(3)}});
    let with = |args: Value| {
        let mut conf = all.clone();
        conf["args"] = json!({"cni": args});
        conf
    };
    let env = format!("MAC={}", mac(2));
    assert!(plan(json!({"mac": mac(1)}), "").contains(&mac(1)));
    assert!(plan(json!({"mac": mac(1)}), &env).contains(&mac(2)));
    assert!(plan(json!({"mac": mac(1), "runtimeConfig": {"mac": ""}}), &env).contains(&mac(2)));
    assert!(plan(all.clone(), &env).contains(&mac(3)));
    assert!(plan(with(json!({"mac": mac(4)})), &env).contains(&mac(4)));
    assert!(!plan(with(json!({"mac": ""})), &env).contains("MAC"), "an empty one takes it away");
    let other = plan(
        with(
            json!({"mtu": 1402, "promisc": false, "txQLen": 2, "allmulti": false, "sysctl": {"net.core.b": "2", "net.core.c": "3", "net.core.a": null}}),
        ),
        "",
    );
    for word in ["MTU 1402", "txQLen 2", "allmulti off", "net/core/a = 1, net/core/b = 2, net/core/c = 3"] {
        assert!(other.contains(word), "{word}: {other}");
    }
    assert!(!other.contains("promisc"), "{other}");
    let none = plan(with(json!({"mtu": 0})), "");
    assert!(!none.contains("MTU"), "{none}");
    let alone = plan(json!({"args": {"cni": {"sysctl": {"net.core.a": "1"}}}}), "");
    assert!(alone.contains("net/core/a = 1"), "{alone}");
    let respelled = json!({"net/core.b": "2", "net.ipv4.conf.IFNAME.arp_notify": "1"});
    let respelled = plan(
        json!({"sysctl": {"net.ipv4.conf.eth0.arp_notify": "0", "net.core.b": "1"}, "args": {"cni": {"sysctl": respelled}}}),
        "",
    );
    assert!(respelled.contains("net/ipv4/conf/eth0/arp_notify = 1, net/core/b = 2"), "{respelled}");
}

#[test]
fn gc_restores_settings_of_invalid_attachments_in_existing_namespaces() {
    let scene = Scene::new();
    let keys = json!({"mtu": 1400, "sysctl": {"net.core.somaxconn": "100"}, "restoreSysctls": true});
    let subject = scene.tuning(keys.clone());
    let other = scene.tuning(keys.clone()).with("name", json!("othernet"));
    let valid = subject.container(&scene.host);
    let another = subject.container(&scene.host);
    scene.add(keys);
    subject.add(&scene.host, "c-valid", &valid);
    other.add(&scene.host, "c-other", &another);
    fs::write(scene.host.dir().join("tuning/c-theirs_eth0.json"), "{\"mtu\":1500}").unwrap();
    let more = [("cni.dev/valid-attachments", json!([{"containerID": "c-valid", "ifname": "eth0"}]))];
    for _ in 0..2 {
        subject.call(&scene.host, "GC", "", "", &more).ok();
        let mut stored_files = scene.stored_files();
        stored_files.sort();
        assert_eq!(stored_files, ["c-other_eth0.json", "c-theirs_eth0.json", "c-valid_eth0.json"]);
        HostSnapshot::inside(&scene.container).assert_unchanged_since(&scene.inside, &[], "after GC");
        assert!([&valid, &another].iter().all(|one| one.sh("ip link show dev eth0").contains("mtu 1400")));
    }
}

/// The name of its file is the same, but the namespace is another: the settings of the first are not restored in the second.
#[test]
fn a_restarted_container_gets_its_own_values_back() {
    let scene = Scene::new();
    let keys = json!({"mac": "0a:00:00:00:00:07", "mtu": 1400});
    let former = scene.host.container();
    former.sh("ip link add eth0 address 0a:00:00:00:00:99 mtu 1450 type veth peer name peer0");
    scene.tuning(keys.clone()).add(&scene.host, "c-one", &former);
    scene.add(keys.clone());
    scene.del(keys);
    scene.assert_given_back("after DEL");
    assert!(former.sh("ip link show dev eth0").contains("mtu 1400"), "this one was not to be restored");
}

#[test]
fn settings_saved_by_upstream_are_restored_on_their_interface_only() {
    let scene = Scene::new();
    let theirs = "{\n \"mac\": \"0a:00:00:00:00:01\",\n \"promisc\": false,\n \"mtu\": 1500\n}";
    let keep = || {
        fs::create_dir_all(scene.host.dir().join("tuning")).unwrap();
        fs::write(scene.host.dir().join("tuning/c-one_eth0.json"), theirs).unwrap();
        scene.container.sh("ip link set eth0 address 0a:00:00:00:00:07 mtu 1400 promisc on");
    };
    keep();
    let mut prev = interface_result();
    prev["interfaces"][1]["sandbox"] = scene.container.path().into();
    prev["interfaces"][1]["mac"] = "0a:00:00:00:00:55".into();
    let more = |prev: &Value| [("prevResult", prev.clone())];
    scene.tuning(json!({})).call(&scene.host, "DEL", "c-one", &scene.container.path(), &more(&prev)).ok();
    assert!(scene.link().contains("mtu 1400") && scene.stored_files().is_empty(), "{}", scene.link());
    keep();
    prev["interfaces"][1]["mac"] = "0A:00:00:00:00:07".into();
    scene.tuning(json!({})).call(&scene.host, "DEL", "c-one", &scene.container.path(), &more(&prev)).ok();
    scene.assert_given_back("after DEL of the reference's");
    // It does not count as older than the current settings either: ADD identifies the interface by its MAC too.
    keep();
    scene.container.sh("ip link set eth0 address 0a:00:00:00:00:55 mtu 1450 promisc off");
    let found = HostSnapshot::inside(&scene.container);
    scene.add(json!({"mtu": 1300}));
    scene.del(json!({}));
    HostSnapshot::inside(&scene.container).assert_unchanged_since(&found, &[], "after DEL of ours");
}

/// A record of upstream has no namespace: one of this ADD is older than the current settings, one of an earlier ADD is not.
#[test]
fn a_record_of_upstream_is_used_in_its_own_namespace_only() {
    for (former, mtu) in [(false, 1500), (true, 1450)] {
        let mut scene = Scene::new();
        fs::create_dir(scene.host.dir().join("tuning")).unwrap();
        fs::write(scene.host.dir().join("tuning/c-one_eth0.json"), "{\"mtu\": 1500, \"promisc\": false}").unwrap();
        if former {
            scene.host.sh("sleep 0.05"); // longer than the kernel's clock of files ticks
            scene.container = scene.tuning(json!({})).container(&scene.host);
        }
        scene.container.sh("ip link set eth0 mtu 1450");
        scene.add(json!({"mtu": 1300, "txQLen": 7}));
        scene.del(json!({}));
        assert!(scene.link().contains(&format!("mtu {mtu} ")), "{former}: {}", scene.link());
        assert!(scene.link().contains("qlen 1000") && scene.stored_files().is_empty(), "{}", scene.link());
    }
}

#[test]
fn a_file_that_is_damaged_holds_no_del_up() {
    let scene = Scene::new();
    let keys = json!({"mtu": 1400});
    for damage in ["", "{", "[]", "{\"mtu\":\"big\"}", "{\"cnikit\":{}}"] {
        scene.add(keys.clone());
        fs::write(scene.host.dir().join("tuning/c-one_eth0.json"), damage).unwrap();
        scene.del(keys.clone());
        assert!(scene.stored_files().is_empty(), "{damage}");
        scene.container.sh("ip link set eth0 mtu 1500");
    }
}

/// A node that returns to this release can have such files.
#[test]
fn a_file_of_a_later_release_refuses_an_add_and_holds_no_del_up() {
    let scene = Scene::new();
    let keys = json!({"mtu": 1400});
    scene.add(keys.clone());
    let file = scene.host.dir().join("tuning/c-one_eth0.json");
    let later = fs::read_to_string(&file).unwrap().replace(r#""version":1,"#, r#""version":2,"#);
    fs::write(&file, &later).unwrap();
    let (code, text) = scene.refused(json!({"mtu": 1300}));
    let why = format!("read {}: it has version 2 of its format", file.display());
    assert!(code == 100 && text.contains(&why) && text.contains("a later release wrote it"), "{code} {text}");
    assert!(scene.link().contains("mtu 1400 ") && fs::read_to_string(&file).unwrap() == later, "nothing is changed");
    scene.del(keys.clone());
    assert_eq!(scene.stored_files(), [""; 0]);
    fs::write(&file, later.replace(r#""network":"testnet""#, r#""network":"othernet""#)).unwrap();
    scene.del(keys);
    assert_eq!(scene.stored_files(), ["c-one_eth0.json"], "that of another network's attachment");
}

/// The name of its network was changed by hand.
#[test]
fn a_file_that_names_another_network_stays_and_nothing_is_given_back() {
    let scene = Scene::new();
    let keys = json!({"mtu": 1400});
    scene.add(keys.clone());
    let file = scene.host.dir().join("tuning/c-one_eth0.json");
    let anothers = fs::read_to_string(&file).unwrap().replace(r#""network":"testnet""#, r#""network":"othernet""#);
    fs::write(&file, anothers).unwrap();
    scene.del(keys);
    assert_eq!(scene.stored_files(), ["c-one_eth0.json"]);
    assert!(scene.link().contains("mtu 1400 "));
}

#[test]
fn sysctls_that_have_their_values_already_need_no_file() {
    let scene = Scene::new();
    fs::write(scene.host.dir().join("tuning"), "no directory").unwrap();
    let keys = |value: &str| json!({"sysctl": {"net.core.somaxconn": value}, "restoreSysctls": true});
    scene.add(keys(&scene.sysctl("net.core.somaxconn")));
    let (code, text) = scene.refused(keys("100"));
    assert!(code == 100 && text.contains("Not a directory"), "{code} {text}");
}

/// The record is written, named and synced before the first change; the link is changed by one message.
#[test]
fn the_record_lasts_before_anything_is_changed_and_the_link_takes_all_at_once() {
    let scene = Scene::new();
    let keys = json!({"mac": "0a:00:00:00:00:07", "mtu": 1400, "promisc": true, "allmulti": true, "txQLen": 7,
        "sysctl": {"net.core.somaxconn": "100"}, "restoreSysctls": true});
    let subject = scene.tuning(keys.clone());
    let (bin, calls) = traced(&subject, "linkat,renameat,fsync,pwrite64,sendto");
    subject.in_directory(bin.path()).add(&scene.host, "c-one", &scene.container);
    let calls = calls();
    let is_change = |call: &str| call.contains("nlmsg_type=0x10 ") || call.contains("nlmsg_type=RTM_NEWLINK");
    let kinds = calls.iter().filter_map(|call| match call.split('(').next()? {
        "pwrite64" if call.contains("\"100\\n\"") => Some("sysctl"),
        "sendto" if is_change(call) => Some("link"),
        kind @ ("linkat" | "renameat" | "fsync") => Some(kind),
        _ => None,
    });
    let kinds: Vec<&str> = kinds.collect();
    assert_eq!(kinds, ["linkat", "fsync", "sysctl", "renameat", "fsync", "link"], "{calls:#?}");
    scene.del(keys);
    scene.assert_given_back("after DEL");
}

/// The plugin on a node with this list. Only this plugin sees this `/etc`.
fn on_a_node_with(scene: &Scene, list: &str) -> Subject {
    let dir = scene.host.dir().join("node");
    let real = bin().join("tuning");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("prepare"), format!("mkdir -p /etc/cni/tuning; cd /etc/cni/tuning; {list}")).unwrap();
    let line = format!("mount -t tmpfs node /etc && sh {} && exec {}", dir.join("prepare").display(), real.display());
    fs::write(dir.join("tuning"), format!("#!/bin/sh\nexec unshare --mount sh -c '{line}'\n")).unwrap();
    fs::set_permissions(dir.join("tuning"), PermissionsExt::from_mode(0o755)).unwrap();
    let env = vec![("PATH".to_owned(), "/usr/sbin:/usr/bin:/sbin:/bin".to_owned())];
    let keys = json!({"sysctl": {"net.ipv4.conf.IFNAME.arp_notify": "1", "net.core.somaxconn": "100"}});
    scene.tuning(keys).in_directory(dir).with_env(env)
}

#[test]
fn sysctls_are_allowed_by_the_list_of_the_node_only() {
    let not_allowed = "is not allowed. Only the following sysctls are allowed: [";
    let closed = "no sysctl is allowed";
    let both = r"printf '^net\\.ipv4\\.conf\\.IFNAME\\.[a-z_]*$\nnet.core.*\n' >allowlist.conf";
    let cases: [(&str, Option<&str>); 10] = [
        (both, None),
        ("rmdir /etc/cni/tuning", None),
        (":>allowlist.conf", Some(not_allowed)),
        ("printf 'net.core.*\\n' >allowlist.conf", Some(not_allowed)),
        ("printf 'somaxconn\\narp_notify\\n' >allowlist.conf", Some(not_allowed)),
        ("printf '#unanchored\\nsomaxconn\\narp_notify\\n' >allowlist.conf", None),
        ("printf 'net.*\\n(\\n' >allowlist.conf", Some(closed)),
        ("mkdir allowlist.conf", Some(closed)),
        ("ln -s nowhere allowlist.conf", Some(closed)),
        ("cd ..; rmdir tuning; ln -s nowhere tuning", Some(closed)),
    ];
    for (list, refusal) in cases {
        let scene = Scene::new();
        let subject = on_a_node_with(&scene, list);
        let path = scene.container.path();
        // No configuration allows a sysctl that the node's list does not.
        let more = [("allowlist", json!([".*"])), ("unanchored", json!(true))];
        let output = subject.call(&scene.host, "ADD", "c-one", &path, &more);
        let status = subject.call(&scene.host, "STATUS", "", "", &[]);
        match refusal {
            None => {
                output.ok();
                status.ok();
                assert_eq!(scene.sysctl("net.core.somaxconn"), "100", "{list}");
            }
            Some(says) => {
                let (_, text) = output.refused();
                assert!(text.contains(says), "{list}: {text}");
                scene.assert_given_back(list);
                let exit = status.exit;
                let is_broken = says == closed;
                assert!(if is_broken { status.refused().0 == 50 } else { exit == 0 }, "{list}");
            }
        }
        // A call that sets no sysctl needs no list; neither does DEL.
        subject.call(&scene.host, "DEL", "c-one", &path, &[]).ok();
        subject.with("sysctl", Value::Null).call(&scene.host, "ADD", "c-one", &path, &[]).ok();
    }
}

#[test]
fn status_fails_if_the_data_directory_cannot_be_made() {
    let scene = Scene::new();
    let file = scene.host.dir().join("file");
    fs::write(&file, "").unwrap();
    let status = |subject: &Subject| subject.call(&scene.host, "STATUS", "", "", &[]);
    status(&scene.tuning(json!({"mtu": 1400}))).ok();
    assert!(!scene.host.dir().join("tuning").exists(), "STATUS makes nothing");
    let nowhere = scene.tuning(json!({"mtu": 1400})).with("dataDir", json!(file.join("below")));
    let (code, text) = status(&nowhere).refused();
    assert!(code == 50 && text.contains("Not a directory"), "{code} {text}");
    status(&nowhere.with("mtu", json!(0))).ok();
}

#[test]
fn the_subject_of_the_campaigns_sets_and_restores_all_settings() {
    let scene = Scene::new();
    let subject = tuned(bin()).at(scene.host.dir());
    let result = subject.add(&scene.host, "c-one", &scene.container);
    for word in ["PROMISC", "ALLMULTI", "mtu 1400", "qlen 500", "0a:00:00:00:00:07"] {
        assert!(scene.link().contains(word), "{word}: {}", scene.link());
    }
    subject.del(&scene.host, "c-one", &scene.container, &result);
    scene.assert_given_back("after DEL");
}

//! Masquerade with every backend: one table of tests for nftables and both variants of iptables.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use cnikit_testkit::life::{self, Tampering};
use cnikit_testkit::{CallOutput, Container, Host, Subject, flood};
use cnikit_tests::way::Way::{self, IptablesLegacy, IptablesNft, Nftables};
use cnikit_tests::way::{PROGRAMS, noting, on_path, script, scripts, started};
use cnikit_tests::world::{WORLD, ping, undisturbed, world};
use cnikit_tests::{bin, bridge, dual_stack, ptp, references, subject};
use serde_json::{Value, json};
use tempfile::TempDir;

const WAYS: [Way; 3] = Way::ALL;
const HALVES: [Way; 2] = Way::HALVES;

/// Rules that are about containers.
fn lines(way: Way, host: &Host) -> Vec<String> {
    let ours = |line: &&str| line.contains("CNI-") || line.contains("masquerade comment ");
    way.rules(host, "nat").lines().filter(ours).map(str::to_owned).collect()
}

/// Each backend with each of the two plugins that masquerade, and the directory of the backend's programs, which the plugin needs.
fn each(ways: &[Way]) -> impl Iterator<Item = (Way, Subject, TempDir)> {
    ways.iter().flat_map(|way| [bridge(), ptp()].map(|plugin| with_backend(&plugin, *way)))
}

fn with_backend(plugin: &Subject, way: Way) -> (Way, Subject, TempDir) {
    let programs = way.directory();
    let subject = on_path(&plugin.with("ipMasqBackend", json!(way.backend())), programs.path());
    (way, subject, programs)
}

/// The rules of table `nat`, without chains and comments.
fn rules_of_nat(way: Way, host: &Host) -> Vec<String> {
    way.rules(host, "nat").lines().filter(|line| !line.starts_with(['#', ':'])).map(str::to_owned).collect()
}

/// A verb for one interface of a container.
fn call(
    subject: &Subject,
    host: &Host,
    verb: &str,
    (id, ifname): (&str, &str),
    netns: &str,
    prev: Option<&Value>,
) -> CallOutput {
    let mut conf = subject.conf.clone();
    if let Some(prev) = prev {
        conf["prevResult"] = prev.clone();
    }
    subject.call_raw(host, verb, id, netns, conf.to_string().as_bytes(), &[("CNI_IFNAME", ifname)])
}

fn reaches_the_world(container: &Container) {
    WORLD.iter().for_each(|address| drop(container.sh(&ping(address))));
}

#[test]
fn an_attachment_leaves_no_trace_and_a_second_one_adds_nothing() {
    for (_, subject, _programs) in each(&WAYS) {
        life::leaves_no_trace(&subject);
    }
}

#[test]
fn del_succeeds_with_incomplete_input() {
    for (_, subject, _programs) in each(&WAYS) {
        life::survives_incomplete_dels(&subject);
    }
}

#[test]
fn sixty_four_at_once_are_masqueraded_and_leave_nothing() {
    for way in HALVES {
        let dir = way.directory();
        flood::survives(&on_path(&bridge().with("ipMasqBackend", json!("iptables")), dir.path()), 64);
    }
}

#[test]
fn the_world_is_reached_under_the_hosts_address_and_the_own_network_under_the_own() {
    for (way, subject, _programs) in each(&WAYS) {
        let host = Host::new();
        let _world = world(&host);
        let subject = subject.at(host.dir());
        let [one, two] = [host.container(), host.container()];
        let result = subject.add(&host, "c-one", &one);
        reaches_the_world(&one);
        subject.add(&host, "c-two", &two);
        two.sh("nft 'add table ip seen; add chain ip seen in { type filter hook input priority 0; };
            add rule ip seen in ip saddr 10.77.0.2 icmp type echo-request counter accept'");
        one.sh(&ping("10.77.0.3"));
        let seen = two.sh("nft list ruleset");
        assert!(seen.contains("counter packets 1 "), "{way:?}: {seen}");
        subject.check(&host, "c-one", &one, &result).ok();
    }
}

const NFT: [Tampering; 5] = [
    Tampering::on_host("iptables-nft -t nat -D POSTROUTING 1", "from chain POSTROUTING of table nat of iptables"),
    Tampering::on_host("ip6tables-nft -t nat -F POSTROUTING", "from chain POSTROUTING of table nat of ip6tables"),
    Tampering::on_host(
        "iptables-nft -t nat -F $(iptables-nft -t nat -S | sed -n 's/^-N //p')",
        "-j MASQUERADE` is missing",
    ),
    Tampering::on_host(
        "iptables-nft -t nat -D $(iptables-nft -t nat -S | sed -n 's/^-N //p') 1",
        "-j ACCEPT` is missing",
    ),
    Tampering::on_host("iptables-nft -t nat -F && iptables-nft -t nat -X", "is missing from chain CNI-"),
];

const LEGACY: [Tampering; 4] = [
    Tampering::on_host("iptables-legacy -t nat -D POSTROUTING 1", "from chain POSTROUTING of table nat of iptables"),
    Tampering::on_host("ip6tables-legacy -t nat -F POSTROUTING", "from chain POSTROUTING of table nat of ip6tables"),
    Tampering::on_host(
        "iptables-legacy -t nat -F $(iptables-legacy -t nat -S | sed -n 's/^-N //p')",
        "-j MASQUERADE` is missing",
    ),
    Tampering::on_host("iptables-legacy -t nat -F && iptables-legacy -t nat -X", "is missing from chain CNI-"),
];

#[test]
fn check_names_each_thing_that_was_tampered_with() {
    let [nft, legacy] = HALVES.map(Way::directory);
    for backend in [json!("iptables"), Value::Null] {
        life::names_tampering(&on_path(&bridge().with("ipMasqBackend", backend.clone()), nft.path()), &NFT);
        life::names_tampering(&on_path(&ptp().with("ipMasqBackend", backend), legacy.path()), &LEGACY);
    }
    let all = [Tampering::on_host(
        "iptables-nft -t nat -F; iptables-nft -t nat -X; ip6tables-nft -t nat -F; ip6tables-nft -t nat -X",
        "neither iptables nor nftables has rules of this attachment",
    )];
    life::names_tampering(&on_path(&bridge(), nft.path()), &all);
}

#[test]
fn the_default_backend_is_iptables_with_the_names_of_upstream() {
    let host = Host::new();
    let container = Host::new().container();
    let dir = IptablesNft.directory();
    let subject = on_path(&bridge().with("name", json!("n1")).at(host.dir()), dir.path());
    subject.add(&host, "c1", &container);
    let rules = host.sh("iptables-nft -t nat -S");
    let of_interface = r#"-m comment --comment "name: \"n1\" id: \"c1\" if: \"eth0\"""#;
    for line in [
        "-N CNI-7be53730afe4dc6eb2178d03".to_owned(),
        r#"-A POSTROUTING -s 10.77.0.2/32 -m comment --comment "name: \"n1\" id: \"c1\"" -j CNI-7be53730afe4dc6eb2178d03"#.to_owned(),
        format!("-A CNI-7be53730afe4dc6eb2178d03 -s 10.77.0.2/32 -d 10.77.0.0/24 {of_interface} -j ACCEPT"),
        format!("-A CNI-7be53730afe4dc6eb2178d03 -s 10.77.0.2/32 ! -d 224.0.0.0/4 {of_interface} -j MASQUERADE"),
    ] {
        assert!(rules.lines().any(|found| found == line), "{line} is not in {rules}");
    }
    assert!(!host.sh("nft list ruleset").contains("cni_plugins_masquerade"));
}

#[test]
fn a_repeated_add_changes_nothing_and_replaces_stale_rules() {
    for (way, subject, _programs) in each(&HALVES) {
        let host = Host::new();
        let container = Host::new().container();
        let subject = subject.at(host.dir());
        let result = subject.add(&host, "c-one", &container);
        let before = lines(way, &host);
        // The container is gone without a DEL, its address is another container's, and the next of that id gets a third.
        container.sh("ip link del eth0");
        fs::remove_dir_all(host.dir().join("leases")).unwrap();
        subject.add(&host, "c-other", &host.container());
        let again = host.container();
        let second = subject.add(&host, "c-one", &again);
        assert_ne!(result["ips"], second["ips"]);
        subject.check(&host, "c-one", &again, &second).ok();
        let stale = before.iter().filter(|line| line.contains("-s 10.77.0.2/32") && lines(way, &host).contains(line));
        assert_eq!(stale.count(), 0, "{way:?}: {:?}", lines(way, &host));
        subject.del(&host, "c-one", &again, &second);
        assert!(!lines(way, &host).join("\n").contains("c-one"));
    }
}

#[test]
fn restore_makes_missing_rules_again() {
    for (way, subject, _programs) in each(&WAYS) {
        let host = Host::new();
        let container = Host::new().container();
        let subject = subject.at(host.dir());
        let result = subject.add(&host, "c-one", &container);
        let before = rules_of_nat(way, &host);
        host.sh(&match way {
            Nftables => "nft flush chain inet cni_plugins_masquerade masq_checks".to_owned(),
            _ => format!("iptables-{0} -t nat -F && ip6tables-{0} -t nat -F", way.half()),
        });
        subject.check(&host, "c-one", &container, &result).refused();
        call(&subject, &host, "RESTORE", ("c-one", "eth0"), &container.path(), Some(&result)).ok();
        assert_eq!(rules_of_nat(way, &host), before, "{way:?}");
    }
}

/// eth0, and eth1 that has the default routes, in one container on one network.
fn two_interfaces(host: &Host, eth0: &Subject, eth1: &Subject) -> (Container, [Value; 2]) {
    let container = host.container();
    let add = |subject: &Subject, ifname| call(subject, host, "ADD", ("c-two", ifname), &container.path(), None).ok();
    let results = [add(eth0, "eth0"), add(eth1, "eth1")];
    (container, results)
}

#[test]
fn del_of_one_interface_leaves_the_other_of_the_container_masqueraded() {
    for way in WAYS {
        let dir = way.directory();
        for with_result in [true, false] {
            let host = Host::new();
            let _world = world(&host);
            let eth1 = on_path(&bridge().with("ipMasqBackend", json!(way.backend())).at(host.dir()), dir.path());
            let eth0 = eth1.with("isDefaultGateway", json!(false)).with("isGateway", json!(true));
            let (container, [first, second]) = two_interfaces(&host, &eth0, &eth1);
            reaches_the_world(&container);
            let prev = with_result.then_some(&first);
            for _ in 0..2 {
                call(&eth0, &host, "DEL", ("c-two", "eth0"), &container.path(), prev).ok();
            }
            reaches_the_world(&container);
            call(&eth1, &host, "CHECK", ("c-two", "eth1"), &container.path(), Some(&second)).ok();
            call(&eth1, &host, "DEL", ("c-two", "eth1"), "", None).ok();
            assert_eq!(lines(way, &host), [""; 0], "{way:?}");
        }
    }
}

#[test]
fn dels_of_two_interfaces_at_once_leave_no_chain_to_each_other() {
    for way in HALVES {
        let dir = way.directory();
        for _ in 0..6 {
            let host = Host::new();
            let eth1 = on_path(&bridge().with("ipMasqBackend", json!("iptables")).at(host.dir()), dir.path());
            let eth0 = eth1.with("isDefaultGateway", json!(false)).with("isGateway", json!(true));
            let (container, _) = two_interfaces(&host, &eth0, &eth1);
            std::thread::scope(|scope| {
                for ifname in ["eth0", "eth1"] {
                    let subject = &eth0;
                    let host = &host;
                    let path = container.path();
                    scope.spawn(move || call(subject, host, "DEL", ("c-two", ifname), &path, None).ok());
                }
            });
            assert_eq!(lines(way, &host), [""; 0], "{way:?}");
        }
    }
}

#[test]
fn a_mishap_of_iptables_is_an_error_and_changes_no_backend() {
    let host = Host::new();
    let container = Host::new().container();
    let healthy = bridge().at(host.dir());
    let with = |line: &str| {
        let dir = tempfile::tempdir().unwrap();
        PROGRAMS.iter().for_each(|name| scripts(dir.path(), name, line));
        (on_path(&healthy, dir.path()), dir)
    };
    for line in ["kill -9 $$", "exit 4"] {
        let (subject, _dir) = with(line);
        let (_, text) = subject.call(&host, "ADD", "c-one", &container.path(), &[]).refused();
        assert!(text.contains("iptables-save"), "{text}");
        subject.call(&host, "STATUS", "", "", &[]).refused();
        assert!(!host.sh("nft list ruleset").contains("c-one"), "{line}");
        let result = healthy.add(&host, "c-one", &container);
        let (code, text) = subject.check(&host, "c-one", &container, &result).refused();
        assert!(code != 102 && text.contains("iptables-nft-save"), "{code}: {text}");
        // A DEL that does not report what it could not remove would be the last one.
        subject.call(&host, "DEL", "c-one", "", &[]).refused();
        subject.call(&host, "GC", "", "", &[("cni.dev/valid-attachments", json!([]))]).refused();
        healthy.call(&host, "DEL", "c-one", "", &[]).ok();
        assert_eq!(lines(IptablesNft, &host), [""; 0]);
    }
}

/// iptables-nft-save omits rules that it cannot read, and succeeds.
#[test]
fn rules_that_iptables_save_omits_are_no_drift() {
    let host = Host::new();
    let container = Host::new().container();
    let dir = tempfile::tempdir().unwrap();
    let healthy = bridge().at(host.dir());
    let result = healthy.add(&host, "c-one", &container);
    scripts(dir.path(), "iptables-save", "exec /usr/sbin/iptables-save \"$@\" | sed -e /CNI-/d");
    ["iptables-restore", "ip6tables-save", "ip6tables-restore"]
        .iter()
        .for_each(|name| scripts(dir.path(), name, &format!("exec /usr/sbin/{name} \"$@\"")));
    for backend in [Value::Null, json!("iptables")] {
        let blind = on_path(&healthy.with("ipMasqBackend", backend), dir.path());
        let (code, text) = blind.check(&host, "c-one", &container, &result).refused();
        assert!(code != 102 && text.contains("did not print chain CNI-"), "{code}: {text}");
    }
    healthy.check(&host, "c-one", &container, &result).ok();
}

#[test]
fn check_finds_the_iptables_variant_of_add_after_a_switch() {
    let [nft, legacy] = HALVES.map(Way::directory);
    for [before, after] in [[&nft, &legacy], [&legacy, &nft]] {
        for backend in [Value::Null, json!("iptables")] {
            let host = Host::new();
            let container = Host::new().container();
            let subject = bridge().with("ipMasqBackend", backend).at(host.dir());
            let result = on_path(&subject, before.path()).add(&host, "c-one", &container);
            on_path(&subject, after.path()).check(&host, "c-one", &container, &result).ok();
        }
    }
}

#[test]
fn an_address_that_another_container_has_by_now_stays_masqueraded() {
    for (_, subject, _programs) in each(&WAYS) {
        let host = Host::new();
        let _world = world(&host);
        let subject = subject.at(host.dir());
        let old = host.container();
        let result = subject.add(&host, "c-old", &old);
        old.sh("ip link del eth0");
        fs::remove_dir_all(host.dir().join("leases")).unwrap();
        let new = host.container();
        let second = subject.add(&host, "c-new", &new);
        assert_eq!(result["ips"][0]["address"], second["ips"][0]["address"]);
        undisturbed(&new, WORLD[0], || call(&subject, &host, "DEL", ("c-old", "eth0"), "", Some(&result)).ok());
        reaches_the_world(&new);
    }
}

#[test]
fn gc_removes_what_is_of_the_network_and_not_valid() {
    for way in WAYS {
        let dir = way.directory();
        let host = Host::new();
        let eth0 = on_path(&bridge().with("ipMasqBackend", json!(way.backend())).at(host.dir()), dir.path());
        let eth1 = eth0.with("isDefaultGateway", json!(false));
        let mut other = eth1.with("name", json!("testnet-2")).with("bridge", json!("cni1"));
        other.conf["ipam"]["ranges"] = json!([[{"subnet": "10.78.0.0/24"}]]);
        let (container, [first, _]) = two_interfaces(&host, &eth0, &eth1);
        let [stale, foreign] = [host.container(), host.container()];
        eth0.add(&host, "c-stale", &stale);
        let kept = other.add(&host, "c-stale", &foreign);
        let valid = json!([{"containerID": "c-two", "ifname": "eth0"}]);
        for _ in 0..2 {
            eth0.call(&host, "GC", "", "", &[("cni.dev/valid-attachments", valid.clone())]).ok();
            call(&eth0, &host, "CHECK", ("c-two", "eth0"), &container.path(), Some(&first)).ok();
            other.check(&host, "c-stale", &foreign, &kept).ok();
            let lines = lines(way, &host).join("\n");
            let gone = ["eth1", "10.77.0.3", "10.77.0.4", "fd00:77::3", "fd00:77::4"];
            gone.iter().for_each(|text| assert!(!lines.contains(text), "{way:?}: {text}: {lines}"));
        }
        eth0.call(&host, "GC", "", "", &[("cni.dev/valid-attachments", json!([]))]).ok();
        other.call(&host, "GC", "", "", &[("cni.dev/valid-attachments", json!([]))]).ok();
        assert_eq!(lines(way, &host), [""; 0], "{way:?}");
    }
}

/// A configuration that both support; upstream's packaged release supports iptables only.
fn understood(plugin: &str, way: Way) -> Subject {
    let conf = json!({"cniVersion": "1.0.0", "isGateway": true, "ipMasq": true, "ipMasqBackend": way.backend(), "ipam": dual_stack()});
    subject(plugin, conf)
}

#[test]
fn upstream_and_ours_remove_each_others_rules() {
    let [packaged, newest] = references();
    let pairs = [
        (&packaged, IptablesNft),
        (&packaged, IptablesLegacy),
        (&newest, Nftables),
        (&newest, IptablesNft),
        (&newest, IptablesLegacy),
    ];
    for (reference, way) in pairs {
        let dir = way.directory();
        for plugin in ["bridge", "ptp"] {
            let host = Host::new();
            let ours = on_path(&understood(plugin, way).at(host.dir()), dir.path());
            let theirs = ours.in_directory(reference.clone());
            for (adds, deletes) in [(&ours, &theirs), (&theirs, &ours)] {
                for with_result in [true, false] {
                    let container = host.container();
                    let result = adds.add(&host, "c-one", &container);
                    assert_ne!(lines(way, &host), [""; 0]);
                    let prev = with_result.then_some(&result);
                    let del = || call(deletes, &host, "DEL", ("c-one", "eth0"), &container.path(), prev);
                    // The newest release reads its chain in iptables too, and fails if there is none. By then all rules are
                    // removed.
                    let fails = way == Nftables && deletes.bin != ours.bin && del().exit != 0;
                    assert!(fails || way != Nftables || deletes.bin == ours.bin);
                    del().ok();
                    assert_eq!(lines(way, &host), [""; 0], "{way:?} {plugin} by {}", adds.bin.display());
                }
            }
        }
    }
}

/// The second of two rules in upstream's chain is different.
const NFT_OTHER: Tampering = Tampering::on_host(
    "iptables-nft -t nat -R $(iptables-nft -t nat -S | sed -n 's/^-N //p') 2 ! -d 224.0.0.0/8 -j MASQUERADE",
    "-j MASQUERADE` is missing from chain CNI-",
);
const LEGACY_OTHER: Tampering = Tampering::on_host(
    "ip6tables-legacy -t nat -R $(ip6tables-legacy -t nat -S | sed -n 's/^-N //p') 1 -d fd00:78::/64 -j ACCEPT",
    "-j ACCEPT` is missing from chain CNI-",
);

#[test]
fn check_accepts_upstreams_rules_and_names_tampered_ones() {
    let parts = [("bridge", IptablesNft, &NFT[..], NFT_OTHER), ("ptp", IptablesLegacy, &LEGACY[..], LEGACY_OTHER)];
    for (reference, (plugin, way, known, other)) in references().iter().flat_map(|bin| parts.map(|part| (bin, part))) {
        let dir = way.directory();
        for tampering in known.iter().chain([&other]) {
            let host = Host::new();
            let container = Host::new().container();
            let ours = on_path(&understood(plugin, way).at(host.dir()), dir.path());
            let theirs = ours.in_directory(reference.clone());
            let result = theirs.add(&host, "c-one", &container);
            ours.check(&host, "c-one", &container, &result).ok();
            host.sh(tampering.line);
            let output = ours.check(&host, "c-one", &container, &result);
            assert_eq!(output.exit, 1, "{}: CHECK passes", tampering.line);
            let (_, text) = output.refused();
            assert!(text.contains(tampering.names), "{}: CHECK said {text}", tampering.line);
        }
    }
}

#[test]
fn deleting_one_of_two_upstream_interfaces_leaves_the_other_masqueraded() {
    for way in HALVES {
        let dir = way.directory();
        for prev in [true, false] {
            let host = Host::new();
            let _world = world(&host);
            let ours = on_path(&understood("bridge", way).at(host.dir()), dir.path());
            let theirs = ours.in_directory(references()[0].clone());
            let default = theirs.with("isDefaultGateway", json!(true));
            let (container, [first, second]) = two_interfaces(&host, &theirs, &default);
            let check =
                |ifname, result| call(&ours, &host, "CHECK", ("c-two", ifname), &container.path(), Some(result));
            [("eth0", &first), ("eth1", &second)].iter().for_each(|(ifname, result)| drop(check(ifname, result).ok()));
            for _ in 0..2 {
                call(&ours, &host, "DEL", ("c-two", "eth0"), &container.path(), prev.then_some(&first)).ok();
            }
            check("eth1", &second).ok();
            container.sh(cnikit_tests::world::UNTIL_DETECTED);
            let state = || {
                format!(
                    "{} {}",
                    way.rules(&host, "nat"),
                    container.sh("ip -6 address; ip -6 route; ip -6 neigh; ip address; ip route")
                )
            };
            WORLD.iter().for_each(|address| assert!(container.reaches(address), "{address} {}", state()));
            call(&ours, &host, "DEL", ("c-two", "eth1"), "", prev.then_some(&second)).ok();
            assert_eq!(lines(way, &host), [""; 0], "{way:?}");
        }
    }
}

#[test]
fn an_interface_of_ours_beside_one_of_upstream_is_deleted_alone() {
    for way in HALVES {
        let dir = way.directory();
        for ours_goes_first in [true, false] {
            let host = Host::new();
            let ours = on_path(&understood("bridge", way).at(host.dir()), dir.path());
            let theirs = ours.in_directory(references()[0].clone());
            let (container, [first, second]) = two_interfaces(&host, &theirs, &ours);
            let jumps = || lines(way, &host).iter().filter(|line| line.contains("POSTROUTING")).count();
            assert_eq!(jumps(), 4);
            let eth0 = (&ours, "eth0", &first);
            let eth1 = (&ours, "eth1", &second);
            let order = if ours_goes_first { [eth1, eth0] } else { [eth0, eth1] };
            for ((subject, ifname, result), left) in order.into_iter().zip([2, 0]) {
                call(subject, &host, "DEL", ("c-two", ifname), &container.path(), Some(result)).ok();
                assert_eq!(jumps(), left, "{way:?} {:?}", lines(way, &host));
                let masquerade = lines(way, &host).iter().filter(|line| line.contains("-j MASQUERADE")).count();
                assert_eq!(masquerade, left, "{way:?} {:?}", lines(way, &host));
            }
            assert_eq!(lines(way, &host), [""; 0], "{way:?}");
        }
    }
}

/// As Kubernetes has them, and odder.
const FOREIGN: &str = r#"*nat
:KUBE-SVC-X - [0:0]
:CNI-HOSTPORT-MASQ - [0:0]
:CNI-DN-0123456789abcdef01234 - [0:0]
:CNI-0123456789abcdef01234567 - [0:0]
-A POSTROUTING -m comment --comment "kubernetes \"postrouting\" rules \\ it's" -j KUBE-SVC-X
-A POSTROUTING -m comment --comment CNI-portfwd -j CNI-HOSTPORT-MASQ
-A POSTROUTING -s 10.99.0.2/32 -m comment --comment "name: \"testnet2\" id: \"c-one\"" -j CNI-0123456789abcdef01234567
-A KUBE-SVC-X -m comment --comment "" -m statistic --mode random --probability 0.50000000000 -j RETURN
-A KUBE-SVC-X -m mark --mark 0x4000/0x4000 -j MASQUERADE
-A CNI-DN-0123456789abcdef01234 -p tcp -m tcp --dport 8080 -m comment --comment "dnat name: \"testnet\" id: \"c-one\"" -j RETURN
-A CNI-0123456789abcdef01234567 -d 10.99.0.0/24 -m comment --comment "name: \"testnet2\" id: \"c-one\"" -j ACCEPT
COMMIT
"#;

#[test]
fn foreign_rules_are_left_unchanged() {
    for (way, subject, _programs) in each(&HALVES) {
        let host = Host::new();
        fs::write(host.dir().join("foreign"), FOREIGN).unwrap();
        let broken = "-m comment --comment \"$(printf 'two\\n-A POSTROUTING -s 1.2.3.4/32 -j CNI-0123456789abcdef01234567\\n-N CNI-x')\"";
        for program in ["iptables", "ip6tables"] {
            let name = if way == IptablesLegacy { format!("{program}-legacy") } else { format!("{program}-nft") };
            let of_version = if program == "iptables" {
                ""
            } else {
                "| sed 's,10.99.0.2/32,fd00::9/128,; s,10.99.0.0/24,fd00::/64,'"
            };
            host.sh(&format!("cat {}/foreign {of_version} | {name}-restore", host.dir().display()));
            host.sh(&format!("{name} -t nat -A POSTROUTING {broken} -j RETURN"));
        }
        let table = || rules_of_nat(way, &host);
        let before = table();
        let subject = subject.at(host.dir());
        let container = host.container();
        let result = subject.add(&host, "c-one", &container);
        subject.check(&host, "c-one", &container, &result).ok();
        let left = |line: &String| !line.contains("if: ") && !line.contains(r#""name: \"testnet\" id"#);
        assert_eq!(table().into_iter().filter(left).collect::<Vec<_>>(), before);
        subject.call(&host, "GC", "", "", &[("cni.dev/valid-attachments", json!([]))]).ok();
        assert_eq!(table(), before, "after GC");
        let result = subject.add(&host, "c-one", &container);
        subject.del(&host, "c-one", &container, &result);
        assert_eq!(table(), before, "after DEL");
    }
}

/// Programs that note each start.
fn counted(host: &Host) -> (Subject, PathBuf) {
    let (dir, log) = noting(host.dir());
    (on_path(&bridge(), &dir).at(host.dir()), log)
}

#[test]
fn a_verb_starts_at_most_one_save_and_one_restore_per_family() {
    let host = Host::new();
    let (subject, log) = counted(&host);
    // Both families are read at once, and a restore is not waited for while the other one is.
    let in_any_order = || {
        let mut names = started(&log);
        names.sort();
        names
    };
    let reads = ["ip6tables-save", "iptables-save"];
    let container = host.container();
    let result = subject.add(&host, "c-one", &container);
    assert_eq!(in_any_order(), ["ip6tables-restore", "ip6tables-save", "iptables-restore", "iptables-save"]);
    subject.check(&host, "c-one", &container, &result).ok();
    assert_eq!(in_any_order(), reads);
    subject.del(&host, "c-one", &container, &result);
    assert_eq!(in_any_order(), reads, "the kernel removes what was read");
    subject.del(&host, "c-one", &container, &result);
    assert_eq!(started(&log), [""; 0]);
    let nftables = subject.with("ipMasqBackend", json!("nftables"));
    let result = nftables.add(&host, "c-one", &container);
    nftables.check(&host, "c-one", &container, &result).ok();
    nftables.del(&host, "c-one", &container, &result);
    assert_eq!(started(&log), [""; 0]);
    let ipv4 = subject.with("ipam", json!({"type": "host-local", "subnet": "10.77.0.0/24"})).at(host.dir());
    let result = ipv4.add(&host, "c-one", &container);
    ipv4.del(&host, "c-one", &container, &result);
    assert_eq!(started(&log), ["iptables-save", "iptables-restore", "iptables-save"]);
}

#[test]
fn the_link_is_made_while_the_table_is_read_and_removed_on_failure() {
    let host = Host::new();
    let ipam = json!({"type": "host-local", "subnet": "10.77.0.0/24"});
    let [dir, count] = ["programs", "count"].map(|name| host.dir().join(name));
    fs::create_dir(&dir).unwrap();
    let subject = on_path(&bridge().with("ipam", ipam), &dir).at(host.dir());
    let counting = format!("sleep 1; ip -o link show type veth | grep -c . >{}", count.display());
    for (then, succeeds) in [("exec /usr/sbin/iptables-save \"$@\"", true), ("exit 4", false)] {
        scripts(&dir, "iptables-save", &format!("{counting}; {then}"));
        let container = host.container();
        let output = subject.call(&host, "ADD", "c-one", &container.path(), &[]);
        assert_eq!(output.exit == 0, succeeds, "{output:?}");
        assert_eq!(fs::read_to_string(&count).unwrap(), "1\n");
        if succeeds {
            subject.del(&host, "c-one", &container, &output.json());
        }
        assert_eq!(host.try_sh("ip -o link show type veth | grep .").1, "");
    }
}

/// Otherwise DELs that wait for each other would remove their links one after the other. With the legacy variant, because only its
/// own programs can remove its rules.
#[test]
fn a_link_is_deleted_while_the_programs_run_unless_contended() {
    let ipam = json!({"type": "host-local", "subnet": "10.77.0.0/24"});
    for (contended, links_meanwhile) in [(false, "0\n"), (true, "1\n")] {
        let host = Host::new();
        let [dir, count, held] = ["programs", "count", "held"].map(|name| host.dir().join(name));
        fs::create_dir(&dir).unwrap();
        let subject = on_path(&bridge().with("ipam", ipam.clone()), &dir).at(host.dir());
        let legacy = |what: &str, before: &str| {
            let line = format!("{before} exec /usr/sbin/iptables-legacy-{what} \"$@\"");
            ["iptables", "iptables-legacy"].iter().for_each(|name| script(&dir, &format!("{name}-{what}"), &line));
        };
        ["save", "restore"].iter().for_each(|what| legacy(what, ""));
        let container = host.container();
        let result = subject.add(&host, "c-one", &container);
        legacy("restore", &format!("sleep 1; ip -o link show type veth | grep -c . >{};", count.display()));
        std::thread::scope(|scope| {
            if contended {
                let lock = host.lock_file();
                let hold = format!("exec 9<{}; flock 9; touch {}; sleep 1", lock.display(), held.display());
                let host = &host;
                scope.spawn(move || host.sh(&hold));
                while !held.exists() {
                    std::thread::yield_now();
                }
            }
            subject.del(&host, "c-one", &container, &result);
        });
        assert_eq!(fs::read_to_string(&count).unwrap(), links_meanwhile, "others wait: {contended}");
    }
}

#[test]
fn ten_thousand_foreign_rules_slow_no_call_down() {
    for way in HALVES {
        let host = Host::new();
        let dir = way.directory();
        let half = way.half();
        host.sh(&format!(
            "{{ echo '*nat'; seq 10000 | sed 's,.*,-A POSTROUTING -s 10.9.0.1/32 -p tcp -m tcp --dport & -m comment --comment \"rule \\\\\"&\\\\\"\" -j ACCEPT,'; echo COMMIT; }} | sed 's/dport [0-9]*\\([0-9]\\{{4\\}}\\)/dport 1\\1/' | iptables-{half}-restore"
        ));
        assert!(way.rules(&host, "nat").lines().count() > 10_000);
        let ours = on_path(&understood("bridge", way).at(host.dir()), dir.path());
        let theirs = ours.in_directory(references()[0].clone());
        let container = host.container();
        let time = |subject: &Subject| {
            let began = Instant::now();
            let result = subject.add(&host, "c-one", &container);
            subject.del(&host, "c-one", &container, &result);
            began.elapsed()
        };
        // A busy machine delays one of the two for a moment, but not always ours.
        let is_no_slower = || {
            let [ours, theirs] = [time(&ours), time(&theirs)];
            println!("{way:?}: ADD and DEL beside 10,000 rules: {ours:?}, the reference's {theirs:?}");
            ours < 2 * theirs
        };
        assert!((0..5).any(|_| is_no_slower()), "{way:?}: slower each time");
        assert_eq!(lines(way, &host), [""; 0]);
    }
}

/// The same plugins on a host with an empty `/usr/sbin`: no `iptables`, no `nft`, no `ip`.
fn without_programs(host: &Host, subject: &Subject) -> Subject {
    let dir = host.dir().join("bare");
    fs::create_dir(&dir).unwrap();
    let plugin = bin().join(&subject.plugin);
    script(
        &dir,
        &subject.plugin,
        &format!("exec unshare -m sh -c 'mount -t tmpfs none /usr/sbin && exec {}'", plugin.display()),
    );
    let env = [("CNI_PATH", bin().to_str().unwrap()), ("PATH", "/usr/bin:/bin")];
    let env = env.iter().chain(&[]).map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    subject.in_directory(dir).with_env(env)
}

#[test]
fn without_programs_the_backend_is_nftables_unless_configured() {
    for subject in [bridge(), ptp()] {
        let host = Host::new();
        let container = Host::new().container();
        let _world = world(&host);
        let bare = without_programs(&host, &subject.at(host.dir()));
        let configured = bare.with("ipMasqBackend", json!("iptables"));
        let (_, text) = configured.call(&host, "ADD", "c-one", &container.path(), &[]).refused();
        assert!(text.contains("there is no iptables-save") && text.contains("install the package iptables"), "{text}");
        let (code, text) = configured.call(&host, "STATUS", "", "", &[]).refused();
        assert!(code == 50 && text.contains("install the package iptables"), "{code} {text}");
        bare.call(&host, "STATUS", "", "", &[]).ok();
        let result = bare.add(&host, "c-one", &container);
        reaches_the_world(&container);
        assert!(host.sh("nft list ruleset").contains("id: c-one"));
        assert!(!host.sh("iptables-nft-save -t nat").contains("CNI-"));
        bare.check(&host, "c-one", &container, &result).ok();
        subject.at(host.dir()).check(&host, "c-one", &container, &result).ok();
        configured.del(&host, "c-one", &container, &result);
        assert!(!host.sh("nft list ruleset").contains("id: c-one"));
    }
}

#[test]
fn del_without_the_programs_that_wrote_the_rules_succeeds() {
    let host = Host::new();
    let container = Host::new().container();
    let subject = bridge().at(host.dir());
    let result = subject.add(&host, "c-one", &container);
    without_programs(&host, &subject).del(&host, "c-one", &container, &result);
    assert!(IptablesNft.rules(&host, "nat").contains("c-one"));
    subject.del(&host, "c-one", &container, &result);
    assert_eq!(lines(IptablesNft, &host), [""; 0]);
}

#[test]
fn a_network_of_ipv4_needs_no_ip6tables() {
    let host = Host::new();
    let container = Host::new().container();
    let subject = without_programs(&host, &bridge().at(host.dir()));
    let dir = host.dir().join("copied");
    fs::create_dir(&dir).unwrap();
    for name in ["iptables-save", "iptables-restore"] {
        fs::copy("/usr/sbin/xtables-nft-multi", dir.join(name)).unwrap();
    }
    let mut subject = subject.with("ipMasqBackend", json!("iptables"));
    subject.env.push(("PATH".into(), format!("{}:/usr/bin:/bin", dir.display())));
    let (_, text) = subject.call(&host, "ADD", "c-one", &container.path(), &[]).refused();
    assert!(text.contains("there is no ip6tables-save"), "{text}");
    let ipv4 = subject.with("ipam", json!({"type": "host-local", "subnet": "10.77.0.0/24"})).at(host.dir());
    let result = ipv4.add(&host, "c-one", &container);
    ipv4.check(&host, "c-one", &container, &result).ok();
    assert!(IptablesNft.rules(&host, "nat").contains("c-one"));
    ipv4.del(&host, "c-one", &container, &result);
    assert_eq!(lines(IptablesNft, &host), [""; 0]);
}

#[test]
fn an_empty_path_does_not_hide_iptables() {
    let host = Host::new();
    let container = Host::new().container();
    let subject = bridge().at(host.dir()).with_env(vec![("PATH".into(), String::new())]);
    let result = subject.add(&host, "c-one", &container);
    assert!(IptablesNft.rules(&host, "nat").contains("c-one"));
    subject.del(&host, "c-one", &container, &result);
    assert_eq!(lines(IptablesNft, &host), [""; 0]);
}

#[test]
fn a_broken_iptables_is_not_chosen_and_is_refused_if_configured() {
    let host = Host::new();
    let container = Host::new().container();
    let dir = tempfile::tempdir().unwrap();
    PROGRAMS
        .iter()
        .for_each(|name| script(dir.path(), name, "echo 'Table does not exist (do you need to insmod?)' >&2; exit 3"));
    let subject = on_path(&bridge().at(host.dir()), dir.path());
    let configured = subject.with("ipMasqBackend", json!("iptables"));
    for (verb, id, netns) in [("ADD", "c-one", container.path()), ("STATUS", "", String::new())] {
        let (_, text) = configured.call(&host, verb, id, &netns, &[]).refused();
        let wanted = ["exit status 3: Table does not exist (do you need to insmod?)", "ipMasqBackend"];
        wanted.iter().for_each(|what| assert!(text.contains(what), "{text}"));
    }
    let result = subject.add(&host, "c-one", &container);
    assert!(host.sh("nft list ruleset").contains("id: c-one"));
    subject.check(&host, "c-one", &container, &result).ok();
    // Another process repairs it meanwhile.
    let repaired = bridge().at(host.dir());
    repaired.check(&host, "c-one", &container, &result).ok();
    let listed = json!([{"containerID": "c-one", "ifname": "eth0", "netns": container.path(), "prevResult": result}]);
    repaired.call(&host, "RESTORE", "", "", &[("cni.dev/attachments", listed.clone())]).ok();
    assert_eq!(lines(IptablesNft, &host), [""; 0], "the rules that are there are enough");
    // A set of both backends would never be whole.
    let one = "nft --handle list chain inet cni_plugins_masquerade masq_checks | awk '/id: c-one/ { print $NF; exit }'";
    host.sh(&format!("nft delete rule inet cni_plugins_masquerade masq_checks handle $({one})"));
    repaired.call(&host, "RESTORE", "", "", &[("cni.dev/attachments", listed)]).ok();
    assert_eq!(lines(IptablesNft, &host), [""; 0], "some are left with nftables");
    repaired.check(&host, "c-one", &container, &result).ok();
    repaired.del(&host, "c-one", &container, &result);
    assert!(!host.sh("nft list ruleset").contains("id: c-one"));
}

#[test]
fn status_names_a_chain_of_nftables_that_hangs_elsewhere() {
    let host = Host::new();
    let status = || bridge().with("ipMasqBackend", json!("nftables")).call(&host, "STATUS", "", "", &[]);
    status().ok();
    let hook = "{ type nat hook postrouting priority 7; }";
    host.sh(&format!(
        "nft 'add table inet cni_plugins_masquerade; add chain inet cni_plugins_masquerade postrouting {hook}'"
    ));
    let (code, text) = status().refused();
    assert!(code == 50 && text.contains("priority 7"), "{code}: {text}");
}

#[test]
fn a_table_that_iptables_does_not_understand_is_left_alone() {
    let host = Host::new();
    let container = Host::new().container();
    host.sh("nft 'add table ip nat; add chain ip nat theirs; add rule ip nat theirs ct state new accept'");
    let subject = bridge().at(host.dir());
    let (_, text) =
        subject.with("ipMasqBackend", json!("iptables")).call(&host, "ADD", "c-one", &container.path(), &[]).refused();
    assert!(text.contains("does not show its table nat") && text.contains("nftables"), "{text}");
    let result = subject.add(&host, "c-one", &container);
    subject.check(&host, "c-one", &container, &result).ok();
    subject.call(&host, "GC", "", "", &[("cni.dev/valid-attachments", json!([]))]).ok();
    subject.del(&host, "c-one", &container, &result);
    assert!(host.sh("nft list table ip nat").contains("ct state new"));
}

#[test]
fn del_and_gc_reach_the_half_that_is_not_chosen_any_more() {
    let [nft, legacy] = HALVES.map(Way::directory);
    for (way, [before, after]) in HALVES.into_iter().zip([[&nft, &legacy], [&legacy, &nft]]) {
        let host = Host::new();
        let before = on_path(&bridge().at(host.dir()), before.path());
        let after = on_path(&before, after.path());
        for verb in ["DEL", "GC"] {
            let container = host.container();
            before.add(&host, "c-one", &container);
            assert_ne!(lines(way, &host), [""; 0]);
            let valid = ("cni.dev/valid-attachments", json!([]));
            let (id, netns) = if verb == "GC" { ("", String::new()) } else { ("c-one", container.path()) };
            after.call(&host, verb, id, &netns, &[valid]).ok();
            assert_eq!(lines(way, &host), [""; 0], "{way:?} {verb}");
        }
    }
}

#[test]
fn del_removes_either_backends_rules_whatever_is_configured_by_then() {
    for way in WAYS {
        let dir = way.directory();
        for later in [
            json!({"ipMasq": false}),
            json!({"ipMasqBackend": "iptables"}),
            json!({"ipMasqBackend": "nftables"}),
            json!({"ipMasqBackend": 7}),
        ] {
            let host = Host::new();
            let container = Host::new().container();
            let subject = on_path(&ptp().with("ipMasqBackend", json!(way.backend())).at(host.dir()), dir.path());
            subject.add(&host, "c-one", &container);
            let (key, value) = later.as_object().unwrap().iter().next().unwrap();
            subject.with(key, value.clone()).call(&host, "DEL", "c-one", "", &[]).ok();
            assert_eq!(lines(way, &host), [""; 0], "{way:?} {later}");
        }
    }
}

#[test]
fn names_of_any_length_and_odd_interfaces_are_found_again() {
    for way in WAYS {
        let dir = way.directory();
        for (network, id) in
            [("n".repeat(230), "c".repeat(64)), ("n".into(), "c".repeat(250)), ("n".repeat(200), "c".repeat(100))]
        {
            let host = Host::new();
            let subject = ptp().with("ipMasqBackend", json!(way.backend())).with("name", json!(network)).at(host.dir());
            let subject = on_path(&subject, dir.path());
            for ifname in ["eth0", r#"e"t\h'1"#] {
                let container = host.container();
                let result = call(&subject, &host, "ADD", (&id, ifname), &container.path(), None).ok();
                call(&subject, &host, "CHECK", (&id, ifname), &container.path(), Some(&result)).ok();
                assert_ne!(lines(way, &host), [""; 0]);
                call(&subject, &host, "DEL", (&id, ifname), "", None).ok();
                assert_eq!(lines(way, &host), [""; 0], "{way:?} {network} {id} {ifname}");
            }
        }
    }
}

//! `macspoofchk`: frames of a container with another MAC are dropped, and no other container is affected.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

use std::time::{Duration, Instant};

use cnikit::plan::{Kind, Plan};
use cnikit::resources::veth;
use cnikit::{Addresses, AttachmentId, AttachmentSpec, Input, InterfacePlugin, InterfaceShape, Sources, serve};
use cnikit_testkit::life::{self, Tampering};
use cnikit_testkit::{Container, Host, HostSnapshot, Subject, fault, flood};
use cnikit_tests::world::{ping, ping_once};
use cnikit_tests::{HOST_LOCAL, dual_stack, references, subject};
use serde::Deserialize;
use serde_json::{Value, json};

/// A network whose containers are checked.
fn checked() -> Subject {
    subject("bridge", json!({"isGateway": true, "macspoofchk": true, "ipam": dual_stack()}))
}

/// The same without layer 3: the containers set their own addresses.
fn layer2() -> Subject {
    subject("bridge", json!({"macspoofchk": true}))
}

/// The ruleset, together with the user data of rules, which nft does not print.
fn ruleset(host: &Host) -> String {
    host.sh("nft list ruleset; nft --debug=netlink list ruleset | grep userdata || true")
}

/// The base chain only, which stays.
const EMPTY: &str = "table bridge nat {
\tchain PREROUTING {
\t\ttype filter hook prerouting priority dstnat; policy accept;
\t}
}
";

fn guards(host: &Host) -> usize {
    ruleset(host).lines().filter(|line| line.contains("iifname")).count()
}

mod life_of_it {
    use super::*;

    #[test]
    fn del_succeeds_with_incomplete_input() {
        life::survives_incomplete_dels(&checked());
        life::survives_incomplete_dels(&layer2());
    }

    #[test]
    fn a_fault_before_any_step_leaves_nothing() {
        let tried = fault::leaves_nothing::<bridge::BridgePlugin>(&checked(), HOST_LOCAL);
        assert_eq!(tried, 9, "3 steps of the link, 4 of layer 3, and the place behind each");
    }

    #[test]
    fn forty_eight_at_once_are_checked_each_under_its_own_mac() {
        flood::survives(&checked(), 48);
    }

    #[test]
    fn a_second_add_is_refused_and_takes_nothing_from_the_first() {
        let host = Host::new();
        let container = Host::new().container();
        let subject = layer2();
        let result = subject.add(&host, "c-one", &container);
        let before = HostSnapshot::of(&host);
        for elsewhere in [&container, &host.container()] {
            subject.call(&host, "ADD", "c-one", &elsewhere.path(), &[]).refused();
            HostSnapshot::of(&host).assert_unchanged_since(&before, &[], "a second ADD");
        }
        subject.check(&host, "c-one", &container, &result).ok();
    }

    #[test]
    fn rules_of_an_earlier_attachment_are_replaced() {
        let host = Host::new();
        let container = Host::new().container();
        let subject = layer2();
        subject.add(&host, "c-one", &container);
        container.sh("ip link del eth0");
        assert_eq!(guards(&host), 1);
        let other = subject.with("runtimeConfig", json!({"mac": "02:00:00:00:00:07"}));
        let result = other.add(&host, "c-one", &container);
        assert_eq!(guards(&host), 1);
        let listing = ruleset(&host);
        assert!(
            listing.matches("ether saddr").count() == 1 && listing.contains("ether saddr 02:00:00:00:00:07 return")
        );
        other.check(&host, "c-one", &container, &result).ok();
        other.del(&host, "c-one", &container, &result);
        assert_eq!(ruleset(&host), EMPTY);
    }

    #[test]
    fn restore_makes_flushed_rules_again() {
        for subject in [checked(), layer2()] {
            let host = Host::new();
            let container = Host::new().container();
            let subject = subject.at(host.dir());
            let result = subject.add(&host, "c-one", &container);
            let before = ruleset(&host);
            host.sh("nft flush ruleset");
            subject.check(&host, "c-one", &container, &result).refused();
            let prev = [("prevResult", result.clone())];
            subject.call(&host, "RESTORE", "c-one", &container.path(), &prev).ok();
            assert_eq!(ruleset(&host), before);
            subject.check(&host, "c-one", &container, &result).ok();
        }
    }

    /// A result of this version records no MAC, so a MAC that is not the one of ADD is refused. That is a matter of the port only.
    #[test]
    fn restore_asks_for_no_mac_of_an_interface_that_is_not_at_the_port() {
        let host = Host::new();
        let container = Host::new().container();
        let subject = layer2().with("cniVersion", json!("0.2.0"));
        let result = subject.add(&host, "c-one", &container);
        let before = ruleset(&host);
        container.sh("ip link set eth0 down; ip link set eth0 name eth9; ip link set eth9 up");
        container.sh("ip link add eth0 address 02:00:00:00:66:66 type bridge");
        host.sh("nft flush ruleset");
        let prev = [("prevResult", result)];
        let output = subject.call(&host, "RESTORE", "c-one", &container.path(), &prev);
        assert!(!output.stdout.contains("02:00:00:00:66:66"), "{}", output.stdout);
        assert_eq!(ruleset(&host), before);
    }

    #[test]
    fn a_failed_add_restores_the_previous_rules() {
        let host = Host::new();
        let container = host.container();
        let subject = layer2();
        subject.add(&host, "c-one", &container);
        container.sh("ip link del eth0");
        let before = ruleset(&host);
        // A link cannot have this MTU, but the kernel reports that only after the rules of the check have been replaced.
        let fails = subject.with("mtu", json!(10)).with("runtimeConfig", json!({"mac": "02:00:00:00:00:07"}));
        let (_, text) = fails.call(&host, "ADD", "c-one", &container.path(), &[]).refused();
        assert!(text.contains("veth"), "{text}");
        assert_eq!(ruleset(&host), before);
    }
}

mod check {
    use super::*;

    const CHAINS: &str = "cni-br-iface-c-one-eth0";

    const DRIFTS: [Tampering; 9] = [
        Tampering::on_host(
            "nft flush chain bridge nat PREROUTING",
            "is missing from chain PREROUTING of table bridge nat",
        ),
        Tampering::on_host(
            "nft insert rule bridge nat PREROUTING iifname \\\"$HOSTEND\\\" accept comment \\\"macspoofchk-c-one-eth0\\\"",
            "` in chain PREROUTING of table bridge nat is not wanted",
        ),
        Tampering::on_host(
            "nft flush chain bridge nat PREROUTING; nft delete chain bridge nat cni-br-iface-c-one-eth0",
            "chain cni-br-iface-c-one-eth0 of table bridge nat is missing",
        ),
        Tampering::on_host(
            "nft flush chain bridge nat cni-br-iface-c-one-eth0",
            "has nothing, wanted `jump cni-br-iface-c-one-eth0-mac",
        ),
        Tampering::on_host(
            "nft flush chain bridge nat cni-br-iface-c-one-eth0-mac; \
             nft add rule bridge nat cni-br-iface-c-one-eth0-mac ether saddr 02:00:00:00:00:01 return comment \\\"macspoofchk-c-one-eth0\\\"; \
             nft add rule bridge nat cni-br-iface-c-one-eth0-mac drop comment \\\"macspoofchk-c-one-eth0\\\"",
            "has `ether saddr 02:00:00:00:00:01 return",
        ),
        Tampering::on_host(
            "nft delete rule bridge nat cni-br-iface-c-one-eth0-mac handle $(nft -a list ruleset | sed -n 's/.*drop comment.*handle //p')",
            "-mac of table bridge nat has `ether saddr",
        ),
        Tampering::on_host(
            "nft insert rule bridge nat cni-br-iface-c-one-eth0-mac accept",
            "has `accept`, `ether saddr",
        ),
        Tampering::on_host("nft delete table bridge nat", "table bridge nat is missing"),
        Tampering::on_host(
            "nft 'add table bridge nat { flags dormant; }'",
            "table bridge nat is dormant, its rules do nothing",
        ),
    ];

    #[test]
    fn each_drift_is_named() {
        assert!(DRIFTS[2].names.contains(CHAINS));
        life::names_tampering(&layer2(), &DRIFTS);
    }

    #[test]
    fn a_base_chain_that_hangs_elsewhere_is_named_and_refused() {
        let host = Host::new();
        let container = Host::new().container();
        let subject = layer2();
        let result = subject.add(&host, "c-one", &container);
        let elsewhere =
            "nft 'add table bridge nat; add chain bridge nat PREROUTING { type filter hook prerouting priority 7; }'";
        host.sh(&format!("nft delete table bridge nat; {elsewhere}"));
        let why = "it has `type filter hook prerouting priority 7`, wanted `type filter hook prerouting priority -300`";
        let (code, text) = subject.call(&host, "STATUS", "", "", &[]).refused();
        assert!(code == 50 && text.contains(why), "{code}: {text}");
        let (_, text) = subject.check(&host, "c-one", &container, &result).refused();
        assert!(text.contains(why), "{text}");
        subject.del(&host, "c-one", &container, &result);
        let before = HostSnapshot::of(&host);
        let (_, text) = subject.call(&host, "ADD", "c-two", &container.path(), &[]).refused();
        assert!(text.contains(why), "{text}");
        HostSnapshot::of(&host).assert_unchanged_since(&before, &[], "a refused ADD");
    }

    #[test]
    fn status_names_a_base_chain_of_ipspoofchk_that_hangs_elsewhere() {
        let host = Host::new();
        let status = || checked().with("ipspoofchk", json!(true)).call(&host, "STATUS", "", "", &[]);
        status().ok();
        let hook = "{ type filter hook prerouting priority 7; }";
        host.sh(&format!("nft 'add table bridge cni_ipspoofchk; add chain bridge cni_ipspoofchk prerouting {hook}'"));
        let (code, text) = status().refused();
        assert!(code == 50 && text.contains("priority 7"), "{code}: {text}");
    }

    #[test]
    fn a_container_that_a_later_plugin_silenced_is_named() {
        let host = Host::new();
        let container = Host::new().container();
        let subject = layer2();
        let mut result = subject.add(&host, "c-one", &container);
        container.sh("ip link set eth0 address 02:00:00:00:00:09");
        result["interfaces"][2]["mac"] = json!("02:00:00:00:00:09");
        let (_, text) = subject.check(&host, "c-one", &container, &result).refused();
        assert!(text.contains("wanted `ether saddr 02:00:00:00:00:09 return"), "{text}");
    }
}

mod traffic {
    use super::*;

    /// Two containers of one bridge that listen to each other: what arrives, by kind.
    struct Pair {
        host: Host,
        one: Container,
        two: Container,
        mac: String,
    }

    const OTHER: &str = "02:00:00:00:66:66";
    const HEARD: &str = "nft 'add table ip heard; add chain ip heard in { type filter hook input priority 0; }
        add rule ip heard in icmp type echo-request counter
        add table arp heard; add chain arp heard in { type filter hook input priority 0; }
        add rule arp heard in arp operation request counter
        add table ip6 heard; add chain ip6 heard in { type filter hook input priority 0; }
        add rule ip6 heard in icmpv6 type { echo-request, nd-neighbor-solicit } counter'";

    impl Pair {
        fn new(macspoofchk: bool) -> Pair {
            let host = Host::new();
            let one = host.container();
            let two = host.container();
            let subject = layer2().with("macspoofchk", json!(macspoofchk));
            let result = subject.add(&host, "c-one", &one);
            subject.add(&host, "c-two", &two);
            for (container, end) in [(&one, 1), (&two, 2)] {
                container.sh(&format!(
                    "ip address add 10.5.0.{end}/24 dev eth0; ip address add fd05::{end}/64 dev eth0 nodad"
                ));
            }
            two.sh(HEARD);
            let mac = result["interfaces"][2]["mac"].as_str().unwrap().to_owned();
            Pair { host, one, two, mac }
        }

        /// Whether frames of the first arrive at the second, by protocol. Neighbours are resolved again.
        fn arrives(&self) -> [bool; 3] {
            let before = self.heard();
            self.one.sh("ip neigh flush all");
            for address in ["10.5.0.2", "fd05::2"] {
                self.one.try_sh(&ping_once(address));
            }
            let after = self.heard();
            [0, 1, 2].map(|kind| after[kind] > before[kind])
        }

        /// Counters of echo requests, of ARP requests, and of both of IPv6.
        fn heard(&self) -> [u64; 3] {
            ["ip", "arp", "ip6"].map(|family| {
                let output = self.two.sh(&format!("nft list table {family} heard"));
                output.split_whitespace().skip_while(|word| *word != "packets").nth(1).unwrap().parse().unwrap()
            })
        }
    }

    #[test]
    fn a_container_that_takes_another_mac_is_silenced_until_it_takes_its_own_again() {
        let pair = Pair::new(true);
        assert_eq!(pair.arrives(), [true; 3]);
        assert!(pair.one.reaches("10.5.0.2") && pair.one.reaches("fd05::2"));
        pair.one.sh(&format!("ip link set eth0 address {OTHER}"));
        assert_eq!(pair.arrives(), [false; 3], "{}", ruleset(&pair.host));
        assert!(!pair.host.sh("bridge fdb show").contains(OTHER), "the bridge has not learnt it either");
        pair.one.sh(&format!("ip link set eth0 address {}", pair.mac));
        assert_eq!(pair.arrives(), [true; 3]);
        assert!(pair.one.reaches("10.5.0.2") && pair.one.reaches("fd05::2"));
    }

    #[test]
    fn without_the_key_another_mac_gets_through() {
        let pair = Pair::new(false);
        pair.one.sh(&format!("ip link set eth0 address {OTHER}"));
        assert_eq!(pair.arrives(), [true; 3]);
        assert_eq!(ruleset(&pair.host), "");
    }

    /// A bridge inside the container sends with its own MAC through the container's link, whose MAC does not change.
    const INSIDE: &str = "ip link add inner address 02:00:00:00:66:66 type bridge && ip link set inner up
        ip address flush dev eth0 && ip link set eth0 master inner
        ip address add 10.5.0.1/24 dev inner && ip address add fd05::1/64 dev inner nodad
        timeout 10 sh -c 'until ip link show inner | grep -q LOWER_UP; do :; done'";

    #[test]
    fn frames_that_a_container_forwards_are_dropped_with_its_own_mac_too() {
        for (macspoofchk, expected) in [(true, [false; 3]), (false, [true; 3])] {
            let pair = Pair::new(macspoofchk);
            pair.one.sh(INSIDE);
            assert_eq!(pair.arrives(), expected, "macspoofchk {macspoofchk}");
        }
    }

    #[test]
    fn traffic_of_the_host_and_of_unchecked_containers_passes() {
        let pair = Pair::new(true);
        pair.host.sh("ip address add 10.5.0.254/24 dev cni0; ip link set cni0 address 02:00:00:00:77:77");
        pair.host.sh(&ping("10.5.0.1"));
        let open = pair.host.container();
        layer2().with("macspoofchk", json!(false)).add(&pair.host, "c-open", &open);
        open.sh(&format!("ip address add 10.5.0.3/24 dev eth0; ip link set eth0 address {OTHER}"));
        assert!(open.reaches("10.5.0.2"));
    }
}

mod beside_the_reference {
    use super::*;

    fn pairs() -> impl Iterator<Item = (Subject, Subject)> {
        let ours = layer2().with("cniVersion", json!("1.0.0"));
        references().into_iter().map(move |bin| (ours.clone(), ours.in_directory(bin)))
    }

    /// A short id, and one of the length that container runtimes use.
    const IDS: [&str; 2] = ["c-one", "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"];

    #[test]
    fn upstream_and_ours_remove_each_others_rules() {
        for (ours, theirs) in pairs() {
            for (id, (adds, dels)) in IDS.iter().flat_map(|id| [(id, (&ours, &theirs)), (id, (&theirs, &ours))]) {
                let host = Host::new();
                let container = Host::new().container();
                let result = adds.add(&host, id, &container);
                assert_eq!(guards(&host), 1);
                dels.del(&host, id, &container, &result);
                assert_eq!(ruleset(&host), EMPTY, "{} removes what {} made", dels.bin.display(), adds.bin.display());
            }
        }
    }

    #[test]
    fn our_rules_are_listed_like_those_of_upstream() {
        for (ours, theirs) in pairs() {
            assert_eq!(listing(&ours), listing(&theirs));
        }
    }

    /// The ruleset after an ADD, as text and as JSON, without handles and without the random name and MAC.
    fn listing(subject: &Subject) -> (String, Vec<Value>) {
        let host = Host::new();
        let container = Host::new().container();
        let result = subject.add(&host, IDS[1], &container);
        let end = result["interfaces"][1]["name"].as_str().unwrap();
        let mac = result["interfaces"][2]["mac"].as_str().unwrap();
        let neutral = |text: String| text.replace(end, "PORT").replace(mac, "MAC");
        let mut listed: Value = serde_json::from_str(&neutral(host.sh("nft -j list ruleset"))).unwrap();
        let mut rules = listed["nftables"].take().as_array().unwrap().clone();
        for object in &mut rules {
            for value in object.as_object_mut().unwrap().values_mut() {
                value.as_object_mut().unwrap().remove("handle");
            }
        }
        (neutral(host.sh("nft list ruleset")), rules)
    }

    #[test]
    fn check_accepts_the_rules_of_upstream() {
        for (ours, theirs) in pairs() {
            let host = Host::new();
            let container = Host::new().container();
            let result = theirs.add(&host, "c-one", &container);
            let output = ours.check(&host, "c-one", &container, &result).stdout;
            assert!(!output.contains("macspoofchk:"), "{output}");
            host.sh("nft flush chain bridge nat cni-br-iface-c-one-eth0-mac");
            let output = ours.check(&host, "c-one", &container, &result).stdout;
            assert!(output.contains("macspoofchk: chain cni-br-iface-c-one-eth0-mac"), "{output}");
        }
    }

    #[test]
    fn rules_of_ours_and_upstream_coexist_and_are_removed_alone() {
        for (ours, theirs) in pairs() {
            let host = Host::new();
            let [one, two] = [host.container(), host.container()];
            let mine = ours.add(&host, "c-one", &one);
            let its = theirs.add(&host, "c-two", &two);
            assert_eq!(guards(&host), 2);
            ours.del(&host, "c-one", &one, &mine);
            let left = ruleset(&host);
            assert!(guards(&host) == 1 && left.contains("c-two-eth0-mac") && !left.contains("c-one"), "{left}");
            let mine = ours.add(&host, "c-one", &one);
            theirs.del(&host, "c-two", &two, &its);
            let left = ruleset(&host);
            assert!(guards(&host) == 1 && left.contains("c-one-eth0-mac") && !left.contains("c-two"), "{left}");
            ours.check(&host, "c-one", &one, &mine).ok();
        }
    }

    #[test]
    fn gc_leaves_rules_of_upstream_and_removes_ours() {
        for (ours, theirs) in pairs() {
            let host = Host::new();
            let [one, two] = [host.container(), host.container()];
            theirs.add(&host, "c-one", &one);
            let before = ruleset(&host);
            ours.add(&host, "c-two", &two);
            assert_eq!(guards(&host), 2);
            let collects = ours.with("cniVersion", json!("1.1.0"));
            collects.call(&host, "GC", "", "", &[("cni.dev/valid-attachments", json!([]))]).ok();
            assert_eq!(ruleset(&host), before);
        }
    }
}

mod gc {
    use super::*;

    fn collect(subject: &Subject, host: &Host, valid: &[&str]) {
        let valid: Vec<Value> = valid.iter().map(|id| json!({"containerID": id, "ifname": "eth0"})).collect();
        subject.call(host, "GC", "", "", &[("cni.dev/valid-attachments", json!(valid))]).ok();
    }

    fn named(host: &Host) -> Vec<String> {
        let listing = host.sh("nft list chain bridge nat PREROUTING");
        let words = listing.lines().filter_map(|line| line.split_once("macspoofchk-"));
        words.map(|(_, rest)| rest.trim_end_matches('"').trim_end_matches("-eth0").to_owned()).collect()
    }

    #[test]
    fn gc_removes_stale_rules_and_chains_of_one_network_only() {
        let host = Host::new();
        let mine = layer2();
        let other = layer2().with("name", json!("other"));
        let containers: Vec<_> = (0..5).map(|_| host.container()).collect();
        for (n, id) in ["c-kept", "c-stale", "c-gone"].iter().enumerate() {
            mine.add(&host, id, &containers[n]);
        }
        other.add(&host, "c-others", &containers[3]);
        containers[2].sh("ip link del eth0");
        collect(&mine, &host, &["c-kept"]);
        assert_eq!(named(&host), ["c-kept", "c-others"]);
        let left = ruleset(&host);
        assert!(!left.contains("c-stale") && !left.contains("c-gone"), "{left}");
        collect(&mine, &host, &["c-kept"]);
        assert_eq!(ruleset(&host), left);
        collect(&other, &host, &["c-others", "c-kept"]);
        assert_eq!(ruleset(&host), left);
        collect(&mine, &host, &[]);
        collect(&other, &host, &[]);
        assert_eq!(ruleset(&host), EMPTY);
    }

    #[test]
    fn two_networks_with_one_id_are_distinguished_by_the_owner() {
        let host = Host::new();
        let mine = layer2();
        let other = layer2().with("name", json!("other"));
        let [one, two] = [host.container(), host.container()];
        mine.add(&host, "c-same", &one);
        let result = other.add(&host, "c-same", &two);
        assert_eq!(named(&host), ["c-same"; 2]);
        other.check(&host, "c-same", &two, &result).ok();
        collect(&mine, &host, &[]);
        assert_eq!(named(&host), ["c-same"]);
        other.check(&host, "c-same", &two, &result).ok();
        mine.call(&host, "DEL", "c-same", "", &[]).ok();
        other.check(&host, "c-same", &two, &result).ok();
        let again = mine.add(&host, "c-same", &one);
        other.del(&host, "c-same", &two, &result);
        mine.check(&host, "c-same", &one, &again).ok();
        mine.del(&host, "c-same", &one, &again);
        assert_eq!(ruleset(&host), EMPTY);
    }

    #[test]
    fn tampered_rules_are_removed_and_a_foreign_rule_stays() {
        let host = Host::new();
        let subject = layer2();
        let container = host.container();
        for chain in ["cni-br-iface-c-one-eth0", "cni-br-iface-c-one-eth0-mac"] {
            for goes in [true, false] {
                let result = subject.add(&host, "c-one", &container);
                host.sh(&format!("nft insert rule bridge nat {chain} counter accept"));
                host.sh(
                    "nft add rule bridge nat PREROUTING ether saddr 02:00:00:00:00:05 counter comment \\\"mine\\\"",
                );
                if goes {
                    subject.del(&host, "c-one", &container, &result);
                } else {
                    collect(&subject, &host, &[]);
                }
                let left = ruleset(&host);
                assert!(!left.contains("c-one") && left.contains("comment \"mine\""), "{left}");
                host.sh("nft flush chain bridge nat PREROUTING");
                assert_eq!(ruleset(&host), EMPTY);
            }
        }
    }
}

mod names {
    use super::*;

    #[test]
    fn ids_that_read_alike_when_joined_have_chains_of_their_own() {
        let host = Host::new();
        let subject = layer2();
        let containers = [host.container(), host.container()];
        let verb = |verb: &str, n: usize, more: &[(&str, Value)]| {
            let (id, ifname) = [("a", "b-c"), ("a-b", "c")][n];
            let mut conf = subject.conf.clone();
            more.iter().for_each(|(key, value)| conf[*key] = value.clone());
            let stdin = conf.to_string();
            subject.call_raw(&host, verb, id, &containers[n].path(), stdin.as_bytes(), &[("CNI_IFNAME", ifname)])
        };
        let results = [verb("ADD", 0, &[]).ok(), verb("ADD", 1, &[]).ok()];
        let check = |n: usize| verb("CHECK", n, &[("prevResult", results[n].clone())]).ok();
        assert_eq!(guards(&host), 2);
        [0, 1].into_iter().for_each(|n| drop(check(n)));
        verb("DEL", 0, &[]).ok();
        check(1);
        assert_eq!(guards(&host), 1);
        verb("DEL", 1, &[]).ok();
        assert_eq!(ruleset(&host), EMPTY);
    }

    #[test]
    fn an_id_of_any_length_is_served() {
        let host = Host::new();
        for length in [64, 116, 117, 233, 234, 255, 700] {
            let subject = layer2();
            let id = "c".repeat(length);
            let container = host.container();
            let result = subject.add(&host, &id, &container);
            assert_eq!(guards(&host), 1, "{length}");
            subject.check(&host, &id, &container, &result).ok();
            subject.del(&host, &id, &container, &result);
            assert_eq!(ruleset(&host), EMPTY, "{length}");
        }
    }
}

/// A bridge whose links cannot be deleted.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
struct Clinging(bridge::BridgePlugin);

impl InterfacePlugin for Clinging {
    const LINK: Kind = Kind { release: |_| Ok(()), sweep: |_| Ok(()), ..veth::KIND };
    const KINDS: &'static [Kind] = bridge::BridgePlugin::KINDS;
    const SOURCES: Sources = bridge::BridgePlugin::SOURCES;
    const KNOWN_ARGS: Option<&'static [&'static str]> = bridge::BridgePlugin::KNOWN_ARGS;

    fn link(&self, at: &AttachmentSpec) -> Plan {
        self.0.link(at)
    }

    fn layer3(&self, at: &AttachmentSpec, addresses: &Addresses) -> Plan {
        self.0.layer3(at, addresses)
    }
}

fn cling(subject: &Subject, host: &Host, verb: &str, container: &Container) {
    let mut input = Input::new(verb, subject.conf.to_string());
    input.container_id = if verb == "GC" { String::new() } else { "c-one".into() };
    input.netns = container.path();
    input.ifname = "eth0".into();
    input.path = subject.bin.display().to_string();
    let mut output = Vec::new();
    let exit = host.enter(|| serve::<InterfaceShape<Clinging>>("bridge", input, &[], &mut output));
    assert_eq!(exit, 0, "{}", String::from_utf8_lossy(&output));
}

#[test]
fn a_port_is_set_down_before_its_rules_are_removed() {
    for verb in ["DEL", "GC"] {
        let host = Host::new();
        let container = Host::new().container();
        let subject = layer2().with("cni.dev/valid-attachments", json!([]));
        subject.add(&host, "c-one", &container);
        let tag = AttachmentId { network: "testnet".into(), container: "c-one".into(), ifname: "eth0".into() };
        let end = &veth::names(&tag)[0];
        assert!(host.sh(&format!("ip link show {end}")).contains(",UP"));
        cling(&subject, &host, verb, &container);
        assert_eq!(ruleset(&host), EMPTY);
        assert!(!host.sh(&format!("ip link show {end}")).contains("UP"), "{verb}");
    }
}

/// The time of the fastest of a few ADDs, because other programs on this machine delay them. The DELs come after all of them,
/// because the kernel frees removed objects later, in the time of any call.
fn fastest_add(subject: &Subject, host: &Host) -> Duration {
    let containers: Vec<_> = (0..15).map(|_| host.container()).collect();
    let add = |(n, container): (usize, &Container)| {
        let start = Instant::now();
        let result = subject.add(host, &format!("c-{n}"), container);
        (start.elapsed(), result)
    };
    let added: Vec<_> = containers.iter().enumerate().map(add).collect();
    for (n, (_, result)) in added.iter().enumerate() {
        subject.del(host, &format!("c-{n}"), &containers[n], result);
    }
    added.iter().map(|(took, _)| *took).min().unwrap()
}

/// The same, repeated as long as no ADD takes less than `most`, because the machine may be busy.
fn fastest_add_within(most: Duration, subject: &Subject, host: &Host) -> Duration {
    let few = || fastest_add(subject, host);
    (0..4).map(|_| few()).find(|took| *took < most).unwrap_or_else(few)
}

/// Adds ten thousand rules to a chain with nft, after these commands.
fn add_rules(host: &Host, commands: &str, chain: &str) {
    let line = |n| format!("add rule {chain} ether saddr 02:00:00:00:{:02x}:{:02x} accept\n", n / 256, n % 256);
    let script = host.dir().join("rules");
    std::fs::write(&script, format!("{commands}\n{}", (0..10_000).map(line).collect::<String>())).unwrap();
    host.sh(&format!("nft -f {}", script.display()));
}

#[test]
fn an_add_costs_the_same_beside_ten_thousand_foreign_rules() {
    let host = Host::new();
    let subject = layer2();
    let alone = fastest_add(&subject, &host);
    add_rules(&host, "add table bridge other; add chain bridge other rules", "bridge other rules");
    add_rules(&host, "add chain bridge nat others", "bridge nat others");
    let beside = fastest_add_within(alone * 4, &subject, &host);
    add_rules(&host, "", "bridge nat PREROUTING");
    let among = fastest_add_within(alone * 6, &subject, &host);
    println!("ADD alone {alone:?}, beside 20,000 rules {beside:?}, among 10,000 more in the base chain {among:?}");
    // An ADD that read all of them would take ten times as long.
    assert!(beside < alone * 4 && among < alone * 6, "{alone:?}, {beside:?}, {among:?}");
}

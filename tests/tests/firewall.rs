//! The firewall with every backend, with real packets: one table of tests for all of them.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

use std::fs;
use std::net::IpAddr;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use cnikit_firewalld::Firewalld;
use cnikit_process::Deadline;
use cnikit_testkit::life::{SHARED, Tampering};
use cnikit_testkit::parallel::{for_each, while_repeating};
use cnikit_testkit::{CallOutput, Container, Host, HostSnapshot, Subject, firewalld, life};
use cnikit_tests::campaign_subjects::firewall;
use cnikit_tests::chain::{RELEASES, stays_true};
use cnikit_tests::mixed::UpstreamRelease;
use cnikit_tests::way::Way::{self, IptablesLegacy, IptablesNft, Nftables};
use cnikit_tests::way::{PROGRAMS, WITHOUT_RESULT, noting, on_path, script, scripts, started, started_by};
use cnikit_tests::world::{WORLD, ping_briefly, ping_once, undisturbed, world};
use cnikit_tests::{bin, references, subject};
use serde_json::{Value, json};
use tempfile::TempDir;

const WAYS: [Way; 3] = Way::ALL;
const HALVES: [Way; 2] = Way::HALVES;

/// A network: a bridge, and the firewall behind it.
struct Net<'a> {
    host: &'a Host,
    way: Way,
    bridge: Subject,
    firewall: Subject,
    _programs: TempDir,
}

/// A container with the result of its network's plugins.
struct Attached {
    id: &'static str,
    container: Container,
    result: Value,
}

impl<'a> Net<'a> {
    /// The network of this number, from 77 on, with these keys of firewall.
    fn new(host: &'a Host, way: Way, number: u8, keys: Value) -> Net<'a> {
        let programs = way.directory();
        let name = format!("testnet-{number}");
        let bridge = format!("cni{}", number - 77);
        let ranges = json!([[{"subnet": format!("10.{number}.0.0/24")}], [{"subnet": format!("fd00:{number}::/64")}]]);
        let ipam = json!({"type": "host-local", "ranges": ranges});
        let bridge = subject("bridge", json!({"name": name, "bridge": bridge, "isDefaultGateway": true, "ipam": ipam}));
        let mut firewall = subject("firewall", keys).with("name", json!(name));
        firewall.conf["backend"] = json!(way.backend());
        let [bridge, firewall] = [bridge, firewall].map(|one| on_path(&one.at(host.dir()), programs.path()));
        Net { host, way, bridge, firewall, _programs: programs }
    }

    fn attach(&self, id: &'static str) -> Attached {
        let container = self.host.container();
        let result = self.bridge.add(self.host, id, &container);
        let output =
            self.firewall.call(self.host, "ADD", id, &container.path(), &[("prevResult", result.clone())]).ok();
        assert_eq!(output["ips"], result["ips"], "the result is passed on");
        Attached { id, container, result }
    }

    fn detach(&self, one: &Attached) {
        self.firewall.del(self.host, one.id, &one.container, &one.result);
        self.bridge.del(self.host, one.id, &one.container, &one.result);
    }

    fn check(&self, one: &Attached) -> CallOutput {
        self.firewall.check(self.host, one.id, &one.container, &one.result)
    }

    fn gc(&self, valid: Value) {
        self.firewall.call(self.host, "GC", "", "", &[("cni.dev/valid-attachments", valid)]).ok();
    }

    /// RESTORE of all of them by one call, with these keys.
    fn restore_all(&self, all: &[&Attached], keys: &[(&str, &str)]) {
        let entry = |one: &&Attached| {
            let netns = one.container.path();
            json!({"containerID": one.id, "ifname": "eth0", "netns": netns, "prevResult": one.result})
        };
        let list: Vec<Value> = all.iter().map(entry).collect();
        let mut more = vec![("cni.dev/attachments", json!(list))];
        more.extend(keys.iter().map(|(key, value)| (*key, json!(value))));
        let reply = self.firewall.call(self.host, "RESTORE", "", "", &more).ok();
        let outcomes = reply["cni.dev/attachments"].as_array().unwrap();
        assert!(outcomes.len() == all.len() && outcomes.iter().all(|one| one["error"].is_null()), "{reply}");
    }

    /// The installed rules of both families.
    fn rules(&self) -> String {
        self.way.rules(self.host, "filter")
    }

    /// The same without counters and times.
    fn rules_without_counters(&self) -> Vec<String> {
        let rules = self.rules();
        let lines = rules.lines().filter(|line| self.way == Nftables || line.starts_with("-A"));
        lines.map(str::to_owned).collect()
    }

    /// Whether the installed rules name a container's addresses.
    fn names(&self, one: &Attached) -> bool {
        let rules = self.rules();
        let mut words = rules.split([' ', '/', ',', '"', '\n', '\t']);
        words.any(|word| one.addresses().iter().any(|address| address == word)) || rules.contains(one.id)
    }

    /// Sets the policy for packets that no rule accepts.
    fn policy(&self, policy: &str) {
        let hook = format!("type filter hook forward priority 0; policy {};", policy.to_lowercase());
        let chain = format!("add table inet cni_firewall; add chain inet cni_firewall forward {{ {hook} }}");
        match self.way {
            Nftables => drop(self.host.sh(&format!("nft '{chain}'"))),
            IptablesNft | IptablesLegacy => self.iptables(&format!("-P FORWARD {policy}")),
        }
    }

    /// In both families: `line` begins behind the name of the program.
    fn iptables(&self, line: &str) {
        let half = self.way.half();
        self.host.sh(&format!("iptables-{half} {line} && ip6tables-{half} {line}"));
    }

    /// Drops packets that leave by an interface, in the operator's chain.
    fn drops(&self, chain: &str, interface: &str) {
        match self.way {
            Nftables => drop(self.host.sh(&format!("nft add rule inet cni_firewall {chain} oifname {interface} drop"))),
            IptablesNft | IptablesLegacy => self.iptables(&format!("-A {chain} -o {interface} -j DROP")),
        }
    }
}

impl Attached {
    fn addresses(&self) -> [String; 2] {
        [0, 1].map(|n| self.result["ips"][n]["address"].as_str().unwrap().split('/').next().unwrap().to_owned())
    }
}

/// Whether each of these addresses is reached. All must have the same outcome.
fn reaches(from: &Container, to: &[impl AsRef<str>]) -> bool {
    hears(from, to, ping_briefly)
}

/// The same for an address that should not answer: one request only.
fn is_heard(from: &Container, to: &[impl AsRef<str>]) -> bool {
    hears(from, to, ping_once)
}

fn hears(from: &Container, to: &[impl AsRef<str>], asks: impl Fn(&str) -> String) -> bool {
    let one = |to: &str| format!("{{ {}; }} >&2 && echo reached &", asks(to));
    let line: String = to.iter().map(|to| one(to.as_ref())).collect();
    let reached = from.sh(&format!("{line} wait")).matches("reached\n").count();
    assert!(reached == 0 || reached == to.len(), "one family and not the other");
    reached > 0
}

/// Runs `work` for every backend and each of these cases, all at once: most of the time is waiting for packets that do not come.
fn in_every_way<C: Sync>(cases: &[C], work: impl Fn(Way, &C) + Sync) {
    thread::scope(|scope| {
        for (way, case) in WAYS.into_iter().flat_map(|way| cases.iter().map(move |case| (way, case))) {
            let work = &work;
            scope.spawn(move || work(way, case));
        }
    });
}

/// The world, with ways back to the containers of the first two networks.
fn world_with_routes_back(host: &Host) -> Container {
    let world = world(host);
    for number in [77, 78] {
        world.sh(&format!(
            "ip route add 10.{number}.0.0/24 via 192.0.2.1 && ip route add fd00:{number}::/64 via 2001:db8:9::1"
        ));
    }
    world
}

#[test]
fn a_container_reaches_the_world_through_a_host_that_drops_and_the_world_only_answers() {
    for way in WAYS {
        let host = Host::new();
        let net = Net::new(&host, way, 77, json!({}));
        let world = world_with_routes_back(&host);
        net.policy("DROP");
        let container = host.container();
        let result = net.bridge.add(&host, "c-one", &container);
        let addresses =
            [0, 1].map(|n| result["ips"][n]["address"].as_str().unwrap().split('/').next().unwrap().to_owned());
        assert!(!reaches(&container, &WORLD), "{way:?}: nothing passes before");
        net.firewall.call(&host, "ADD", "c-one", &container.path(), &[("prevResult", result.clone())]).ok();
        assert!(reaches(&container, &WORLD), "{way:?}: {}", net.rules());
        assert!(!reaches(&world, &addresses), "{way:?}: the policy is the host's for what comes anew");
        net.policy("ACCEPT");
        assert!(reaches(&world, &addresses), "{way:?}");
        net.policy("DROP");
        net.firewall.del(&host, "c-one", &container, &result);
        assert!(!reaches(&container, &WORLD), "{way:?}: nothing passes after");
    }
}

#[test]
fn two_bridges_are_isolated_from_each_other_only() {
    in_every_way(&["ACCEPT", "DROP"], bridges_are_cut_off);
}

fn bridges_are_cut_off(way: Way, policy: &&str) {
    let pairs = [
        ("same-bridge", "same-bridge", true),
        ("isolated", "isolated", true),
        ("same-bridge", "isolated", true),
        ("open", "isolated", false),
        ("open", "open", false),
    ];
    for (first, second, cut) in pairs {
        let host = Host::new();
        let _world = world_with_routes_back(&host);
        let net = |number, word| Net::new(&host, way, number, json!({"ingressPolicy": word}));
        let one = net(77, first);
        let two = net(78, second);
        one.policy(policy);
        let from = one.attach("c-one");
        let to = two.attach("c-two");
        let what = format!("{way:?} {policy} {first} {second}");
        for (from, to) in [(&from, &to), (&to, &from)] {
            let passes = if cut {
                is_heard(&from.container, &to.addresses())
            } else {
                reaches(&from.container, &to.addresses())
            };
            assert_eq!(passes, !cut, "{what}: {}", one.rules());
        }
        [&from, &to].iter().for_each(|one| assert!(reaches(&one.container, &WORLD), "{what}"));
        one.check(&from).ok();
        two.check(&to).ok();
    }
}

#[test]
fn rules_in_the_operators_chain_apply_and_stay() {
    let own_name = json!({"iptablesAdminChainName": "OUR-OWN"});
    in_every_way(&[(json!({}), "CNI-ADMIN"), (own_name, "OUR-OWN")], operators_chain_drops);
}

fn operators_chain_drops(way: Way, (keys, chain): &(Value, &str)) {
    let host = Host::new();
    let _world = world_with_routes_back(&host);
    let net = Net::new(&host, way, 77, keys.clone());
    let first = net.attach("c-first");
    let one = net.attach("c-one");
    assert!(reaches(&one.container, &WORLD));
    net.drops(chain, "world");
    assert!(!is_heard(&one.container, &WORLD), "{way:?}: {}", net.rules());
    net.detach(&first);
    net.check(&one).ok();
    net.detach(&one);
    let rules = net.rules();
    let his =
        rules.matches(&format!("-A {chain} -o world -j DROP")).count() == 2 || rules.contains("oifname \"world\" drop");
    assert!(his, "{way:?}: {rules}");
    let again = net.attach("c-again");
    assert!(!is_heard(&again.container, &WORLD), "{way:?}: {}", net.rules());
}

#[test]
fn two_networks_may_each_have_an_operators_chain() {
    for way in WAYS {
        let host = Host::new();
        let net = |number, chain| Net::new(&host, way, number, json!({"iptablesAdminChainName": chain}));
        let one = net(77, "ONE");
        let two = net(78, "TWO");
        let first = one.attach("c-one");
        let second = two.attach("c-two");
        let rules = one.rules_without_counters();
        let third = one.attach("c-three");
        for (net, attached) in [(&one, &first), (&two, &second), (&one, &third)] {
            net.check(attached).ok();
        }
        one.detach(&third);
        assert_eq!(one.rules_without_counters(), rules, "{way:?}");
    }
}

#[test]
fn del_leaves_the_rules_of_an_address_with_a_new_container() {
    for way in WAYS {
        for with_result in [true, false] {
            let host = Host::new();
            let _world = world_with_routes_back(&host);
            let net = Net::new(&host, way, 77, json!({"ingressPolicy": "isolated"}));
            net.policy("DROP");
            let old = net.attach("c-old");
            old.container.sh("ip link del eth0");
            fs::remove_dir_all(host.dir().join("leases")).unwrap();
            let new = net.attach("c-new");
            assert_eq!(old.addresses(), new.addresses());
            let prev = with_result.then(|| ("prevResult", old.result.clone()));
            let more: Vec<_> = prev.into_iter().collect();
            undisturbed(&new.container, WORLD[0], || net.firewall.call(&host, "DEL", "c-old", "", &more).ok());
            assert!(reaches(&new.container, &WORLD));
            net.check(&new).ok();
            assert!(!net.rules().contains("c-old"), "{}", net.rules());
            net.detach(&new);
            assert!(!net.names(&new), "{}", net.rules());
        }
    }
}

#[test]
fn a_bridges_rules_go_with_its_last_container() {
    for way in WAYS {
        let host = Host::new();
        let net = |number, word| Net::new(&host, way, number, json!({"ingressPolicy": word}));
        let one = net(77, "isolated");
        let two = net(78, "same-bridge");
        let [a, b] = [one.attach("c-a"), one.attach("c-b")];
        let c = two.attach("c-c");
        one.detach(&a);
        one.check(&b).ok();
        assert!(!reaches(&c.container, &b.addresses()));
        one.detach(&b);
        assert!(!one.rules().contains("cni0"), "{way:?}: {}", one.rules());
        two.check(&c).ok();
        // A new policy replaces the one of containers that were added with another.
        let isolated = net(78, "isolated");
        let d = isolated.attach("c-d");
        isolated.check(&d).ok();
        two.check(&c).ok();
        isolated.detach(&d);
        two.check(&c).ok();
        assert!(
            !["ingressPolicy: isolated", "drop comment"].iter().any(|text| two.rules().contains(text)),
            "{way:?}: {}",
            two.rules()
        );
        two.detach(&c);
        assert!(!two.rules().contains("cni1"), "{way:?}: {}", two.rules());
    }
}

#[test]
fn a_container_that_is_added_again_with_another_policy_has_that_one() {
    for way in WAYS {
        let host = Host::new();
        let isolated = Net::new(&host, way, 77, json!({"ingressPolicy": "isolated"}));
        let one = isolated.attach("c-one");
        let before = isolated.rules_without_counters();
        isolated
            .firewall
            .call(&host, "ADD", "c-one", &one.container.path(), &[("prevResult", one.result.clone())])
            .ok();
        assert_eq!(isolated.rules_without_counters(), before, "{way:?}: the same ADD again changes nothing");
        let open = isolated.firewall.with("ingressPolicy", json!("open"));
        open.call(&host, "ADD", "c-one", &one.container.path(), &[("prevResult", one.result.clone())]).ok();
        assert!(!isolated.rules().contains("cni0"), "{way:?}: {}", isolated.rules());
        open.check(&host, "c-one", &one.container, &one.result).ok();
    }
}

#[test]
fn foreign_rules_before_ours_are_named_and_reordered_by_add() {
    for way in HALVES {
        let host = Host::new();
        let _world = world_with_routes_back(&host);
        let net = Net::new(&host, way, 77, json!({"ingressPolicy": "same-bridge"}));
        let other = Net::new(&host, way, 78, json!({"ingressPolicy": "same-bridge"}));
        let one = net.attach("c-one");
        let two = other.attach("c-two");
        net.iptables("-I FORWARD -i cni0 -o world -j DROP");
        net.iptables("-I FORWARD -i cni0 -o cni1 -j ACCEPT");
        net.iptables("-I FORWARD -i cni1 -o cni0 -j ACCEPT");
        assert!(!reaches(&one.container, &WORLD) && reaches(&one.container, &two.addresses()));
        let (_, text) = net.check(&one).refused();
        assert!(text.contains("chain FORWARD of table filter of ip6tables does not begin with"), "{text}");
        other.attach("c-three");
        assert!(reaches(&one.container, &WORLD), "{}", net.rules());
        assert!(!reaches(&one.container, &two.addresses()) && !reaches(&two.container, &one.addresses()));
        net.check(&one).ok();
        let first = |rules: &str| {
            rules.lines().filter(|line| line.starts_with("-A FORWARD")).map(str::to_owned).collect::<Vec<_>>()
        };
        assert!(first(&net.rules())[0].contains("CNI-ISOLATION-STAGE-1"), "{}", net.rules());
        // The accepting rules come before the isolating ones, as after upstream has made its chain again.
        net.iptables("-D FORWARD -m comment --comment 'CNI firewall plugin rules' -j CNI-FORWARD");
        net.iptables("-I FORWARD -m comment --comment 'CNI firewall plugin rules' -j CNI-FORWARD");
        assert!(reaches(&one.container, &two.addresses()));
        net.check(&one).refused();
        other.attach("c-four");
        assert!(!reaches(&one.container, &two.addresses()));
        net.check(&one).ok();
    }
}

#[test]
fn foreign_rules_before_ours_in_nftables_are_named_and_reordered() {
    let host = Host::new();
    let _world = world_with_routes_back(&host);
    let net = Net::new(&host, Nftables, 77, json!({}));
    let one = net.attach("c-one");
    host.sh("nft insert rule inet cni_firewall forward oifname world drop");
    host.sh("nft insert rule inet cni_firewall admins oifname world drop");
    assert!(!reaches(&one.container, &WORLD));
    let (_, text) = net.check(&one).refused();
    assert!(text.contains("chain forward of table inet cni_firewall begins with `oifname \"world\" drop`"), "{text}");
    host.sh("nft flush chain inet cni_firewall admins");
    let (_, text) = net.check(&one).refused();
    assert!(text.contains("is missing from chain admins"), "{text}");
    net.attach("c-two");
    assert!(reaches(&one.container, &WORLD), "{}", net.rules());
    net.check(&one).ok();
    host.sh("nft flush ruleset");
    net.check(&one).refused();
}

/// Programs may be installed or removed: CHECK and DEL find the backend that ADD chose.
#[test]
fn without_iptables_it_is_nftables_and_a_changed_mind_loses_nothing() {
    let host = Host::new();
    let net = Net::new(&host, Nftables, 77, json!({"ingressPolicy": "isolated"}));
    let dir = tempfile::tempdir().unwrap();
    PROGRAMS.iter().for_each(|one| script(dir.path(), one, "echo 'no such table' >&2; exit 3"));
    let automatic = net.firewall.with("backend", json!(""));
    let broken = on_path(&automatic, dir.path());
    broken.call(&host, "STATUS", "", "", &[]).ok();
    let [a, b] = ["c-a", "c-b"].map(|id| {
        let container = host.container();
        let result = net.bridge.add(&host, id, &container);
        let subject = if id == "c-a" { &broken } else { &automatic };
        subject.call(&host, "ADD", id, &container.path(), &[("prevResult", result.clone())]).ok();
        Attached { id, container, result }
    });
    assert!(host.sh("nft list table inet cni_firewall").contains("c-a/eth0"));
    assert!(host.sh("iptables-save -t filter").contains("c-b/eth0"));
    for one in [&a, &b] {
        automatic.check(&host, one.id, &one.container, &one.result).ok();
    }
    let mut other = automatic.with("backend", json!("nftables"));
    other.call(&host, "DEL", b.id, "", &[]).ok();
    other = automatic.with("backend", json!("iptables"));
    other.call(&host, "DEL", a.id, "", &[]).ok();
    assert!(!net.names(&a) && !net.names(&b), "{}", net.rules());
}

#[test]
fn gc_removes_what_is_of_the_network_and_not_valid() {
    for way in WAYS {
        let host = Host::new();
        let net = |number| Net::new(&host, way, number, json!({"ingressPolicy": "isolated"}));
        let one = net(77);
        let two = net(78);
        let kept = one.attach("c-kept");
        let stale = one.attach("c-stale");
        let foreign = two.attach("c-stale");
        for _ in 0..2 {
            one.gc(json!([{"containerID": "c-kept", "ifname": "eth0"}]));
            one.check(&kept).ok();
            two.check(&foreign).ok();
            let stands = one.rules();
            let mut words = stands.split([' ', '/', ',']);
            assert!(!words.any(|word| stale.addresses().iter().any(|address| address == word)), "{way:?}: {stands}");
        }
        one.gc(json!([]));
        two.check(&foreign).ok();
        assert!(!one.rules().contains("cni0") && !one.names(&kept), "{}", one.rules());
        two.gc(json!([]));
        assert!(!one.rules().contains("cni1") && !two.names(&foreign), "{}", one.rules());
    }
}

/// A script that appends all rules of a file to those that are there doubles each of them.
#[test]
fn rules_that_were_loaded_twice_are_put_in_order_by_add_and_removed_by_del_and_gc() {
    for way in HALVES {
        let host = Host::new();
        let net = Net::new(&host, way, 77, json!({"ingressPolicy": "isolated"}));
        let [one, two] = [net.attach("c-one"), net.attach("c-two")];
        let half = way.half();
        for program in ["iptables", "ip6tables"] {
            host.sh(&format!("{program}-{half}-save -t filter | grep -v ^: | {program}-{half}-restore --noflush"));
        }
        net.firewall.call(&host, "ADD", one.id, &one.container.path(), &[("prevResult", one.result.clone())]).ok();
        net.check(&one).ok();
        net.detach(&one);
        assert!(!net.names(&one), "{way:?}: {}", net.rules());
        net.check(&two).ok();
        net.gc(json!([]));
        assert!(!net.names(&two) && !net.rules().contains("cni0"), "{way:?}: {}", net.rules());
    }
}

/// As `tampering::FIREWALL` has it for the other half.
const LEGACY: [Tampering; 4] = [
    Tampering::on_host(
        "iptables-legacy -I FORWARD -j ACCEPT",
        "chain FORWARD of table filter of iptables does not begin with",
    ),
    Tampering::on_host(
        "ip6tables-legacy -D CNI-FORWARD 3",
        "`-s fd00:77::2/128 -j ACCEPT` is missing from chain CNI-FORWARD",
    ),
    Tampering::on_host("iptables-legacy -D CNI-ISOLATION-STAGE-1 2", "-i cni0 ! -o cni0 -m comment"),
    Tampering::on_host(
        "ip6tables-legacy -F",
        "-j CNI-FORWARD` is missing from chain FORWARD of table filter of ip6tables",
    ),
];

#[test]
fn check_finds_what_was_tampered_with_in_the_other_half() {
    let dir = IptablesLegacy.directory();
    life::names_tampering(&on_path(&firewall(bin(), "iptables"), dir.path()), &LEGACY);
}

#[test]
fn every_backend_leaves_no_trace_and_survives_incomplete_dels() {
    for way in WAYS {
        let dir = way.directory();
        let subject = on_path(&firewall(bin(), way.backend()), dir.path());
        life::leaves_no_trace(&subject);
        life::survives_incomplete_dels(&subject);
    }
}

/// Another program adds rules to the same table and removes them.
fn writing(way: Way) -> String {
    let half = way.half();
    format!(
        "printf '*filter\\n-A OUTPUT -p 99 -j RETURN\\n-D OUTPUT -p 99 -j RETURN\\nCOMMIT\\n' | iptables-{half}-restore -n -w 60"
    )
}

#[test]
fn sixty_four_at_once_have_their_rules_once_and_leave_none() {
    for way in WAYS {
        let host = Host::new();
        let net = Net::new(&host, way, 77, json!({"ingressPolicy": "isolated"}));
        let attached: Vec<(String, Container, Value)> = (0..64)
            .map(|n| (format!("c-{n}"), host.container()))
            .map(|(id, container)| {
                let result = net.bridge.add(&host, &id, &container);
                (id, container, result)
            })
            .collect();
        let all = |work: &(dyn Fn(&str, &Container, &Value) + Sync)| {
            std::thread::scope(|scope| {
                for (id, container, result) in &attached {
                    scope.spawn(move || work(id, container, result));
                }
            });
        };
        let others = if way == Nftables { vec![] } else { vec![|| drop(host.sh(&writing(way)))] };
        while_repeating(others, || {
            all(&|id, container, result| {
                net.firewall.call(&host, "ADD", id, &container.path(), &[("prevResult", result.clone())]).ok();
            });
        });
        // Once the other program has ended: until its transaction commits, nftables lists a rule that it adds and removes.
        let after_adds = net.rules_without_counters();
        // Of each family: two rules and two markers a container, two jumps, one for the operator, three of the bridge, two ends.
        if way != Nftables {
            assert_eq!(after_adds.len(), 2 * (64 * 4 + 2 + 1 + 3 + 2), "{way:?}: {after_adds:#?}");
        }
        all(&|id, container, result| drop(net.firewall.check(&host, id, container, result).ok()));
        all(&|id, container, result| net.firewall.del(&host, id, container, result));
        assert!(
            way == Nftables || net.rules_without_counters().len() == 2 * (2 + 1 + 2),
            "{way:?}: {:#?}",
            net.rules_without_counters()
        );
        let rules = net.rules();
        assert!(!["10.77.", "fd00:77:", "cni0", "c-"].iter().any(|text| rules.contains(text)), "{way:?}: {rules}");
    }
}

#[test]
fn without_a_policy_no_bridge_is_needed() {
    for way in WAYS {
        let dir = way.directory();
        let subject = on_path(&firewall(bin(), way.backend()).with("ingressPolicy", json!("")), dir.path()).on(":");
        life::leaves_no_trace(&subject);
    }
}

/// From 0.3.0 on, which upstream refuses.
#[test]
fn every_version_is_spoken() {
    for version in ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let host = Host::new();
        let mut net = Net::new(&host, IptablesNft, 77, json!({}));
        net.bridge = net.bridge.with("cniVersion", json!(version));
        net.firewall = net.firewall.with("cniVersion", json!(version));
        let one = net.attach("c-one");
        assert!(net.names(&one));
        net.detach(&one);
        assert!(!net.names(&one), "{}", net.rules());
    }
}

#[test]
fn a_verb_starts_at_most_one_save_and_one_restore_a_family() {
    let host = Host::new();
    let net = Net::new(&host, IptablesNft, 77, json!({"ingressPolicy": "isolated"}));
    let (programs, log) = noting(host.dir());
    let counting = on_path(&net.firewall, &programs);
    let container = host.container();
    let result = net.bridge.add(&host, "c-one", &container);
    let in_order = || {
        let mut names = started(&log);
        names.sort();
        names
    };
    let reads = ["ip6tables-save", "iptables-save"];
    let add = || counting.call(&host, "ADD", "c-one", &container.path(), &[("prevResult", result.clone())]).ok();
    add();
    assert_eq!(in_order(), ["ip6tables-restore", "ip6tables-save", "iptables-restore", "iptables-save"]);
    add();
    assert_eq!(in_order(), reads);
    counting.check(&host, "c-one", &container, &result).ok();
    assert_eq!(in_order(), reads);
    counting.del(&host, "c-one", &container, &result);
    assert_eq!(in_order(), reads, "the kernel removes what was read");
    let ipv4 = json!({"cniVersion": "1.1.0", "interfaces": [{"name": "cni0"}], "ips": [{"address": "10.77.0.9/24"}]});
    counting.call(&host, "ADD", "c-four", &container.path(), &[("prevResult", ipv4)]).ok();
    assert_eq!(in_order(), ["iptables-restore", "iptables-save"]);
    let nftables = counting.with("backend", json!("nftables"));
    nftables.call(&host, "ADD", "c-none", &container.path(), &[("prevResult", result.clone())]).ok();
    nftables.check(&host, "c-none", &container, &result).ok();
    assert_eq!(in_order(), [""; 0]);
    // Without rules no program is started.
    let other = Host::new();
    counting.call(&other, "DEL", "c-one", "", &[("prevResult", result.clone())]).ok();
    counting.call(&other, "GC", "", "", &[("cni.dev/valid-attachments", json!([]))]).ok();
    assert_eq!(in_order(), [""; 0]);
}

#[test]
fn upstream_and_ours_check_and_remove_each_others_rules() {
    for (bin, way) in references().iter().flat_map(|bin| HALVES.map(|way| (bin, way))) {
        let host = Host::new();
        let mut net = Net::new(&host, way, 77, json!({"cniVersion": "1.0.0"}));
        net.bridge = net.bridge.with("cniVersion", json!("1.0.0"));
        let ours = net.firewall.clone();
        let theirs = ours.in_directory(bin.clone());
        for (adds, deletes) in [(&ours, &theirs), (&theirs, &ours)] {
            net.firewall = adds.clone();
            let one = net.attach("c-one");
            assert!(net.names(&one));
            deletes.check(&host, "c-one", &one.container, &one.result).ok();
            deletes.call(&host, "ADD", "c-one", &one.container.path(), &[("prevResult", one.result.clone())]).ok();
            adds.check(&host, "c-one", &one.container, &one.result).ok();
            deletes.del(&host, "c-one", &one.container, &one.result);
            let rules = net.rules();
            assert!(!rules.contains("-j ACCEPT"), "{way:?} by {}: {rules}", deletes.bin.display());
            ours.del(&host, "c-one", &one.container, &one.result);
            net.bridge.del(&host, "c-one", &one.container, &one.result);
            assert!(!net.names(&one), "{way:?}: {}", net.rules());
        }
    }
}

/// It may have more containers than have markers.
#[test]
fn a_bridge_isolated_by_upstream_stays_isolated() {
    for way in HALVES {
        let host = Host::new();
        let mut net = Net::new(&host, way, 77, json!({"cniVersion": "1.0.0", "ingressPolicy": "isolated"}));
        net.bridge = net.bridge.with("cniVersion", json!("1.0.0"));
        let ours = net.firewall.clone();
        net.firewall = ours.in_directory(UpstreamRelease::Newest.bin());
        net.attach("c-theirs");
        let of_bridge = || net.rules().lines().filter(|line| line.contains("cni0")).count();
        let before = of_bridge();
        let two = net.attach("c-two");
        let ours = Net { firewall: ours, _programs: way.directory(), bridge: net.bridge.clone(), ..net };
        ours.check(&two).ok();
        let own = ours.attach("c-ours");
        ours.check(&own).ok();
        ours.detach(&own);
        let after = ours.rules().lines().filter(|line| line.contains("cni0")).count();
        assert_eq!(before, after, "{way:?}: {}", ours.rules());
    }
}

#[test]
fn rules_removed_by_upstream_are_named_and_leave_no_marker() {
    let host = Host::new();
    let mut net = Net::new(&host, IptablesNft, 77, json!({"cniVersion": "1.0.0"}));
    net.bridge = net.bridge.with("cniVersion", json!("1.0.0"));
    let theirs = net.firewall.in_directory(UpstreamRelease::Newest.bin());
    let old = net.attach("c-old");
    theirs.del(&host, "c-old", &old.container, &old.result);
    net.check(&old).refused();
    old.container.sh("ip link del eth0");
    fs::remove_dir_all(host.dir().join("leases")).unwrap();
    let new = net.attach("c-new");
    assert_eq!(old.addresses(), new.addresses());
    assert!(!net.rules().contains("c-old"), "{}", net.rules());
    net.detach(&new);
    assert!(!net.names(&new));
}

#[test]
fn in_a_chain_with_other_plugins_checks_pass_and_dels_leave_nothing() {
    let firewall = |policy: &str| ("our firewall", json!({"ingressPolicy": policy}));
    stays_true(&["bridge"], RELEASES, &[("sbr", json!({})), firewall("isolated")], &[]);
    let tuning = ("our tuning", json!({"mtu": 1400}));
    stays_true(&["bridge", "ptp"], &[UpstreamRelease::Newest], &[firewall("open"), tuning], &[]);
}

#[test]
fn status_names_missing_programs_and_a_failed_add_leaves_nothing() {
    let host = Host::new();
    let net = Net::new(&host, IptablesNft, 77, json!({}));
    net.firewall.call(&host, "STATUS", "", "", &[]).ok();
    let container = host.container();
    let result = net.bridge.add(&host, "c-one", &container);
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let broken = |name: &str, line: &str| {
        PROGRAMS.iter().for_each(|one| script(dir, one, &format!("exec /usr/sbin/{one} \"$@\"")));
        script(dir, name, line);
        on_path(&net.firewall, dir)
    };
    let subject = broken("iptables-save", "echo 'no filter here' >&2; exit 3");
    let (code, text) = subject.call(&host, "STATUS", "", "", &[]).refused();
    assert!(code == 50 && text.contains("no filter here"), "{code} {text}");
    for (name, line) in [("iptables-save", "exit 3"), ("ip6tables-save", "kill -9 $$"), ("ip6tables-restore", "exit 2")]
    {
        let before = HostSnapshot::of(&host);
        let subject = broken(name, line);
        let prev = ("prevResult", result.clone());
        let (_, text) = subject.call(&host, "ADD", "c-one", &container.path(), &[prev]).refused();
        assert!(text.contains(name), "{text}");
        let left = HostSnapshot::of(&host).added_since(&before, &SHARED);
        assert!(left.is_empty(), "{name}: {left:#?}");
    }
}

/// A second ADD that fails: the first one's container may run.
#[test]
fn an_add_that_fails_leaves_a_running_container_what_it_had() {
    let host = Host::new();
    let _world = world_with_routes_back(&host);
    let net = Net::new(&host, IptablesNft, 77, json!({"ingressPolicy": "isolated"}));
    net.policy("DROP");
    let one = net.attach("c-one");
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    PROGRAMS.iter().for_each(|one| script(dir, one, &format!("exec /usr/sbin/{one} \"$@\"")));
    script(dir, "ip6tables-restore", "exit 2");
    let mut prev = one.result.clone();
    prev["ips"] = json!([{"address": "10.77.0.99/24"}, {"address": "fd00:77::99/64"}]);
    let again = on_path(&net.firewall.with("ingressPolicy", json!("open")), dir);
    again.call(&host, "ADD", "c-one", &one.container.path(), &[("prevResult", prev)]).refused();
    net.check(&one).ok();
    assert!(reaches(&one.container, &WORLD));
    assert!(!net.rules().contains("::99") && !net.rules().contains("0.99"), "{}", net.rules());
}

fn without_iptables(dir: &Path) -> String {
    format!("mount -t tmpfs none /usr/sbin && exec {}", dir.display())
}

#[test]
fn del_reaches_the_half_that_is_not_chosen_any_more_and_succeeds_without_programs() {
    for (way, other) in [(IptablesNft, IptablesLegacy), (IptablesLegacy, IptablesNft)] {
        let host = Host::new();
        let net = Net::new(&host, way, 77, json!({"ingressPolicy": "isolated"}));
        let one = net.attach("c-one");
        let bare = host.dir().join("bare");
        fs::create_dir_all(&bare).unwrap();
        let line = without_iptables(&bin().join("firewall"));
        script(&bare, "firewall", &format!("exec unshare -m sh -c '{line}'"));
        let env = [("CNI_PATH", bin().to_str().unwrap()), ("PATH", "/usr/bin:/bin")];
        let env = env.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
        net.firewall.in_directory(bare).with_env(env).del(&host, "c-one", &one.container, &one.result);
        assert!(net.names(&one), "no program could remove it");
        let dir = other.directory();
        on_path(&net.firewall, dir.path()).call(&host, "DEL", "c-one", "", &[]).ok();
        assert!(!net.names(&one), "{way:?}: {}", net.rules());
    }
}

/// A host with firewalld, which accepts no packets from other zones to the world, and the variable with the address of its bus.
fn with_firewalld(host: &Host) -> (firewalld::Bus, firewalld::FirewalldDaemon) {
    let bus = firewalld::Bus::start(host);
    let running = firewalld::FirewalldDaemon::start(host, &bus);
    host.sh(&format!(
        "DBUS_SYSTEM_BUS_ADDRESS={} dbus-send --system --print-reply --dest=org.fedoraproject.FirewallD1 \
         /org/fedoraproject/FirewallD1 org.fedoraproject.FirewallD1.zone.addInterface string:work string:world",
        bus.address
    ));
    (bus, running)
}

impl Net<'_> {
    /// The same with what firewalld's clients need.
    fn on_bus(mut self, bus: &firewalld::Bus, backend: &str) -> Self {
        self.firewall.env.push(("DBUS_SYSTEM_BUS_ADDRESS".into(), bus.address.clone()));
        self.firewall = self.firewall.with("backend", json!(backend));
        self
    }
}

/// Whether all addresses are sources of firewalld's zone. All must have the same outcome.
fn are_sources(host: &Host, bus: &firewalld::Bus, zone: &str, one: &Attached) -> bool {
    let deadline = Deadline::after(Duration::from_secs(30));
    let mut asked = host.enter(|| Firewalld::connect(Some(&bus.address), deadline)).unwrap().unwrap();
    let [a, b] = one.addresses().map(|address| {
        let address: IpAddr = address.parse().unwrap();
        asked.query_source(zone, address.into()).unwrap()
    });
    assert_eq!(a, b);
    a
}

#[test]
fn with_firewalld_the_addresses_are_sources_of_a_zone_and_what_they_send_passes() {
    let host = Host::new();
    let world = world_with_routes_back(&host);
    let (bus, _running) = with_firewalld(&host);
    for (backend, zone) in [("firewalld", "trusted"), ("", "internal")] {
        let net = Net::new(&host, Nftables, 77, json!({"firewalldZone": zone})).on_bus(&bus, backend);
        net.firewall.call(&host, "STATUS", "", "", &[]).ok();
        let container = host.container();
        let result = net.bridge.add(&host, "c-one", &container);
        let one = Attached { id: "c-one", container, result };
        assert!(!reaches(&one.container, &WORLD), "{backend:?}: nothing passes from zone to zone");
        let add =
            || net.firewall.call(&host, "ADD", "c-one", &one.container.path(), &[("prevResult", one.result.clone())]);
        add().ok();
        add().ok();
        assert!(are_sources(&host, &bus, zone, &one));
        if zone == "trusted" {
            assert!(reaches(&one.container, &WORLD), "{}", host.sh("nft list ruleset"));
            assert!(!reaches(&world, &one.addresses()), "what comes anew is the host's to say");
        }
        net.check(&one).ok();
        let deadline = Deadline::after(Duration::from_secs(30));
        let mut asked = host.enter(|| Firewalld::connect(Some(&bus.address), deadline)).unwrap().unwrap();
        let address: IpAddr = one.addresses()[1].parse().unwrap();
        asked.remove_source(zone, address.into()).unwrap();
        let (code, text) = net.check(&one).refused();
        assert!(code == 102 && text.contains(&format!("{address} is not a source of zone {zone}")), "{code} {text}");
        add().ok();
        net.check(&one).ok();
        net.firewall.call(&host, "DEL", "c-one", "", &[]).ok();
        assert!(!are_sources(&host, &bus, zone, &one));
        assert!(!host.sh("nft list ruleset").contains(&one.addresses()[0]));
        net.detach(&one);
    }
}

const IDS: [&str; 16] =
    ["c-0", "c-1", "c-2", "c-3", "c-4", "c-5", "c-6", "c-7", "c-8", "c-9", "c-a", "c-b", "c-c", "c-d", "c-e", "c-f"];

#[test]
fn sixteen_at_once_are_sources_and_none_is_left() {
    let host = Host::new();
    let (bus, _running) = with_firewalld(&host);
    let net = Net::new(&host, Nftables, 77, json!({})).on_bus(&bus, "firewalld");
    let attached: Vec<Attached> = std::thread::scope(|scope| {
        let threads = IDS.map(|id| {
            scope.spawn({
                let net = &net;
                move || net.attach(id)
            })
        });
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for_each(IDS.len(), &attached, || (), |(), one| drop(net.check(one).ok()));
    assert!(attached.iter().all(|one| are_sources(&host, &bus, "trusted", one)));
    for_each(IDS.len(), &attached, || (), |(), one| net.detach(one));
    assert!(!attached.iter().any(|one| are_sources(&host, &bus, "trusted", one)));
    let rules = host.sh("nft list ruleset");
    assert!(!rules.contains("10.77.0."), "{rules}");
}

#[test]
fn firewalld_sources_stay_with_a_new_container_and_gc_removes_stale_ones() {
    let host = Host::new();
    let (bus, _running) = with_firewalld(&host);
    let net = Net::new(&host, Nftables, 77, json!({})).on_bus(&bus, "firewalld");
    let old = net.attach("c-old");
    old.container.sh("ip link del eth0");
    fs::remove_dir_all(host.dir().join("leases")).unwrap();
    let new = net.attach("c-new");
    assert_eq!(old.addresses(), new.addresses());
    for more in [vec![], vec![("prevResult", old.result.clone())]] {
        net.firewall.call(&host, "DEL", "c-old", "", &more).ok();
        net.check(&new).ok();
    }
    let stale = net.attach("c-stale");
    net.gc(json!([{"containerID": "c-new", "ifname": "eth0"}]));
    net.check(&new).ok();
    assert!(!are_sources(&host, &bus, "trusted", &stale));
    net.firewall.with("backend", json!("iptables")).call(&host, "DEL", "c-new", "", &[]).ok();
    assert!(!are_sources(&host, &bus, "trusted", &new), "whatever is configured by then");
}

#[test]
fn upstream_and_ours_check_and_remove_each_others_firewalld_sources() {
    let host = Host::new();
    let (bus, _running) = with_firewalld(&host);
    for bin in references() {
        let mut net = Net::new(&host, Nftables, 77, json!({"cniVersion": "1.0.0"})).on_bus(&bus, "firewalld");
        net.bridge = net.bridge.with("cniVersion", json!("1.0.0"));
        let ours = net.firewall.clone();
        let theirs = ours.in_directory(bin);
        for (adds, deletes) in [(&ours, &theirs), (&theirs, &ours)] {
            net.firewall = adds.clone();
            let one = net.attach("c-one");
            deletes.check(&host, "c-one", &one.container, &one.result).ok();
            deletes.del(&host, "c-one", &one.container, &one.result);
            assert!(!are_sources(&host, &bus, "trusted", &one), "by {}", deletes.bin.display());
            ours.del(&host, "c-one", &one.container, &one.result);
            net.bridge.del(&host, "c-one", &one.container, &one.result);
        }
    }
}

#[test]
fn with_firewalld_bridges_are_cut_off_by_rules_beside_it() {
    let host = Host::new();
    let (bus, running) = with_firewalld(&host);
    let net = |number| Net::new(&host, IptablesNft, number, json!({"ingressPolicy": "same-bridge"})).on_bus(&bus, "");
    let one = net(77);
    let two = net(78);
    let from = one.attach("c-one");
    let to = two.attach("c-two");
    assert!(are_sources(&host, &bus, "trusted", &from) && are_sources(&host, &bus, "trusted", &to));
    assert!(!reaches(&from.container, &to.addresses()), "{}", one.rules());
    assert!(!one.rules().contains("ACCEPT\n-A"), "{}", one.rules());
    one.check(&from).ok();
    let open = two.firewall.with("ingressPolicy", json!("open"));
    open.call(&host, "ADD", "c-two", &to.container.path(), &[("prevResult", to.result.clone())]).ok();
    assert!(reaches(&from.container, &to.addresses()), "{}", one.rules());
    // firewalld ends, and its sources with it.
    drop(running);
    let (_, text) = one.check(&from).refused();
    assert!(text.contains("firewalld does not run, and has no zone trusted"), "{text}");
    let configured = one.firewall.with("backend", json!("firewalld"));
    let (code, text) = configured.call(&host, "STATUS", "", "", &[]).refused();
    assert!(code == 50 && text.contains("firewalld does not run"), "{code} {text}");
    one.detach(&from);
    two.detach(&to);
    assert!(!one.names(&from) && !two.names(&to), "{}", one.rules());
    assert!(!host.sh("nft list table inet cni_firewalld").contains("saddr"));
}

/// As a program does that writes into a table of iptables with nft.
fn make_incompatible(host: &Host) {
    for (family, save) in [("ip", "iptables-nft-save"), ("ip6", "ip6tables-nft-save")] {
        host.sh(&format!("nft add rule {family} filter FORWARD ct mark 5 drop"));
        let shown = host.sh(&format!("{save} -t filter"));
        assert!(shown.contains("incompatible"), "{shown}");
    }
}

#[test]
fn an_unusable_bus_blocks_no_check_or_del_that_does_not_need_it() {
    let host = Host::new();
    let net = Net::new(&host, IptablesNft, 77, json!({}));
    let silent = host.dir().join("silent");
    let _listener = UnixListener::bind(&silent).unwrap();
    for address in ["tcp:host=127.0.0.1,port=1", &format!("unix:path={}", silent.display())] {
        let one = net.attach("c-one");
        let mut automatic = net.firewall.with("backend", json!(""));
        automatic.env.push(("DBUS_SYSTEM_BUS_ADDRESS".into(), address.to_owned()));
        let begun = Instant::now();
        automatic.check(&host, "c-one", &one.container, &one.result).ok();
        automatic.del(&host, "c-one", &one.container, &one.result);
        assert!(begun.elapsed() < Duration::from_secs(25), "{address}: {:?}", begun.elapsed());
        assert!(!net.names(&one), "{}", net.rules());
        let asked = automatic.with("backend", json!("firewalld"));
        if address.starts_with("tcp") {
            for verb in ["CHECK", "DEL"] {
                let prev = ("prevResult", one.result.clone());
                let (_, text) = asked.call(&host, verb, "c-one", &one.container.path(), &[prev]).refused();
                assert!(text.contains("connect to the bus"), "{verb}: {text}");
            }
        }
        net.detach(&one);
    }
}

#[test]
fn a_table_that_iptables_cannot_read_blocks_no_del() {
    let host = Host::new();
    let [iptables, nftables] = [(IptablesNft, 77), (Nftables, 78)].map(|(way, n)| Net::new(&host, way, n, json!({})));
    let one = iptables.attach("c-one");
    let two = nftables.attach("c-two");
    let stale = nftables.attach("c-stale");
    make_incompatible(&host);
    nftables.gc(json!([{"containerID": "c-two", "ifname": "eth0"}]));
    assert!(!nftables.names(&stale) && nftables.names(&two), "{}", nftables.rules());
    nftables.check(&two).ok();
    nftables.detach(&two);
    assert!(!nftables.names(&two), "{}", nftables.rules());
    iptables.detach(&one);
}

#[test]
fn an_add_that_fails_waits_for_all_that_it_has_begun() {
    let host = Host::new();
    let net = Net::new(&host, IptablesNft, 77, json!({}));
    let container = host.container();
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let log = host.dir().join("log");
    PROGRAMS.iter().for_each(|one| script(dir, one, &format!("exec /usr/sbin/{one} \"$@\"")));
    let note = |name: &str, before: &str, word: &str| {
        let line = format!("{before} echo {word} >> {}; exec /usr/sbin/{name} \"$@\"", log.display());
        script(dir, name, &line);
    };
    script(dir, "iptables-restore", "exit 2");
    note("ip6tables-save", "", "read");
    note("ip6tables-restore", "sleep 2;", "written");
    let prev = ("prevResult", net.bridge.add(&host, "c-one", &container));
    on_path(&net.firewall, dir).call(&host, "ADD", "c-one", &container.path(), &[prev]).refused();
    let log = fs::read_to_string(log).unwrap();
    assert!(log.starts_with("read\nwritten\nread\nwritten\n"), "the roll-back waits for what it undoes: {log}");
}

#[test]
fn firewalld_sources_of_the_operator_stay() {
    let host = Host::new();
    let (bus, _running) = with_firewalld(&host);
    let net = Net::new(&host, Nftables, 77, json!({})).on_bus(&bus, "firewalld");
    let container = host.container();
    let result = net.bridge.add(&host, "c-one", &container);
    let one = Attached { id: "c-one", container, result };
    let deadline = Deadline::after(Duration::from_secs(30));
    let mut asked = host.enter(|| Firewalld::connect(Some(&bus.address), deadline)).unwrap().unwrap();
    for address in one.addresses() {
        let address: IpAddr = address.parse().unwrap();
        asked.add_source("trusted", address.into()).unwrap();
    }
    for (addresses, adds) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
        let mut prev = one.result.clone();
        prev["ips"].as_array_mut().unwrap().truncate(addresses);
        for _ in 0..adds {
            let prev = ("prevResult", prev.clone());
            net.firewall.call(&host, "ADD", "c-one", &one.container.path(), &[prev]).ok();
        }
        net.check(&one).ok();
        net.firewall.del(&host, "c-one", &one.container, &prev);
        assert!(are_sources(&host, &bus, "trusted", &one), "{addresses} {adds}");
        assert!(!host.sh("nft list table inet cni_firewalld").contains("saddr"), "no marker is left");
    }
}

#[test]
fn a_zone_that_changes_takes_the_sources_along() {
    let host = Host::new();
    let (bus, _running) = with_firewalld(&host);
    let net = |zone| Net::new(&host, Nftables, 77, json!({"firewalldZone": zone})).on_bus(&bus, "firewalld");
    let trusted = net("trusted");
    let internal = net("internal");
    let one = trusted.attach("c-one");
    let prev = ("prevResult", one.result.clone());
    internal.firewall.call(&host, "ADD", "c-one", &one.container.path(), &[prev]).ok();
    assert!(are_sources(&host, &bus, "internal", &one) && !are_sources(&host, &bus, "trusted", &one));
    internal.check(&one).ok();
    let markers = host.sh("nft list table inet cni_firewalld");
    assert!(markers.contains(" internal\"") && !markers.contains(" trusted\""), "{markers}");
    internal.firewall.call(&host, "DEL", "c-one", "", &[]).ok();
    assert!(!are_sources(&host, &bus, "internal", &one));
}

/// firewalld sleeps while it is killed: its last request is not done.
#[test]
fn a_del_that_is_killed_before_firewalld_did_its_work_leaves_that_to_the_next() {
    let host = Host::new();
    let (bus, _running) = with_firewalld(&host);
    let net = Net::new(&host, Nftables, 77, json!({})).on_bus(&bus, "firewalld");
    let one = net.attach("c-one");
    let firewalld = host.sh(&format!(
        "DBUS_SYSTEM_BUS_ADDRESS={} dbus-send --system --print-reply=literal --dest=org.freedesktop.DBus / \
         org.freedesktop.DBus.GetConnectionUnixProcessID string:org.fedoraproject.FirewallD1",
        bus.address
    ));
    let firewalld = firewalld.split_whitespace().last().unwrap();
    host.sh(&format!("kill -STOP {firewalld}"));
    let (killed, _dir) = started_by(&net.firewall, "exec timeout -s KILL 3 PLUGIN");
    drop(killed.call(&host, "DEL", "c-one", "", &[]));
    host.sh(&format!("kill -CONT {firewalld}"));
    net.firewall.call(&host, "DEL", "c-one", "", &[]).ok();
    assert!(!are_sources(&host, &bus, "trusted", &one));
    assert!(!host.sh("nft list table inet cni_firewalld").contains("saddr"));
}

/// Lines that are not empty, sorted.
fn sorted_lines(mut lines: Vec<String>) -> Vec<String> {
    lines.retain(|line| !line.trim().is_empty());
    lines.sort();
    lines
}

/// The output of `nft list ruleset` is loaded again: the parts that nft cannot print are lost.
#[test]
fn rules_that_were_saved_and_loaded_are_found_again() {
    let host = Host::new();
    let net = Net::new(&host, Nftables, 77, json!({"ingressPolicy": "isolated"}));
    let one = net.attach("c-one");
    let two = net.attach("c-two");
    let stale = net.attach("c-stale");
    let file = host.dir().join("saved");
    host.sh(&format!("nft list ruleset > {0} && nft flush ruleset && nft -f {0}", file.display()));
    let sorted = || sorted_lines(net.rules_without_counters());
    let saved = sorted();
    net.check(&one).ok();
    let prev = ("prevResult", one.result.clone());
    net.firewall.call(&host, "ADD", "c-one", &one.container.path(), &[prev]).ok();
    assert_eq!(sorted(), saved, "nothing is doubled");
    net.gc(json!([{"containerID": "c-one", "ifname": "eth0"}, {"containerID": "c-two", "ifname": "eth0"}]));
    assert!(!net.names(&stale), "{}", net.rules());
    net.detach(&one);
    assert!(!net.names(&one) && net.names(&two), "{}", net.rules());
    net.check(&two).ok();
}

#[test]
fn sources_with_reloaded_markers_are_removed_with_their_container() {
    let host = Host::new();
    let (bus, _running) = with_firewalld(&host);
    let net = Net::new(&host, Nftables, 77, json!({})).on_bus(&bus, "firewalld");
    let one = net.attach("c-one");
    let file = host.dir().join("saved");
    let table = "table inet cni_firewalld";
    host.sh(&format!("nft list {table} > {0} && nft delete {table} && nft -f {0}", file.display()));
    net.firewall.call(&host, "DEL", "c-one", "", &[]).ok();
    assert!(!are_sources(&host, &bus, "trusted", &one));
    assert!(!host.sh(&format!("nft list {table}")).contains("saddr"));
}

/// If the result cannot be written, the ADD failed.
#[test]
fn an_add_that_cannot_write_its_result_opens_no_running_container() {
    let host = Host::new();
    let net = Net::new(&host, Nftables, 77, json!({"ingressPolicy": "isolated"}));
    let one = net.attach("c-one");
    let (lost, _dir) = started_by(&net.firewall.with("ingressPolicy", json!("open")), WITHOUT_RESULT);
    let prev = ("prevResult", one.result.clone());
    let output = lost.call(&host, "ADD", "c-one", &one.container.path(), &[prev]);
    assert_ne!(output.exit, 0, "{output:?}");
    net.check(&one).ok();
}

#[test]
fn restore_repairs_existing_rules_without_duplicates() {
    let host = Host::new();
    let net = Net::new(&host, Nftables, 77, json!({"ingressPolicy": "isolated"}));
    let automatic = net.firewall.with("backend", json!(""));
    let one = net.attach("c-one");
    host.sh("nft flush set inet cni_firewall ipv4");
    automatic.check(&host, "c-one", &one.container, &one.result).refused();
    let restore = |subject: &Subject, one: &Attached| {
        let prev = ("prevResult", one.result.clone());
        subject.call(&host, "RESTORE", one.id, &one.container.path(), &[prev]).ok();
        subject.check(&host, one.id, &one.container, &one.result).ok();
    };
    restore(&automatic, &one);
    assert!(!host.sh("iptables-save -t filter").contains("c-one"));
    // With a configured backend only that one is used.
    let stand =
        || ["nft list table inet cni_firewall", "iptables-save -t filter"].map(|l| host.sh(l).contains("c-one"));
    restore(&net.firewall.with("backend", json!("iptables")), &one);
    assert_eq!(stand(), [false, true]);
    restore(&net.firewall, &one);
    assert_eq!(stand(), [true, false]);
}

#[test]
fn restore_does_without_a_firewalld_that_has_ended() {
    let host = Host::new();
    let (bus, running) = with_firewalld(&host);
    let net = Net::new(&host, IptablesNft, 77, json!({})).on_bus(&bus, "");
    let one = net.attach("c-one");
    drop(running);
    net.check(&one).refused();
    let prev = ("prevResult", one.result.clone());
    net.firewall.call(&host, "RESTORE", "c-one", &one.container.path(), &[prev]).ok();
    net.check(&one).ok();
    assert!(!host.sh("nft list table inet cni_firewalld").contains("saddr") && net.names(&one));
}

/// The backends that have rules of these attachments, each for all of them or for none: nftables, and iptables.
fn have_rules(host: &Host, all: &[&Attached]) -> [bool; 2] {
    ["nft list table inet cni_firewall", "iptables-save -t filter"].map(|line| {
        let (_, rules) = host.try_sh(line);
        let named = all.iter().filter(|one| rules.contains(one.id)).count();
        assert!(named == 0 || named == all.len(), "{rules}");
        named > 0
    })
}

#[test]
fn restore_of_many_moves_their_rules_to_the_configured_backend() {
    let ways = [(Nftables, "iptables", [false, true]), (IptablesNft, "nftables", [true, false])];
    for (policy, (before, after, stand)) in
        ["same-bridge", "isolated"].into_iter().flat_map(|one| ways.map(|way| (one, way)))
    {
        let host = Host::new();
        let net = Net::new(&host, before, 77, json!({"ingressPolicy": policy}));
        let all = [&net.attach("c-one"), &net.attach("c-two")];
        net.restore_all(&all, &[("backend", after)]);
        assert_eq!(have_rules(&host, &all), stand, "{policy}, {after}");
        let configured = net.firewall.with("backend", json!(after));
        all.iter().for_each(|one| drop(configured.check(&host, one.id, &one.container, &one.result).ok()));
    }
}

#[test]
fn restore_of_many_keeps_the_backend_of_their_rules_if_none_is_configured() {
    for (way, stand, loss) in [
        (Nftables, [true, false], "nft flush set inet cni_firewall ipv4"),
        (IptablesNft, [false, true], "iptables-nft -F CNI-FORWARD"),
    ] {
        let host = Host::new();
        let net = Net::new(&host, way, 77, json!({"ingressPolicy": "isolated"}));
        let all = [&net.attach("c-one"), &net.attach("c-two")];
        host.sh(loss);
        net.restore_all(&all, &[("backend", "")]);
        assert_eq!(have_rules(&host, &all), stand, "{way:?}");
        all.iter().for_each(|one| drop(net.check(one).ok()));
    }
}

#[test]
fn restore_of_many_writes_nothing_beside_rules_of_the_other_half() {
    for (way, other) in [(IptablesNft, IptablesLegacy), (IptablesLegacy, IptablesNft)] {
        let host = Host::new();
        let mut net = Net::new(&host, way, 77, json!({"ingressPolicy": "isolated"}));
        let all = [&net.attach("c-one"), &net.attach("c-two")];
        let programs = other.directory();
        net.firewall = on_path(&net.firewall, programs.path());
        net.restore_all(&all, &[]);
        all.iter().for_each(|one| assert!(!other.rules(&host, "filter").contains(one.id), "{way:?}"));
        all.iter().for_each(|one| drop(net.check(one).ok()));
    }
}

/// As after an operator changed the programs, added again and changed them back.
#[test]
fn of_rules_in_both_halves_check_compares_the_complete_ones() {
    for (whole, other) in [(IptablesNft, IptablesLegacy), (IptablesLegacy, IptablesNft)] {
        let host = Host::new();
        let net = Net::new(&host, whole, 77, json!({"ingressPolicy": "isolated"}));
        let programs = other.directory();
        let switched = on_path(&net.firewall, programs.path());
        let one = net.attach("c-one");
        let prev = ("prevResult", one.result.clone());
        switched.call(&host, "ADD", "c-one", &one.container.path(), &[prev]).ok();
        host.sh(&format!("iptables-{0} -F CNI-FORWARD && ip6tables-{0} -F CNI-FORWARD", other.half()));
        for subject in [&net.firewall, &switched] {
            subject.check(&host, "c-one", &one.container, &one.result).ok();
        }
        net.iptables("-D CNI-FORWARD 1");
        let (_, text) = net.check(&one).refused();
        assert!(text.contains("is missing from chain CNI-FORWARD"), "{text}");
    }
}

#[test]
fn check_needs_the_programs_of_the_half_that_has_the_rules_and_no_others() {
    for (way, other) in [(IptablesNft, IptablesLegacy), (IptablesLegacy, IptablesNft)] {
        let host = Host::new();
        let net = Net::new(&host, way, 77, json!({}));
        let one = net.attach("c-one");
        // The other half has a table as well, without rules of ours.
        other.rules(&host, "filter");
        let both = Net::new(&host, other, 78, json!({}));
        let two = both.attach("c-two");
        let prev = ("prevResult", two.result.clone());
        net.firewall.call(&host, "ADD", "c-two", &two.container.path(), &[prev]).ok();
        let bare = host.dir().join("bare");
        let kept = host.dir().join("kept");
        [&bare, &kept].iter().for_each(|dir| fs::create_dir_all(dir).unwrap());
        let line = without_iptables(&bin().join("firewall"));
        script(&bare, "firewall", &format!("exec unshare -m sh -c '{line}'"));
        let multi = format!("xtables-{}-multi", way.half());
        fs::copy(format!("/usr/sbin/{multi}"), kept.join(&multi)).unwrap();
        PROGRAMS.iter().for_each(|name| std::os::unix::fs::symlink(&multi, kept.join(name)).unwrap());
        let with = |path: &str| {
            let env = [("CNI_PATH", bin().to_str().unwrap()), ("PATH", path)];
            let env = env.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
            net.firewall.in_directory(bare.clone()).with_env(env)
        };
        let none = with("/usr/bin:/bin");
        let (code, text) = none.check(&host, "c-one", &one.container, &one.result).refused();
        assert!(code != 102 && text.contains("install the package iptables"), "{way:?}: {code} {text}");
        let half = with(&format!("{}:/usr/bin:/bin", kept.display()));
        half.check(&host, "c-two", &two.container, &two.result).ok();
    }
}

#[test]
fn of_rules_that_nobody_has_check_names_those_of_the_backend_that_add_would_choose() {
    let host = Host::new();
    let net = Net::new(&host, IptablesNft, 77, json!({}));
    let one = net.attach("c-one");
    host.sh("nft flush ruleset");
    let automatic = net.firewall.with("backend", json!(""));
    let dir = tempfile::tempdir().unwrap();
    PROGRAMS.iter().for_each(|one| script(dir.path(), one, "echo 'no such table' >&2; exit 3"));
    let broken = on_path(&automatic, dir.path());
    for (subject, place) in [(&automatic, "chain CNI-FORWARD"), (&broken, "table inet cni_firewall")] {
        let (code, text) = subject.check(&host, "c-one", &one.container, &one.result).refused();
        assert!(code == 102 && text.contains(place), "{code} {text}");
    }
}

/// Programs of the legacy half. The first so many times, before they write, another program removes a rule of cni0.
fn overtaken(times: usize) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in PROGRAMS {
        let named = name.replace("tables", "tables-legacy");
        let of_half = format!("/usr/sbin/{named}");
        let before = match of_half.strip_suffix("-restore") {
            Some(program) => format!(
                "echo >>{0}; [ $(wc -l <{0}) -gt {times} ] || \
                 eval {program} -w \"$({program} -w -S | grep -m 1 '^-A CNI-ISOLATION.* cni0 ' | sed s/^-A/-D/)\";",
                dir.path().join(format!("{name}.calls")).display()
            ),
            None => String::new(),
        };
        let line = format!("{before} exec {of_half} \"$@\"");
        [name, &named].iter().for_each(|file| script(dir.path(), file, &line));
    }
    dir
}

#[test]
fn an_add_or_del_that_another_program_overtakes_begins_again() {
    for (verb, times) in [("ADD", 1), ("ADD", 2), ("DEL", 1)] {
        let host = Host::new();
        let net = Net::new(&host, IptablesLegacy, 77, json!({"ingressPolicy": "isolated"}));
        let one = net.attach("c-one");
        let dir = overtaken(times);
        let open = on_path(&net.firewall.with("ingressPolicy", json!("open")), dir.path());
        let prev = ("prevResult", one.result.clone());
        open.call(&host, verb, "c-one", &one.container.path(), &[prev]).ok();
        for program in ["iptables-restore", "ip6tables-restore"] {
            let calls = fs::read_to_string(dir.path().join(format!("{program}.calls"))).unwrap();
            assert_eq!(calls.lines().count(), times + 1, "{verb} {program}");
        }
        assert!(!net.rules().contains("cni0"), "{verb}: {}", net.rules());
        assert_eq!(net.names(&one), verb == "ADD", "{verb}: {}", net.rules());
    }
}

#[test]
fn an_error_of_iptables_says_what_to_do() {
    let host = Host::new();
    let net = Net::new(&host, IptablesNft, 77, json!({}));
    for (said, advice) in [
        ("no filter here", "run `iptables -t filter -S` on the node, or set"),
        ("can not initialize: do you need to insmod?", "load these modules, or set"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        PROGRAMS.iter().for_each(|one| script(dir.path(), one, &format!("echo '{said}' >&2; exit 3")));
        let (code, text) = on_path(&net.firewall, dir.path()).call(&host, "STATUS", "", "", &[]).refused();
        assert!(code == 50 && text.contains(said) && text.contains(advice), "{code} {text}");
    }
    let one = net.attach("c-one");
    let dir = tempfile::tempdir().unwrap();
    for name in PROGRAMS {
        let end = if name.ends_with("-save") { " | sed -e /CNI-/d" } else { "" };
        scripts(dir.path(), name, &format!("/usr/sbin/{name} \"$@\"{end}"));
    }
    let (code, text) = on_path(&net.firewall, dir.path()).check(&host, "c-one", &one.container, &one.result).refused();
    assert!(code != 102 && text.contains("did not print chain CNI-") && text.contains("try again"), "{code} {text}");
}

#[test]
fn a_table_of_another_program_is_an_error_and_no_feature_that_the_kernel_lacks() {
    for (family, set, policy) in [("inet", "ipv4", "open"), ("bridge", "isolated", "isolated")] {
        let host = Host::new();
        let net = Net::new(&host, Nftables, 77, json!({"ingressPolicy": policy}));
        let one = net.attach("c-one");
        let table = format!("{family} cni_firewall");
        host.sh(&format!(
            "nft delete table {table}; nft add table {table} && nft add set {table} {set} '{{ type ether_addr; }}'"
        ));
        let verbs: &[&str] = if family == "inet" { &["ADD", "CHECK", "STATUS"] } else { &["ADD", "CHECK"] };
        for verb in verbs {
            let prev = ("prevResult", one.result.clone());
            let (_, text) = net.firewall.call(&host, verb, "c-one", &one.container.path(), &[prev]).refused();
            let said = format!("set {set} of table {table}\": its keys are of another type");
            assert!(text.contains(&said) && !text.contains("load these modules"), "{verb}: {text}");
        }
    }
}

#[test]
fn a_bridge_whose_name_is_a_pattern_of_iptables_is_isolated_by_nftables_alone() {
    for way in [Nftables, IptablesNft] {
        let host = Host::new();
        let mut net = Net::new(&host, way, 77, json!({"ingressPolicy": "isolated"}));
        net.bridge = net.bridge.with("bridge", json!("cni+"));
        let container = host.container();
        let prev = ("prevResult", net.bridge.add(&host, "c-one", &container));
        let output = net.firewall.call(&host, "ADD", "c-one", &container.path(), &[prev]);
        if way == Nftables {
            output.ok();
        } else {
            let (_, text) = output.refused();
            assert!(text.contains("\"cni+\" as a pattern for all links"), "{text}");
            assert!(!net.rules().contains("cni+"), "{}", net.rules());
        }
    }
}

#[test]
fn an_add_that_fails_leaves_sources_in_the_zone_where_they_were() {
    let host = Host::new();
    let (bus, _running) = with_firewalld(&host);
    let net = Net::new(&host, Nftables, 77, json!({})).on_bus(&bus, "firewalld");
    let one = net.attach("c-one");
    let (lost, _dir) = started_by(&net.firewall.with("firewalldZone", json!("internal")), WITHOUT_RESULT);
    for was_in_zone in [true, false] {
        let prev = || ("prevResult", one.result.clone());
        let output = lost.call(&host, "ADD", "c-one", &one.container.path(), &[prev()]);
        assert_ne!(output.exit, 0, "{output:?}");
        assert_eq!(are_sources(&host, &bus, "trusted", &one), was_in_zone);
        assert!(!are_sources(&host, &bus, "internal", &one));
        net.firewall.call(&host, "DEL", "c-one", "", &[prev()]).ok();
    }
}

#[test]
fn a_del_that_cannot_reach_the_bus_leaves_the_sources_to_the_next() {
    let host = Host::new();
    let (bus, _running) = with_firewalld(&host);
    let net = Net::new(&host, Nftables, 77, json!({})).on_bus(&bus, "");
    let one = net.attach("c-one");
    let mut cut_off = net.firewall.clone();
    cut_off.env.push(("DBUS_SYSTEM_BUS_ADDRESS".into(), "tcp:host=127.0.0.1,port=1".into()));
    let (_, text) = cut_off.call(&host, "DEL", "c-one", "", &[]).refused();
    assert!(text.contains("connect to the bus"), "{text}");
    assert!(are_sources(&host, &bus, "trusted", &one));
    net.firewall.call(&host, "DEL", "c-one", "", &[]).ok();
    assert!(!are_sources(&host, &bus, "trusted", &one));
}

/// As those of the upstream plugin.
#[test]
fn sources_without_a_marker_are_known_and_removed_if_firewalld_may_be_the_backend() {
    let host = Host::new();
    let (bus, _running) = with_firewalld(&host);
    let net = Net::new(&host, Nftables, 77, json!({})).on_bus(&bus, "");
    let one = net.attach("c-one");
    host.sh("nft delete table inet cni_firewalld");
    net.check(&one).ok();
    for (backend, stay) in [("iptables", true), ("nftables", true), ("", false)] {
        let prev = ("prevResult", one.result.clone());
        net.firewall.with("backend", json!(backend)).call(&host, "DEL", "c-one", "", &[prev]).ok();
        assert_eq!(are_sources(&host, &bus, "trusted", &one), stay, "{backend:?}");
    }
}

#[test]
fn a_firewalld_that_starts_later_changes_nothing_until_the_rules_are_gone() {
    let host = Host::new();
    let net = Net::new(&host, Nftables, 77, json!({}));
    let all = [&net.attach("c-one"), &net.attach("c-two")];
    let (bus, running) = with_firewalld(&host);
    let net = net.on_bus(&bus, "");
    all.iter().for_each(|one| drop(net.check(one).ok()));
    drop(running);
    host.sh("nft flush ruleset");
    let _running = firewalld::FirewalldDaemon::start(&host, &bus);
    net.restore_all(&all, &[]);
    assert!(all.iter().all(|one| are_sources(&host, &bus, "trusted", one) && !net.rules().contains(one.id)));
}

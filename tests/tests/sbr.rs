//! sbr: by which interface containers reply, what it takes and gives back, and what it leaves to other programs.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

use cnikit_testkit::{Container, Host, HostSnapshot, Subject};
use cnikit_tests::campaign_subjects::{ROUTED_INTERFACE, addressed, routed_interface, source_routing};
use cnikit_tests::state_files::{changes_nothing_in_a_dry_run, forgets_an_earlier_boot, state_file};
use cnikit_tests::world::{UNTIL_DETECTED, ping, ping_once, undisturbed, world};
use cnikit_tests::{bin, references, subject};
use serde_json::{Value, json};

/// sbr with these keys, on this host, behind a plugin that made `eth0` with addresses and routes of both families.
fn sbr(host: &Host, keys: &Value) -> Subject {
    let mut subject = subject("sbr", json!({"dataDir": "$DIR/sbr"})).after(ROUTED_INTERFACE, routed_interface());
    subject = subject.at(host.dir());
    for (key, value) in keys.as_object().unwrap() {
        subject = subject.with(key, value.clone());
    }
    subject
}

/// A host with a container that has such an interface, and how the container was.
struct Scene {
    host: Host,
    container: Container,
    inside: HostSnapshot,
}

impl Scene {
    fn new() -> Scene {
        Scene::with(":")
    }

    /// With more in the container.
    fn with(line: &str) -> Scene {
        let host = Host::new();
        let container = sbr(&host, &json!({})).container(&host);
        container.sh(line);
        container.sh(UNTIL_DETECTED);
        Scene { inside: HostSnapshot::inside(&container), container, host }
    }

    fn sbr(&self, keys: &Value) -> Subject {
        sbr(&self.host, keys)
    }

    fn add(&self, keys: &Value) -> Value {
        self.sbr(keys).add(&self.host, "c-one", &self.container)
    }

    fn del(&self) {
        self.sbr(&json!({})).call(&self.host, "DEL", "c-one", &self.container.path(), &[]).ok();
    }

    /// The result of the plugin before, with changed addresses.
    fn prev(&self, change: impl FnOnce(&mut Vec<Value>)) -> [(&'static str, Value); 1] {
        let mut result = addressed();
        change(result["ips"].as_array_mut().unwrap());
        let text = result.to_string().replace("$NETNS", &self.container.path());
        [("prevResult", serde_json::from_str(&text).unwrap())]
    }

    fn has(&self, line: &str, text: &str) -> bool {
        self.container.sh(line).contains(text)
    }

    fn assert_given_back(&self, when: &str) {
        HostSnapshot::inside(&self.container).assert_unchanged_since(&self.inside, &[], when);
        assert_eq!(std::fs::read_dir(self.host.dir().join("sbr")).unwrap().count(), 0, "{when}");
    }
}

/// A bridge of the host's with this name, whose container's interface has these addresses.
fn bridge(host: &Host, name: &str, number: u8, routes: &Value) -> Subject {
    let addresses = json!([
        {"address": format!("10.{number}.0.2/24"), "gateway": format!("10.{number}.0.1")},
        {"address": format!("fd00:{number}::2/64"), "gateway": format!("fd00:{number}::1")}]);
    let ipam = json!({"type": "static", "addresses": addresses, "routes": routes});
    subject("bridge", json!({"bridge": name, "name": name, "isGateway": true, "ipam": ipam})).at(host.dir())
}

fn on(subject: &Subject, ifname: &str) -> Subject {
    subject.with_env(vec![("CNI_IFNAME".into(), ifname.into())])
}

/// A container on two bridges, of which the first has its default routes. The host drops what leaves by the wrong one. A third
/// network asks.
struct TwoBridges {
    host: Host,
    world: Container,
    container: Container,
    second: Subject,
    result: Value,
}

const ADDRESSES: [&str; 2] = ["10.78.0.2", "fd00:78::2"];

impl TwoBridges {
    fn new() -> TwoBridges {
        let host = Host::new();
        let world = world(&host);
        let container = host.container();
        let defaults = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
        on(&bridge(&host, "br-one", 77, &defaults), "eth0").add(&host, "c-one", &container);
        let second = on(&bridge(&host, "br-two", 78, &json!([])), "net1");
        let result = second.add(&host, "c-one", &container);
        for line in [UNTIL_DETECTED, "ip route add default via 192.0.2.1", "ip route add default via 2001:db8:9::1"] {
            world.sh(line);
        }
        host.sh(UNTIL_DETECTED);
        container.sh(UNTIL_DETECTED);
        host.sh(
            "nft 'table inet strict { chain prerouting { type filter hook prerouting priority -300;
                 iifname \"br-one\" ip saddr 10.78.0.0/24 counter drop; iifname \"br-one\" ip6 saddr fd00:78::/64 counter drop; }; }'",
        );
        TwoBridges { host, world, container, second, result }
    }

    fn sbr(&self) -> Subject {
        let sbr = subject("sbr", json!({"name": "br-two", "dataDir": "$DIR/sbr", "prevResult": self.result}));
        on(&sbr, "net1").at(self.host.dir())
    }

    fn is_reached(&self) -> [bool; 2] {
        ADDRESSES.map(|address| self.world.try_sh(&ping_once(address)).0)
    }
}

#[test]
fn replies_leave_by_the_interface_that_the_request_came_in_by() {
    let two = TwoBridges::new();
    assert_eq!(two.is_reached(), [false; 2], "without sbr replies leave by the first interface");
    let sbr = two.sbr();
    let result = undisturbed(&two.world, "10.77.0.2", || sbr.add(&two.host, "c-one", &two.container));
    for address in ADDRESSES {
        two.world.sh(&ping(address));
    }
    for address in ["10.77.0.2", "fd00:77::2"] {
        two.world.sh(&ping(address));
    }
    // What the container sends of its own accord leaves by the first one.
    assert!(two.container.sh("ip route get 192.0.2.2").contains("dev eth0"));
    assert!(two.container.sh("ip route get 192.0.2.2 from 10.78.0.2").contains("dev net1"));
    sbr.check(&two.host, "c-one", &two.container, &result).ok();
    sbr.del(&two.host, "c-one", &two.container, &result);
    assert_eq!(two.is_reached(), [false; 2], "after DEL as before");
    two.world.sh(&ping("10.77.0.2"));
    two.second.del(&two.host, "c-one", &two.container, &two.result);
}

#[test]
fn a_repeated_add_adds_nothing_and_one_with_other_keys_changes_what_differs() {
    let scene = Scene::new();
    scene.add(&json!({}));
    let once = HostSnapshot::inside(&scene.container);
    scene.add(&json!({}));
    HostSnapshot::inside(&scene.container).assert_unchanged_since(&once, &[], "after a second ADD");
    scene.add(&json!({"gateways": ["10.77.0.9"]}));
    assert!(scene.has("ip route show table 100", "default via 10.77.0.9"));
    assert!(!scene.has("ip route show table 100", "default via 10.77.0.1"));
    scene.add(&json!({"table": 300}));
    assert!(scene.has("ip rule", "from 10.77.0.2 lookup 300 proto 203"));
    assert!(!scene.has("ip rule", "lookup 100"));
    assert!(scene.has("ip route", "default via 10.77.0.1"), "what was moved is back");
    assert_eq!(scene.container.sh("ip route show table 100 2>&1 || :").trim(), "");
    scene.del();
    scene.assert_given_back("after DEL");
}

#[test]
fn static_gateways_replace_those_of_the_addresses() {
    let scene = Scene::new();
    scene.add(&json!({"gateways": ["fd00:77::9", "10.77.0.9"]}));
    for (table, gateway) in [(100, "10.77.0.9"), (101, "fd00:77::9")] {
        let family = if table == 100 { "-4" } else { "-6" };
        let default = scene.container.sh(&format!("ip {family} route show default table {table}"));
        assert!(default.contains(gateway) && default.lines().count() == 1, "{default}");
    }
    scene.del();
    scene.assert_given_back("after DEL");
}

#[test]
fn a_gateway_in_no_subnet_is_on_the_link() {
    let scene = Scene::new();
    scene.add(&json!({"gateways": ["198.51.100.1", "fd00:77::9"]}));
    let default = |family: &str, table| scene.container.sh(&format!("ip {family} route show default table {table}"));
    assert_eq!(default("-4", 100).trim_end(), "default via 198.51.100.1 dev eth0 proto 203 onlink");
    let near = default("-6", 101);
    assert!(near.contains("via fd00:77::9 dev eth0 proto 203") && !near.contains("onlink"), "{near}");
    scene.del();
    scene.assert_given_back("after DEL");
}

#[test]
fn source_hints_keep_the_subnets_in_the_main_table() {
    let scene = Scene::new();
    scene.add(&json!({"addSourceHints": true}));
    assert!(scene.has("ip route", "10.77.0.0/24 dev eth0 proto kernel scope link src 10.77.0.2"));
    assert!(scene.has("ip -6 route", "fd00:77::/64 dev eth0 proto 203 src fd00:77::2"));
    assert!(!scene.has("ip route", "default") && !scene.has("ip -6 route", "default"));
    assert!(!scene.has("ip -6 route", "proto kernel metric 256 pref medium\nfd09"));
    scene.del();
    scene.assert_given_back("after DEL");
}

#[test]
fn each_subnet_of_an_interface_has_a_hint() {
    let scene = Scene::with("ip address add fd00:99::5/64 dev eth0 nodad");
    let prev = scene.prev(|ips| ips.push(json!({"address": "fd00:99::5/64", "interface": 1})));
    let sbr = scene.sbr(&json!({"addSourceHints": true}));
    sbr.call(&scene.host, "ADD", "c-one", &scene.container.path(), &prev).ok();
    for (subnet, source) in [("fd00:77::/64", "fd00:77::2"), ("fd00:99::/64", "fd00:99::5")] {
        assert!(scene.has("ip -6 route", &format!("{subnet} dev eth0 proto 203 src {source}")), "{subnet}");
    }
    scene.del();
    scene.assert_given_back("after DEL");
}

/// Upstream's plugin stores nothing. Each other rule differs from its rules in one thing.
#[test]
fn rules_of_upstream_go_with_our_del_and_others_stay() {
    for upstream in references() {
        let scene = Scene::with(
            "ip rule add from 192.0.2.7 lookup 120 protocol 0 priority 401; \
             ip rule add from 10.77.0.2 fwmark 7 lookup 120 protocol 0 priority 402; \
             ip rule add from 10.77.0.2 lookup main protocol 0 priority 403; \
             ip rule add from 10.77.0.2 lookup 120 protocol 77 priority 404",
        );
        let rules = || scene.container.sh("ip rule; ip -6 rule");
        let before = rules();
        assert_eq!(before.matches("from 10.77.0.2").count(), 3, "{before}");
        let ours = scene.sbr(&json!({"cniVersion": "1.0.0"}));
        let result = ours.in_directory(upstream.clone()).add(&scene.host, "c-one", &scene.container);
        assert_eq!(rules().lines().count(), before.lines().count() + 2, "{}: {}", upstream.display(), rules());
        let call = |prev: &[(&str, Value)]| ours.call(&scene.host, "DEL", "c-one", &scene.container.path(), prev).ok();
        call(&[]);
        assert_ne!(rules(), before, "without prevResult the path may be another container's");
        call(&[("prevResult", result)]);
        assert_eq!(rules(), before, "{}", upstream.display());
    }
}

/// `prevResult` names a link-local address too, which then has a table as any other.
#[test]
fn link_local_gateways_serve_every_address() {
    let scene = Scene::with("ip address add fe80::5/64 dev eth0 nodad");
    let prev = scene.prev(|ips| ips.push(json!({"address": "fe80::5/64", "interface": 1})));
    scene.sbr(&json!({})).call(&scene.host, "ADD", "c-one", &scene.container.path(), &prev).ok();
    for (address, table) in [("fd00:77::2", 101), ("fe80::5", 102)] {
        assert!(scene.has("ip -6 rule", &format!("from {address} lookup {table} proto 203")), "{address}");
        assert!(scene.has(&format!("ip -6 route show table {table}"), "fd09::/64 via fe80::9"), "{address}");
        assert!(scene.has(&format!("ip -6 route get fd09::1 from {address}"), "via fe80::9"), "{address}");
    }
    assert!(!scene.has("ip -6 route show table 102", "default"), "its gateway is in the other address's subnet");
    assert!(!scene.has("ip -6 route show table main", "fd09::/64"));
    scene.sbr(&json!({})).call(&scene.host, "CHECK", "c-one", &scene.container.path(), &prev).ok();
    scene.del();
    scene.assert_given_back("after DEL");
}

/// Tables that a rule names, that have a route of either family, and the highest priority: none is taken.
#[test]
fn tables_and_priorities_of_other_programs_are_neither_taken_nor_removed() {
    let scene = Scene::with(
        "ip rule add from 192.0.2.7 lookup 100 priority 500; ip -6 rule add from 2001:db8::7 lookup 101; \
         ip route add 192.0.2.0/24 dev eth0 table 102; ip route add 2001:db8::/64 dev eth0 table 103; \
         ip rule add from 10.77.0.2 lookup 110 priority 400; ip rule add from all fwmark 7 lookup 104 priority 399",
    );
    scene.add(&json!({}));
    assert!(scene.has("ip rule", "398:	from 10.77.0.2 lookup 105 proto 203"), "{}", scene.container.sh("ip rule"));
    assert!(scene.has("ip -6 rule", "from fd00:77::2 lookup 106 proto 203"), "{}", scene.container.sh("ip -6 rule"));
    for line in ["ip rule add from 10.77.0.2 lookup 105", "ip route add 192.0.2.9 dev eth0 table 105"] {
        scene.container.sh(line);
    }
    scene.del();
    assert!(!scene.has("ip rule", "proto 203"));
    assert!(scene.has("ip rule", "from 10.77.0.2 lookup 105"), "of another program, though alike");
    assert!(scene.has("ip route show table 105", "192.0.2.9"));
    scene.container.sh("ip rule del from 10.77.0.2 lookup 105; ip route flush table 105");
    scene.assert_given_back("after DEL");
}

#[test]
fn two_interfaces_of_one_container_at_once_have_tables_of_their_own() {
    let scene = Scene::with(
        "ip link add net1 type veth peer name peer1 && ip link set peer1 up && ip link set net1 up && \
         ip address add 10.79.0.2/24 dev net1",
    );
    let second = json!({"cniVersion": "1.1.0", "interfaces": [{"name": "net1", "sandbox": scene.container.path()}],
        "ips": [{"address": "10.79.0.2/24", "gateway": "10.79.0.1", "interface": 0}]});
    let other = on(&subject("sbr", json!({"dataDir": "$DIR/sbr", "name": "other", "prevResult": second})), "net1");
    let other = other.at(scene.host.dir());
    std::thread::scope(|scope| {
        let one = scope.spawn(|| scene.add(&json!({})));
        other.call(&scene.host, "ADD", "c-one", &scene.container.path(), &[]).ok();
        one.join().unwrap();
    });
    let rules = scene.container.sh("(ip rule; ip -6 rule) | grep -o 'lookup .* proto 203' | sort -u");
    assert_eq!(rules.lines().count(), 3, "{rules}");
    let routes = scene.container.sh("ip rule | grep 10.79.0.2");
    let table = routes.split_whitespace().nth(4).unwrap().to_owned();
    assert!(!scene.has(&format!("ip route show table {table}"), "eth0"));
    other.call(&scene.host, "DEL", "c-one", &scene.container.path(), &[]).ok();
    scene.del();
    scene.assert_given_back("after both DELs");
}

/// All properties come along, and come back: metric, MTU, type of service, next hops, onlink, preference.
#[test]
fn routes_are_copied_and_given_back_with_all_their_properties() {
    let scene = Scene::with(
        "ip route add 10.1.0.0/16 via 10.77.0.1 tos 8 metric 3 initcwnd 20 advmss 1300; \
         ip route add 10.2.0.0/16 nexthop via 10.77.0.1 weight 2 nexthop via 10.77.0.9; \
         ip route add 10.3.0.0/16 via 192.0.2.1 dev eth0 onlink; \
         ip route add 10.4.0.0/16 via inet6 fe80::9 dev eth0; \
         ip -6 route add fd01::/64 nexthop via fd00:77::1 nexthop via fd00:77::9 weight 3; \
         ip -6 route add fd02::/64 via fd00:77::1 hoplimit 7 pref high; \
         ip route add 10.6.0.0/16 via 10.77.0.1; ip route append 10.6.0.0/16 via 10.77.0.9",
    );
    let of = |main: bool| {
        let table = |id: u32| if main { "main".to_owned() } else { id.to_string() };
        let text = scene.container.sh(&format!(
            "(ip -4 route show table {}; ip -6 route show table {}) | grep -E '^(10.[1-6]|fd0[12]|.nexthop)'",
            table(100),
            table(101)
        ));
        text.lines().map(str::trim).map(str::to_owned).collect::<Vec<_>>()
    };
    let before = of(true);
    assert!(before.len() >= 10, "{before:?}");
    scene.add(&json!({}));
    assert_eq!(of(false), before);
    assert_eq!(scene.container.sh("ip route; ip -6 route show table main | grep -v ^fe80 || :").trim(), "");
    scene.del();
    assert_eq!(of(true), before);
    scene.assert_given_back("after DEL");
}

#[test]
fn routes_of_other_interfaces_stay_though_they_share_a_destination() {
    let scene = Scene::with(
        "ip link add net1 type veth peer name peer1 && ip link set peer1 up && ip link set net1 up && \
         ip address add 10.79.0.2/24 dev net1 && ip address add fd00:79::2/64 dev net1 nodad && \
         ip route add default via 10.79.0.1 metric 9 && ip route append default via 10.79.0.9 metric 9 && \
         ip -6 route append default via fd00:79::1 && \
         ip route add 10.5.0.0/16 nexthop via 10.77.0.1 dev eth0 nexthop via 10.79.0.1 dev net1",
    );
    scene.add(&json!({}));
    let main = scene.container.sh("ip route; ip -6 route");
    for wanted in
        ["default via 10.79.0.1 dev net1 metric 9", "default via 10.79.0.9", "default via fd00:79::1 dev net1"]
    {
        assert!(main.contains(wanted), "{main}");
    }
    assert!(main.contains("nexthop via 10.77.0.1 dev eth0"), "of two interfaces: it stays whole: {main}");
    assert!(!main.contains("default via fd00:77::1"), "{main}");
    scene.del();
    assert!(scene.has("ip -6 route", "nexthop via fd00:77::1 dev eth0"));
    scene.assert_given_back("after DEL");
}

/// A file of ours that lists what is another program's by now removes nothing of it.
#[test]
fn what_another_program_has_changed_since_stays() {
    let scene = Scene::new();
    scene.add(&json!({}));
    scene.container.sh("ip rule del from 10.77.0.2 && ip rule add from 10.77.0.2 lookup 100 priority 32765 && \
         ip route replace default via 10.77.0.7 table 100 && ip route add default via 10.77.0.8 dev eth0 onlink");
    scene.del();
    assert!(scene.has("ip rule", "32765:	from 10.77.0.2 lookup 100"), "its protocol is ip's");
    assert!(scene.has("ip route show table 100", "default via 10.77.0.7"));
    assert!(scene.has("ip route", "default via 10.77.0.8 dev eth0 onlink"));
}

#[test]
fn a_del_gives_back_what_it_can_where_the_interface_is_down_or_gone() {
    let down = Scene::new();
    down.add(&json!({}));
    down.container.sh("ip link set eth0 down");
    down.del();
    assert!(!down.has("ip rule", "proto 203") && !down.has("ip -6 rule", "proto 203"));
    let gone = Scene::new();
    gone.add(&json!({}));
    gone.container.sh("ip link del eth0");
    gone.del();
    assert!(!gone.has("ip rule", "proto 203") && !gone.has("ip -6 rule", "proto 203"));
    let readdressed = Scene::new();
    readdressed.add(&json!({}));
    readdressed.container.sh("ip address del 10.77.0.2/24 dev eth0");
    readdressed.del();
    assert!(!readdressed.has("ip rule", "proto 203"));
    assert!(readdressed.has("ip -6 route", "default via fd00:77::1"));
}

#[test]
fn an_add_that_fails_late_leaves_the_container_as_it_was() {
    let scene = Scene::new();
    // The kernel refuses a group as gateway, after other routes were added.
    let said = scene.sbr(&json!({"gateways": ["224.0.0.1"]}));
    let (code, text) = said.call(&scene.host, "ADD", "c-one", &scene.container.path(), &[]).refused();
    assert!(code == 100 && text.contains("add route"), "{code} {text}");
    scene.assert_given_back("after a failed ADD");
}

#[test]
fn gc_gives_back_what_is_not_valid_and_leaves_the_others() {
    let scene = Scene::new();
    scene.add(&json!({}));
    let gc = |valid: Value| {
        scene.sbr(&json!({})).call(&scene.host, "GC", "", "", &[("cni.dev/valid-attachments", valid)]).ok();
    };
    gc(json!([{"containerID": "c-one", "ifname": "eth0"}]));
    assert!(scene.has("ip rule", "proto 203"));
    gc(json!([]));
    scene.assert_given_back("after GC");
}

/// Podman starts a container anew under its ID, also if the DEL of the one before it was lost.
#[test]
fn what_is_stored_of_a_container_that_has_ended_is_not_given_to_the_next_one() {
    let Scene { host, container, .. } = Scene::with("ip route add 10.88.0.0/16 via 10.77.0.1");
    sbr(&host, &json!({})).add(&host, "c-one", &container);
    drop(container);
    let container = sbr(&host, &json!({})).container(&host);
    container.sh(UNTIL_DETECTED);
    let scene = Scene { inside: HostSnapshot::inside(&container), container, host };
    scene.add(&json!({}));
    scene.del();
    scene.assert_given_back("after DEL");
}

#[test]
fn an_add_of_an_interface_that_lost_its_addresses_takes_back_what_an_earlier_one_made() {
    let scene = Scene::new();
    scene.add(&json!({}));
    let prev = scene.prev(|ips| *ips = vec![json!({"address": "10.78.0.2/24", "interface": 0})]);
    scene.sbr(&json!({})).call(&scene.host, "ADD", "c-one", &scene.container.path(), &prev).ok();
    HostSnapshot::inside(&scene.container).assert_unchanged_since(&scene.inside, &[], "after the second ADD");
    scene.del();
    scene.assert_given_back("after DEL");
}

#[test]
fn no_address_of_the_interface_in_the_result_changes_nothing() {
    let scene = Scene::new();
    let host_only = json!({"cniVersion": "1.1.0", "interfaces": [{"name": "eth0"}],
        "ips": [{"address": "10.77.0.2/24", "interface": 0}]});
    let subject = scene.sbr(&json!({}));
    subject.call(&scene.host, "ADD", "c-one", &scene.container.path(), &[("prevResult", host_only)]).ok();
    HostSnapshot::inside(&scene.container).assert_unchanged_since(&scene.inside, &[], "after ADD");
}

#[test]
fn no_file_comes_to_be_where_the_namespace_was() {
    let scene = Scene::new();
    let path = scene.host.dir().join("namespace-that-is-gone");
    scene.sbr(&json!({})).call(&scene.host, "DEL", "c-one", path.to_str().unwrap(), &[]).ok();
    assert!(!path.exists());
    scene.sbr(&json!({})).call(&scene.host, "DEL", "c-one", "", &[]).ok();
}

#[test]
fn a_file_of_a_later_version_is_refused_by_add_and_no_obstacle_to_del() {
    let scene = Scene::new();
    let result = scene.add(&json!({}));
    let file = state_file(&scene.sbr(&json!({})));
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replacen(r#""version":1"#, r#""version":2"#, 1)).unwrap();
    for verb in ["ADD", "CHECK"] {
        let subject = scene.sbr(&json!({}));
        let prev = [("prevResult", result.clone())];
        let (_, said) = subject.call(&scene.host, verb, "c-one", &scene.container.path(), &prev).refused();
        assert!(said.contains("version 2"), "{verb}: {said}");
    }
    std::fs::write(&file, "{").unwrap();
    scene.del();
    assert!(!file.exists());
}

#[test]
fn state_of_an_earlier_boot_is_removed_and_nothing_is_given_back() {
    forgets_an_earlier_boot(&source_routing(bin()));
}

#[test]
fn a_dry_run_changes_nothing() {
    changes_nothing_in_a_dry_run(&source_routing(bin()));
}

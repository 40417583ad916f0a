//! ipvlan: ADD, CHECK and DEL, alone and in a chain; masters, modes, and which hosts can reach each other. And tests shared with
//! macvlan on a master whose wire leads nowhere.

use cnikit_testkit::campaign::case_limit;
use cnikit_testkit::life::{self, Tampering};
use cnikit_testkit::need::Need;
use cnikit_testkit::{Host, Subject, errno, fault, flood, kill};
use cnikit_tests::upper::{self, FIRST, GATEWAYS, Lan, SECOND};
use cnikit_tests::world::ping;
use cnikit_tests::{HOST_LOCAL, MASTER, ipvlan, macvlan, subject};
use serde_json::{Value, json};

use crate::test::{Test, test};

pub(crate) const TESTS: &[Test] = &[
    test!(an_attachment_leaves_no_trace needs Need::IPVLAN),
    test!(a_chained_attachment_leaves_no_trace needs Need::IPVLAN),
    test!(del_succeeds_with_incomplete_input needs Need::IPVLAN),
    test!(eight_at_once_get_eight_addresses needs Need::IPVLAN),
    test!(no_flood_leaves_an_orphan_or_gives_an_address_twice needs Need::IPVLAN),
    test!(it_is_killed_at_some_calls needs Need::IPVLAN),
    test!(it_is_terminated_at_some_moments needs Need::IPVLAN),
    test!(it_lacks_memory_or_files needs Need::IPVLAN),
    test!(it_meets_some_errors needs Need::IPVLAN),
    test!(check_names_what_was_tampered_with needs Need::IPVLAN),
    test!(containers_reach_each_other_and_outside_as_the_mode_says needs Need::IPVLAN),
    test!(a_chained_call_passes_the_result_on_and_uses_its_addresses needs Need::IPVLAN),
    test!(invalid_configurations_are_refused_before_anything_is_made needs Need::IPVLAN),
    test!(another_mode_than_that_of_the_running_ones_is_refused needs Need::IPVLAN),
    test!(a_master_may_be_an_ipvlan_itself needs Need::IPVLAN),
    test!(a_master_may_be_in_the_container needs Need::IPVLAN),
    test!(the_host_may_have_a_link_of_the_same_name needs Need::IPVLAN, Need::MACVLAN),
    test!(a_taken_address_is_refused_and_released_unless_detection_is_off needs Need::IPVLAN),
    test!(macvlan_and_ipvlan_exclude_each_other_on_a_master needs Need::IPVLAN, Need::DUMMY),
    test!(a_master_without_carrier_does_not_delay_add needs Need::IPVLAN),
    test!(a_del_does_not_look_for_the_master needs Need::IPVLAN),
    test!(a_link_that_is_not_the_attachments_stays needs Need::IPVLAN),
    test!(foreign_links_on_the_master_stay needs Need::IPVLAN),
    test!(gc_removes_invalid_links_in_named_namespaces needs Need::IPVLAN),
    test!(status_fails_while_the_master_is_missing needs Need::IPVLAN),
    test!(two_at_once_with_different_modes_do_not_switch_each_other needs Need::IPVLAN),
    test!(a_fault_before_any_step_leaves_nothing needs Need::IPVLAN),
    test!(a_kernel_without_it_is_named),
];

/// The result of a plugin before it in the chain: the master, and addresses for the next container.
fn before() -> Value {
    let ips = [("10.77.0.9/24", "10.77.0.1"), ("fd00:77::9/64", "fd00:77::1")];
    let ips: Vec<Value> =
        ips.iter().map(|(address, gateway)| json!({"address": address, "gateway": gateway, "interface": 0})).collect();
    json!({"cniVersion": "1.1.0", "interfaces": [{"name": "master0"}], "ips": ips, "routes": [{"dst": "0.0.0.0/0"}],
           "dns": {"nameservers": ["10.0.0.53"]}})
}

/// In a chain, without a master and an IPAM plugin in its configuration.
fn chained() -> Subject {
    subject("ipvlan", json!({"enabledad": false, "prevResult": before()})).on(MASTER).called("ipvlan chained")
}

/// The MTU may be as large as the master's.
fn an_attachment_leaves_no_trace() {
    let alone = subject("ipvlan", json!({"master": "master0", "mtu": 1500})).on(MASTER);
    [ipvlan(), alone].iter().for_each(life::leaves_no_trace);
}

/// As a runtime does it: DEL has the result of the whole chain.
fn a_chained_attachment_leaves_no_trace() {
    life::leaves_no_trace(&chained());
}

fn del_succeeds_with_incomplete_input() {
    life::survives_incomplete_dels(&ipvlan());
}

fn eight_at_once_get_eight_addresses() {
    flood::survives(&ipvlan(), 8);
}

fn no_flood_leaves_an_orphan_or_gives_an_address_twice() {
    flood::random_calls(&ipvlan(), 80);
}

fn a_fault_before_any_step_leaves_nothing() {
    let tried = fault::leaves_nothing::<ipvlan::IpvlanPlugin>(&ipvlan(), HOST_LOCAL);
    assert_eq!(tried, 4, "1 step of the link, 1 of layer 3, and the place behind each");
}

fn it_is_killed_at_some_calls() {
    kill::at_every_call(&ipvlan(), 1);
}

fn it_is_terminated_at_some_moments() {
    kill::at_moments(&ipvlan(), case_limit(1).min(50));
}

fn it_lacks_memory_or_files() {
    kill::with_resource_limits(&ipvlan(), 1);
}

fn it_meets_some_errors() {
    errno::at_every_call(&ipvlan(), 1);
}

fn check_names_what_was_tampered_with() {
    let subject = ipvlan().with("mtu", json!(1400)).on(MASTER);
    let things = [
        Tampering::inside("ip link set eth0 down", "eth0: wanted up, found down"),
        Tampering::inside("ip link set eth0 type ipvlan mode l3", "mode of eth0: wanted l2, found l3"),
        Tampering::inside("ip link set eth0 mtu 1300", "MTU of eth0: wanted 1400, found 1300"),
        Tampering::inside("ip address del 10.77.0.2/24 dev eth0", "address of eth0: wanted 10.77.0.2/24"),
        Tampering::inside("ip -6 route del default", "route of eth0: wanted ::/0 via fd00:77::1"),
        Tampering::on_host("ip link del master0", "interface eth0: wanted ipvlan, found none"),
    ];
    life::names_tampering_of_all(&subject, &things);
}

/// In the modes of layer 3 the container does not answer for its addresses: the outer host gets static neighbours with the master's
/// MAC.
fn containers_reach_each_other_and_outside_as_the_mode_says() {
    for mode in ["l2", "l3", "l3s"] {
        let Lan { host, outer } = Lan::new();
        let mut ipam = cnikit_tests::dual_stack();
        ipam["routes"] = json!([{"dst": "0.0.0.0/0", "scope": 253}, {"dst": "::/0", "scope": 253}]);
        let subject = ipvlan().with("mode", json!(mode)).at(host.dir());
        let subject = if mode == "l2" { subject } else { subject.with("ipam", ipam).at(host.dir()) };
        let one = host.container();
        let two = host.container();
        subject.add(&host, "c-one", &one);
        subject.add(&host, "c-two", &two);
        SECOND.iter().for_each(|address| drop(one.sh(&ping(address))));
        if mode != "l2" {
            // The host of the master routes their packets, and the outer host needs a route back.
            let mac = host.sh("ip -o link show master0 2>/dev/null | sed 's/.*ether //; s/ .*//'");
            for address in FIRST {
                outer.sh(&format!("ip neigh replace {address} lladdr {} dev outer0", mac.trim()));
            }
            host.sh("ip address add 10.77.0.200/24 dev master0; ip address add fd00:77::200/64 dev master0 nodad");
        }
        for gateway in GATEWAYS {
            assert!(one.reaches(gateway), "{mode}: {gateway}");
        }
        assert_eq!(
            one.sh("cat /proc/net/dev | grep -c eth0").trim(),
            "1",
            "{mode}: there is one interface and it is the container's"
        );
    }
}

fn a_chained_call_passes_the_result_on_and_uses_its_addresses() {
    let Lan { host, outer: _outer } = Lan::new();
    let container = host.container();
    let result = chained().add(&host, "c-one", &container);
    let names: Vec<&str> =
        result["interfaces"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["master0", "eth0"]);
    let ips: Vec<(&Value, &Value)> =
        result["ips"].as_array().unwrap().iter().map(|ip| (&ip["address"], &ip["interface"])).collect();
    assert_eq!(ips, [(&json!("10.77.0.9/24"), &json!(1)), (&json!("fd00:77::9/64"), &json!(1))]);
    assert_eq!((&result["dns"], result["routes"].as_array().unwrap().len()), (&before()["dns"], 1));
    GATEWAYS.iter().for_each(|address| drop(container.sh(&ping(address))));
    chained().check(&host, "c-one", &container, &result).ok();
    // The whole chain's result names several interfaces, which is nothing to a DEL.
    chained().del(&host, "c-one", &container, &result);
    assert_eq!(container.links(), [""; 0]);
}

fn invalid_configurations_are_refused_before_anything_is_made() {
    let several = json!({"cniVersion": "1.1.0", "interfaces": [{"name": "master0"}, {"name": "outer0"}]});
    let table = [
        (json!({"master": "master0", "mtu": 1501}), 7, "invalid MTU 1501, must be [0, master MTU(1500)]"),
        (json!({"master": "none0"}), 101, "failed to lookup master \"none0\""),
        (json!({"master": "master0", "mode": "l4"}), 7, "unknown ipvlan mode: \"l4\""),
        (json!({"prevResult": several}), 7, "chained master failure. PrevResult lacks a single named interface"),
        (json!({}), 101, "no default route interface found on the host"),
        (json!({"master": "lo"}), 100, "create ipvlan"),
    ];
    for (keys, code, says) in table {
        let host = subject("ipvlan", json!({})).on(MASTER).host();
        let container = Host::new().container();
        let output = subject("ipvlan", keys.clone()).call(&host, "ADD", "c-one", &container.path(), &[]).refused();
        assert!(output.0 == code && output.1.contains(says), "{keys}: {output:?}");
        assert_eq!(container.links(), [""; 0], "{keys}");
    }
}

/// Of the running ones one is on the host, one in the container, one in a namespace that only a mount refers to, and one in a
/// namespace that only a process refers to.
fn another_mode_than_that_of_the_running_ones_is_refused() {
    let with = |mode: &str| subject("ipvlan", json!({"master": "master0", "mode": mode}));
    let made = |netns: &str| format!("ip link add link master0 name over0 {netns} type ipvlan mode l2");
    for inside in [false, true] {
        let host = with("l2").on(MASTER).host();
        let container = Host::new().container();
        host.sh(&made(&if inside { format!("netns {}", container.path()) } else { String::new() }));
        let output = with("l3").call(&host, "ADD", "c-one", &container.path(), &[]).refused();
        assert!(
            output.0 == 101 && output.1.contains("master0 has ipvlans of mode l2, and one of mode l3"),
            "{output:?}"
        );
        assert!(output.1.contains("one of them is over0") && output.1.contains("set `mode` to l2"), "{output:?}");
        let there = if inside { container.sh("ip -d link show over0") } else { host.sh("ip -d link show over0") };
        assert!(there.contains("mode l2"), "{there}");
        with("l2").add(&host, "c-one", &container);
    }
    let mounted = "ip netns add other; where=other";
    let process =
        "mkfifo $dir/told; unshare --net sh -c \"echo >$dir/told; exec sleep 60\" & where=$!; read -r _ <$dir/told";
    for (place, name) in [(mounted, "in /run/netns/other"), (process, "in /proc/")] {
        let host = with("l2").on(MASTER).host();
        let container = Host::new().container();
        let subject = with("l3s").at(host.dir());
        std::fs::write(host.dir().join("conf"), subject.conf.to_string()).unwrap();
        let bin = subject.bin.display();
        let dir = host.dir().display();
        let path = container.path();
        let set = format!("export bin='{bin}' dir='{dir}' CNI_CONTAINERID=c-one CNI_IFNAME=eth0 CNI_NETNS={path}");
        let call = "CNI_COMMAND=ADD CNI_PATH=$bin $bin/ipvlan <$dir/conf || true";
        let gone = "kill ${!:-} 2>/dev/null || ip netns del other";
        let made = made("netns $where");
        let output = host.sh(&format!(
            "{set}; unshare --mount sh -euc 'mount -t tmpfs tmpfs /run/netns; {place}; {made}; {call}; {gone}'"
        ));
        assert!(output.contains("master0 has ipvlans of mode l2") && output.contains(name), "{output}");
    }
}

/// Two ADDs at once, each for a container of its own, on a master without other links, while another process holds the lock of the
/// last check: both are past the first check by then. (Of several who wait for a lock, /proc/locks of Linux 5.10 shows the first
/// one only, and its /proc/PID/wchan is empty: this looks at the system call that they wait in.) Then as many as there are, of two
/// random modes.
const AT_ONCE: &str = r#"unshare --mount sh -euc '
    mount -t tmpfs tmpfs /run/netns
    all="one two a1 a2 a3 b1 b2 b3"
    for name in $all; do ip netns add $name; done
    call() {
        CNI_COMMAND=ADD CNI_CONTAINERID=$1 CNI_NETNS=/run/netns/$1 CNI_IFNAME=eth0 CNI_PATH=$bin $bin/ipvlan \
            <$dir/$2 >$dir/$1.said || :
    }
    modes() { for name in $all; do ip -n $name -d -o link show type ipvlan; done 2>/dev/null | grep -o "ipvlan *mode [^ ]*" | sort -u; }
    exec 9<$lock
    flock 9
    # The number of flock(2).
    flock=73; [ "$(uname -m)" = x86_64 ] || flock=32
    callers=
    for which in "one l2" "two l3"; do (exec 9<&-; call $which) & callers=$callers${callers:+,}$!; done
    waiting() { for pid in $(pgrep -P $callers); do cat /proc/$pid/task/*/syscall; done 2>/dev/null | grep -c "^$flock "; }
    until [ "$(waiting)" = 2 ]; do sleep 0.05; done
    exec 9<&-
    wait
    modes
    for n in 1 2 3; do call a$n l3s & call b$n l2 & done
    wait
    modes
    grep -l "would change the mode of all" $dir/one.said $dir/two.said | wc -l
    for name in $all; do ip netns del $name; done
'"#;

fn two_at_once_with_different_modes_do_not_switch_each_other() {
    let host = subject("ipvlan", json!({})).on(MASTER).host();
    for mode in ["l2", "l3", "l3s"] {
        let conf = subject("ipvlan", json!({"master": "master0", "mode": mode})).conf;
        std::fs::write(host.dir().join(mode), conf.to_string()).unwrap();
    }
    let bin = cnikit_tests::bin().display();
    let dir = host.dir().display();
    let lock = host.lock_file();
    let output = host.sh(&format!("export bin='{bin}' dir='{dir}' lock='{}'; {AT_ONCE}", lock.display()));
    let lines: Vec<String> = output.lines().map(|line| line.replace(' ', "")).collect();
    assert!(lines.len() == 3 && lines[0] == lines[1] && lines[2] == "1", "one has the mode, for all: {output}");
}

/// The kernel then makes the new one on the same lower link.
fn a_master_may_be_an_ipvlan_itself() {
    let host = subject("ipvlan", json!({})).on(MASTER).host();
    let container = Host::new().container();
    host.sh("ip link add link master0 name over0 type ipvlan mode l2; ip link set over0 up");
    let on = |master: &str| ipvlan().with("master", json!(master)).at(host.dir());
    let output = on("over0").with("mode", json!("l3")).call(&host, "ADD", "c-one", &container.path(), &[]).refused();
    assert!(output.0 == 101 && output.1.contains("over0 has ipvlans of mode l2"), "{output:?}");
    let result = on("over0").add(&host, "c-one", &container);
    on("over0").check(&host, "c-one", &container, &result).ok();
    let other = on("outer0").check(&host, "c-one", &container, &result).refused().1;
    assert!(other.contains("master of eth0: wanted outer0 on the host, found another link"), "{other}");
}

/// As that of the ring's machine.
fn the_host_may_have_a_link_of_the_same_name() {
    [ipvlan(), macvlan()].iter().for_each(upper::the_host_may_have_a_link_of_the_same_name);
}

fn a_master_may_be_in_the_container() {
    let Lan { host, outer: _outer } = Lan::new();
    let container = host.container();
    host.sh(&format!("ip link set master0 netns {}", container.path()));
    container.sh("ip link set master0 up");
    let subject = ipvlan().with("linkInContainer", json!(true)).at(host.dir());
    let result = subject.add(&host, "c-one", &container);
    GATEWAYS.iter().for_each(|address| drop(container.sh(&ping(address))));
    subject.check(&host, "c-one", &container, &result).ok();
    subject.del(&host, "c-one", &container, &result);
    assert!(!container.sh("ip -o link").contains("eth0"));
}

fn a_taken_address_is_refused_and_released_unless_detection_is_off() {
    upper::a_taken_address_is_refused_unless_detection_is_off(&ipvlan());
}

fn a_master_without_carrier_does_not_delay_add() {
    upper::without_carrier_nothing_is_waited_for(&ipvlan());
}

fn a_del_does_not_look_for_the_master() {
    upper::a_del_does_not_look_for_the_master(&ipvlan());
}

fn foreign_links_on_the_master_stay() {
    upper::foreign_links_on_the_master_stay(&ipvlan());
}

fn gc_removes_invalid_links_in_named_namespaces() {
    upper::gc_removes_invalid_links_in_named_namespaces(&ipvlan());
}

fn status_fails_while_the_master_is_missing() {
    upper::status_fails_while_the_master_is_missing(&ipvlan());
}

fn macvlan_and_ipvlan_exclude_each_other_on_a_master() {
    let host = Host::new();
    let one = Host::new().container();
    let two = Host::new().container();
    host.sh("ip link add dummy0 type dummy && ip link set dummy0 up");
    let on = |plugin| subject(plugin, json!({"master": "dummy0"}));
    on("macvlan").add(&host, "c-one", &one);
    let output = on("ipvlan").call(&host, "ADD", "c-two", &two.path(), &[]).refused();
    assert!(output.0 == 100 && output.1.contains("a master can have macvlans or ipvlans, not both"), "{output:?}");
}

/// A link without a mark has the recorded MAC in any case, as all links on its master.
fn a_link_that_is_not_the_attachments_stays() {
    let host = subject("ipvlan", json!({})).on(MASTER).host();
    let container = Host::new().container();
    host.sh(&format!("ip link add link master0 name eth0 netns {} type ipvlan mode l2", container.path()));
    // ip(8) reports an error for names in /run/netns on which no namespace is mounted yet.
    let mac = container.sh("ip -o link show eth0 2>/dev/null | sed 's/.*ether //; s/ .*//'");
    let record = json!({"cniVersion": "1.1.0", "ips": [{"address": "10.77.0.2/24", "interface": 0}],
                        "interfaces": [{"name": "eth0", "mac": mac.trim(), "sandbox": container.path()}]});
    let subject = subject("ipvlan", json!({"master": "master0"})).at(host.dir());
    let stays = || {
        subject.call(&host, "DEL", "c-one", &container.path(), &[("prevResult", record.clone())]).ok();
        container.sh("ip -o link").contains("eth0")
    };
    container.sh("ip address add 10.77.0.3/24 dev eth0");
    assert!(stays(), "another container's address");
    container.sh("ip address add 10.77.0.2/24 dev eth0");
    assert!(!stays(), "the reference's");
}

fn a_kernel_without_it_is_named() {
    let host = subject("ipvlan", json!({})).on(MASTER).host();
    let container = Host::new().container();
    let alone = subject("ipvlan", json!({"master": "master0"}));
    let add = alone.call(&host, "ADD", "c-one", &container.path(), &[]);
    let status = alone.call(&host, "STATUS", "", "", &[]);
    if Need::IPVLAN.unmet().is_none() {
        add.ok();
        status.ok();
        return;
    }
    for (output, code) in [(add, 100), (status, 50)] {
        let (found, text) = output.refused();
        assert!(found == code && text.contains("this kernel has no ipvlan"), "{found} {text}");
        assert!(text.contains("`modprobe ipvlan`"), "{text}");
    }
}

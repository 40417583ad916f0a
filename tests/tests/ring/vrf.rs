//! vrf: its life in the containers of a kernel that has VRFs, and what it gives back.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use cnikit_testkit::campaign::case_limit;
use cnikit_testkit::life;
use cnikit_testkit::need::Need;
use cnikit_testkit::transcripts::survives;
use cnikit_testkit::{CallOutput, Container, Host, HostSnapshot, Subject, errno, fault, flood, kill};
use cnikit_tests::campaign_subjects::{addressed, crowded_vrf_member, vrf_member};
use cnikit_tests::state_files::{
    changes_nothing_in_a_dry_run, forgets_an_earlier_boot, opens_no_spoiled_file, state_file,
};
use cnikit_tests::tampering::VRF;
use cnikit_tests::transcripts::scenes;
use cnikit_tests::world::{UNTIL_DETECTED, lives_while_locked, ping, ping_once};
use cnikit_tests::{bin, references, subject};
use serde_json::{Value, json};

use crate::test::{Test, test};

pub(crate) const TESTS: &[Test] = &[
    test!(an_attachment_leaves_no_trace needs Need::VRF),
    test!(gc_gives_back_what_is_not_valid_and_leaves_the_others needs Need::VRF),
    test!(del_succeeds_with_incomplete_input needs Need::VRF),
    test!(check_names_what_was_tampered_with needs Need::VRF),
    test!(sixty_four_at_once_are_in_a_vrf_each needs Need::VRF),
    test!(no_flood_leaves_a_vrf_or_a_file needs Need::VRF),
    test!(recorded_requests_of_a_runtime_are_answered needs Need::VRF),
    test!(a_fault_before_any_step_changes_nothing needs Need::VRF),
    test!(it_is_killed_at_some_calls needs Need::VRF),
    test!(it_is_terminated_at_some_moments needs Need::VRF),
    test!(it_lacks_memory_or_files needs Need::VRF),
    test!(it_meets_some_errors needs Need::VRF),
    test!(a_vrf_goes_with_its_last_member_and_not_before needs Need::VRF),
    test!(a_table_that_something_uses_is_refused_by_name needs Need::VRF),
    test!(what_another_program_made_stays needs Need::VRF),
    test!(two_vrfs_with_one_subnet_reach_each_their_own needs Need::VRF),
    test!(two_interfaces_at_once_get_two_tables_or_one_vrf needs Need::VRF),
    test!(a_del_after_a_killed_call_gives_the_ipv6_settings_back needs Need::VRF),
    test!(a_repeated_add_stores_nothing_new_and_one_after_a_killed_add_joins needs Need::VRF),
    test!(a_lock_of_the_container_on_its_own_namespace_delays_no_call needs Need::VRF),
    test!(a_spoiled_file_is_not_opened needs Need::VRF),
    test!(status_fails_where_nothing_can_be_stored needs Need::VRF),
    test!(state_of_an_earlier_boot_is_removed_and_nothing_is_given_back needs Need::VRF),
    test!(a_dry_run_changes_nothing needs Need::VRF),
    test!(a_vrf_of_upstream_that_ours_leaves_last_stays needs Need::VRF),
    test!(an_attachment_of_upstream_leaves_its_vrf_by_our_del needs Need::VRF),
    test!(a_kernel_without_it_is_named),
];

fn an_attachment_leaves_no_trace() {
    life::leaves_no_trace(&vrf_member(bin()));
}

fn gc_gives_back_what_is_not_valid_and_leaves_the_others() {
    life::removes_invalid(&crowded_vrf_member(bin()));
}

fn del_succeeds_with_incomplete_input() {
    life::survives_incomplete_dels(&vrf_member(bin()));
}

fn check_names_what_was_tampered_with() {
    life::names_tampering_of_all(&vrf_member(bin()), &VRF);
    // The others remove each other.
    life::names_all_at_once(&vrf_member(bin()), &[VRF[4], VRF[1], VRF[2], VRF[3]]);
}

fn sixty_four_at_once_are_in_a_vrf_each() {
    flood::survives(&crowded_vrf_member(bin()), 64);
}

fn no_flood_leaves_a_vrf_or_a_file() {
    flood::random_calls(&crowded_vrf_member(bin()), 80);
}

fn recorded_requests_of_a_runtime_are_answered() {
    survives(&vrf_member(bin()), &scenes("podman-4.3-run"), 1);
}

fn a_fault_before_any_step_changes_nothing() {
    assert_eq!(fault::changes_nothing::<vrf::VrfPlugin>(&vrf_member(bin())), 2);
}

fn it_is_killed_at_some_calls() {
    kill::at_every_call(&vrf_member(bin()), 1);
}

fn it_is_terminated_at_some_moments() {
    kill::at_moments(&vrf_member(bin()), case_limit(1).min(50));
}

fn it_lacks_memory_or_files() {
    kill::with_resource_limits(&vrf_member(bin()), 1);
}

fn it_meets_some_errors() {
    errno::at_every_call(&vrf_member(bin()), 1);
}

fn a_lock_of_the_container_on_its_own_namespace_delays_no_call() {
    for mode in ["--shared", "--exclusive"] {
        let took = lives_while_locked(&vrf_member(bin()), mode);
        assert!(took < Duration::from_secs(30), "{mode}: {took:?}"); // one that waits for a lock fails after a minute
    }
}

fn a_spoiled_file_is_not_opened() {
    opens_no_spoiled_file(&vrf_member(bin()));
}

fn status_fails_where_nothing_can_be_stored() {
    let host = Host::new();
    let file = host.dir().join("a file");
    std::fs::write(&file, "").unwrap();
    for (dir, named) in [(file.as_path(), "a file"), (Path::new("/proc/sys/states"), "/proc/sys/")] {
        let subject = vrf_member(bin()).with("dataDir", json!(dir));
        let (code, said) = subject.call(&host, "STATUS", "", "", &[]).refused();
        assert!(code == 50 && said.contains(named), "{code} {said}");
    }
    vrf_member(bin()).at(host.dir()).call(&host, "STATUS", "", "", &[]).ok();
}

fn state_of_an_earlier_boot_is_removed_and_nothing_is_given_back() {
    forgets_an_earlier_boot(&vrf_member(bin()));
}

fn a_dry_run_changes_nothing() {
    changes_nothing_in_a_dry_run(&vrf_member(bin()));
}

/// A host with a container that has such an interface, and how the container was.
struct Scene {
    host: Host,
    container: Container,
    inside: HostSnapshot,
}

impl Scene {
    /// With more in the container.
    fn with(line: &str) -> Scene {
        let host = Host::new();
        let container = vrf_member(bin()).at(host.dir()).container(&host);
        container.sh(line);
        Scene { inside: HostSnapshot::inside(&container), container, host }
    }

    fn call(&self, verb: &str, ifname: &str, keys: &Value) -> CallOutput {
        self.call_of(bin(), verb, ifname, keys)
    }

    /// The same for the plugin in this directory.
    fn call_of(&self, bin: &Path, verb: &str, ifname: &str, keys: &Value) -> CallOutput {
        let mut subject = vrf_member(bin);
        for (key, value) in keys.as_object().unwrap() {
            subject = subject.with(key, value.clone());
        }
        let mut subject = subject.at(self.host.dir());
        subject.env.push(("CNI_IFNAME".into(), ifname.into()));
        subject.call(&self.host, verb, "c-one", &self.container.path(), &[])
    }

    fn has(&self, line: &str, text: &str) -> bool {
        self.container.sh(line).contains(text)
    }

    fn assert_given_back(&self, when: &str) {
        HostSnapshot::inside(&self.container).assert_unchanged_since(&self.inside, &[], when);
    }
}

const SECOND: &str = "ip link add net1 type veth peer name peer1 && ip link set peer1 up && ip link set net1 up && \
    ip address add 10.79.0.2/24 dev net1";

fn a_vrf_goes_with_its_last_member_and_not_before() {
    let scene = Scene::with(SECOND);
    let keys = json!({"vrfname": "blue"});
    scene.call("ADD", "eth0", &keys).ok();
    scene.call("ADD", "net1", &keys).ok();
    scene.call("ADD", "eth0", &keys).ok();
    assert!(scene.has("ip -d link show blue", "vrf table 1 "), "the first table that nothing uses");
    assert!(scene.has("ip route show table 1", "default via 10.77.0.1 dev eth0"));
    assert!(scene.has("ip -6 route show table 1", "fd09::/64 via fe80::9 dev eth0"));
    assert!(scene.has("ip -6 address show eth0", "fd00:77::2/64"));
    scene.call("DEL", "eth0", &keys).ok();
    assert!(scene.has("ip link show master blue", "net1"));
    scene.container.sh("ip link del net1");
    scene.call("DEL", "net1", &keys).ok();
    assert!(!scene.has("ip link", "blue"), "its last member had gone");
    assert!(scene.has("ip route", "default via 10.77.0.1 dev eth0"));
}

fn a_table_that_something_uses_is_refused_by_name() {
    let scene = Scene::with(
        "ip link add green type vrf table 50; ip rule add from 192.0.2.1 lookup 51; ip -6 rule add from 2001:db8::1 lookup 52; \
         ip route add 192.0.2.0/24 dev eth0 table 53; ip -6 route add 2001:db8::/64 dev eth0 table 54; \
         ip link add br0 type bridge",
    );
    for (table, user) in [
        (50, "VRF green"),
        (51, "from 192.0.2.1/32 lookup 51"),
        (52, "from 2001:db8::1/128 lookup 52"),
        (53, "the route 192.0.2.0/24"),
        (54, "the route 2001:db8::/64"),
        (254, "lookup 254"),
    ] {
        let (code, said) = scene.call("ADD", "eth0", &json!({"vrfname": "blue", "table": table})).refused();
        assert!(code == 101 && said.contains("is in use by") && said.contains(user), "{table}: {code} {said}");
    }
    for (keys, wanted) in [
        (json!({"vrfname": "green", "table": 49}), "VRF green already exist with different routing table 50"),
        (json!({"vrfname": "br0"}), "Netlink br0 is not a VRF"),
    ] {
        let (code, said) = scene.call("ADD", "eth0", &keys).refused();
        assert!(code == 101 && said.contains(wanted), "{code} {said}");
    }
    scene.container.sh("ip link set eth0 master br0");
    let (code, said) = scene.call("ADD", "eth0", &json!({"vrfname": "blue"})).refused();
    assert!(code == 101 && said.contains("interface eth0 has already a master set: br0"), "{code} {said}");
}

fn what_another_program_made_stays() {
    let scene = Scene::with("ip link add green type vrf table 50 && ip link set green up");
    let keys = json!({"vrfname": "green"});
    scene.call("ADD", "eth0", &keys).ok();
    assert!(scene.has("ip route show table 50", "default via 10.77.0.1 dev eth0"));
    scene.call("DEL", "eth0", &keys).ok();
    scene.call("DEL", "eth0", &keys).ok();
    scene.assert_given_back("the VRF of another program stays, empty as it was");
    scene.call("ADD", "eth0", &keys).ok();
    scene.container.sh("ip link add br0 type bridge && ip link set eth0 master br0");
    scene.call("DEL", "eth0", &keys).ok();
    assert!(scene.has("ip link show master br0", "eth0"), "a member of another master stays there");
    scene.container.sh("ip link set eth0 nomaster");
    let keys = json!({"vrfname": "violet"});
    scene.call("ADD", "eth0", &keys).ok();
    scene.container.sh("ip link del violet && ip link add violet type vrf table 77");
    scene.call("DEL", "eth0", &keys).ok();
    assert!(scene.has("ip -d link show violet", "vrf table 77"), "it has another table than ours had");
}

/// Upstream stores nothing. Without the MAC of `prevResult` the path may be another container's.
fn an_attachment_of_upstream_leaves_its_vrf_by_our_del() {
    let made_with = |mac: &str| {
        let mut made = addressed();
        made["cniVersion"] = json!("1.0.0");
        made["interfaces"][1]["mac"] = json!(mac);
        made
    };
    for upstream in references() {
        let scene = Scene::with(":");
        let mut keys = json!({"vrfname": "blue", "cniVersion": "1.0.0"});
        scene.call_of(&upstream, "ADD", "eth0", &keys).ok();
        let is_member = || scene.has("ip link show master blue 2>/dev/null || :", "eth0");
        scene.call("DEL", "eth0", &keys).ok();
        assert!(is_member(), "{}: without prevResult", upstream.display());
        keys["prevResult"] = made_with("0a:00:00:00:00:09");
        scene.call("DEL", "eth0", &keys).ok();
        assert!(is_member(), "{}: with another MAC", upstream.display());
        keys["prevResult"] = made_with("0a:00:00:00:00:01");
        scene.call("DEL", "eth0", &keys).ok();
        assert!(!scene.has("ip -d link", "vrf table"), "{}", upstream.display());
        assert!(
            scene.has("ip route", "10.77.0.0/24 dev eth0"),
            "{}: its subnet is in the main table",
            upstream.display()
        );
    }
}

/// Upstream removes a VRF with its last member, ours only one that it made.
fn a_vrf_of_upstream_that_ours_leaves_last_stays() {
    let keys = json!({"vrfname": "blue", "cniVersion": "1.0.0"});
    for upstream in references() {
        for is_last in ["ours", "upstream's"] {
            let scene = Scene::with(SECOND);
            scene.call_of(&upstream, "ADD", "net1", &keys).ok();
            scene.call("ADD", "eth0", &keys).ok();
            let members = scene.container.sh("ip link show master blue");
            assert!(members.contains("net1") && members.contains("eth0"), "{members}");
            let calls = [("net1", upstream.as_path()), ("eth0", bin())];
            let order = if is_last == "ours" { [calls[0], calls[1]] } else { [calls[1], calls[0]] };
            for (ifname, bin) in order {
                assert!(scene.has("ip link", "blue"), "{is_last}: {ifname} is still a member");
                scene.call_of(bin, "DEL", ifname, &keys).ok();
                assert!(!scene.has("ip link show master blue 2>/dev/null || :", ifname), "{is_last}: {ifname}");
            }
            assert!(scene.has("ip route", "default via 10.77.0.1 dev eth0"), "{is_last}");
            assert_eq!(scene.has("ip -d link", "vrf table"), is_last == "ours", "the last DEL is {is_last}");
        }
    }
}

/// A bridge of the host's with this name, whose container's interface has these addresses, in a namespace of its own.
fn side(host: &Host, container: &Container, ifname: &str) -> Container {
    let far = host.container();
    host.sh(&format!("ip link add {ifname} netns {} type veth peer name far netns {}", container.path(), far.path()));
    far.sh("echo 0 >/proc/sys/net/ipv6/conf/far/accept_dad; ip link set far up; \
         ip address add 10.80.0.1/24 dev far; ip address add fd00:80::1/64 dev far nodad; \
         ip address add 192.0.2.1/32 dev far");
    container.sh(&format!(
        "ip link set {ifname} up; ip address add 10.80.0.2/24 dev {ifname}; ip address add fd00:80::2/64 dev {ifname}; \
         {UNTIL_DETECTED}; ip route append 192.0.2.1 via 10.80.0.1 dev {ifname}"
    ));
    far
}

fn two_vrfs_with_one_subnet_reach_each_their_own() {
    let host = Host::new();
    let container = host.container();
    let of = |ifname: &str, vrf: &str| {
        let result = json!({"cniVersion": "1.1.0", "interfaces": [{"name": ifname, "sandbox": container.path()}]});
        let keys = json!({"vrfname": vrf, "dataDir": "$DIR/vrf", "name": vrf, "prevResult": result});
        let mut subject = subject("vrf", keys).at(host.dir());
        subject.env.push(("CNI_IFNAME".into(), ifname.into()));
        subject
    };
    let members: Vec<(Subject, &str, Container)> = [("net1", "red"), ("net2", "blue")]
        .map(|(ifname, vrf)| {
            let far = side(&host, &container, ifname);
            let subject = of(ifname, vrf);
            subject.call(&host, "ADD", "c-one", &container.path(), &[]).ok();
            (subject, vrf, far)
        })
        .into();
    for (_, _, far) in &members {
        far.sh(
            "nft 'table inet seen { chain input { type filter hook input priority 0; icmp type echo-request counter; \
             icmpv6 type echo-request counter; }; }'",
        );
    }
    let seen = |far: &Container| far.sh("nft list table inet seen | grep -o 'packets [0-9]*'");
    for (at, (_, vrf, far)) in members.iter().enumerate() {
        for address in ["10.80.0.1", "fd00:80::1", "192.0.2.1"] {
            // `ip vrf exec` mounts a cgroup2, which the snapshots of other tests would see.
            container.sh(&format!(
                "unshare --mount ip vrf exec {vrf} {} || ping -I {vrf} -n -q -c 1 -W 10 {address}",
                ping(address)
            ));
        }
        let counted = seen(far);
        assert!(counted.lines().all(|line| line != "packets 0"), "{vrf}: {counted}");
        for (_, other, far) in &members[at + 1..] {
            assert_eq!(seen(far), "packets 0\npackets 0\n", "packets of {vrf} to the neighbour of {other}");
        }
    }
    assert!(!container.try_sh(&ping_once("10.80.0.1")).0, "without a VRF there is no route");
    for (subject, _, _) in &members {
        subject.call(&host, "DEL", "c-one", &container.path(), &[]).ok();
    }
    assert!(!container.sh("ip -d link").contains("vrf"));
}

/// The ADDs of two interfaces of one container, for two VRFs and for one that neither finds.
fn two_interfaces_at_once_get_two_tables_or_one_vrf() {
    let scene = Scene::with(SECOND);
    for round in 0..10 {
        for names in [["red", "blue"], ["green", "green"]] {
            let [first, second] = names.map(|name| json!({"vrfname": name}));
            let [one, other] = thread::scope(|scope| {
                let one = scope.spawn(|| scene.call("ADD", "eth0", &first));
                let other = scene.call("ADD", "net1", &second);
                [one.join().unwrap(), other]
            });
            one.ok();
            other.ok();
            let [at, beside] = [("eth0", names[0]), ("net1", names[1])].map(|(ifname, vrf)| {
                assert!(scene.has(&format!("ip link show master {vrf}"), ifname), "round {round}: {ifname} in {vrf}");
                scene.container.sh(&format!("ip -d link show {vrf} | grep -o 'vrf table [0-9]*'"))
            });
            assert_eq!(at == beside, names[0] == names[1], "round {round}: {names:?}: {at} {beside}");
            scene.call("DEL", "eth0", &first).ok();
            scene.call("DEL", "net1", &second).ok();
            scene.assert_given_back(&format!("round {round}: {names:?}"));
        }
    }
}

/// The call set what keeps the addresses while an interface joins or leaves, and was killed outside the VRF.
fn a_del_after_a_killed_call_gives_the_ipv6_settings_back() {
    let scene = Scene::with(":");
    let keys = json!({"vrfname": "blue"});
    scene.call("ADD", "eth0", &keys).ok();
    scene.container.sh(
        "cd /proc/sys/net/ipv6/conf/eth0; echo 1 >keep_addr_on_down; echo 0 >accept_dad; ip link set eth0 nomaster; \
         ip link del blue",
    );
    scene.call("DEL", "eth0", &keys).ok();
    scene.assert_given_back("after DEL");
}

/// The state of the killed ADD is stored, and the interface is as it was.
fn a_repeated_add_stores_nothing_new_and_one_after_a_killed_add_joins() {
    let scene = Scene::with(":");
    let keys = json!({"vrfname": "blue"});
    scene.call("ADD", "eth0", &keys).ok();
    let subject = vrf_member(bin()).at(scene.host.dir());
    let file = state_file(&subject);
    let first = fs::read(&file).unwrap();
    scene.call("ADD", "eth0", &keys).ok();
    assert_eq!((state_file(&subject), fs::read(&file).unwrap()), (file.clone(), first.clone()), "after the second ADD");
    scene.call("DEL", "eth0", &keys).ok();
    scene.assert_given_back("after the first DEL");
    fs::write(&file, first).unwrap();
    scene.call("ADD", "eth0", &keys).ok();
    assert!(scene.has("ip link show master blue", "eth0"), "after an ADD that was killed");
    scene.call("DEL", "eth0", &keys).ok();
    scene.assert_given_back("after the second DEL");
}

/// Where the kernel has no VRFs, which is said before anything is changed.
fn a_kernel_without_it_is_named() {
    if Need::VRF.unmet().is_none() {
        return;
    }
    let scene = Scene::with(":");
    let (code, said) = scene.call("ADD", "eth0", &json!({})).refused();
    assert!(code == 100 && said.contains("this kernel has no VRF") && said.contains("`modprobe vrf`"), "{code} {said}");
    scene.assert_given_back("after a failed ADD");
    let (code, said) = scene.call("STATUS", "eth0", &json!({})).refused();
    assert!(code == 50 && said.contains("this kernel has no VRF"), "{code} {said}");
}

//! vxlan under the campaigns of the test kit, and with traffic between hosts. They need root.
#![expect(clippy::expect_used, reason = "a test panics: that is how it fails")]

use std::path::Path;

use cnikit::{Entry, Ipam};
use cnikit_testkit::life::{self, Tampering};
use cnikit_testkit::need::Need;
use cnikit_testkit::{Container, Host, Subject, errno, fault, flood, kill, transcripts};
use serde_json::{Value, json};
use vxlan::VxlanPlugin;

/// Returns from a test on a kernel without VXLAN. The reason is printed past the harness, which hides the output of passed tests.
macro_rules! need_vxlan {
    () => {
        if let Some(lacking) = Need::VXLAN.unmet() {
            let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("not run: {lacking}\n").as_bytes());
            return;
        }
    };
}

// guide: subject
/// vxlan with a VNI of its own for each container. Its addresses have no gateway, because no host of the tests could answer as one.
fn subject() -> Subject {
    let addresses = json!([{"address": "10.77.0.5/24"}, {"address": "fd00:77::5/64"}]);
    let ipam = json!({"type": "static", "addresses": addresses});
    with_ipam(&ipam)
}

fn with_ipam(ipam: &Value) -> Subject {
    let conf = json!({"vni": "$NUMBER", "peers": ["192.0.2.2", "192.0.2.3"], "ipam": ipam});
    let bin = Path::new(env!("CARGO_BIN_EXE_vxlan")).parent().expect("a directory");
    Subject::new(bin, "vxlan", conf).shared(&["table inet cnikit_vxlan {"])
}

fn host_local() -> Value {
    json!({"type": "host-local", "ranges": [[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd00:77::/64"}]]})
}
// guide: end

// guide: life
#[test]
fn an_attachment_leaves_no_trace() {
    need_vxlan!();
    life::leaves_no_trace(&subject());
    life::leaves_no_trace(&with_ipam(&host_local()));
}

#[test]
fn del_succeeds_with_incomplete_input() {
    need_vxlan!();
    life::survives_incomplete_dels(&subject());
}

#[test]
fn gc_removes_what_is_invalid_and_nothing_else() {
    need_vxlan!();
    life::removes_invalid(&with_ipam(&host_local()));
}
// guide: end

// guide: tampering
#[test]
fn check_names_every_change() {
    need_vxlan!();
    life::names_tampering_of_all(
        &subject().with("vni", json!(9)),
        &[
            Tampering::inside("ip link del eth0", "interface eth0: wanted vxlan, found none"),
            Tampering::inside(
                "bridge fdb del 00:00:00:00:00:00 dst 192.0.2.3 dev eth0",
                "eth0: wanted the peer 192.0.2.3",
            ),
            Tampering::inside("ip link set eth0 mtu 1300", "MTU of eth0"),
            Tampering::inside("ip link set eth0 down", "eth0: wanted up, found down"),
            Tampering::inside("ip address del 10.77.0.5/24 dev eth0", "address of eth0: wanted 10.77.0.5/24"),
            Tampering::on_host("nft flush chain inet cnikit_vxlan peers", "ip saddr 192.0.2.2 udp dport 4789"),
        ],
    );
}
// guide: end

// guide: fault
/// The IPAM plugin, called in this process: the plugins under test are not started as programs here.
static PLUGINS: &[Entry] = &[Entry::of::<Ipam<host_local::HostLocalPlugin>>("host-local")];

#[test]
fn a_fault_before_any_step_leaves_nothing() {
    need_vxlan!();
    let places = fault::leaves_nothing::<VxlanPlugin>(&with_ipam(&host_local()), PLUGINS);
    assert_eq!(places, 5, "2 steps of the link, 1 of layer 3, and the place behind each plan");
}
// guide: end

// guide: campaigns
#[test]
fn sixty_four_at_once_get_sixty_four_addresses() {
    need_vxlan!();
    flood::survives(&with_ipam(&host_local()), 64);
}

#[test]
fn a_kill_at_any_call_leaves_nothing_for_good() {
    need_vxlan!();
    kill::at_every_call(&subject(), 8);
    kill::at_moments(&subject(), 10);
}

#[test]
fn a_failing_call_leaves_nothing() {
    need_vxlan!();
    errno::at_every_call(&subject(), 8);
}

#[test]
fn recorded_calls_of_a_runtime_are_answered() {
    need_vxlan!();
    let all = transcripts::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/transcripts"));
    let scenes: Vec<_> = all.into_iter().filter(|scene| scene.name.starts_with("podman-4.3-run")).collect();
    transcripts::survives(&subject(), &scenes, 1);
}
// guide: end

#[test]
fn rules_that_another_program_flushed_are_made_again() {
    need_vxlan!();
    let host = Host::new();
    let container = host.container();
    let subject = subject();
    let result = subject.add(&host, "c-one", &container);
    let before = host.sh("nft list table inet cnikit_vxlan");
    host.sh("nft delete table inet cnikit_vxlan");
    subject.check(&host, "c-one", &container, &result).refused();
    subject.call(&host, "RESTORE", "c-one", &container.path(), &[("prevResult", result.clone())]).ok();
    assert_eq!(host.sh("nft list table inet cnikit_vxlan"), before);
    subject.check(&host, "c-one", &container, &result).ok();
    subject.del(&host, "c-one", &container, &result);
}

#[test]
fn a_dry_run_shows_the_steps_and_makes_nothing() {
    let host = Host::new();
    let plan = subject().with("vni", json!(9)).call(&host, "PLAN", "c-one", "", &[]).ok();
    let steps: Vec<&str> = plan["plan"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    // The first steps are the IPAM plugin's.
    assert_eq!(steps[2], "drop packets of VXLAN 9 that are not of its peers (nftables)", "{plan}");
    assert_eq!(steps[3], "VXLAN 9 as eth0 in the container, mtu 1450, to 192.0.2.2 192.0.2.3 at port 4789", "{plan}");
    assert_eq!(host.sh("nft list ruleset"), "");
}

#[test]
fn a_vni_of_the_runtime_needs_the_operators_permission() {
    need_vxlan!();
    let host = Host::new();
    let container = host.container();
    let call = |subject: &Subject| {
        let conf = subject.conf.to_string();
        let env = [("CNI_ARGS", "IgnoreUnknown=1;VNI=9")];
        subject.call_raw(&host, "ADD", "c-one", &container.path(), conf.as_bytes(), &env)
    };
    let fixed = subject().with("vni", json!(5));
    let (_, text) = call(&fixed).refused();
    assert!(text.contains("VNI 9 was requested, and the network allows no requests"), "{text}");
    let result = call(&fixed.with("vnis", json!([8, 9]))).ok();
    assert!(container.sh("ip -d link show eth0").contains("vxlan id 9 "));
    fixed.del(&host, "c-one", &container, &result);
}

#[test]
fn a_vni_in_use_on_this_host_is_named() {
    need_vxlan!();
    let host = Host::new();
    let [one, two] = [host.container(), host.container()];
    let subject = subject().with("vni", json!(9));
    subject.add(&host, "c-one", &one);
    let before = host.sh("nft list ruleset");
    let (code, text) = subject.call(&host, "ADD", "c-two", &two.path(), &[]).refused();
    assert!(code == 101 && text.contains("VNI 9 with port 4789 is in use on this host"), "{code} {text}");
    assert_eq!(host.sh("nft list ruleset"), before, "the rules of the first stay, and none of the second do");
    assert!(one.sh("ip link show eth0").contains("eth0"));
}

// guide: hosts
/// A host with an address in the network between the hosts, which is a bridge of another one.
fn host_between(network: &Host, number: u8) -> Host {
    let host = Host::new();
    network.sh(&format!("ip link add to{number} type veth peer name eth0 netns {}", host.path()));
    network.sh(&format!("ip link set to{number} master net0 up"));
    host.sh(&format!(
        "ip address add 192.0.2.{number}/24 dev eth0; ip address add 2001:db8::{number}/64 dev eth0 nodad; ip link set eth0 up"
    ));
    host
}

fn network_of_hosts() -> (Host, [Host; 3]) {
    let network = Host::new();
    network.sh("ip link add net0 type bridge && ip link set net0 up");
    let hosts = [1, 2, 3].map(|number| host_between(&network, number));
    (network, hosts)
}

/// A container on a host, with the other hosts as peers. Its id, from which its MAC is made, is no other container's.
fn attached(host: &Host, address: &str, peers: &[&str]) -> Container {
    let container = host.container();
    let id = address.replace('/', "-");
    let ipam = json!({"type": "static", "addresses": [{"address": address}]});
    with_ipam(&ipam).with("vni", json!(9)).with("peers", json!(peers)).add(host, &id, &container);
    container
}

#[test]
fn containers_of_three_hosts_reach_each_other() {
    need_vxlan!();
    let (_network, [one, two, three]) = network_of_hosts();
    let first = attached(&one, "10.77.0.1/24", &["192.0.2.2", "192.0.2.3"]);
    let second = attached(&two, "10.77.0.2/24", &["192.0.2.1", "192.0.2.3"]);
    let third = attached(&three, "10.77.0.3/24", &["192.0.2.1", "192.0.2.2"]);
    assert!(first.reaches("10.77.0.2") && first.reaches("10.77.0.3"));
    assert!(second.reaches("10.77.0.3") && third.reaches("10.77.0.1"));
    // A packet of the whole MTU is not cut in pieces between the hosts.
    let (whole, output) = first.try_sh("ping -n -q -c 1 -W 5 -M do -s 1422 10.77.0.2");
    assert!(whole, "{output}");
}
// guide: end

#[test]
fn ipv6_hosts_carry_it_too() {
    need_vxlan!();
    let (_network, [one, two, _]) = network_of_hosts();
    let first = attached(&one, "10.77.0.1/24", &["2001:db8::2"]);
    let second = attached(&two, "10.77.0.2/24", &["2001:db8::1"]);
    assert!(first.reaches("10.77.0.2") && second.reaches("10.77.0.1"));
}

// guide: intruder
/// The kernel accepts VXLAN packets from any host. Only the rules keep out a third host that knows the VNI.
#[test]
fn a_host_that_is_no_peer_cannot_send_into_the_segment() {
    need_vxlan!();
    let (_network, [one, two, three]) = network_of_hosts();
    let first = attached(&one, "10.77.0.1/24", &["192.0.2.2"]);
    let second = attached(&two, "10.77.0.2/24", &["192.0.2.1"]);
    // It need not receive anything to send: it knows the container's address and MAC.
    let mac = first.sh("ip -o link show eth0 | sed 's/.*link.ether //; s/ .*//'");
    three.sh(&format!(
        "ip link add vx0 type vxlan id 9 dstport 4789 remote 192.0.2.1 && ip address add 10.77.0.3/24 dev vx0 && \
         ip link set vx0 up && ip neighbour add 10.77.0.1 lladdr {} dev vx0",
        mac.trim()
    ));
    first.sh("nft 'add table ip seen; add chain ip seen input { type filter hook input priority 0; }; \
              add rule ip seen input ip saddr 10.77.0.3 counter'");
    let has_seen = || !first.sh("nft list table ip seen").contains("counter packets 0 ");
    assert!(second.reaches("10.77.0.1"));
    three.try_sh("ping -n -q -c 3 -i 0.1 -W 1 10.77.0.1");
    assert!(!has_seen(), "a packet of another host came through");
    one.sh("nft flush chain inet cnikit_vxlan peers");
    three.try_sh("ping -n -q -c 3 -i 0.1 -W 1 10.77.0.1");
    assert!(has_seen(), "without the rules they come through, so the rules were what stopped them");
}
// guide: end

#[test]
fn a_kernel_that_has_it_is_ready() {
    need_vxlan!();
    let host = Host::new();
    subject().call(&host, "STATUS", "", "", &[]).ok();
    assert!(!host.sh("ip -o link").contains("probe"), "it makes nothing");
}

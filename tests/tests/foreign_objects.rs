//! Objects of other programs: none of them is changed. Attachments of upstream are taken over by ours and vice versa.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

use std::os::unix::fs::symlink;
use std::path::Path;

use cnikit::AttachmentId;
use cnikit::resources::{alias, veth};
use cnikit_testkit::life::SHARED;
use cnikit_testkit::snapshot::HINTS;
use cnikit_testkit::{Container, Host, HostSnapshot, Subject};
use cnikit_tests::campaign_subjects::{firewall, publishing};
use cnikit_tests::way::{WITH_READ_ONLY_SYSCTLS, WITHOUT_RESULT, Way, on_path, started_by};
use cnikit_tests::world::{UNTIL_DETECTED, ping, undisturbed};
use cnikit_tests::{bin, dual_stack, one_family, subject};
use serde_json::{Value, json};
use tempfile::TempDir;

const GATEWAYS: [&str; 2] = ["10.77.0.1", "fd00:77::1"];

fn bridge() -> Subject {
    subject("bridge", json!({"isDefaultGateway": true, "ipMasq": true, "ipam": dual_stack()}))
}

fn ptp() -> Subject {
    subject("ptp", json!({"ipMasq": true, "ipam": dual_stack()}))
}

/// A container that runs while others are added and deleted around it.
struct Running<'a> {
    subject: Subject,
    host: &'a Host,
    container: Container,
    result: Value,
}

impl<'a> Running<'a> {
    fn on(host: &'a Host, subject: &Subject) -> Running<'a> {
        let subject = subject.at(host.dir());
        let container = host.container();
        let result = subject.add(host, "c-running", &container);
        Running { subject, host, container, result }
    }

    /// Its packets are not lost during `work`, and afterwards nothing has changed except lines with these texts.
    fn stays_undisturbed<T>(&self, but: &[&str], when: &str, work: impl FnOnce() -> T) -> T {
        let before = HostSnapshot::of(self.host);
        let inside = HostSnapshot::inside(&self.container);
        let done = undisturbed(&self.container, GATEWAYS[0], work);
        self.container.sh(&ping(GATEWAYS[1]));
        HostSnapshot::of(self.host).assert_unchanged_since(&before, but, when);
        HostSnapshot::inside(&self.container).assert_unchanged_since(&inside, &[], when);
        done
    }
}

/// The ADD failed and made nothing: the error has these texts, and host and container are unchanged.
fn refused(host: &Host, container: &Container, but: &[&str], says: &[&str], add: impl FnOnce() -> (u64, String)) {
    let before = HostSnapshot::of(host);
    let inside = HostSnapshot::inside(container);
    let (_, text) = add();
    says.iter().for_each(|what| assert!(text.contains(what), "{what:?} is not said: {text}"));
    HostSnapshot::of(host).assert_unchanged_since(&before, but, &text);
    HostSnapshot::inside(container).assert_unchanged_since(&inside, &[], &text);
}

fn add(subject: &Subject, host: &Host, id: &str, container: &Container) -> (u64, String) {
    subject.call(host, "ADD", id, &container.path(), &[]).refused()
}

#[test]
fn a_taken_interface_name_is_refused_before_anything_is_made() {
    for subject in [bridge(), ptp(), subject("bridge", json!({}))] {
        let host = Host::new();
        let container = Host::new().container();
        let subject = subject.at(host.dir());
        container.sh("ip link add eth0 type veth peer name other && ip address add 10.9.0.1/24 dev eth0");
        let says = ["container veth name \"eth0\" already exists"];
        refused(&host, &container, &[], &says, || add(&subject, &host, "c-one", &container));
    }
}

#[test]
fn an_add_of_an_existing_attachment_is_refused_and_disturbs_nothing() {
    for subject in [bridge(), ptp()] {
        let host = Host::new();
        let running = Running::on(&host, &subject);
        let elsewhere = host.container();
        for container in [&running.container, &elsewhere] {
            running.stays_undisturbed(&[], "ADD of an attachment that exists", || {
                let says = ["testnet/c-running/eth0 is attached already"];
                refused(&host, container, &[], &says, || add(&running.subject, &host, "c-running", container));
            });
        }
        running.subject.check(&host, "c-running", &running.container, &running.result).ok();
    }
}

#[test]
fn an_attachment_without_link_is_refused_while_it_has_its_address() {
    let host = Host::new();
    let running = Running::on(&host, &bridge());
    let end = running.result["interfaces"][1]["name"].as_str().unwrap();
    host.sh(&format!("ip link del {end}"));
    let says = ["DEL it before you add it again"];
    refused(&host, &running.container, &[], &says, || add(&running.subject, &host, "c-running", &running.container));
}

#[test]
fn ptp_refuses_an_address_that_a_running_container_is_routed_by() {
    let host = Host::new();
    let running = Running::on(&host, &ptp());
    let mut rival = running.subject.with("name", json!("rival"));
    rival.conf["ipam"]["dataDir"] = json!(host.dir().join("rival"));
    let container = host.container();
    let end = running.result["interfaces"][0]["name"].as_str().unwrap();
    let says = [&format!("the host routes 10.77.0.2 to {end} already"), "DEL the attachment that has it"];
    running.stays_undisturbed(&["rival"], "ADD of an address that is routed elsewhere", || {
        refused(&host, &container, &["rival"], &says.map(|text| text as &str), || {
            add(&rival, &host, "c-one", &container)
        });
    });
    assert!(!host.dir().join("rival/rival/10.77.0.2").exists(), "the address was given back");
}

#[test]
fn ptp_refuses_an_address_with_a_foreign_route_in_either_family() {
    for (add_route, held) in
        [("ip route add 10.77.0.2 dev theirs", "10.77.0.2"), ("ip route add fd00:77::2 dev theirs", "fd00:77::2")]
    {
        let host = Host::new();
        let container = Host::new().container();
        host.sh("ip link add theirs type veth peer name peer && ip link set theirs up && ip link set peer up");
        host.sh(add_route);
        let subject = ptp().at(host.dir());
        subject.call(&host, "DEL", "c-never", "", &[]).ok(); // makes host-local's directory
        let says = [&format!("the host routes {held} to theirs already"), &format!("ip route del {held}")];
        let says = says.map(|text| text as &str);
        refused(&host, &container, &["leases"], &says, || add(&subject, &host, "c-one", &container));
    }
}

#[test]
fn a_link_that_is_no_bridge_is_refused_under_the_bridges_name_and_left_as_it_is() {
    for subject in [bridge(), subject("bridge", json!({"promiscMode": true}))] {
        let host = Host::new();
        let container = Host::new().container();
        host.sh("ip link add cni0 type veth peer name peer");
        let subject = subject.at(host.dir());
        let says = ["\"cni0\" already exists but is not a bridge: its kind is veth", "ip link del cni0"];
        refused(&host, &container, &[], &says, || add(&subject, &host, "c-one", &container));
    }
}

#[test]
fn a_bridge_with_another_address_is_refused_naming_both_and_the_command() {
    for (theirs, ours) in
        [("10.66.0.1/16", "10.77.0.1/24"), ("10.77.0.9/24", "10.77.0.1/24"), ("fd00:77::9/64", "fd00:77::1/64")]
    {
        let host = Host::new();
        let container = Host::new().container();
        host.sh(&format!(
            "ip link add cni0 type bridge && ip address add {theirs} dev cni0 nodad && ip link set cni0 up"
        ));
        let subject = bridge().at(host.dir());
        let command = format!("ip address del {theirs} dev cni0");
        let says = [theirs, ours, &command, "forceAddress"];
        refused(&host, &container, &["leases"], &says, || add(&subject, &host, "c-one", &container));
        let forced = subject.with("forceAddress", json!(true));
        forced.add(&host, "c-one", &container);
        GATEWAYS.iter().for_each(|address| drop(container.sh(&ping(address))));
        let addresses = host.sh("ip address show dev cni0");
        assert!(!addresses.contains(theirs) && addresses.contains(ours), "{addresses}");
    }
}

#[test]
fn an_ipv6_network_of_its_own_may_stay_on_the_bridge() {
    let host = Host::new();
    let container = Host::new().container();
    host.sh("ip link add cni0 type bridge && ip address add fd00:66::1/64 dev cni0 nodad && ip link set cni0 up");
    bridge().at(host.dir()).add(&host, "c-one", &container);
    assert!(host.sh("ip address show dev cni0").contains("fd00:66::1/64"));
}

#[test]
fn del_that_is_given_another_containers_namespace_leaves_that_one_running() {
    for subject in [bridge(), ptp()] {
        let host = Host::new();
        let running = Running::on(&host, &subject);
        running.stays_undisturbed(&HINTS, "DEL with another's namespace", || {
            let gone = host.container();
            let result = running.subject.add(&host, "c-gone", &gone);
            for _ in 0..2 {
                running.subject.del(&host, "c-gone", &running.container, &result);
                running.subject.call(&host, "DEL", "c-gone", &running.container.path(), &[]).ok();
            }
        });
    }
}

#[test]
fn del_removes_the_rules_of_a_network_whose_masquerade_was_switched_off_meanwhile() {
    for subject in [bridge(), ptp()] {
        let host = Host::new();
        let container = Host::new().container();
        let subject = subject.with("ipMasqBackend", json!("nftables")).at(host.dir());
        let result = subject.add(&host, "c-one", &container);
        assert!(host.sh("nft list ruleset").contains("id: c-one"));
        subject.with("ipMasq", json!(false)).del(&host, "c-one", &container, &result);
        assert!(!host.sh("nft list ruleset").contains("id: c-one"));
    }
}

/// The maker of a plugin.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Maker {
    We,
    TheReference,
}

use Maker::{TheReference, We};

impl Maker {
    fn directory(self) -> &'static Path {
        if self == We { bin() } else { Path::new("/usr/lib/cni") }
    }

    fn other(self) -> Maker {
        if self == We { TheReference } else { We }
    }
}

/// A plugin directory with one's main plugins and one's host-local.
fn directory(plugins: Maker, ipam: Maker) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let link = |maker: Maker, plugin: &str| symlink(maker.directory().join(plugin), dir.path().join(plugin)).unwrap();
    ["bridge", "ptp"].iter().for_each(|plugin| link(plugins, plugin));
    link(ipam, "host-local");
    dir
}

/// Configurations that both support. Upstream of that age masquerades with iptables only.
fn understood_by_both() -> [Subject; 3] {
    let of = |plugin: &str, conf: Value| subject(plugin, conf).with("cniVersion", json!("1.0.0"));
    [
        of("bridge", json!({"isGateway": true, "hairpinMode": true, "ipam": dual_stack()})),
        of("bridge", json!({})),
        of("ptp", json!({"ipam": dual_stack()})),
    ]
}

/// ADD by one, DEL by the other, its host-local as well: nothing of the attachment is left.
fn is_deleted_by_the_other(subject: &Subject, plugins: Maker, ipam: Maker, with_result: bool) {
    let host = Host::new();
    let container = Host::new().container();
    let adds = directory(plugins, ipam);
    let deletes = directory(plugins.other(), ipam.other());
    let adding = subject.at(host.dir()).in_directory(adds.path());
    let deleting = adding.in_directory(deletes.path());
    let before = HostSnapshot::of(&host);
    let inside = HostSnapshot::inside(&container);
    let result = adding.add(&host, "c-one", &container);
    assert_ne!(HostSnapshot::inside(&container), inside);
    let result = if with_result { vec![("prevResult", result)] } else { Vec::new() };
    deleting.call(&host, "DEL", "c-one", &container.path(), &result).ok();
    let when = format!("{} added by {plugins:?} (host-local by {ipam:?})", subject.plugin);
    HostSnapshot::inside(&container).assert_unchanged_since(&inside, &[], &when);
    let left = HostSnapshot::of(&host).added_since(&before, &SHARED);
    assert!(left.is_empty(), "{when}: {left:#?}");
    let leases: Vec<_> = std::fs::read_dir(host.dir().join("leases/testnet")).into_iter().flatten().flatten().collect();
    assert!(leases.iter().all(|file| !file.file_name().to_string_lossy().contains("77")), "{when}: {leases:?}");
}

#[test]
fn upstream_and_ours_delete_each_others_attachments_without_trace() {
    for subject in understood_by_both() {
        for plugins in [We, TheReference] {
            for ipam in [We, TheReference] {
                is_deleted_by_the_other(&subject, plugins, ipam, true);
            }
            is_deleted_by_the_other(&subject, plugins, plugins, false);
        }
    }
}

/// The kernel refuses such a route only after the interface is made.
#[test]
fn a_route_with_host_bits_is_refused() {
    let host = Host::new();
    let mut ipam = one_family();
    ipam["routes"] = json!([{"dst": "10.9.0.7/16"}]);
    let subject = subject("bridge", json!({"ipam": ipam})).at(host.dir());
    let (code, text) = subject.call(&host, "ADD", "c-one", &host.container().path(), &[]).refused();
    assert!(code == 7 && text.contains("the route to 10.9.0.7/16 has host bits: its network is 10.9.0.0/16"), "{text}");
}

#[test]
fn an_address_of_the_bridge_is_refused_for_a_container() {
    let host = Host::new();
    host.sh("ip link add cni0 type bridge && ip address add 10.77.0.2/24 dev cni0");
    let subject = subject("bridge", json!({"ipam": one_family()})).at(host.dir());
    let (code, text) = subject.call(&host, "ADD", "c-one", &host.container().path(), &[]).refused();
    assert!(
        code == 101 && text.contains("the container cannot have 10.77.0.2: the host has it on cni0"),
        "{code} {text}"
    );
}

/// Any neighbour could redirect the container's traffic (CVE-2020-10749).
#[test]
fn where_router_advertisements_cannot_be_refused_add_fails_unless_ipv6_is_off() {
    let host = Host::new();
    let container = host.container();
    let add = |bridge: &str| {
        let subject = subject("bridge", json!({"bridge": bridge})).at(host.dir());
        let (unable, _dir) = started_by(&subject, WITH_READ_ONLY_SYSCTLS);
        unable.call(&host, "ADD", "c-one", &container.path(), &[])
    };
    let (_, text) = add("cni0").refused();
    assert!(text.contains("router advertisements from any neighbour would be accepted"), "{text}");
    let switch_off = "echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6";
    host.sh(switch_off);
    container.sh(switch_off);
    add("cni1").ok();
}

#[test]
fn loopback_refuses_an_address_that_is_not_of_loopback() {
    let host = Host::new();
    let container = host.container();
    container.sh("ip address add 192.0.2.7/24 dev lo");
    let subject = subject("loopback", json!({}));
    let (code, text) = subject.call(&host, "ADD", "c-one", &container.path(), &[]).refused();
    assert!(code == 101 && text.contains("found with non-loopback address"), "{code} {text}");
    assert!(container.sh("ip -o link show lo").contains("state DOWN"));
}

#[test]
fn del_sets_loopback_down_after_an_add_of_ours_or_upstream() {
    for maker in [We, TheReference] {
        let host = Host::new();
        let container = Host::new().container();
        let adding = subject("loopback", json!({"cniVersion": "1.0.0"})).in_directory(maker.directory());
        let result = adding.add(&host, "c-one", &container);
        container.sh(&ping("127.0.0.1"));
        adding.in_directory(maker.other().directory()).del(&host, "c-one", &container, &result);
        assert!(!container.sh("ip link show lo").contains("UP"));
    }
}

/// The record of a removed container, whose namespace's path belongs to another one by now.
fn at_the_path_of(running: &Running, result: &Value) -> Value {
    let mut result = result.clone();
    let interfaces = result["interfaces"].as_array_mut().unwrap();
    interfaces.last_mut().unwrap()["sandbox"] = json!(running.container.path());
    result
}

#[test]
fn del_with_the_namespace_of_an_upstream_container_leaves_it_running() {
    let [bridge, _, ptp] = understood_by_both();
    for subject in [bridge, ptp] {
        let host = Host::new();
        let ours = subject.at(host.dir());
        let running = Running::on(&host, &subject.in_directory(TheReference.directory()));
        host.sh(UNTIL_DETECTED); // of the gateway's address, because upstream does not wait
        let index = [&HINTS[..], &["directory: leases/.idx"]].concat(); // which upstream does not make
        running.stays_undisturbed(&index, "DEL with the namespace of what the reference made", || {
            let gone = host.container();
            let result = ours.add(&host, "c-gone", &gone);
            ours.call(&host, "DEL", "c-gone", &running.container.path(), &[]).ok();
            ours.del(&host, "c-gone", &running.container, &result);
            ours.del(&host, "c-gone", &running.container, &at_the_path_of(&running, &result));
        });
    }
}

#[test]
fn after_a_reboot_del_frees_the_address_and_the_container_can_be_added_again() {
    for subject in [bridge(), ptp()] {
        let host = Host::new();
        let container = Host::new().container();
        let subject = subject.at(host.dir());
        let result = subject.add(&host, "c-one", &container);
        let gone = format!("{}-that-is-gone", container.path());
        let rebooted = Host::new();
        let container = Host::new().container();
        let lease = host.dir().join("leases/testnet/10.77.0.2");
        assert!(lease.exists());
        subject.call(&rebooted, "DEL", "c-one", &gone, &[("prevResult", result)]).ok();
        assert!(!lease.exists());
        let result = subject.add(&rebooted, "c-one", &container);
        container.sh(&ping(GATEWAYS[0]));
        subject.check(&rebooted, "c-one", &container, &result).ok();
        subject.del(&rebooted, "c-one", &container, &result);
    }
}

#[test]
fn an_upstream_bridge_without_ports_is_adopted_and_its_mac_is_fixed() {
    let host = Host::new();
    let [_, layer2, _] = understood_by_both();
    let theirs = layer2.in_directory(TheReference.directory()).with("name", json!("theirs"));
    let before = host.container();
    let one = host.container();
    let two = host.container();
    let result = theirs.add(&host, "c-before", &before);
    theirs.del(&host, "c-before", &before, &result);
    let subject = bridge().at(host.dir());
    let first = subject.add(&host, "c-one", &one);
    let second = subject.add(&host, "c-two", &two);
    GATEWAYS.iter().for_each(|address| drop(one.sh(&ping(address))));
    undisturbed(&two, GATEWAYS[0], || subject.del(&host, "c-one", &one, &first));
    subject.check(&host, "c-two", &two, &second).ok();
    assert_eq!(first["interfaces"][0]["mac"], second["interfaces"][0]["mac"]);
}

#[test]
fn gc_of_one_network_leaves_other_networks_and_untagged_links() {
    for subject in [bridge(), ptp()] {
        let host = Host::new();
        let running = Running::on(&host, &subject);
        let mut stale = running.subject.with("name", json!("testnet-2"));
        stale.conf["ipam"]["ranges"] = json!([[{"subnet": "10.78.0.0/24"}], [{"subnet": "fd00:78::/64"}]]);
        stale.conf["bridge"] = json!("cni1");
        host.sh("ip link add unmarked type veth peer name peer");
        running.stays_undisturbed(&["cni1", "testnet-2"], "GC of another network", || {
            let container = host.container();
            stale.add(&host, "c-running", &container);
            stale.call(&host, "GC", "", "", &[("cni.dev/valid-attachments", json!([]))]).ok();
            assert_eq!(container.sh("ip -o link show dev eth0 2>/dev/null || true"), "");
        });
        running.subject.check(&host, "c-running", &running.container, &running.result).ok();
    }
}

fn tag() -> AttachmentId {
    AttachmentId { network: "testnet".into(), container: "c-one".into(), ifname: "eth0".into() }
}

#[test]
fn a_link_of_another_attachment_under_our_name_makes_the_next_name_be_used() {
    let [first, second, ..] = veth::names(&tag());
    for subject in [bridge(), ptp()] {
        let host = Host::new();
        let container = Host::new().container();
        let other = alias::of(&AttachmentId { container: "c-other".into(), ..tag() });
        host.sh(&format!("ip link add {first} type veth peer name peer && ip link set {first} alias '{other}'"));
        let subject = subject.at(host.dir());
        let before = HostSnapshot::of(&host);
        let result = subject.add(&host, "c-one", &container);
        assert!(result.to_string().contains(&second), "{result}");
        GATEWAYS.iter().for_each(|address| drop(container.sh(&ping(address))));
        subject.check(&host, "c-one", &container, &result).ok();
        subject.del(&host, "c-one", &container, &result);
        let left = before.added_since(&HostSnapshot::of(&host), &["forwarding", "ip_forward", "accept_redirects"]);
        assert!(left.is_empty(), "gone: {left:#?}");
        assert!(!host.try_sh(&format!("ip link show dev {second}")).0);
    }
}

#[test]
fn a_link_without_tag_under_our_name_is_refused_on_add() {
    let [first, ..] = veth::names(&tag());
    let host = Host::new();
    let container = Host::new().container();
    host.sh(&format!("ip link add {first} type veth peer name peer"));
    let subject = bridge().at(host.dir());
    refused(&host, &container, &[], &["attached already", &first], || add(&subject, &host, "c-one", &container));
}

#[test]
fn del_leaves_a_foreign_pair_with_the_same_indexes() {
    let host = Host::new();
    let third = Host::new();
    let [a, b] = [(); 2].map(|()| Host::new().container());
    for (from, name, to) in [(&host, "vb", &b), (&third, "va", &a)] {
        from.sh(&format!("ip link add {name} index 100 type veth peer name eth0 index 7 netns {}", to.path()));
    }
    bridge().at(host.dir()).call(&host, "DEL", "c-unknown", &a.path(), &[]).ok();
    for container in [&a, &b] {
        container.sh("ip link show dev eth0");
    }
}

#[test]
fn del_leaves_a_pair_without_a_tag() {
    let host = Host::new();
    let running = Host::new().container();
    let subject = bridge().at(host.dir());
    subject.add(&host, "c-running", &running);
    host.sh("for link in $(ip -o link show type veth | sed 's/^[0-9]*: //; s/@.*//'); do ip link set dev $link alias ''; done");
    subject.call(&host, "DEL", "c-another", &running.path(), &[]).ok();
    running.sh("ip link show dev eth0");
}

#[test]
fn an_administrators_address_on_the_bridge_is_accepted() {
    let host = Host::new();
    let subject = bridge().at(host.dir());
    let first = host.container();
    subject.add(&host, "c-first", &first);
    host.sh("ip address add 169.254.1.1/32 dev cni0");
    let second = host.container();
    let result = subject.add(&host, "c-second", &second);
    subject.check(&host, "c-second", &second, &result).ok();
    assert!(host.sh("ip address show dev cni0").contains("169.254.1.1/32"));
}

#[test]
fn a_bridge_is_not_called_by_an_alternative_name() {
    let host = Host::new();
    let container = Host::new().container();
    host.sh("ip link add br0 type bridge && ip link property add dev br0 altname uplink");
    let (code, text) = add(&bridge().at(host.dir()).with("bridge", "uplink".into()), &host, "c-one", &container);
    assert!(code == 101 && text.contains("alternative name of br0"), "{code} {text}");
}

#[test]
fn check_ignores_unconfigured_settings_changed_by_a_later_plugin() {
    let host = Host::new();
    let container = Host::new().container();
    let subject = bridge().at(host.dir());
    let result = subject.add(&host, "c-one", &container);
    container.sh("sysctl -qw net.ipv6.conf.eth0.accept_ra=2 && ip link set dev eth0 mtu 1400");
    subject.check(&host, "c-one", &container, &result).ok();
}

/// The rules of a node in iptables besides ours, each with its counters; some name a container of ours.
const IN_IPTABLES: &str = r#"*nat
:KUBE-SERVICES - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-POSTROUTING - [0:0]
:DOCKER - [0:0]
[3:180] -A PREROUTING -p tcp -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
[1:60] -A PREROUTING -p tcp -m addrtype --dst-type LOCAL -j DOCKER
[2:120] -A OUTPUT -p tcp -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
[7:420] -A POSTROUTING -p tcp -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
[5:300] -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
[6:360] -A KUBE-POSTROUTING -m mark --mark 0x4000/0x4000 -m comment --comment "it's \"theirs\", id: \"c-one\"" -j MASQUERADE
[8:480] -A KUBE-SERVICES -p tcp -m comment --comment "default/web cluster IP" -m tcp --dport 8080 -j KUBE-MARK-MASQ
[9:540] -A DOCKER ! -i docker0 -p tcp -m tcp --dport 8080 -j RETURN
COMMIT
*filter
:KUBE-FORWARD - [0:0]
:DOCKER-USER - [0:0]
[4:240] -A FORWARD -p tcp -j DOCKER-USER
[4:240] -A FORWARD -p tcp -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
[1:40] -A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
[2:80] -A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -m comment --comment "c-one" -j ACCEPT
[3:160] -A DOCKER-USER -j RETURN
COMMIT
"#;

/// The same in nftables.
const IN_NFTABLES: &str = r#"
table ip kube-proxy {
    map services { type ipv4_addr . inet_proto . inet_service : verdict; }
    chain web { counter packets 4 bytes 240 comment "c-one"; }
    chain pre { type nat hook prerouting priority -100; ip daddr . meta l4proto . th dport vmap @services; }
    chain post { type nat hook postrouting priority 100; meta mark 0x4000 masquerade random,fully-random; }
}
add element ip kube-proxy services { 10.96.0.10 . tcp . 8080 : goto web }
table inet site {
    set mine { type ipv4_addr; flags interval; elements = { 10.77.0.0/24 } }
    chain forward { type filter hook forward priority 0; tcp dport 9 counter packets 5 bytes 300 drop comment "c-one"; }
}
"#;

/// Rules of other programs in our tables and chains: the command, and the line in the ruleset.
const IN_OURS: [(&str, Way, &str, &str); 8] = [
    ("portmap", Way::Nftables, "nft add rule ip cni_hostport hostports tcp dport 9 accept", "tcp dport 9 accept"),
    ("portmap", Way::Nftables, "nft add rule ip cni_hostport masquerading tcp dport 7 accept", "tcp dport 7 accept"),
    ("portmap", Way::IptablesNft, "iptables -t nat -A CNI-HOSTPORT-DNAT -p 99 -j RETURN", "-p 99 -j RETURN"),
    ("portmap", Way::IptablesLegacy, "iptables-legacy -t nat -A CNI-HOSTPORT-DNAT -p 99 -j RETURN", "-p 99 -j RETURN"),
    ("firewall", Way::Nftables, "nft add rule inet cni_firewall forward tcp dport 9 accept", "tcp dport 9 accept"),
    ("firewall", Way::IptablesNft, "iptables -A CNI-FORWARD -s 192.0.2.9 -j ACCEPT", "-s 192.0.2.9/32 -j ACCEPT"),
    ("firewall", Way::IptablesNft, "iptables -A CNI-ADMIN -s 192.0.2.8 -j DROP", "-s 192.0.2.8/32 -j DROP"),
    (
        "firewall",
        Way::IptablesLegacy,
        "iptables-legacy -A CNI-FORWARD -s 192.0.2.9 -j ACCEPT",
        "-s 192.0.2.9/32 -j ACCEPT",
    ),
];

/// A host with rules of other programs, with counters and handles.
struct Neighbours<'a> {
    host: &'a Host,
    way: Way,
}

impl Neighbours<'_> {
    fn come(&self) {
        std::fs::write(self.host.dir().join("iptables"), IN_IPTABLES).unwrap();
        std::fs::write(self.host.dir().join("nftables"), IN_NFTABLES).unwrap();
        let half = self.way.half();
        let dir = self.host.dir().display();
        self.host.sh(&format!(
            "for of in iptables ip6tables; do $of-{half}-restore -c <{dir}/iptables || exit; done; nft -f {dir}/nftables"
        ));
    }

    /// All of theirs, byte for byte: rules as iptables has them, and as they stand in the kernel.
    fn foreign_rules(&self) -> Vec<String> {
        let half = self.way.half();
        let output = self.host.sh(&format!(
            "for of in iptables ip6tables; do $of-{half}-save -c; done; nft -a list table ip kube-proxy; nft -a list table inet site; \
             for table in nat filter; do for family in ip ip6; do nft -a list table $family $table 2>/dev/null || :; done; done"
        ));
        let theirs =
            ["KUBE-", "DOCKER", "kube-proxy", "c-one", "services", "10.96.", "mine", "10.77.0.0/24", "dport 9"];
        let is_theirs = |line: &&str| theirs.iter().any(|text| line.contains(text)) && !line.contains("CNI-");
        output.lines().filter(is_theirs).map(str::to_owned).collect()
    }

    fn are_as_they_were(&self, before: &[String], when: &str) {
        assert_eq!(self.foreign_rules(), before, "{:?}, {when}", self.way);
    }

    /// An ADD whose result cannot be written is undone after everything is made.
    fn fail(&self, subject: &Subject, container: &Container) {
        let (lost, _dir) = started_by(subject, WITHOUT_RESULT);
        assert_ne!(lost.call(self.host, "ADD", "c-lost", &container.path(), &[]).exit, 0);
    }
}

/// No rule of another program is changed, made again or moved before another one, in its own tables and in ours, whatever its text.
fn foreign_rules_are_unchanged(subject: &Subject, way: Way) {
    let host = subject.host();
    let programs = way.directory();
    let subject = on_path(&subject.at(host.dir()), programs.path());
    let neighbours = Neighbours { host: &host, way };
    neighbours.come();
    let before = neighbours.foreign_rules();
    assert!(before.iter().filter(|line| line.contains("c-one")).count() > 3, "{before:#?}");
    let [one, two, three] = [(); 3].map(|()| subject.container(&host));
    let result = subject.add(&host, "c-one", &one);
    neighbours.are_as_they_were(&before, "after the first ADD");
    let in_ours: Vec<_> = IN_OURS.iter().filter(|(plugin, of, ..)| *plugin == subject.plugin && *of == way).collect();
    in_ours.iter().for_each(|(_, _, line, _)| drop(host.sh(line)));
    let stay = |when: &str| {
        neighbours.are_as_they_were(&before, when);
        let rules = ["nat", "filter"].map(|table| way.rules(&host, table)).concat();
        in_ours.iter().for_each(|(_, _, line, shown)| assert!(rules.contains(shown), "{when}: {line}: {rules}"));
    };
    subject.add(&host, "c-two", &two);
    stay("after an ADD");
    neighbours.fail(&subject, &three);
    stay("after an ADD that failed");
    subject.check(&host, "c-one", &one, &result).ok();
    subject.del(&host, "c-one", &one, &result);
    stay("after a DEL");
    subject.call(&host, "GC", "", "", &[("cni.dev/valid-attachments", json!([]))]).ok();
    stay("after a GC");
    let rules = ["nat", "filter"].map(|table| way.rules(&host, table)).concat();
    assert!(!rules.contains("fd00:77::2"), "all of ours is gone: {rules}");
}

#[test]
fn foreign_rules_are_unchanged_by_portmap() {
    Way::ALL.iter().for_each(|way| foreign_rules_are_unchanged(&publishing(bin(), way.backend()), *way));
}

#[test]
fn foreign_rules_are_unchanged_by_firewall() {
    Way::ALL.iter().for_each(|way| foreign_rules_are_unchanged(&firewall(bin(), way.backend()), *way));
}

//! What somebody else made: nothing of it is harmed, and what the reference made is taken over both ways.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use cnikit::Tag;
use cnikit::resources::{alias, veth};
use cnikit_testkit::life::SHARED;
use cnikit_testkit::{Container, Host, Snapshot, Subject};
use cnikit_tests::world::{ping, undisturbed};
use cnikit_tests::{bin, dual_stack, program, subject};
use serde_json::{Value, json};

const REFERENCE: &str = "/usr/lib/cni";
/// What host-local keeps of an address that it gave and took back.
const ROTATION: [&str; 2] = ["last_reserved_ip.", ".idx"];
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
        let (subject, container) = (subject.at(host.dir()), host.container());
        let result = subject.add(host, "c-running", &container);
        Running { subject, host, container, result }
    }

    /// Its traffic goes on through `work`, and afterwards nothing has changed but for lines with these texts.
    fn goes_on<T>(&self, but: &[&str], when: &str, work: impl FnOnce() -> T) -> T {
        let (before, inside) = (Snapshot::of(self.host), Snapshot::inside(&self.container));
        let done = undisturbed(&self.container, GATEWAYS[0], work);
        self.container.sh(&ping(GATEWAYS[1]));
        Snapshot::of(self.host).assert_unchanged_since(&before, but, when);
        Snapshot::inside(&self.container).assert_unchanged_since(&inside, &[], when);
        done
    }
}

/// Nothing of it happened: the error says these things, and host and container are as they were.
fn refused(host: &Host, container: &Container, but: &[&str], says: &[&str], add: impl FnOnce() -> (u64, String)) {
    let (before, inside) = (Snapshot::of(host), Snapshot::inside(container));
    let (_, text) = add();
    says.iter().for_each(|what| assert!(text.contains(what), "{what:?} is not said: {text}"));
    Snapshot::of(host).assert_unchanged_since(&before, but, &text);
    Snapshot::inside(container).assert_unchanged_since(&inside, &[], &text);
}

fn add(subject: &Subject, host: &Host, id: &str, container: &Container) -> (u64, String) {
    subject.call(host, "ADD", id, &container.path(), &[]).refused()
}

#[test]
fn a_taken_interface_name_is_refused_before_anything_is_made() {
    for subject in [bridge(), ptp(), subject("bridge", json!({}))] {
        let (host, container) = (Host::new(), Host::new().container());
        let subject = subject.at(host.dir());
        container.sh("ip link add eth0 type veth peer name other && ip address add 10.9.0.1/24 dev eth0");
        let says = ["container veth name \"eth0\" already exists"];
        refused(&host, &container, &[], &says, || add(&subject, &host, "c-one", &container));
    }
}

#[test]
fn an_attachment_that_exists_is_refused_and_goes_on_running() {
    for subject in [bridge(), ptp()] {
        let host = Host::new();
        let running = Running::on(&host, &subject);
        let elsewhere = host.container();
        for container in [&running.container, &elsewhere] {
            running.goes_on(&[], "ADD of an attachment that exists", || {
                let says = ["testnet/c-running/eth0 is attached already"];
                refused(&host, container, &[], &says, || add(&running.subject, &host, "c-running", container));
            });
        }
        running.subject.check(&host, "c-running", &running.container, &running.result).ok();
    }
}

#[test]
fn an_attachment_that_has_lost_its_link_but_holds_its_address_keeps_it() {
    let host = Host::new();
    let running = Running::on(&host, &bridge());
    let end = running.result["interfaces"][1]["name"].as_str().unwrap();
    host.sh(&format!("ip link del {end}"));
    let says = ["DEL it before it is added again"];
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
    running.goes_on(&["rival"], "ADD of an address that is routed elsewhere", || {
        refused(&host, &container, &["rival"], &says.map(|text| text as &str), || add(&rival, &host, "c-one", &container));
    });
    assert!(!host.dir().join("rival/rival/10.77.0.2").exists(), "the address was given back");
}

#[test]
fn ptp_refuses_an_address_that_somebodys_route_of_either_family_holds() {
    for (add_route, held) in [("ip route add 10.77.0.2 dev theirs", "10.77.0.2"), ("ip route add fd00:77::2 dev theirs", "fd00:77::2")] {
        let (host, container) = (Host::new(), Host::new().container());
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
        let (host, container) = (Host::new(), Host::new().container());
        host.sh("ip link add cni0 type veth peer name peer");
        let subject = subject.at(host.dir());
        let says = ["\"cni0\" already exists but is not a bridge: its kind is veth", "ip link del cni0"];
        refused(&host, &container, &[], &says, || add(&subject, &host, "c-one", &container));
    }
}

#[test]
fn a_bridge_with_another_address_is_refused_naming_both_and_the_command() {
    for (theirs, ours) in [("10.66.0.1/16", "10.77.0.1/24"), ("10.77.0.9/24", "10.77.0.1/24"), ("fd00:77::9/64", "fd00:77::1/64")] {
        let (host, container) = (Host::new(), Host::new().container());
        host.sh(&format!("ip link add cni0 type bridge && ip address add {theirs} dev cni0 nodad && ip link set cni0 up"));
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
    let (host, container) = (Host::new(), Host::new().container());
    host.sh("ip link add cni0 type bridge && ip address add fd00:66::1/64 dev cni0 nodad && ip link set cni0 up");
    bridge().at(host.dir()).add(&host, "c-one", &container);
    assert!(host.sh("ip address show dev cni0").contains("fd00:66::1/64"));
}

#[test]
fn del_that_is_given_another_containers_namespace_leaves_that_one_running() {
    for subject in [bridge(), ptp()] {
        let host = Host::new();
        let running = Running::on(&host, &subject);
        running.goes_on(&ROTATION, "DEL with another's namespace", || {
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
        let (host, container) = (Host::new(), Host::new().container());
        let subject = subject.at(host.dir());
        let result = subject.add(&host, "c-one", &container);
        assert!(host.sh("nft list ruleset").contains("id: c-one"));
        subject.with("ipMasq", json!(false)).del(&host, "c-one", &container, &result);
        assert!(!host.sh("nft list ruleset").contains("id: c-one"));
    }
}

/// A plugin directory of our own plugins and the reference's.
fn directory(host: &Host, name: &str, plugins: Origin, ipam: Origin) -> PathBuf {
    let dir = host.dir().with_file_name(format!("{name}-{}", host.dir().file_name().unwrap().to_string_lossy()));
    std::fs::create_dir(&dir).unwrap();
    let link = |origin, plugin: &str| symlink(origin_of(origin).join(plugin), dir.join(plugin)).unwrap();
    ["bridge", "ptp", "loopback"].iter().for_each(|plugin| link(plugins, plugin));
    link(ipam, "host-local");
    dir
}

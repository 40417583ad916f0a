//! Upstream's plugins and ours on one node: one checks and removes the attachments of the other, and both make the same.

use std::thread;

use cnikit_testkit::campaign::{runs_all_cases, sample};
use cnikit_testkit::mixed::{interleaved, replaced};
use cnikit_testkit::snapshot::HINTS;
use cnikit_testkit::{Container, HostSnapshot, Subject};
use cnikit_tests::campaign_subjects::{connected, crowded_firewall, crowded_ports};
use cnikit_tests::mixed::{self, Row, UpstreamRelease, add_until_detected};
use cnikit_tests::world::{UNTIL_DETECTED, undisturbed};
use cnikit_tests::{
    MASTER_OF_MACVLANS, bin, crowded_host_device, dual_stack, flannel, is_chosen, subject, subnet_file, tap, wrapped,
};
use serde_json::{Value, json};

fn of(plugin: &str) -> Vec<Row> {
    mixed::rows().into_iter().filter(|row| row.plugin == plugin).collect()
}

/// The releases that this run compares with: one of two, by chance, because they differ in little. `CNIKIT_CAMPAIGNS=whole`: both.
fn releases(what: &str) -> Vec<UpstreamRelease> {
    sample(&format!("releases of {what}"), vec![UpstreamRelease::Packaged, UpstreamRelease::Newest], 1)
}

fn alike(plugin: &str) {
    if !is_chosen(&format!("{plugin} is alike")) {
        return;
    }
    for release in releases(plugin) {
        mixed::alike(release, &of(plugin));
    }
}

macro_rules! alike {
    ($($name:ident: $plugin:literal;)+) => {$(
        #[test]
        fn $name() {
            alike($plugin);
        }
    )+};
}

alike! {
    loopback_is_alike: "loopback";
    host_local_is_alike: "host-local";
    static_is_alike: "static";
    tuning_is_alike: "tuning";
    sbr_is_alike: "sbr";
    bandwidth_is_alike: "bandwidth";
    firewall_is_alike: "firewall";
    portmap_is_alike: "portmap";
    bridge_is_alike: "bridge";
    ptp_is_alike: "ptp";
    macvlan_is_alike: "macvlan";
    host_device_is_alike: "host-device";
}

#[test]
fn flannel_is_like_the_last_one_there_was() {
    mixed::alike(UpstreamRelease::WithFlannel, &of("flannel"));
}

/// Release 1.1.1 has no tap.
#[test]
fn tap_is_like_the_newest_one() {
    mixed::alike(UpstreamRelease::Newest, &of("tap"));
}

#[test]
fn results_are_alike_in_every_version() {
    for release in releases("versions") {
        mixed::alike(release, &mixed::versions());
    }
}

#[test]
fn the_page_has_the_list() {
    let page = cnikit_tests::docs::page("docs/differences.md").text;
    let table = mixed::table();
    assert!(page.contains(&table), "docs/differences.md should hold this table:\n{table}");
    let names: Vec<&str> = mixed::DIFFERENCES.iter().map(|one| one.id).collect();
    let lines: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
    assert_eq!(lines.len(), names.len(), "the page names what the list does not");
    assert!(names.iter().enumerate().all(|(n, id)| !names[..n].contains(id)), "a name stands twice: {names:?}");
}

/// The shell line that prepares a host.
fn ground(plugin: &str) -> &'static str {
    if plugin == "macvlan" { MASTER_OF_MACVLANS } else { ":" }
}

/// A running container of one maker, then a second one of the other on the same network: they exchange packets, without a loss for
/// the first.
fn live_side_by_side(release: UpstreamRelease, plugin: &str, ours_first: bool) {
    let mut ipam = dual_stack();
    ipam["routes"] = json!([{"dst": "0.0.0.0/0", "gw": "10.77.0.1"}, {"dst": "::/0", "gw": "fd00:77::1"}]);
    let keys = json!({"cniVersion": release.speaks(), "isDefaultGateway": true, "ipMasq": true, "master": "master0",
                      "ipam": ipam});
    let host = subject(plugin, json!({})).on(ground(plugin)).host();
    let ours = subject(plugin, keys).at(host.dir());
    let theirs = ours.in_directory(release.bin());
    let [old, new] = if ours_first { [&ours, &theirs] } else { [&theirs, &ours] };
    let one = host.container();
    let two = host.container();
    let before = HostSnapshot::of(&host);
    let add = |subject: &Subject, id: &str, container: &Container| {
        add_until_detected(|verb| subject.call(&host, verb, id, &container.path(), &[])).ok()
    };
    let first = add(old, "c-one", &one);
    one.sh(UNTIL_DETECTED);
    host.sh(UNTIL_DETECTED);
    let second = undisturbed(&one, "10.77.0.1", || add(new, "c-two", &two));
    two.sh(UNTIL_DETECTED);
    host.sh(UNTIL_DETECTED);
    // With upstream's plugin the first packets may be lost.
    let talk = |from: &Container, to: &[&str]| to.iter().for_each(|to| assert!(from.reaches(to), "{plugin}: {to}"));
    talk(&two, &["10.77.0.1", "fd00:77::1", "10.77.0.2", "fd00:77::2"]);
    talk(&one, &["10.77.0.1", "fd00:77::1", "10.77.0.3", "fd00:77::3"]);
    // The new plugin deletes the old one's container, while its own container runs.
    undisturbed(&two, "10.77.0.1", || new.del(&host, "c-one", &one, &first));
    new.check(&host, "c-two", &two, &second).ok();
    old.call(&host, "DEL", "c-two", &two.path(), &[("prevResult", second)]);
    let traced = |line: &String| ["c-one", "c-two", "eth0"].iter().any(|mark| line.contains(mark));
    let left: Vec<String> = HostSnapshot::of(&host).added_since(&before, &HINTS).into_iter().filter(traced).collect();
    assert!(left.is_empty(), "{left:#?}");
}

/// All at once, because most of the time they wait for packets.
#[test]
fn an_upgrade_and_a_downgrade_leave_running_containers_alone() {
    thread::scope(|scope| {
        for plugin in ["bridge", "ptp", "macvlan"] {
            for release in releases(&format!("{plugin}, side by side")) {
                for ours_first in [false, true] {
                    scope.spawn(move || live_side_by_side(release, plugin, ours_first));
                }
            }
        }
    });
}

/// The subject of the interleaved calls: with one family, because upstream waits seconds for addresses of the other one.
fn shared(plugin: &str, release: UpstreamRelease, backend: &str) -> Subject {
    if plugin == "flannel" {
        let env = "FLANNEL_NETWORK=10.76.0.0/15\nFLANNEL_SUBNET=10.77.0.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";
        let keys = flannel()
            .with("subnetFile", json!(subnet_file("ipv4.env", env)))
            .with("cniVersion", json!(release.speaks()));
        return keys.called(&format!("flannel beside {}", release.version()));
    }
    let chained = match plugin {
        "portmap" => Some(crowded_ports(bin(), backend)),
        "firewall" => Some(crowded_firewall(bin(), backend).with("ingressPolicy", json!("open"))),
        _ => None,
    };
    if let Some(chained) = chained {
        let title = format!("{} beside {}", chained.title, release.version());
        return chained.with("cniVersion", json!(release.speaks())).background("").called(&title);
    }
    let mut keys = json!({"cniVersion": release.speaks(), "isDefaultGateway": true, "master": "master0",
                          "ipam": {"type": "host-local", "subnet": "10.77.0.0/24"}});
    if !backend.is_empty() {
        keys["ipMasq"] = Value::Bool(true);
        keys["ipMasqBackend"] = backend.into();
    }
    let title = format!("{plugin} {backend} beside {}", release.version());
    subject(plugin, keys).called(&title.replace("  ", " ")).on(ground(plugin))
}

/// Half of all, by chance; all with `CNIKIT_CAMPAIGNS=whole`.
fn some_shared(what: &str) -> Vec<(UpstreamRelease, Subject)> {
    let all = all_shared();
    let half = all.len().div_ceil(2);
    sample(what, all, half)
}

/// Every configuration with every release. No masquerade with nftables: upstream's DEL, even of its own attachment, deletes rules
/// of iptables that it never made, and takes the refusal of iptables 1.8.9 for a failure. No portmap of 1.1.1, whose CHECK of its
/// own attachment fails as well: it searches for the rules of IPv4 among those for IPv6. No sbr, vrf and bandwidth, whose interface
/// stays here: upstream's DEL leaves routes and queueing disciplines to the end of the interface, and its ADD fails at them.
fn all_shared() -> Vec<(UpstreamRelease, Subject)> {
    let rows = [
        (UpstreamRelease::Packaged, "bridge", ""),
        (UpstreamRelease::Packaged, "bridge", "iptables"),
        (UpstreamRelease::Packaged, "ptp", "iptables"),
        (UpstreamRelease::Packaged, "host-local", ""),
        (UpstreamRelease::Packaged, "macvlan", ""),
        (UpstreamRelease::Packaged, "firewall", "iptables"),
        (UpstreamRelease::Newest, "bridge", ""),
        (UpstreamRelease::Newest, "bridge", "iptables"),
        (UpstreamRelease::Newest, "ptp", "iptables"),
        (UpstreamRelease::Newest, "host-local", ""),
        (UpstreamRelease::Newest, "macvlan", ""),
        (UpstreamRelease::Newest, "firewall", "iptables"),
        (UpstreamRelease::Newest, "portmap", "iptables"),
        (UpstreamRelease::Newest, "portmap", "nftables"),
        (UpstreamRelease::WithFlannel, "flannel", ""),
    ];
    rows.into_iter().map(|(release, plugin, backend)| (release, shared(plugin, release, backend))).collect()
}

/// Lines that may appear and disappear. The link of a container is removed some time after its namespace. Upstream removes rules
/// and leaves their elements in our sets, which it does not use. The order of jumps depends on the last writer.
fn stays(ours: &Subject) -> &'static [&'static str] {
    const LINKS: [&str; 1] = ["toward"];
    const IN_SETS: [&str; 4] = [LINKS[0], "nft: \t\telements = {", "nft: \t\t\t", "jump hostports"];
    match (ours.plugin.as_str(), ours.conf["backend"].as_str()) {
        ("portmap", Some("nftables")) => &IN_SETS,
        ("host-device", _) => &HINTS,
        _ if ours.after.is_some() => &LINKS,
        _ => &HINTS,
    }
}

#[test]
fn random_calls_of_ours_and_upstream_leave_nothing() {
    thread::scope(|scope| {
        for (release, ours) in some_shared("random calls") {
            scope.spawn(move || interleave(release, &ours));
        }
    });
}

fn interleave(release: UpstreamRelease, ours: &Subject) {
    // A chained plugin of upstream starts dozens of programs.
    let short = if ours.after.is_some() { 25 } else { 50 };
    interleaved(ours, &release.bin(), if runs_all_cases() { 5000 } else { short }, stays(ours));
}

#[test]
fn plugins_are_exchanged_under_running_containers_and_back() {
    thread::scope(|scope| {
        for (release, ours) in some_shared("exchanges").into_iter().filter(|(_, ours)| ours.plugin != "host-local") {
            scope.spawn(move || exchange_and_back(release, &ours));
        }
    });
}

fn exchange_and_back(release: UpstreamRelease, ours: &Subject) {
    let first = bin();
    let second = release.bin();
    let subject = if ours.after.is_some() { connected(ours) } else { ours.clone() };
    replaced(&subject, first, &second, true, stays(&subject));
    replaced(&subject, first, &second, false, stays(&subject));
}

/// Not among the others: no packets pass a device without a guest.
#[test]
fn random_calls_of_our_tap_and_upstreams_leave_nothing() {
    let release = UpstreamRelease::Newest;
    let ipam = json!({"type": "host-local", "subnet": "10.77.0.0/24"});
    let ours = tap().with("cniVersion", json!(release.speaks())).with("ipam", ipam).called("tap beside 1.9.1");
    interleave(release, &ours);
}

/// Not among the others either: a device has no program at its other end.
#[test]
fn random_calls_of_our_host_device_and_upstreams_leave_nothing() {
    let ipam = json!({"type": "host-local", "subnet": "10.77.0.0/24"});
    for release in releases("host-device, random calls") {
        let ours = crowded_host_device(bin()).with("cniVersion", json!(release.speaks())).with("ipam", ipam.clone());
        interleave(release, &ours.called(&format!("host-device beside {}", release.version())));
    }
}

/// It leaves a route that names neither a container nor a link.
const UNTIDY: &str = "[ $CNI_COMMAND != DEL ] || ip route add blackhole 198.51.$(($$ / 256 % 256)).$(($$ % 256))";

/// ptp, and another that leaves something behind each DEL.
fn beside_an_untidy_one() -> (Subject, tempfile::TempDir) {
    let ours = subject("ptp", json!({"ipam": {"type": "host-local", "subnet": "10.77.0.0/24"}}));
    let dir = wrapped(&ours, UNTIDY);
    (ours.called("ptp beside a script, meant to be found out"), dir)
}

#[test]
#[should_panic(expected = "blackhole")]
fn a_leftover_without_container_name_between_both_is_found() {
    let (ours, untidy) = beside_an_untidy_one();
    interleaved(&ours, untidy.path(), 60, &HINTS);
}

#[test]
#[should_panic(expected = "blackhole")]
fn a_leftover_without_container_name_after_a_replacement_is_found() {
    let (ours, untidy) = beside_an_untidy_one();
    replaced(&ours, bin(), untidy.path(), true, &HINTS);
}

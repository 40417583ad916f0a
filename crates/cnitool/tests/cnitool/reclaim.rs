//! `ipam reclaim`: an address is freed if it is proven that no container holds it, and only then.

use std::fs;
use std::time::{Duration, Instant};

use cnikit_netns::{Netns, machine_id, make};
use cnikit_reservations::{AllocationRequest, Boot, Owner, RangeConfig, RangeSet, Store, TIMEOUT};
use serde_json::Value;

use crate::bench::{Bench, json};

const NET: &str = r#"{"cniVersion": "1.0.0", "name": "net", "plugins": [
    {"type": "bridge", "bridge": "cni-t0", "ipam": {
     "type": "host-local", "dataDir": "DIR/leases", "subnet": "10.94.0.0/24"}}]}"#;

/// Attaches a container with a namespace of this name; returns its address.
fn add(bench: &Bench, name: &str) -> String {
    let path = bench.namespace(name);
    let (result, _) = bench.says(0, &format!("add net {}", path.display()));
    let address = json(&result)["ips"][0]["address"].as_str().unwrap().to_owned();
    address.split_once('/').unwrap().0.to_owned()
}

/// Waits until the host has this number of veth links: the kernel removes namespaces in the background.
fn await_pairs(bench: &Bench, count: usize) {
    let began = Instant::now();
    while bench.host_says("ip -o link show type veth").lines().count() != count {
        assert!(began.elapsed() < Duration::from_secs(20), "{}", bench.host_says("ip -o link"));
    }
}

fn reserved(bench: &Bench, address: &str) -> bool {
    bench.path("leases/net").join(address).exists()
}

/// The entry of an address in `ipam leaks`; `None` if it is held.
fn leak(bench: &Bench, address: &str) -> Option<Value> {
    let output = bench.run(&["--json", "ipam", "leaks", "--network", "net", "--within-pid-namespace"], &[]);
    let leaks = json(str::from_utf8(&output.stdout).unwrap())["leaks"].clone();
    leaks.as_array().unwrap().iter().find(|leak| leak["address"] == address).cloned()
}

#[test]
fn a_cookie_without_a_living_namespace_is_proof_and_a_missing_path_is_not() {
    let bench = Bench::new();
    bench.file("net.conflist", NET);
    let [lives, held, dead, foreign] = ["lives", "held", "dead", "foreign"].map(|name| add(&bench, name));
    let holder = Netns::open(bench.path("held")).unwrap();
    for name in ["held", "dead", "foreign"] {
        make::remove(&bench.path(name)).unwrap();
    }
    await_pairs(&bench, 2);
    forget_cookie(&bench, "foreign");

    assert_eq!((leak(&bench, &lives), leak(&bench, &held)), (None, None), "both namespaces live");
    assert_eq!(leak(&bench, &dead).unwrap()["state"], "leaked");
    let suspected = leak(&bench, &foreign).unwrap();
    assert!(suspected["state"] == "suspected" && suspected["why"].as_str().unwrap().contains("its namespace ("));

    let (printed, _) = bench.says(0, "ipam reclaim --network net --within-pid-namespace --dry-run");
    assert!(printed.contains("1 would be released; 1 suspected"), "{printed}");
    assert!(reserved(&bench, &dead), "a dry run frees nothing");
    let document = bench.json("ipam reclaim --network net --within-pid-namespace");
    assert_eq!(document["freed"][0]["address"], dead.as_str(), "{document}");
    assert_eq!((document["freed"].as_array().unwrap().len(), &document["suspected"]), (1, &1.into()));
    assert_eq!([&lives, &held, &dead, &foreign].map(|address| reserved(&bench, address)), [true, true, false, true]);

    drop(holder);
    await_pairs(&bench, 1);
    bench.says(0, "ipam reclaim --network net --within-pid-namespace");
    assert!(!reserved(&bench, &held) && reserved(&bench, &lives), "nothing holds it any more");
    assert!(bench.says(3, "ipam leaks --network net --within-pid-namespace").0.contains(&foreign));
}

/// Removes the cookie, which upstream does not write, from a cached result.
fn forget_cookie(bench: &Bench, name: &str) {
    let path = bench.path(name).display().to_string();
    let is_it = |file: &&std::path::PathBuf| json(&fs::read_to_string(file).unwrap())["netns"] == path.as_str();
    let files = bench.cached_files();
    let file = files.iter().find(is_it).unwrap();
    let mut document = json(&fs::read_to_string(file).unwrap());
    assert!(document.as_object_mut().unwrap().remove("cnikit").is_some());
    fs::write(file, document.to_string()).unwrap();
}

/// Writes the files of a container of an earlier boot, and the index with that boot.
fn hold_before_this_boot(bench: &Bench, container: &str) -> String {
    let machine = machine_id().expect("a machine without a name has no boots to tell apart: see machine-id(5)");
    let boot = Boot::new("11111111-1111-1111-1111-111111111111", Some(&machine));
    let data_dir = bench.path("leases");
    let store = Store { data_dir, network: "net".into(), boot, cooling: None, timeout: TIMEOUT, log: |_| {} };
    let subnet = RangeConfig { subnet: "10.94.0.0/24".parse().ok(), ..RangeConfig::default() };
    let sets = vec![RangeSet::try_from(&[subnet][..]).unwrap()];
    let request =
        AllocationRequest { owner: Owner::new(container, "eth0"), sets, wanted: Vec::new(), cooldown: Duration::ZERO };
    store.acquire(&request).unwrap()[0].address.ip().to_string()
}

#[test]
fn reservations_of_an_earlier_boot_are_reclaimed() {
    let bench = Bench::new();
    bench.file("net.conflist", NET);
    let old = hold_before_this_boot(&bench, "c-old");
    fs::write(bench.path("leases/net/10.94.0.9"), "c-unknown\r\neth0").unwrap();
    let (printed, _) = bench.says(0, "ipam usage --network net");
    assert!(
        printed.lines().any(|line| line.contains(&old) && line.contains("leaked") && line.contains("this boot")),
        "{printed}"
    );
    // The earlier boot is a proof even if not all processes are visible.
    let document = bench.json("ipam reclaim --network net");
    assert_eq!(document["freed"][0]["address"], old.as_str());
    assert!(
        !reserved(&bench, &old) && reserved(&bench, "10.94.0.9"),
        "no runtime knows the other, which proves nothing"
    );
}

#[test]
fn a_cookie_proves_nothing_if_not_all_processes_are_visible() {
    let bench = Bench::new();
    bench.file("net.conflist", NET);
    let dead = add(&bench, "dead");
    make::remove(&bench.path("dead")).unwrap();
    await_pairs(&bench, 0);
    let sees_all = fs::read_link("/proc/self/ns/pid").unwrap().to_str() == Some("pid:[4026531836]");
    let (printed, _) = bench.says(0, "ipam reclaim --network net");
    assert!(sees_all || printed.contains("0 released; 1 suspected"), "{printed}");
    assert!(sees_all || reserved(&bench, &dead));
}

#[test]
fn a_reservation_that_lost_its_content_in_a_crash_is_reclaimed() {
    let bench = Bench::new();
    bench.file("net.conflist", NET);
    fs::create_dir_all(bench.path("leases/net")).unwrap();
    fs::write(bench.path("leases/net/10.94.0.5"), "").unwrap();
    let (printed, _) = bench.says(0, "ipam reclaim --network net");
    assert!(printed.contains("10.94.0.5") && printed.contains("1 released"), "{printed}");
    assert!(!reserved(&bench, "10.94.0.5"));
    assert!(bench.says(1, "ipam usage --network other").1.contains("no network \"other\""));
}

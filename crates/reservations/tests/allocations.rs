//! The effect of ADD, DEL, CHECK, GC and STATUS on the files of one network.
#![expect(clippy::unwrap_used, reason = "a test says what should be so")]

mod scene;

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, symlink};

use cnikit_reservations::{ErrorKind, Health, Owner, RangeConfig, RangeSet};
use scene::{MACHINE, NEXT_BOOT, Scene, part, request, set, texts};

fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn the_files_have_the_format_of_other_releases() {
    let scene = Scene::new();
    let sets = [set("10.1.2.0/24"), set("2001:db8::/64")];
    assert_eq!(scene.add("c1", &sets).unwrap(), "10.1.2.2/24 2001:db8::2/64");
    let mode = |name: &str| fs::metadata(scene.dir().join(name)).unwrap().mode() & 0o7777;
    assert_eq!(scene.text("10.1.2.2"), "c1\r\neth0");
    assert_eq!(scene.text("2001:db8::2"), "c1\r\neth0");
    assert_eq!(scene.text("last_reserved_ip.0"), "10.1.2.2");
    assert_eq!(scene.text("last_reserved_ip.1"), "2001:db8::2");
    assert_eq!(scene.text("lock"), "");
    assert_eq!((mode("."), mode("10.1.2.2"), mode("last_reserved_ip.0"), mode("lock")), (0o755, 0o600, 0o600, 0o600));
    assert_eq!(fs::read_dir(scene.dir()).unwrap().count(), 5, "and nothing else");
}

#[test]
fn addresses_are_given_in_turn_and_the_one_freed_last_is_the_last_to_come_again() {
    let scene = Scene::new();
    let sets = [part("10.1.2.0/24", "10.1.2.4", "10.1.2.6")];
    assert_eq!(scene.add("a", &sets).unwrap(), "10.1.2.4/24");
    assert_eq!(scene.del("a"), 1);
    assert_eq!(scene.add("b", &sets).unwrap(), "10.1.2.5/24");
    assert_eq!(scene.add("c", &sets).unwrap(), "10.1.2.6/24");
    assert_eq!(scene.add("d", &sets).unwrap(), "10.1.2.4/24");
    let full = scene.add("e", &sets).unwrap_err();
    assert_eq!(full.kind, ErrorKind::Exhausted);
    let path = scene.dir().canonicalize().unwrap();
    let text = format!(
        "failed to allocate for range 0: no IP addresses available in range set: 10.1.2.4-10.1.2.6 (3 of 3 are reserved, one file each in {})",
        path.display()
    );
    assert_eq!(full.text, text);
    assert!(full.hint.unwrap().contains("GC"));
}

#[test]
fn no_gateway_of_any_range_is_ever_given_away() {
    let scene = Scene::new();
    let sets = [part("10.1.2.0/24", "10.1.2.1", "10.1.2.2"), part("10.1.0.0/16", "10.1.0.1", "10.1.0.3")];
    assert_eq!(scene.add("a", &sets).unwrap(), "10.1.2.2/24 10.1.0.2/16");
    assert_eq!(scene.add("b", &sets[1..]).unwrap(), "10.1.0.3/16");
    assert_eq!(scene.add("c", &sets[1..]).unwrap_err().kind, ErrorKind::Exhausted);
}

#[test]
fn an_ipv6_range_of_any_size_is_served_at_once_and_skips_what_is_taken() {
    let scene = Scene::new();
    let sets = [set("2001:db8::/32")];
    for n in 2..1500_u32 {
        scene.write(&std::net::Ipv6Addr::from(0x2001_0db8_u128 << 96 | u128::from(n)).to_string(), "x\r\neth0");
    }
    assert_eq!(scene.add("a", &sets).unwrap(), "2001:db8::5dc/32");
    scene.write("last_reserved_ip.0", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff\n");
    assert_eq!(scene.add("b", &sets).unwrap(), "2001:db8::5dd/32", "past the last address it begins anew");
}

#[test]
fn requested_addresses_are_given_exactly_or_refused() {
    let scene = Scene::new();
    let sets = [set("10.1.2.0/24"), set("2001:db8::/64")];
    assert_eq!(scene.want("a", &sets, &["2001:db8::9", "10.1.2.9"]).unwrap(), "10.1.2.9/24 2001:db8::9/64");
    let taken = scene.want("b", &sets, &["10.1.2.9"]).unwrap_err();
    assert_eq!(taken.kind, ErrorKind::Exhausted);
    assert_eq!(
        taken.text,
        "failed to allocate for range 0: requested IP address 10.1.2.9 is not available in range set 10.1.2.1-10.1.2.254"
    );
    assert_eq!(scene.reserved(), ["10.1.2.9", "2001:db8::9"]);
    assert_eq!(scene.add("c", &sets).unwrap(), "10.1.2.10/24 2001:db8::a/64", "the turn goes on after a requested one");
}

#[test]
fn after_a_boot_an_attachment_gets_its_address_back_if_it_may_have_it() {
    let subnet = "10.1.2.0/24".parse().ok();
    let gateway = "10.1.2.2".parse().ok();
    let behind_it = RangeSet::try_from(&[RangeConfig { subnet, start: None, end: None, gateway }][..]).unwrap();
    let whole = [set("10.1.2.0/24")];
    let again = |sets: &[RangeSet], wanted: &[&str]| {
        let mut scene = Scene::new();
        scene.add("a", &whole).unwrap();
        scene.add("b", &whole).unwrap();
        scene.reboot(NEXT_BOOT, Some(MACHINE));
        scene.want("a", sets, wanted).unwrap()
    };
    assert_eq!(again(&whole, &[]), "10.1.2.2/24");
    assert_eq!(again(&whole, &["10.1.2.2"]), "10.1.2.2/24");
    assert_eq!(again(&[behind_it], &[]), "10.1.2.4/24", "it is a gateway now");
    assert_eq!(
        again(&[part("10.1.2.0/24", "10.1.2.100", "10.1.2.110")], &[]),
        "10.1.2.100/24",
        "it is of no range now"
    );
}

#[test]
fn an_address_that_another_program_has_renewed_since_the_boot_is_held() {
    let mut scene = Scene::new();
    let sets = [set("10.1.2.0/24")];
    scene.add("a", &sets).unwrap();
    scene.reboot(NEXT_BOOT, Some(MACHINE));
    scene.add("b", &sets).unwrap(); // indexes the reservation of the earlier boot
    scene.write("10.1.2.2", "a\r\neth0");
    assert_eq!(scene.add("a", &sets).unwrap_err().kind, ErrorKind::HoldsAlready);
}

#[test]
fn a_failed_add_releases_only_its_own_addresses() {
    let scene = Scene::new();
    let first = part("10.1.0.0/24", "", "10.1.0.9");
    let second = part("10.2.0.0/24", "10.2.0.2", "10.2.0.2");
    scene.add("other", std::slice::from_ref(&second)).unwrap();
    // The same attachment holds an address from another configuration of the network.
    scene.add("a", &[set("10.3.0.0/24")]).unwrap();
    let refused = scene.add("a", &[first, second]).unwrap_err();
    assert!(refused.text.starts_with("failed to allocate for range 1: no IP addresses available"), "{refused}");
    assert_eq!(scene.reserved(), ["10.2.0.2", "10.3.0.2"]);
    assert_eq!(scene.text("last_reserved_ip.0"), "10.3.0.2", "nor is the turn passed on");
    assert_eq!(scene.del("a"), 1, "and the index knows it");
}

#[test]
fn a_second_add_of_an_attachment_is_refused_and_its_address_stays() {
    let scene = Scene::new();
    let sets = [set("10.1.2.0/24"), set("2001:db8::/64")];
    scene.add("a", &sets[1..]).unwrap();
    for wanted in [&[][..], &["10.1.2.77"], &["2001:db8::2"]] {
        let refused = scene.want("a", &sets, wanted).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::HoldsAlready, "{refused}");
        let text =
            "failed to allocate for range 1: 2001:db8::2 has been allocated to a, duplicate allocation is not allowed";
        assert_eq!(refused.text, text);
    }
    assert_eq!(scene.reserved(), ["2001:db8::2"]);
    assert_eq!(scene.add("a", &sets[..1]).unwrap(), "10.1.2.2/24", "another range of the network is no second time");
}

#[test]
fn a_del_frees_all_that_the_attachment_holds_and_succeeds_when_there_is_nothing() {
    let scene = Scene::new();
    let sets = [set("10.1.2.0/24"), set("2001:db8::/64")];
    assert_eq!(scene.del("a"), 0, "no directory");
    assert!(!scene.dir().exists(), "and none is made");
    scene.add("a", &sets).unwrap();
    scene.add("b", &sets).unwrap();
    assert_eq!((scene.del("a"), scene.del("a"), scene.del("unknown")), (2, 0, 0));
    assert_eq!(scene.reserved(), ["10.1.2.3", "2001:db8::3"]);
    assert_eq!(scene.store.release(&Owner::new("b", "eth1")).unwrap(), [] as [IpAddr; 0], "another interface of b");
}

#[test]
fn reservations_of_old_releases_without_interface_are_honoured() {
    let scene = Scene::new();
    let sets = [set("10.1.2.0/24")];
    scene.write("10.1.2.2", "old");
    scene.write("10.1.2.3", "old\n");
    assert_eq!(scene.add("old", &sets).unwrap_err().kind, ErrorKind::HoldsAlready);
    scene.store.confirm(&Owner::new("old", "eth0"), &ips(&["10.1.2.2"])).unwrap();
    assert_eq!(scene.store.sweep(&[Owner::new("old", "eth7")]).unwrap(), [] as [IpAddr; 0]);
    scene.write("10.1.2.9", "old\r\neth0");
    assert_eq!(scene.del("old"), 1, "its own first, as the reference does");
    assert_eq!(scene.del("old"), 2);
}

#[test]
fn only_named_addresses_of_the_owner_are_released() {
    let scene = Scene::new();
    let owner = Owner::new("a", "eth0");
    scene.add("a", &[set("10.1.2.0/24")]).unwrap();
    scene.add("a", &[set("10.3.0.0/24")]).unwrap();
    scene.add("b", &[set("10.3.0.0/24")]).unwrap();
    scene.store.give_back(&owner, &ips(&["10.3.0.2", "10.3.0.3"])).unwrap();
    assert_eq!(scene.reserved(), ["10.1.2.2", "10.3.0.3"]);
}

#[test]
fn a_check_names_every_address_that_is_not_held_any_more() {
    let scene = Scene::new();
    let owner = Owner::new("a", "eth0");
    assert_eq!(scene.store.confirm(&owner, &[]).unwrap_err().kind, ErrorKind::Drift);
    scene.add("a", &[set("10.1.2.0/24"), set("2001:db8::/64")]).unwrap();
    scene.store.confirm(&owner, &[]).unwrap();
    scene.store.confirm(&owner, &ips(&["10.1.2.2", "2001:db8::2"])).unwrap();
    scene.write("10.1.2.2", "thief\r\neth0");
    let drift = scene.store.confirm(&owner, &ips(&["10.1.2.2", "2001:db8::2", "10.1.2.3"])).unwrap_err();
    assert_eq!(drift.kind, ErrorKind::Drift);
    assert!(drift.text.contains("10.1.2.2: wanted held by a/eth0, found held by thief/eth0"), "{drift}");
    assert!(drift.text.contains("10.1.2.3: wanted held by a/eth0, found not reserved"), "{drift}");
    assert!(!drift.text.contains("2001"), "{drift}");
}

#[test]
fn a_sweep_frees_invalid_reservations_and_leaves_unknown_files() {
    let scene = Scene::new();
    let sets = [set("10.1.2.0/24")];
    for container in ["a", "b", "c"] {
        scene.add(container, &sets).unwrap();
    }
    scene.write("10.1.2.50", "b");
    scene.write("10.1.2.51", "gone");
    scene.write("10.1.2.52", "not a reservation\n\n");
    scene.write("notes.txt", "gone\r\neth0");
    let mut freed = scene.store.sweep(&[Owner::new("b", "eth0"), Owner::new("elsewhere", "eth0")]).unwrap();
    freed.sort();
    assert_eq!(freed, ips(&["10.1.2.2", "10.1.2.4", "10.1.2.51"]));
    assert_eq!(scene.reserved(), ["10.1.2.3", "10.1.2.50", "10.1.2.52", "notes.txt"]);
    assert_eq!(scene.text("last_reserved_ip.0"), "10.1.2.4");
    assert_eq!(scene.store.sweep(&[]).unwrap().len(), 2, "an empty list means that none is valid");
}

#[test]
fn a_file_that_can_be_read_again_belongs_to_its_owner() {
    let scene = Scene::new();
    scene.write("10.1.2.9", "two words");
    scene.add("a", &[set("10.1.2.0/24")]).unwrap();
    // The index has it as unreadable, and a change of the content does not change the directory.
    scene.write("10.1.2.9", "b\r\neth0");
    assert_eq!(scene.store.sweep(&[Owner::new("b", "eth0")]).unwrap(), ips(&["10.1.2.2"]));
    assert_eq!(scene.reserved(), ["10.1.2.9"]);
}

#[test]
fn a_file_that_cannot_be_read_is_named_and_hinders_no_other_address() {
    let scene = Scene::new();
    let sets = [part("10.1.2.0/24", "", "10.1.2.5")];
    scene.write("10.1.2.2", "what is this?");
    fs::create_dir(scene.dir().join("10.1.2.3")).unwrap();
    symlink("/etc/passwd", scene.dir().join("10.1.2.4")).unwrap();
    assert_eq!(scene.add("a", &sets).unwrap(), "10.1.2.5/24");
    assert_eq!(scene.add("b", &sets).unwrap_err().kind, ErrorKind::Exhausted);
    let health = scene.store.health().unwrap();
    let mut names: Vec<String> = health.unreadable.iter().map(|path| path.display().to_string()).collect();
    names.sort();
    let dir = scene.dir().canonicalize().unwrap();
    assert_eq!(names, ["10.1.2.2", "10.1.2.3", "10.1.2.4"].map(|name| dir.join(name).display().to_string()));
    assert_eq!(scene.store.sweep(&[]).unwrap(), ips(&["10.1.2.5"]), "they fail no GC");
    assert_eq!(scene.add("a", &sets).unwrap(), "10.1.2.5/24");
    assert_eq!(scene.del("a"), 1);
    fs::remove_file(scene.dir().join("10.1.2.2")).unwrap();
    assert_eq!(scene.store.health().unwrap().unreadable.len(), 2);
}

#[test]
fn an_attachment_with_the_longest_of_ids_is_found_again() {
    let mut scene = Scene::new();
    let sets = [set("10.1.2.0/24")];
    let long = "x".repeat(100_000);
    let owner = Owner::new(long.as_str(), "eth0");
    // Without a boot id no index is used.
    for boot in [scene.store.boot, None] {
        scene.store.boot = boot;
        scene.add(&long, &sets).unwrap();
        let held = ips(&[&scene.reserved()[0]]);
        scene.store.confirm(&owner, &held).unwrap();
        assert_eq!(scene.add(&long, &sets).unwrap_err().kind, ErrorKind::HoldsAlready);
        assert!(scene.store.health().unwrap().unreadable.is_empty());
        assert_eq!(scene.store.release(&owner).unwrap(), held);
        scene.add(&long, &sets).unwrap();
        assert_eq!(scene.store.sweep(std::slice::from_ref(&owner)).unwrap(), [] as [IpAddr; 0]);
        assert_eq!(scene.store.sweep(&[]).unwrap().len(), 1);
        assert_eq!(scene.reserved(), [""; 0]);
    }
}

#[test]
fn files_that_contradict_the_index_repeatedly_are_an_error() {
    let scene = Scene::new();
    let owner = Owner::new("x".repeat(300_000), "eth0");
    // The index has its owner from when the file was written, but the file is longer than the limit for reading.
    scene.add(&owner.container, &[set("10.1.2.0/24")]).unwrap();
    for refused in [scene.store.release(&owner).unwrap_err(), scene.store.confirm(&owner, &[]).unwrap_err()] {
        assert_eq!(refused.kind, ErrorKind::Disk);
        let path = scene.dir().canonicalize().unwrap();
        assert!(refused.text.contains(&path.display().to_string()), "{refused}");
    }
    assert_eq!(scene.reserved(), ["10.1.2.2"]);
    assert_eq!(scene.del("another"), 0, "which hinders no other attachment");
}

#[test]
fn a_full_range_is_healthy() {
    let scene = Scene::new();
    let sets = [part("10.1.2.0/24", "10.1.2.2", "10.1.2.3")];
    scene.store.health().unwrap();
    assert!(!scene.dir().exists(), "looking makes nothing");
    scene.add("a", &sets).unwrap();
    scene.add("b", &sets).unwrap();
    assert_eq!(scene.store.health().unwrap().taken.len(), 2);
}

#[test]
fn a_directory_behind_a_symbolic_link_works_like_any_other() {
    let scene = Scene::new();
    let elsewhere = tempfile::tempdir().unwrap();
    symlink(elsewhere.path(), scene.dir()).unwrap();
    assert_eq!(scene.add("a", &[set("10.1.2.0/24")]).unwrap(), "10.1.2.2/24");
    assert!(elsewhere.path().join("10.1.2.2").exists());
    assert_eq!(scene.add("a", &[set("10.1.2.0/24")]).unwrap_err().kind, ErrorKind::HoldsAlready);
    assert_eq!(scene.del("a"), 1);
    assert!(!elsewhere.path().join("10.1.2.2").exists());
}

/// Returns when a process waits for the lock on the file; see `proc_locks(5)`.
fn await_waiter(path: &std::path::Path) {
    let inode = format!(":{} ", fs::metadata(path).unwrap().ino());
    let waits = |line: &str| line.contains("->") && line.contains(&inode);
    while !fs::read_to_string("/proc/locks").unwrap().lines().any(waits) {
        std::thread::yield_now();
    }
}

#[test]
fn a_directory_that_is_removed_under_a_waiting_add_is_made_again() {
    let scene = Scene::new();
    let sets = [set("10.1.2.0/24")];
    scene.add("a", &sets).unwrap();
    let held = cnikit_store::Directory::open(scene.dir()).unwrap();
    let lock = held.lock("lock", 0o750, std::time::Duration::from_secs(1)).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| scene.add("b", &sets));
        await_waiter(&scene.dir().join("lock"));
        fs::remove_dir_all(scene.dir()).unwrap();
        drop(lock);
        assert_eq!(waiting.join().unwrap().unwrap(), "10.1.2.2/24");
    });
    assert_eq!(scene.reserved(), ["10.1.2.2"]);
}

#[test]
fn lock_timeout_error_names_the_lock_file() {
    let mut scene = Scene::new();
    scene.add("a", &[set("10.1.2.0/24")]).unwrap();
    scene.store.timeout = std::time::Duration::from_millis(50);
    let held = cnikit_store::Directory::open(scene.dir()).unwrap();
    let _lock = held.lock("lock", 0o750, std::time::Duration::from_secs(1)).unwrap();
    let busy = scene.add("b", &[set("10.1.2.0/24")]).unwrap_err();
    assert_eq!(busy.kind, ErrorKind::Busy);
    let lock = scene.dir().canonicalize().unwrap().join("lock").display().to_string();
    assert_eq!(busy.text, format!("another process held the lock {lock} for 0 seconds"));
    assert!(busy.hint.unwrap().starts_with(&format!("`fuser -v {lock}` shows the process")));
    assert_eq!(scene.store.release(&Owner::new("a", "eth0")).unwrap_err().kind, ErrorKind::Busy);
    assert_eq!(scene.store.health().unwrap(), Health::default(), "a store that is in use is healthy");
}

#[test]
fn a_store_without_a_lock_file_that_can_be_locked_is_not_healthy() {
    let scene = Scene::new();
    fs::create_dir_all(scene.dir().join("lock")).unwrap();
    assert_eq!(scene.store.health().unwrap_err().kind, ErrorKind::Disk);
}

#[test]
fn a_directory_that_leads_nowhere_and_a_lock_that_is_a_link_are_errors() {
    let scene = Scene::new();
    symlink("net", scene.dir()).unwrap();
    assert_eq!(scene.store.release(&Owner::new("a", "eth0")).unwrap_err().kind, ErrorKind::Disk);
    fs::remove_file(scene.dir()).unwrap();
    fs::create_dir(scene.dir()).unwrap();
    symlink("/etc/passwd", scene.dir().join("lock")).unwrap();
    let error = scene.add("a", &[set("10.1.2.0/24")]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Disk);
    assert!(error.hint.unwrap().contains("remove what is not a regular file"));
}

#[test]
fn a_link_in_place_of_the_last_reserved_address_is_replaced() {
    let scene = Scene::new();
    scene.add("a", &[set("10.1.2.0/24")]).unwrap();
    fs::remove_file(scene.dir().join("last_reserved_ip.0")).unwrap();
    symlink("/nonexistent/x", scene.dir().join("last_reserved_ip.0")).unwrap();
    assert_eq!(scene.add("b", &[set("10.1.2.0/24")]).unwrap(), "10.1.2.3/24");
    assert_eq!(scene.text("last_reserved_ip.0"), "10.1.2.3");
    assert!(!scene.dir().join("last_reserved_ip.0").is_symlink());
}

#[test]
fn a_locked_store_allocates_and_lists_what_is_reserved() {
    let scene = Scene::new();
    let request = |container: &str| request(container, &[set("10.1.2.0/24")], &[]);
    let locked = scene.store.lock().unwrap();
    assert_eq!(texts(&locked.acquire(&request("a")).unwrap()), "10.1.2.2/24");
    assert_eq!(texts(&locked.acquire(&request("b")).unwrap()), "10.1.2.3/24");
    assert_eq!(locked.acquire(&request("b")).unwrap_err().kind, ErrorKind::HoldsAlready);
    let mut reserved = locked.reserved().unwrap();
    reserved.sort();
    assert_eq!(reserved, ips(&["10.1.2.2", "10.1.2.3"]));
}

#[test]
fn an_error_is_its_text_and_its_hint() {
    let scene = Scene::new();
    scene.add("a", &[set("10.1.2.0/24")]).unwrap();
    let error = scene.want("b", &[set("10.1.2.0/24")], &["10.1.2.2"]).unwrap_err();
    assert!(error.text.contains("10.1.2.2 is not available"), "{error}");
    assert_eq!(error.to_string(), format!("{}; hint: {}", error.text, error.hint.as_ref().unwrap()));
}

#[test]
fn a_network_name_that_is_a_path_is_refused() {
    let mut scene = Scene::new();
    for name in ["", ".", "..", "../x", "a/b", ".idx"] {
        scene.store.network = name.into();
        assert_eq!(scene.add("a", &[set("10.1.2.0/24")]).unwrap_err().kind, ErrorKind::Value, "{name:?}");
        assert_eq!(scene.store.release(&Owner::new("a", "eth0")).unwrap_err().kind, ErrorKind::Value, "{name:?}");
    }
}

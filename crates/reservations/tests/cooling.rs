//! A released address waits before it is given again, and the one that waits longest is the next.
#![expect(clippy::unwrap_used, reason = "a test says what should be so")]

mod scene;

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use cnikit_reservations::{AllocationRequest, CoolingFile, Error, ErrorKind, Owner};
use scene::{BOOT, MACHINE, NEXT_BOOT, Scene, part, request, set, texts};

const HOUR: Duration = Duration::from_hours(1);
/// As many digits as a boot id has, without dashes.
const BOOT_DIGITS: &str = "11111111111111111111111111111111";

/// A store that records released addresses.
fn cooling() -> Scene {
    let mut scene = Scene::new();
    let base = scene.place.path().to_owned();
    scene.store.cooling = Some(CoolingFile { base, directory: ".pool", name: "net.cooling".into() });
    scene
}

fn file(scene: &Scene) -> PathBuf {
    scene.place.path().join(".pool/net.cooling")
}

fn add(scene: &Scene, container: &str, wanted: &[&str], cooldown: Duration) -> Result<String, Error> {
    let sets = [part("10.1.2.0/24", "10.1.2.2", "10.1.2.4")];
    let request = AllocationRequest { cooldown, ..request(container, &sets, wanted) };
    scene.store.acquire(&request).map(|given| texts(&given))
}

/// A request for one of 2,048 addresses: more than are tried one by one.
fn of_large_set(n: usize) -> AllocationRequest {
    request(&format!("c{n}"), &[part("10.1.0.0/16", "10.1.0.2", "10.1.8.1")], &[])
}

/// Records that the addresses were released in this order, at the start of the machine.
fn released_long_ago(scene: &Scene, addresses: &[&str]) {
    let mut text = format!("cooling1 {BOOT_DIGITS} 0000016384\n");
    for (n, address) in addresses.iter().enumerate() {
        writeln!(text, "{n} {address} 00000000000000aa").unwrap();
    }
    fs::create_dir_all(file(scene).parent().unwrap()).unwrap();
    fs::set_permissions(file(scene).parent().unwrap(), fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(file(scene), text).unwrap();
}

#[test]
fn the_addresses_in_their_cooldown_are_listed_under_the_lock() {
    let scene = cooling();
    add(&scene, "c1", &[], Duration::ZERO).unwrap();
    let address = scene.reserved()[0].clone();
    let listed = |cooldown| {
        let addresses = scene.store.lock().unwrap().cooling(Duration::from_secs(cooldown));
        addresses.iter().map(ToString::to_string).collect::<Vec<String>>()
    };
    assert_eq!(listed(60), [""; 0], "it is not released");
    scene.del("c1");
    assert_eq!(listed(60), [address]);
    assert_eq!(listed(0), [""; 0]);
}

#[test]
fn an_address_is_not_given_again_before_its_cooldown() {
    let scene = cooling();
    for container in ["a", "b", "c"] {
        add(&scene, container, &[], HOUR).unwrap();
    }
    assert_eq!(scene.del("b"), 1);
    let refused = add(&scene, "d", &[], HOUR).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Exhausted);
    assert!(refused.text.ends_with("; 1 are not given again yet because they were just released"), "{refused}");
    assert!(refused.hint.unwrap().starts_with("the next one can be given in 3600 s"));
    assert_eq!(add(&scene, "d", &[], Duration::ZERO).unwrap(), "10.1.2.3/24", "the cooldown of the request counts");
}

#[test]
fn the_same_attachment_can_request_its_address_at_once_and_no_other_can() {
    let scene = cooling();
    add(&scene, "a", &["10.1.2.3"], HOUR).unwrap();
    scene.del("a");
    let refused = add(&scene, "b", &["10.1.2.3"], HOUR).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Exhausted);
    assert!(refused.text.contains("10.1.2.3 was released by another attachment a short while ago"), "{refused}");
    assert!(refused.hint.unwrap().contains("try again in 3600 s"));
    assert_eq!(add(&scene, "a", &["10.1.2.3"], HOUR).unwrap(), "10.1.2.3/24");
    let refused = add(&scene, "b", &["10.1.2.3"], HOUR).unwrap_err();
    assert!(refused.text.contains("is not available in range set"), "taken, not cooling: {refused}");
}

#[test]
fn the_address_that_was_released_first_is_given_first_after_all_that_never_were() {
    let scene = cooling();
    released_long_ago(&scene, &["10.1.2.4", "10.1.2.2"]);
    let given: Vec<String> =
        ["a", "b", "c"].map(|container| add(&scene, container, &[], Duration::from_millis(100)).unwrap()).into();
    assert_eq!(given, ["10.1.2.3/24", "10.1.2.4/24", "10.1.2.2/24"]);
    assert_eq!(add(&scene, "d", &[], Duration::from_millis(100)).unwrap_err().kind, ErrorKind::Exhausted);
}

#[test]
fn of_a_set_too_large_to_try_each_the_first_released_is_given_too() {
    let scene = cooling();
    for n in 0..2048 {
        scene.store.acquire(&of_large_set(n)).unwrap();
    }
    for n in [1500, 7, 900] {
        assert_eq!(scene.del(&format!("c{n}")), 1);
        // Releases within one millisecond are in the order of their addresses.
        let released = Instant::now();
        while released.elapsed() < Duration::from_millis(2) {
            std::hint::spin_loop();
        }
    }
    let given = [3000, 3001, 3002].map(|n| texts(&scene.store.acquire(&of_large_set(n)).unwrap()));
    assert_eq!(given, ["10.1.5.222/16", "10.1.0.9/16", "10.1.3.134/16"]);
    assert_eq!(scene.store.acquire(&of_large_set(3003)).unwrap_err().kind, ErrorKind::Exhausted);
}

#[test]
fn an_entry_of_another_boot_counts_as_released_when_this_boot_began() {
    let mut scene = cooling();
    for container in ["a", "b", "c"] {
        add(&scene, container, &[], HOUR).unwrap();
    }
    for container in ["a", "b", "c"] {
        scene.del(container);
    }
    scene.reboot(NEXT_BOOT, Some(MACHINE));
    assert_eq!(add(&scene, "d", &[], Duration::from_hours(1 << 30)).unwrap_err().kind, ErrorKind::Exhausted);
    assert_eq!(add(&scene, "d", &[], Duration::from_millis(1)).unwrap(), "10.1.2.2/24");
    scene.del("d");
    let text = fs::read_to_string(file(&scene)).unwrap();
    assert!(text.starts_with("cooling1 22222222222222222222222222222222 "), "written anew: {text}");
    assert!(text.contains("\n0 10.1.2.3 "), "{text}");
}

#[test]
fn an_address_that_was_held_when_the_last_boot_ended_waits_too() {
    let mut scene = cooling();
    for container in ["a", "b", "c"] {
        add(&scene, container, &[], HOUR).unwrap();
    }
    scene.reboot(NEXT_BOOT, Some(MACHINE));
    assert_eq!(add(&scene, "d", &[], Duration::from_hours(1 << 30)).unwrap_err().kind, ErrorKind::Exhausted);
    assert_eq!(add(&scene, "a", &[], Duration::from_hours(1 << 30)).unwrap(), "10.1.2.2/24", "its own");
    assert_eq!(add(&scene, "d", &[], Duration::from_millis(1)).unwrap(), "10.1.2.3/24");
}

#[test]
fn an_address_that_another_plugin_reserved_meanwhile_does_not_count_as_one_that_waits() {
    let scene = cooling();
    for container in ["a", "b", "c"] {
        add(&scene, container, &[], HOUR).unwrap();
    }
    scene.del("a");
    let waits = || add(&scene, "d", &[], HOUR).unwrap_err().text.contains("1 are not given again yet");
    assert!(waits());
    scene.write("10.1.2.2", "x\r\neth0");
    assert!(!waits());
}

#[test]
fn gc_starts_a_cooldown_and_the_roll_back_of_an_add_does_not() {
    let scene = cooling();
    add(&scene, "a", &[], HOUR).unwrap();
    scene.store.give_back(&Owner::new("a", "eth0"), &["10.1.2.2".parse().unwrap()]).unwrap();
    assert!(!file(&scene).exists());
    add(&scene, "a", &["10.1.2.2"], HOUR).unwrap();
    scene.store.sweep(&[]).unwrap();
    assert!(fs::read_to_string(file(&scene)).unwrap().contains(" 10.1.2.2 "));
    assert_eq!(fs::metadata(file(&scene)).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(file(&scene).parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn no_state_of_the_file_fails_a_del_or_an_add() {
    let header = format!("cooling1 {BOOT_DIGITS} 0000016384\n");
    let whole = format!("{header}5 10.1.2.2 00000000000000aa\n");
    let mut states: Vec<Vec<u8>> = (0..whole.len()).map(|length| whole.as_bytes()[..length].to_vec()).collect();
    states.push(vec![0; 500]);
    states.push([header.as_bytes(), &[0xff; 99]].concat());
    states
        .push(format!("{header}x y z\n\n5 10.1.2.2 00aa\n99999999999999999999999 10.1.2.2 00000000000000aa\n").into());
    states.push(whole.replace("16384", "00000").into());
    for state in states {
        let scene = cooling();
        add(&scene, "a", &[], HOUR).unwrap();
        fs::create_dir_all(file(&scene).parent().unwrap()).unwrap();
        fs::write(file(&scene), &state).unwrap();
        let state = String::from_utf8_lossy(&state).into_owned();
        assert_eq!(scene.del("a"), 1, "{state:?}");
        let text = fs::read_to_string(file(&scene)).unwrap();
        assert!(
            text.starts_with("cooling1 ") && text.lines().last().unwrap().contains(" 10.1.2.2 "),
            "{state:?}: {text:?}"
        );
        assert_eq!(add(&scene, "b", &["10.1.2.2"], HOUR).unwrap_err().kind, ErrorKind::Exhausted, "{state:?}");
        assert!(add(&scene, "b", &[], HOUR).is_ok(), "{state:?}");
    }
}

/// Puts something at a path.
type Make = fn(&PathBuf);

#[test]
fn what_is_no_file_is_replaced_or_left_and_nothing_is_written_through_a_link() {
    let cases: [(Make, bool); 5] = [
        (|path| std::os::unix::fs::symlink("/nonexistent/x", path).unwrap(), true),
        (|path| nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap(), true),
        (|path| fs::create_dir(path).unwrap(), false),
        (
            |path| {
                fs::remove_dir(path.parent().unwrap()).unwrap();
                fs::write(path.parent().unwrap(), "in the way").unwrap();
            },
            false,
        ),
        (|path| fs::set_permissions(path.parent().unwrap(), fs::Permissions::from_mode(0o777)).unwrap(), false),
    ];
    for (make, is_replaced) in cases {
        let scene = cooling();
        add(&scene, "a", &[], HOUR).unwrap();
        released_long_ago(&scene, &[]);
        fs::remove_file(file(&scene)).unwrap();
        make(&file(&scene));
        assert_eq!(scene.del("a"), 1);
        assert!(add(&scene, "b", &[], HOUR).is_ok());
        assert!(!std::path::Path::new("/nonexistent").exists());
        let is_regular = fs::symlink_metadata(file(&scene)).is_ok_and(|found| found.is_file());
        assert_eq!(is_regular && fs::read_to_string(file(&scene)).unwrap().contains(" 10.1.2.2 "), is_replaced);
    }
}

#[test]
fn the_file_stays_small_and_keeps_the_last_release_of_each_address() {
    let scene = cooling();
    for n in 0..1500 {
        add(&scene, &format!("c{n}"), &[], Duration::ZERO).unwrap();
        scene.del(&format!("c{n}"));
    }
    let text = fs::read_to_string(file(&scene)).unwrap();
    assert!(text.len() < 20 << 10, "{} bytes", text.len());
    for address in ["10.1.2.2", "10.1.2.3", "10.1.2.4"] {
        assert!(text.contains(&format!(" {address} ")), "{address}");
    }
}

#[test]
fn releases_are_appended_to_the_file_of_this_boot() {
    let scene = cooling();
    released_long_ago(&scene, &["10.1.2.3"]);
    let inode = fs::metadata(file(&scene)).unwrap().ino();
    add(&scene, "a", &[], HOUR).unwrap();
    scene.del("a");
    assert_eq!(fs::metadata(file(&scene)).unwrap().ino(), inode);
    let text = fs::read_to_string(file(&scene)).unwrap();
    assert_eq!(text.lines().count(), 3, "{text}");
}

#[test]
fn only_addresses_of_the_set_that_no_gateway_has_are_given_again() {
    let scene = cooling();
    released_long_ago(&scene, &["10.1.2.1", "10.1.2.5", "10.9.9.9", "10.1.2.4"]);
    let given: Vec<String> =
        ["a", "b", "c"].map(|container| add(&scene, container, &[], Duration::ZERO).unwrap()).into();
    assert_eq!(given, ["10.1.2.2/24", "10.1.2.3/24", "10.1.2.4/24"]);
    assert_eq!(add(&scene, "d", &[], Duration::ZERO).unwrap_err().kind, ErrorKind::Exhausted);
}

#[test]
fn in_a_large_set_an_address_that_was_never_given_comes_before_one_that_was_released() {
    let scene = cooling();
    for n in 0..1100 {
        scene.store.acquire(&of_large_set(n)).unwrap();
    }
    scene.del("c7");
    // The search begins at the first address again, and the first thousand are taken.
    fs::remove_file(scene.dir().join("last_reserved_ip.0")).unwrap();
    assert_eq!(texts(&scene.store.acquire(&of_large_set(2000)).unwrap()), "10.1.4.78/16");
}

#[test]
fn a_requested_address_that_the_same_attachment_held_before_the_boot_does_not_wait() {
    let mut scene = cooling();
    let long = Duration::from_hours(1 << 30);
    add(&scene, "a", &["10.1.2.3"], HOUR).unwrap();
    scene.reboot(NEXT_BOOT, Some(MACHINE));
    assert_eq!(add(&scene, "b", &["10.1.2.3"], long).unwrap_err().kind, ErrorKind::Exhausted);
    assert_eq!(add(&scene, "a", &["10.1.2.3"], long).unwrap(), "10.1.2.3/24");
}

#[test]
fn without_a_cooling_file_nothing_is_written_beside_the_reservations() {
    let scene = Scene::new();
    scene.add("a", &[set("10.1.2.0/24")]).unwrap();
    scene.del("a");
    assert!(!scene.place.path().join(".pool").exists());
    assert_eq!(BOOT.replace('-', ""), BOOT_DIGITS);
}

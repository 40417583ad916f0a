//! The next call handles every state that a kill, a power cut or another program can leave.
#![expect(clippy::unwrap_used, reason = "a test says what should be so")]

mod scene;

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};

use cnikit_reservations::{ErrorKind, Owner};
use scene::{BOOT, MACHINE, NEXT_BOOT, Scene, part, set};

/// A store with `a`, `b` and `c` at .2, .3 and .4 and a complete index.
fn three() -> Scene {
    let scene = Scene::new();
    for container in ["a", "b", "c"] {
        scene.add(container, &[set("10.1.2.0/24")]).unwrap();
    }
    scene
}

/// No address is given twice, every container finds its own address again, and the next address is the expected one.
fn is_sound(scene: &Scene, state: &str) {
    let sets = [set("10.1.2.0/24")];
    for container in ["a", "b", "c"] {
        assert_eq!(scene.add(container, &sets).unwrap_err().kind, ErrorKind::HoldsAlready, "{state}: {container}");
    }
    assert_eq!(scene.add("d", &sets).unwrap(), "10.1.2.5/24", "{state}");
    for container in ["a", "b", "c", "d"] {
        assert_eq!((scene.del(container), scene.del(container)), (1, 0), "{state}: {container}");
    }
    assert_eq!(scene.reserved(), [""; 0], "{state}");
}

#[test]
fn a_file_with_lost_content_is_set_aside_and_its_address_is_free() {
    let scene = Scene::new();
    scene.write("10.1.2.2", "c-lost\r\0\0\0\0\0");
    scene.write("10.1.2.3", [0; 11]);
    let sets = [part("10.1.2.0/24", "", "10.1.2.4")];
    assert_eq!(scene.add("a", &sets).unwrap(), "10.1.2.2/24");
    assert_eq!(fs::read(scene.place.path().join(".aside/net/10.1.2.3")).unwrap(), [0; 11]);
    scene.write("10.1.2.4", "");
    assert_eq!(scene.want("b", &sets, &["10.1.2.4"]).unwrap(), "10.1.2.4/24", "seen although the index was complete");
    assert_eq!(scene.add("c", &sets).unwrap(), "10.1.2.3/24");
}

#[test]
fn a_reservation_missing_from_the_index_is_found_by_add_and_del() {
    let scene = three();
    // The writer was killed after it created the file and before it updated the index.
    scene.write("10.1.2.9", "late\r\neth0");
    assert_eq!(scene.add("late", &[set("10.1.2.0/24")]).unwrap_err().kind, ErrorKind::HoldsAlready);
    assert_eq!(scene.del("late"), 1);
    is_sound(&scene, "late file");
}

#[test]
fn an_address_in_the_index_without_its_file_is_free() {
    let scene = three();
    fs::remove_file(scene.dir().join("10.1.2.3")).unwrap();
    assert_eq!(scene.del("b"), 0);
    assert_eq!(scene.want("b", &[set("10.1.2.0/24")], &["10.1.2.3"]).unwrap(), "10.1.2.3/24");
}

#[test]
fn a_file_changed_in_place_is_read_instead_of_the_index() {
    let scene = three();
    let before = fs::metadata(scene.dir()).unwrap().mtime_nsec();
    scene.write("10.1.2.3", "z\r\neth0");
    assert_eq!(fs::metadata(scene.dir()).unwrap().mtime_nsec(), before, "the directory shows no trace of it");
    assert_eq!(scene.del("b"), 0, "a hit is checked against the file");
    assert_eq!(scene.text("10.1.2.3"), "z\r\neth0");
    assert_eq!(scene.del("z"), 1, "and then all was read again");
}

#[test]
fn a_lost_index_is_built_again() {
    let scene = three();
    fs::remove_file(scene.index()).unwrap();
    is_sound(&scene, "no index");
    let scene = three();
    fs::remove_dir_all(scene.place.path().join(".idx")).unwrap();
    is_sound(&scene, "no directory of indexes");
    let scene = three();
    fs::remove_dir_all(scene.place.path().join(".idx")).unwrap();
    fs::write(scene.place.path().join(".idx"), "in the way").unwrap();
    is_sound(&scene, "no index possible");
}

#[test]
fn an_index_cut_off_anywhere_is_built_again() {
    let length = fs::metadata(three().index()).unwrap().len();
    for length in (0..length).step_by(97) {
        let scene = three();
        fs::OpenOptions::new().write(true).open(scene.index()).unwrap().set_len(length).unwrap();
        is_sound(&scene, &format!("index of {length} bytes"));
    }
}

#[test]
fn an_index_torn_anywhere_answers_nothing_wrong() {
    let length = fs::metadata(three().index()).unwrap().len();
    for at in (0..length).step_by(53) {
        let scene = three();
        let file = fs::OpenOptions::new().write(true).open(scene.index()).unwrap();
        file.write_all_at(&[0xa5; 16][..16.min(usize::try_from(length - at).unwrap())], at).unwrap();
        is_sound(&scene, &format!("index torn at {at}"));
    }
}

#[test]
fn temporary_files_of_a_killed_writer_are_removed() {
    let scene = three();
    fs::write(scene.place.path().join(".idx/.net.new"), "half an ind").unwrap();
    scene.write("10.1.2.9", "x\r\neth0");
    scene.del("x");
    is_sound(&scene, "temporary file");
    assert!(!scene.place.path().join(".idx/.net.new").exists());
}

#[test]
fn a_missing_lock_file_and_a_torn_turn_are_made_again() {
    let scene = three();
    fs::remove_file(scene.dir().join("lock")).unwrap();
    is_sound(&scene, "no lock file");
    for turn in ["", "10.1.2.", "10.1.2.40.1.2.3", "\0\0\0\0", "192.0.2.1"] {
        let scene = three();
        scene.write("last_reserved_ip.0", turn);
        is_sound(&scene, turn);
    }
}

#[test]
fn an_index_of_another_directory_of_the_same_name_is_not_believed() {
    let scene = three();
    fs::rename(scene.dir(), scene.place.path().join("old")).unwrap();
    assert_eq!(scene.add("a", &[set("10.1.2.0/24")]).unwrap(), "10.1.2.2/24");
    fs::remove_dir_all(scene.dir()).unwrap();
    fs::rename(scene.place.path().join("old"), scene.dir()).unwrap();
    is_sound(&scene, "the first directory is back");
}

#[test]
fn a_directory_with_a_reset_modification_time_is_read_again() {
    let scene = three();
    let stamp = |name: &str| scene.dir().join(name).metadata().unwrap().modified().unwrap();
    let before = stamp(".");
    scene.del("b");
    // As if a backup were restored: the old stamp with the old file.
    scene.write("10.1.2.3", "b\r\neth0");
    fs::File::open(scene.dir()).unwrap().set_modified(before).unwrap();
    is_sound(&scene, "restored");
}

#[test]
fn files_restored_with_the_modification_time_of_the_index_are_read() {
    let scene = three();
    let sealed = fs::metadata(scene.dir()).unwrap();
    // As if a backup were restored in place without removing files: an older list of names with its old time, and the index of that
    // time. It takes longer than a tick of the clock.
    while fs::metadata(scene.dir()).unwrap().ctime_nsec() == sealed.ctime_nsec() {
        scene.write("10.1.2.9", "later\r\neth0");
        fs::File::open(scene.dir()).unwrap().set_modified(sealed.modified().unwrap()).unwrap();
    }
    assert_eq!(fs::metadata(scene.dir()).unwrap().modified().unwrap(), sealed.modified().unwrap());
    assert_eq!(scene.del("later"), 1);
    is_sound(&scene, "restored");
}

#[test]
fn a_container_gets_its_address_of_an_earlier_boot_again() {
    let mut scene = three();
    scene.reboot(NEXT_BOOT, Some(MACHINE));
    assert_eq!(scene.add("b", &[set("10.1.2.0/24")]).unwrap(), "10.1.2.3/24");
    assert_eq!(scene.add("b", &[set("10.1.2.0/24")]).unwrap_err().kind, ErrorKind::HoldsAlready, "once");
    assert_eq!(
        scene.add("d", &[set("10.1.2.0/24")]).unwrap(),
        "10.1.2.5/24",
        "while any is free, no other container gets it"
    );
    assert_eq!(scene.text("10.1.2.3"), "b\r\neth0");
    assert_eq!((scene.del("a"), scene.del("b"), scene.del("c"), scene.del("d")), (1, 1, 1, 1));
}

#[test]
fn a_full_range_gives_only_addresses_of_an_earlier_boot() {
    let mut scene = Scene::new();
    let sets = [part("10.1.2.0/24", "10.1.2.2", "10.1.2.5")];
    for container in ["a", "b", "c"] {
        scene.add(container, &sets).unwrap();
    }
    scene.reboot(NEXT_BOOT, Some(MACHINE));
    assert_eq!(scene.add("n1", &sets).unwrap(), "10.1.2.5/24");
    assert_eq!(scene.add("b", &sets).unwrap(), "10.1.2.3/24");
    let given: Vec<String> = ["n2", "n3"].iter().map(|name| scene.add(name, &sets).unwrap()).collect();
    assert_eq!(given, ["10.1.2.4/24", "10.1.2.2/24"], "in turn");
    assert_eq!(scene.add("n4", &sets).unwrap_err().kind, ErrorKind::Exhausted);
    assert_eq!((scene.del("a"), scene.del("c")), (0, 0), "their late DEL frees no other container's address");
    assert_eq!((scene.del("n1"), scene.del("n2"), scene.del("n3"), scene.del("b")), (1, 1, 1, 1));
}

#[test]
fn an_address_changed_in_place_in_this_boot_is_not_given_again() {
    let mut scene = Scene::new();
    let sets = [part("10.1.2.0/24", "10.1.2.2", "10.1.2.4")];
    scene.add("a", &sets).unwrap();
    scene.add("b", &sets).unwrap();
    scene.reboot(NEXT_BOOT, Some(MACHINE));
    scene.add("c", &sets).unwrap();
    // Another program overwrites it in this boot, without the lock and without a change of the directory.
    scene.write("10.1.2.2", "live\r\neth0");
    assert_eq!(scene.add("new", &sets).unwrap(), "10.1.2.3/24");
    assert_eq!(scene.add("newer", &sets).unwrap_err().kind, ErrorKind::Exhausted);
    assert_eq!(scene.text("10.1.2.2"), "live\r\neth0");
}

#[test]
fn a_requested_address_that_was_held_in_an_earlier_boot_is_given() {
    let mut scene = three();
    assert_eq!(scene.want("new", &[set("10.1.2.0/24")], &["10.1.2.3"]).unwrap_err().kind, ErrorKind::Exhausted);
    scene.reboot(NEXT_BOOT, Some(MACHINE));
    assert_eq!(scene.want("new", &[set("10.1.2.0/24")], &["10.1.2.3"]).unwrap(), "10.1.2.3/24");
    assert_eq!(scene.text("10.1.2.3"), "new\r\neth0");
}

/// Fills a range, runs `before`, reboots, runs `after`, and returns whether a new container got one of the addresses.
fn newcomer_after(boot: (&str, Option<&str>), before: impl Fn(&mut Scene), after: impl Fn(&mut Scene)) -> bool {
    let mut scene = Scene::new();
    let sets = [part("10.1.2.0/24", "10.1.2.2", "10.1.2.3")];
    scene.add("a", &sets).unwrap();
    scene.add("b", &sets).unwrap();
    before(&mut scene);
    scene.reboot(boot.0, boot.1);
    after(&mut scene);
    let given = scene.add("new", &sets);
    assert!(given.as_ref().map_or_else(|refused| refused.kind == ErrorKind::Exhausted, |_| true), "{given:?}");
    given.is_ok()
}

#[test]
fn on_any_doubt_an_address_stays() {
    let nothing = |_: &mut Scene| {};
    let touch = |scene: &mut Scene| {
        for (address, owner) in [("10.1.2.2", "a"), ("10.1.2.3", "b")] {
            fs::remove_file(scene.dir().join(address)).unwrap();
            scene.write(address, format!("{owner}\r\neth0"));
        }
    };
    let same = (BOOT, Some(MACHINE));
    let next = (NEXT_BOOT, Some(MACHINE));
    let foreign = (NEXT_BOOT, Some(BOOT));
    assert!(newcomer_after(next, nothing, nothing), "the proof");
    assert!(!newcomer_after(same, nothing, nothing), "the same boot");
    assert!(!newcomer_after(foreign, nothing, nothing), "another machine's");
    assert!(!newcomer_after((NEXT_BOOT, None), nothing, nothing), "no machine is known");
    assert!(!newcomer_after(("", None), nothing, nothing), "no boot is known");
    assert!(!newcomer_after(next, nothing, touch), "files made anew");
    assert!(!newcomer_after(next, touch, nothing), "made by an owner that was never in the index");
    let lose = |scene: &mut Scene| fs::remove_file(scene.index()).unwrap();
    assert!(!newcomer_after(next, nothing, lose), "the index is lost");
    let copy = |scene: &mut Scene| {
        let copy = scene.place.path().join("copy");
        fs::create_dir(&copy).unwrap();
        for name in scene.reserved() {
            fs::copy(scene.dir().join(&name), copy.join(&name)).unwrap();
        }
        fs::remove_dir_all(scene.dir()).unwrap();
        fs::rename(copy, scene.dir()).unwrap();
    };
    assert!(!newcomer_after(next, nothing, copy), "a restored copy");
}

#[test]
fn a_foreign_file_seen_in_one_boot_is_free_in_the_next() {
    let mut scene = Scene::new();
    let sets = [part("10.1.2.0/24", "10.1.2.2", "10.1.2.2")];
    scene.write("10.1.2.2", "a\r\neth0");
    assert_eq!(scene.add("b", &sets).unwrap_err().kind, ErrorKind::Exhausted, "seen");
    scene.reboot(NEXT_BOOT, Some(MACHINE));
    assert_eq!(scene.add("b", &sets).unwrap(), "10.1.2.2/24");
    assert_eq!(scene.add("c", &sets).unwrap_err().kind, ErrorKind::Exhausted, "it is of this boot now");
    fs::remove_file(scene.index()).unwrap();
    assert_eq!(scene.add("c", &sets).unwrap_err().kind, ErrorKind::Exhausted, "without its index too");
}

#[test]
fn a_power_cut_that_took_the_contents_takes_no_address_and_refuses_no_del() {
    let mut scene = three();
    for name in ["10.1.2.2", "10.1.2.3"] {
        fs::OpenOptions::new().write(true).open(scene.dir().join(name)).unwrap().set_len(0).unwrap();
    }
    scene.reboot(NEXT_BOOT, Some(MACHINE));
    assert_eq!(scene.store.sweep(&[Owner::new("c", "eth0")]).unwrap().len(), 0);
    assert_eq!(scene.reserved(), ["10.1.2.4"]);
    assert_eq!((scene.del("a"), scene.del("b"), scene.del("c")), (0, 0, 1));
}

/// A slot with a flipped bit is never skipped: its address would never be freed, and would be missing in the next index.
#[test]
fn a_sweep_frees_what_a_torn_index_lost() {
    let scene = three();
    let mut index = fs::read(scene.index()).unwrap();
    let (header, slots) = index.split_at_mut(128);
    assert!(header.starts_with(b"allocs"));
    slots.chunks_mut(48).filter(|slot| slot.iter().any(|byte| *byte != 0)).for_each(|slot| slot[0] ^= 1);
    fs::write(scene.index(), index).unwrap();
    assert_eq!(scene.store.sweep(&[Owner::new("b", "eth0")]).unwrap().len(), 2);
    assert_eq!(scene.reserved(), ["10.1.2.3"]);
}

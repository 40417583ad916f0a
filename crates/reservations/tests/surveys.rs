//! The list of reservations, and the release of those that no container can hold any more.
#![expect(clippy::unwrap_used, reason = "a test says what should be so")]

mod scene;

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, SystemTime};

use cnikit_reservations::{Holder, Owner, Reservation, Store};
use scene::{MACHINE, NEXT_BOOT, Scene, set};

fn texts_of(found: &[Reservation]) -> Vec<String> {
    let holder = |found: &Reservation| match &found.holder {
        Holder::Of(owner) => owner.to_string(),
        Holder::Lost => "lost".to_owned(),
        Holder::Unreadable(_) => "unreadable".to_owned(),
    };
    let boot = |found: &Reservation| if found.earlier_boot { " earlier" } else { "" };
    found.iter().map(|found| format!("{} {}{}", found.address, holder(found), boot(found))).collect()
}

#[test]
fn a_survey_lists_every_file_and_changes_none() {
    let scene = Scene::new();
    assert_eq!(scene.store.survey().unwrap(), []);
    assert!(!scene.index().exists() && !scene.dir().exists());
    scene.add("c1", &[set("10.1.2.0/24"), set("2001:db8::/64")]).unwrap();
    scene.write("10.1.2.9", "c9\n");
    scene.write("10.1.2.8", "");
    scene.write("10.1.2.7", "two words");
    let before = fs::read(scene.index()).unwrap();
    let found = scene.store.survey().unwrap();
    let expected = ["10.1.2.2 c1/eth0", "10.1.2.7 unreadable", "10.1.2.8 lost", "10.1.2.9 c9", "2001:db8::2 c1/eth0"];
    assert_eq!(texts_of(&found), expected);
    let age = SystemTime::now().duration_since(found[0].since.unwrap()).unwrap();
    assert!(age < Duration::from_mins(1), "{age:?}");
    assert!(fs::read(scene.index()).unwrap() == before && scene.has("10.1.2.8"));
    assert_eq!(Store::networks(scene.place.path()).unwrap(), ["net"]);
    assert_eq!(scene.store.path_of(found[0].address), scene.dir().join("10.1.2.2"));
}

#[test]
fn a_survey_marks_reservations_of_an_earlier_boot() {
    let mut scene = Scene::new();
    let sets = [set("10.1.2.0/24")];
    scene.add("c1", &sets).unwrap();
    scene.add("c2", &sets).unwrap();
    scene.reboot(NEXT_BOOT, Some(MACHINE));
    let both = ["10.1.2.2 c1/eth0 earlier", "10.1.2.3 c2/eth0 earlier"];
    assert_eq!(texts_of(&scene.store.survey().unwrap()), both, "by the index of the earlier boot");
    scene.add("c3", &sets).unwrap();
    let all = [both[0], both[1], "10.1.2.4 c3/eth0"];
    assert_eq!(texts_of(&scene.store.survey().unwrap()), all, "by the index of this boot");
    let of_this_boot = |scene: &Scene| {
        let addresses = scene.store.lock().unwrap().reserved_in_this_boot().unwrap();
        addresses.iter().map(ToString::to_string).collect::<BTreeSet<String>>()
    };
    assert_eq!(of_this_boot(&scene), BTreeSet::from(["10.1.2.4".to_owned()]));
    let touched = fs::read(scene.dir().join("10.1.2.2")).unwrap();
    scene.write("10.1.2.2", touched);
    assert_eq!(of_this_boot(&scene), BTreeSet::from(["10.1.2.2".to_owned(), "10.1.2.4".to_owned()]));
    assert_eq!(texts_of(&scene.store.survey().unwrap())[0], "10.1.2.2 c1/eth0", "what changed since proves nothing");
    let freed = scene.store.reclaim(|found| found.earlier_boot).unwrap();
    assert_eq!(texts_of(&freed), [both[1]]);
    assert_eq!(scene.reserved(), ["10.1.2.2", "10.1.2.4"]);
    assert_eq!(scene.del("c3"), 1, "the index is still complete");
}

#[test]
fn only_dead_reservations_are_reclaimed_and_lost_files_set_aside() {
    let scene = Scene::new();
    let sets = [set("10.1.2.0/24")];
    for container in ["c1", "c2", "c3"] {
        scene.add(container, &sets).unwrap();
    }
    scene.write("10.1.2.8", "");
    scene.write("10.1.2.7", "two words");
    let is_dead = |found: &Reservation| found.holder == Holder::Of(Owner::new("c2", "eth0"));
    assert_eq!(texts_of(&scene.store.reclaim(is_dead).unwrap()), ["10.1.2.3 c2/eth0", "10.1.2.8 lost"]);
    assert_eq!(scene.reserved(), ["10.1.2.2", "10.1.2.4", "10.1.2.7"]);
    let all = scene.store.reclaim(|_| true).unwrap();
    assert_eq!(texts_of(&all), ["10.1.2.2 c1/eth0", "10.1.2.4 c3/eth0"], "a file without an owner stays");
}

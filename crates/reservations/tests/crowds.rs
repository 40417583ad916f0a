//! Many concurrent calls, and many reservations.
#![expect(clippy::unwrap_used, reason = "a test says what should be so")]

mod scene;

use std::collections::HashSet;
use std::fs;
use std::time::{Duration, Instant};

use scene::{Scene, part, set};

#[test]
fn sixty_four_at_once_are_given_sixty_four_addresses() {
    let scene = Scene::new();
    let sets = [part("10.1.2.0/24", "10.1.2.2", "10.1.2.65"), set("2001:db8::/64")];
    std::thread::scope(|scope| {
        let scene = &scene;
        let sets = &sets;
        let adds: Vec<_> = (0..64).map(|n| scope.spawn(move || scene.add(&format!("c{n}"), sets).unwrap())).collect();
        let given: HashSet<String> = adds.into_iter().map(|add| add.join().unwrap()).collect();
        assert_eq!(given.len(), 64);
    });
    assert_eq!(scene.reserved().len(), 128);
    std::thread::scope(|scope| {
        let scene = &scene;
        let dels: Vec<_> = (0..64).map(|n| scope.spawn(move || scene.del(&format!("c{n}")))).collect();
        assert!(dels.into_iter().all(|del| del.join().unwrap() == 2));
    });
    assert_eq!(scene.reserved(), [""; 0]);
}

/// The shortest times of many ADDs and DELs.
fn pace(scene: &Scene) -> (Duration, Duration) {
    let sets = [part("10.0.0.0/16", "10.0.0.2", "10.0.255.254")];
    let mut adds = Vec::new();
    let mut dels = Vec::new();
    for n in 0..60 {
        let name = format!("probe{n}");
        let began = Instant::now();
        scene.add(&name, &sets).unwrap();
        adds.push(began.elapsed());
        let began = Instant::now();
        assert_eq!(scene.del(&name), 1);
        dels.push(began.elapsed());
    }
    adds.sort();
    dels.sort();
    (adds[30], dels[30])
}

#[test]
fn an_add_and_a_del_take_as_long_among_65_000_as_alone() {
    let scene = Scene::new();
    let empty = pace(&scene);
    let at = |n: u32| std::net::Ipv4Addr::from(0x0a00_0000 + n).to_string();
    for n in 2..65_002 {
        fs::write(scene.dir().join(at(n)), format!("c{n}\r\neth0")).unwrap();
    }
    fs::write(scene.dir().join("last_reserved_ip.0"), at(65_001)).unwrap();
    let began = Instant::now();
    scene.del("unknown");
    let reading = began.elapsed();
    let full = pace(&scene);
    println!("median ADD and DEL alone {empty:?}, among 65,000 {full:?}; reading them all {reading:?}");
    assert!(full.0 < empty.0 * 4 && full.1 < empty.1 * 4, "alone {empty:?}, among 65,000 {full:?}");
    assert!(full.0 < reading / 20, "no ADD reads them all: {full:?}, {reading:?}");
    assert_eq!(scene.del("c40000"), 1);
}

#[test]
fn a_crowded_range_gives_its_last_free_address_and_then_is_full() {
    let scene = Scene::new();
    let sets = [set("10.0.0.0/20")];
    let at = |n: u32| std::net::Ipv4Addr::from(0x0a00_0000 + n).to_string();
    for n in (2..4095).filter(|n| *n != 3000) {
        scene.write(&at(n), format!("c{n}\r\neth0"));
    }
    scene.write("last_reserved_ip.0", at(3001));
    assert_eq!(scene.add("last", &sets).unwrap(), format!("{}/20", at(3000)));
    let full = scene.add("none", &sets).unwrap_err();
    assert!(full.text.contains("4093 of 4093 are reserved"), "{full}");
    assert_eq!(scene.del("c77"), 1);
    assert_eq!(scene.add("next", &sets).unwrap(), format!("{}/20", at(77)));
}

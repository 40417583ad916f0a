//! This crate and upstream's host-local in one directory at the same time.
#![expect(clippy::unwrap_used, reason = "a test says what should be so")]

mod scene;

use std::collections::HashMap;
use std::io::Write;
use std::process::{Command, Stdio};

use cnikit_reservations::ErrorKind;
use scene::{Scene, part};

/// Where distributions install upstream's host-local.
const REFERENCE: &str = "/usr/lib/cni/host-local";

/// The configuration of the same network for upstream's host-local.
fn conf(scene: &Scene) -> String {
    let place = scene.place.path().display();
    format!(
        r#"{{"cniVersion":"1.0.0","name":"net","type":"x","ipam":{{"type":"host-local","dataDir":"{place}",
        "ranges":[[{{"subnet":"10.1.2.0/24","rangeStart":"10.1.2.2","rangeEnd":"10.1.2.31"}}]]}}}}"#
    )
}

/// Runs upstream's host-local and returns its stdout; `Err` if it failed.
fn reference(scene: &Scene, verb: &str, container: &str) -> Result<String, String> {
    #[expect(clippy::disallowed_methods, reason = "the reference is a program")]
    let mut child = Command::new(REFERENCE)
        .env_clear()
        .envs([("CNI_COMMAND", verb), ("CNI_CONTAINERID", container), ("CNI_IFNAME", "eth0")])
        .envs([("CNI_NETNS", "/nonexistent"), ("CNI_PATH", "/nonexistent")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(conf(scene).as_bytes()).unwrap();
    let ended = child.wait_with_output().unwrap();
    let output = String::from_utf8(ended.stdout).unwrap();
    if ended.status.success() { Ok(output) } else { Err(output) }
}

/// The address in a result of upstream's host-local.
fn address(output: &str) -> String {
    let (_, rest) = output.split_once(r#""address": ""#).unwrap();
    rest.split_once('"').unwrap().0.to_owned()
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

#[test]
fn six_hundred_random_operations_of_ours_and_of_upstream_agree() {
    let scene = Scene::new();
    let sets = [part("10.1.2.0/24", "10.1.2.2", "10.1.2.31")];
    let mut held = HashMap::<String, String>::new();
    let mut dice = Dice(42);
    let mut seconds = 0;
    let mut full = 0;
    for step in 0..600 {
        let container = format!("c{}", dice.roll(60));
        let ours = dice.roll(2) == 0;
        let context = format!("step {step}, {container}, ours: {ours}");
        if dice.roll(5) < 3 {
            let given = if ours {
                scene.add(&container, &sets).map_err(|refused| {
                    assert!(
                        matches!(refused.kind, ErrorKind::HoldsAlready | ErrorKind::Exhausted),
                        "{context}: {refused}"
                    );
                    refused.text
                })
            } else {
                reference(&scene, "ADD", &container).map(|output| address(&output))
            };
            match given {
                Ok(address) => {
                    assert!(!held.values().any(|other| *other == address), "{context}: {address} is held already");
                    assert!(held.insert(container, address).is_none(), "{context}: held two");
                }
                Err(refused) if held.contains_key(&container) => {
                    assert!(refused.contains("duplicate allocation is not allowed"), "{context}: {refused}");
                    seconds += 1;
                }
                Err(refused) => {
                    assert!(
                        refused.contains("no IP addresses available in range set: 10.1.2.2-10.1.2.31"),
                        "{refused}"
                    );
                    assert_eq!(held.len(), 30, "{context}: not full");
                    full += 1;
                }
            }
        } else {
            let freed =
                if ours { scene.del(&container) } else { reference(&scene, "DEL", &container).map(|_| 1).unwrap() };
            assert!(!ours || freed == usize::from(held.contains_key(&container)), "{context}");
            held.remove(&container);
        }
        let mut wanted: Vec<String> = held.values().map(|address| address.replace("/24", "")).collect();
        wanted.sort();
        assert_eq!(scene.reserved(), wanted, "{context}");
    }
    assert!(seconds > 20 && full > 5, "the dice reached all cases: {seconds}, {full}");
}

#[test]
fn many_of_ours_and_of_upstream_at_once_share_the_range() {
    let scene = Scene::new();
    let sets = [part("10.1.2.0/24", "10.1.2.2", "10.1.2.31")];
    std::thread::scope(|scope| {
        let scene = &scene;
        let sets = &sets;
        let adds: Vec<_> = (0..30)
            .map(|n| {
                scope.spawn(move || match n % 2 {
                    0 => scene.add(&format!("c{n}"), sets).unwrap(),
                    _ => address(&reference(scene, "ADD", &format!("c{n}")).unwrap()),
                })
            })
            .collect();
        let mut given: Vec<String> = adds.into_iter().map(|add| add.join().unwrap()).collect();
        given.sort();
        given.dedup();
        assert_eq!(given.len(), 30);
    });
    std::thread::scope(|scope| {
        let scene = &scene;
        for n in 0..30 {
            // Each program frees addresses that the other one allocated.
            scope.spawn(move || match n % 2 {
                0 => drop(reference(scene, "DEL", &format!("c{n}")).unwrap()),
                _ => assert_eq!(scene.del(&format!("c{n}")), 1),
            });
        }
    });
    assert_eq!(scene.reserved(), [""; 0]);
}

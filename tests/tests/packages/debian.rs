//! The Debian package, beside Debian's package of upstream's plugins.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use cnikit_testkit::cache;
use cnikit_testkit::campaign::{case_limit, runs_all_cases, seeded_rng};
use cnikit_tests::NAMES;
use cnikit_tests::debian_root::{Debian, PLUGINS};
use cnikit_tests::release_files::{file, sh};
use cnikit_tests::switched::execute_until;

/// Upstream's plugins as packages: Debian's own release of them, and the newest.
const THEIRS: [&str; 2] = ["bookworm.deb", "sid.deb"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Ours {
    Absent,
    /// Removed, with its configuration left.
    Removed,
    Installed(usize),
}

/// What is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct State {
    ours: Ours,
    theirs: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    InstallOurs(usize),
    RemoveOurs,
    PurgeOurs,
    InstallTheirs(usize),
    RemoveTheirs,
    PurgeTheirs,
}

const EVENTS: [Event; 8] = [
    Event::InstallOurs(0),
    Event::InstallOurs(1),
    Event::RemoveOurs,
    Event::PurgeOurs,
    Event::InstallTheirs(0),
    Event::InstallTheirs(1),
    Event::RemoveTheirs,
    Event::PurgeTheirs,
];

impl State {
    const NOTHING: State = State { ours: Ours::Absent, theirs: None };

    /// What an event makes of it; `None` if there is no such event now.
    fn after(self, event: Event) -> Option<State> {
        match (event, self.ours, self.theirs) {
            (Event::InstallOurs(which), Ours::Installed(now), _) if which == now => None,
            (Event::InstallOurs(which), ..) => Some(State { ours: Ours::Installed(which), ..self }),
            (Event::RemoveOurs, Ours::Installed(_), _) => Some(State { ours: Ours::Removed, ..self }),
            (Event::PurgeOurs, Ours::Installed(_) | Ours::Removed, _) => Some(State { ours: Ours::Absent, ..self }),
            (Event::InstallTheirs(which), _, Some(now)) if which == now => None,
            (Event::InstallTheirs(which), ..) => Some(State { theirs: Some(which), ..self }),
            (Event::RemoveTheirs | Event::PurgeTheirs, _, Some(_)) => Some(State { theirs: None, ..self }),
            _ => None,
        }
    }

    fn has_plugins(self) -> bool {
        matches!(self.ours, Ours::Installed(_)) || self.theirs.is_some()
    }
}

/// Every step from every state once, as a walk; `steps` of them at most, chosen by chance, unless all are wanted.
fn walk(steps: usize) -> Vec<(Event, State)> {
    let mut rng = seeded_rng("packages");
    let mut left = BTreeSet::new();
    let mut seen = BTreeSet::from([State::NOTHING]);
    let mut open = VecDeque::from([State::NOTHING]);
    while let Some(state) = open.pop_front() {
        for event in EVENTS {
            if let Some(next) = state.after(event) {
                left.insert((state, event));
                if seen.insert(next) {
                    open.push_back(next);
                }
            }
        }
    }
    let mut walked = Vec::new();
    let mut state = State::NOTHING;
    while !left.is_empty() && walked.len() < steps {
        let mut events = EVENTS;
        rng.shuffle(&mut events);
        for event in way_to_one_of(state, &left, &events) {
            left.remove(&(state, event));
            state = state.after(event).unwrap();
            walked.push((event, state));
        }
    }
    walked
}

/// The shortest way from a state through one of the steps.
fn way_to_one_of(from: State, steps: &BTreeSet<(State, Event)>, events: &[Event]) -> Vec<Event> {
    let mut ways = BTreeMap::from([(from, Vec::new())]);
    let mut open = VecDeque::from([from]);
    while let Some(state) = open.pop_front() {
        for event in events {
            let Some(next) = state.after(*event) else { continue };
            let mut way = ways[&state].clone();
            way.push(*event);
            if steps.contains(&(state, *event)) {
                return way;
            }
            if let Entry::Vacant(place) = ways.entry(next) {
                place.insert(way);
                open.push_back(next);
            }
        }
    }
    panic!("no step can be reached from {from:?}")
}

fn our_package(which: usize) -> PathBuf {
    file(which, "cnikit_", "_amd64.deb")
}

fn their_package(which: usize) -> PathBuf {
    cache().join("debian-packages").join(THEIRS[which])
}

/// The names of upstream's plugins in a package, with their checksums.
fn content_of(package: &Path) -> BTreeMap<String, String> {
    let dir = tempfile::tempdir().unwrap();
    let line = format!("dpkg-deb -x '{}' . && cd usr/lib/cni && sha256sum *", package.display());
    let sums = sh(dir.path(), &line);
    let pairs = sums.lines().map(|line| (line[66..].to_owned(), line[..64].to_owned()));
    pairs.collect()
}

fn dpkg(event: Event, debian: &Debian) -> String {
    let package = |path: PathBuf| debian.give(&path);
    match event {
        // What upstream's depends on stays out: it has nothing to do with the names.
        Event::InstallOurs(which) => format!("dpkg --install {}", package(our_package(which))),
        Event::InstallTheirs(which) => format!("dpkg --force-depends --install {}", package(their_package(which))),
        Event::RemoveOurs => "dpkg --remove cnikit".into(),
        Event::PurgeOurs => "dpkg --purge cnikit".into(),
        Event::RemoveTheirs => "dpkg --remove containernetworking-plugins".into(),
        Event::PurgeTheirs => "dpkg --purge containernetworking-plugins".into(),
    }
}

fn assert_is(debian: &Debian, state: State, theirs: &[BTreeMap<String, String>], empty: &BTreeSet<String>, when: &str) {
    let audit = debian.sh("dpkg --audit");
    assert!(!audit.contains("cnikit"), "{when}: {audit}");
    let names: BTreeSet<String> = match fs::read_dir(debian.plugin("")) {
        Ok(entries) => entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect(),
        Err(_) => BTreeSet::new(),
    };
    if let Ours::Installed(_) = state.ours {
        let mut expected: BTreeSet<String> = NAMES.iter().map(|name| (*name).to_owned()).collect();
        expected.extend(["cni-plugins".to_owned(), ".replaced-by-cnikit".to_owned()]);
        assert_eq!(names, expected, "{when}");
        NAMES.iter().for_each(|name| assert!(debian.is_ours(name), "{when}: {name}"));
        debian.sh(&format!("/usr/lib/cnikit/cni-plugins verify --plugin-dir {PLUGINS}"));
        assert_eq!(debian.diversions().len(), NAMES.len(), "{when}");
    } else {
        assert_eq!(debian.diversions(), Vec::<String>::new(), "{when}");
        let expected: BTreeSet<String> = state.theirs.iter().flat_map(|which| theirs[*which].keys().cloned()).collect();
        assert_eq!(names, expected, "{when}");
    }
    if let Some(which) = state.theirs {
        let place = if matches!(state.ours, Ours::Installed(_)) { ".replaced-by-cnikit" } else { "." };
        let sums = debian.sh(&format!("cd {PLUGINS}/{place} && sha256sum *"));
        for line in sums.lines().filter(|line| !line.contains("cni-plugins")) {
            assert_eq!(theirs[which].get(&line[66..]).map(String::as_str), Some(&line[..64]), "{when}: {line}");
        }
        assert_eq!(sums.lines().count(), theirs[which].len(), "{when}");
        let changed = debian.try_sh("dpkg --verify containernetworking-plugins");
        assert_eq!(changed, (true, String::new()), "{when}: dpkg's own comparison");
    }
    if state == State::NOTHING {
        let left: Vec<String> = debian.files().difference(empty).cloned().collect();
        assert_eq!(left, Vec::<String>::new(), "{when}: files are left");
    }
}

/// Both packages, in any order: after each step the plugins are those that are expected, whole, and dpkg agrees. bridge is executed
/// meanwhile: whenever a package has it before and after a step, it is there.
#[test]
fn packages_are_installed_upgraded_downgraded_removed_and_purged_in_any_order() {
    let debian = Debian::new();
    let theirs = [0, 1].map(|which| content_of(&their_package(which)));
    let empty = debian.files();
    let mut before = State::NOTHING;
    let (mut executed, mut tried) = (0, 0);
    for (event, after) in walk(case_limit(14)) {
        let when = format!("{before:?} {event:?}");
        let line = dpkg(event, &debian);
        let stop = AtomicBool::new(false);
        let plugin = debian.plugin("bridge");
        let (times, failures) = thread::scope(|scope| {
            let busy = scope.spawn(|| execute_until(&plugin, &stop));
            let (succeeded, printed) = debian.try_sh(&line);
            stop.store(true, Ordering::Relaxed);
            assert!(succeeded, "{when}: {printed}");
            busy.join().unwrap()
        });
        if before.has_plugins() && after.has_plugins() && !swaps_without_ours(before, after) {
            assert_eq!(failures, Vec::<String>::new(), "{when}");
            executed += times;
        }
        assert_is(&debian, after, &theirs, &empty, &when);
        before = after;
        tried += 1;
    }
    eprintln!(
        "packages: {tried} steps of dpkg tried{}, bridge executed {executed} times",
        if runs_all_cases() { ", all" } else { "" }
    );
    assert!(executed > 0);
}

/// dpkg alone exchanges upstream's files: that is not ours to test.
fn swaps_without_ours(before: State, after: State) -> bool {
    let has_ours = |state: State| matches!(state.ours, Ours::Installed(_));
    !has_ours(before) && !has_ours(after)
}

/// As the runtime records it, with a network list of one bridge.
const ATTACHMENT: &str = r#"{"kind":"cniCacheV1","containerId":"c1","config":"eyJjbmlWZXJzaW9uIjoiMS4wLjAiLCJuYW1lIjoibiIsInBsdWdpbnMiOlt7InR5cGUiOiJicmlkZ2UifV19","ifName":"eth0","networkName":"n"}"#;

fn attach(debian: &Debian) {
    let results = debian.root.join("var/lib/cni/results");
    fs::create_dir_all(&results).unwrap();
    fs::write(results.join("n-c1-eth0"), ATTACHMENT).unwrap();
}

/// A removal never fails. While a container needs the plugins and nothing replaces them, they stay, and so they do when purged.
#[test]
fn plugins_that_a_container_needs_stay_when_the_package_is_removed() {
    let debian = Debian::new();
    let empty = debian.files();
    debian.sh(&dpkg(Event::InstallOurs(0), &debian));
    attach(&debian);
    let printed = debian.sh("dpkg --remove cnikit");
    assert!(printed.contains("n c1 eth0") && printed.contains("the plugins stay in /usr/lib/cni"), "{printed}");
    assert!(debian.is_ours("bridge") && !debian.root.join("usr/lib/cnikit/cni-plugins").exists());
    let printed = debian.sh("dpkg --purge cnikit");
    assert!(printed.contains("the plugins stay in /usr/lib/cni"), "{printed}");
    assert!(debian.is_ours("bridge"));
    assert_eq!(debian.diversions(), Vec::<String>::new(), "dpkg forgets a package that is purged");
    // The next installation takes them over, and its removal removes them.
    fs::remove_dir_all(debian.root.join("var/lib/cni")).unwrap();
    debian.sh(&dpkg(Event::InstallOurs(1), &debian));
    debian.sh("dpkg --purge cnikit");
    let left: Vec<String> = debian.files().difference(&empty).cloned().collect();
    assert_eq!(left, Vec::<String>::new());
}

#[test]
fn plugins_that_stayed_are_removed_by_purge_once_no_container_needs_them() {
    let debian = Debian::new();
    let empty = debian.files();
    debian.sh(&dpkg(Event::InstallOurs(0), &debian));
    attach(&debian);
    debian.sh("dpkg --remove cnikit");
    assert!(debian.is_ours("bridge"));
    fs::remove_dir_all(debian.root.join("var/lib/cni")).unwrap();
    debian.sh("dpkg --purge cnikit");
    let left: Vec<String> = debian.files().difference(&empty).cloned().collect();
    assert_eq!(left, Vec::<String>::new());
}

/// With upstream's plugins put back, a container has what can delete it.
#[test]
fn a_package_with_something_to_put_back_is_removed_while_containers_run() {
    let debian = Debian::new();
    debian.sh(&dpkg(Event::InstallTheirs(1), &debian));
    debian.sh(&dpkg(Event::InstallOurs(0), &debian));
    attach(&debian);
    debian.sh("dpkg --remove cnikit");
    assert!(debian.version("bridge").contains("CNI bridge plugin") && !debian.is_ours("bridge"));
}

#[test]
fn a_removal_succeeds_although_the_binary_is_damaged() {
    for damage in ["rm", ": >"] {
        let debian = Debian::new();
        debian.sh(&dpkg(Event::InstallOurs(0), &debian));
        debian.sh(&format!("{damage} /usr/lib/cnikit/cni-plugins"));
        let printed = debian.sh("dpkg --remove cnikit");
        assert!(printed.contains("the plugins stay in /usr/lib/cni"), "{printed}");
        assert!(debian.is_ours("bridge"));
    }
}

/// A package that deletes names when it is installed, as an upgrade of kubernetes-cni did: our trigger places them again.
#[test]
fn names_that_another_package_deletes_are_placed_again() {
    let debian = Debian::new();
    debian.sh(&dpkg(Event::InstallOurs(0), &debian));
    debian.sh(
        "mkdir -p /files/other/DEBIAN /files/other/usr/lib/cni && echo x >/files/other/usr/lib/cni/other && \
         printf 'Package: other\\nVersion: 1\\nArchitecture: all\\nMaintainer: x <x@example.org>\\nDescription: x\\n' >/files/other/DEBIAN/control && \
         printf '#!/bin/sh\\nrm -f /usr/lib/cni/bridge /usr/lib/cni/cni-plugins\\n' >/files/other/DEBIAN/postinst && \
         chmod 755 /files/other/DEBIAN/postinst && dpkg-deb -b /files/other /files/other.deb && dpkg --install /files/other.deb",
    );
    assert!(debian.is_ours("bridge"));
    debian.sh(&format!("/usr/lib/cnikit/cni-plugins verify --plugin-dir {PLUGINS}"));
}

#[test]
fn the_directories_of_the_configuration_are_those_with_plugins() {
    let debian = Debian::new();
    debian.sh(&dpkg(Event::InstallTheirs(0), &debian));
    debian.sh(&dpkg(Event::InstallOurs(0), &debian));
    debian.sh("echo 'PLUGIN_DIRS=\"/opt/cni/bin\"' >/etc/default/cnikit && dpkg-reconfigure cnikit");
    assert!(debian.sh("/opt/cni/bin/bridge --version").contains("CNI bridge plugin cnikit"));
    assert!(!debian.is_ours("bridge"), "upstream's is not put back");
    assert!(debian.diversions().iter().all(|line| line.contains("/opt/cni/bin/")), "{:?}", debian.diversions());
    debian.sh("dpkg --purge cnikit");
    assert!(!debian.root.join("opt/cni/bin/bridge").exists());
}

#[test]
fn the_package_has_the_tool_its_manual_and_units_that_systemd_accepts() {
    let debian = Debian::new();
    debian.sh(&dpkg(Event::InstallOurs(0), &debian));
    assert!(debian.sh("cnitool --version").starts_with("cnitool"));
    let files = debian.sh("dpkg -L cnikit");
    for path in [
        "/usr/share/man/man1/cnitool-add.1.gz",
        "/usr/share/bash-completion/completions/cnitool",
        "/usr/share/doc/cnikit/copyright",
        "/usr/lib/systemd/system/cnikit-dhcp.socket",
    ] {
        assert!(files.lines().any(|line| line == path), "{path}: {files}");
    }
    let units = debian.root.join("usr/lib/systemd/system");
    let unit = fs::read_to_string(units.join("cnikit-dhcp.service")).unwrap();
    assert!(unit.contains("Conflicts=cni-dhcp.service") && unit.contains("Requires=cnikit-dhcp.socket"), "{unit}");
    let started = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let help = debian.sh(&format!("{started} -help 2>&1 || true"));
    assert!(help.contains("-hostprefix"), "{help}");
    sh(
        &debian.root,
        "systemd-analyze verify --recursive-errors=no --root=. cnikit-dhcp.service 2>&1 | (! grep cnikit-dhcp)",
    );
}

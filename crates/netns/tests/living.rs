//! A scan finds namespaces, whatever holds them.

use std::collections::BTreeSet;
use std::fs;
use std::net::UdpSocket;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use cnikit_netns::{Netns, NetnsScan, NetnsStatus, Scope, make};

/// Held during each scan, which holds every namespace open meanwhile, and while a namespace is removed.
static ALONE: Mutex<()> = Mutex::new(());

fn look(scope: Scope) -> NetnsScan {
    let _alone = ALONE.lock();
    NetnsScan::scan(scope, |_, _| {})
}

/// What was not seen, without covered mounts of other programs: they are never seen, and do not matter here.
fn unseen() -> BTreeSet<String> {
    look(Scope::PidNamespace).unseen().map(str::to_owned).collect()
}

#[test]
fn one_is_found_as_long_as_a_file_a_mount_or_a_socket_holds_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a name");
    let netns = make::fresh(&path).unwrap();
    let cookie = netns.cookie().unwrap();
    assert_eq!(look(Scope::PidNamespace).status(cookie), NetnsStatus::Lives, "a file and a mount hold it");
    let socket = netns.enter(|_| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
    drop(netns);
    assert_eq!(look(Scope::PidNamespace).status(cookie), NetnsStatus::Lives, "a mount holds it, and a socket");
    let alone = ALONE.lock();
    make::remove(&path).unwrap();
    drop(alone);
    assert_eq!(look(Scope::PidNamespace).status(cookie), NetnsStatus::Lives, "a socket holds it");
    drop(socket);
    assert_eq!(look(Scope::PidNamespace).status(cookie), NetnsStatus::Dead, "nothing holds it");
}

#[test]
fn the_own_namespace_is_alive_and_unseen_processes_are_reported() {
    let own = Netns::own().unwrap().cookie().unwrap();
    let narrow = look(Scope::PidNamespace);
    let wide = look(Scope::Machine);
    assert_eq!((narrow.status(own), wide.status(own)), (NetnsStatus::Lives, NetnsStatus::Lives));
    let first = fs::read_link("/proc/self/ns/pid").unwrap().to_str() == Some("pid:[4026531836]");
    let says = wide.unseen().any(|what| what.contains("PID namespace"));
    assert_eq!(says, !first, "{:?}", wide.unseen().collect::<Vec<_>>());
}

/// What other tests close or end during a scan is not reported as unseen.
#[test]
fn descriptors_closed_during_a_scan_are_not_reported_as_unseen() {
    let before = unseen();
    let over = AtomicBool::new(false);
    let looked = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Relaxed) {
                drop(UdpSocket::bind("127.0.0.1:0"));
                drop(fs::File::open("/dev/null"));
            }
        });
        let looked: BTreeSet<String> = (0..300).flat_map(|_| unseen()).collect();
        over.store(true, Relaxed);
        looked
    });
    assert_eq!(looked, before);
}

//! Enter a namespace, and distinguish namespaces.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::process;

use cnikit_netns::{Netns, make};

fn links_here() -> Vec<String> {
    let table = fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    table.lines().skip(2).map(|line| line.split(':').next().unwrap().trim().to_owned()).collect()
}

#[test]
fn work_runs_inside_and_the_caller_stays_outside() {
    let before = links_here();
    let netns = make::anonymous().unwrap();
    assert_eq!(netns.enter(|_| links_here()).unwrap(), ["lo"]);
    assert!(netns.enter(|_| netns.is_own().unwrap()).unwrap());
    assert!(!netns.is_own().unwrap());
    assert_eq!(links_here(), before);
}

#[test]
fn a_panic_inside_continues_in_the_caller_which_stays_outside() {
    let netns = make::anonymous().unwrap();
    let caught = panic::catch_unwind(AssertUnwindSafe(|| netns.enter(|_| panic!("the work fell over"))));
    assert_eq!(*caught.unwrap_err().downcast::<&str>().unwrap(), "the work fell over");
    assert!(!netns.is_own().unwrap());
}

#[test]
fn work_may_borrow_from_the_caller_and_give_something_back() {
    let netns = make::anonymous().unwrap();
    let mut seen = Vec::new();
    let socket = netns.enter(|_| {
        seen.extend(links_here());
        std::net::UdpSocket::bind("0.0.0.0:0").unwrap()
    });
    assert_eq!(seen, ["lo"]);
    // A socket stays in the namespace that it was opened in, where `lo` is down and there are no routes.
    assert!(socket.unwrap().connect("127.0.0.1:9").is_err());
}

#[test]
fn the_own_namespace_is_the_threads_and_not_the_processs() {
    assert!(Netns::own().unwrap().is_own().unwrap());
    let netns = make::anonymous().unwrap();
    let own_inside = netns.enter(|_| Netns::own().unwrap()).unwrap();
    assert!(!own_inside.is_own().unwrap());
    assert_eq!(own_inside.cookie().unwrap(), netns.cookie().unwrap());
}

#[test]
fn a_cookie_differs_from_that_of_a_namespace_with_the_same_inode() {
    let old = make::anonymous().unwrap();
    let cookie = old.cookie().unwrap();
    assert_eq!(old.clone().cookie().unwrap(), cookie);
    drop(old);
    for _ in 0..8 {
        let newcomer = make::anonymous().unwrap();
        assert_ne!(newcomer.cookie().unwrap(), cookie);
    }
    assert_ne!(Netns::own().unwrap().cookie().unwrap(), cookie);
}

#[test]
fn an_anonymous_namespace_is_found_by_other_programs_and_ends_with_its_last_clone() {
    let netns = make::anonymous().unwrap();
    let path = netns.path().to_owned();
    assert!(path.starts_with(format!("/proc/{}/fd", process::id())));
    let again = Netns::open(&path).unwrap();
    assert_eq!(again.cookie().unwrap(), netns.cookie().unwrap());
    let clone = netns.clone();
    drop(netns);
    assert_eq!(clone.enter(|_| links_here()).unwrap(), ["lo"]);
}

#[test]
fn two_hundred_threads_enter_at_once_and_each_is_where_it_should_be() {
    let namespaces: Vec<_> = (0..20).map(|_| make::anonymous().unwrap()).collect();
    std::thread::scope(|scope| {
        for index in 0..200 {
            let netns = &namespaces[index % 20];
            scope.spawn(move || assert!(netns.enter(|_| netns.is_own().unwrap()).unwrap()));
        }
    });
}

#[test]
fn nowhere_can_be_named_and_not_entered() {
    let nowhere = Netns::unopened("/gone/for/ever").unwrap();
    assert_eq!(nowhere.path(), std::path::Path::new("/gone/for/ever"));
    assert!(nowhere.enter(|_| ()).is_err());
}

//! Enter a namespace in a process with a single thread. The test harness is off, because it starts threads.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test, and what it ran")]

use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::thread;

use cnikit_netns::{Netns, disregard_thread, make};
use nix::unistd::{Pid, gettid};

/// The thread that works inside, and how many threads there are then.
fn at_work(netns: &Netns) -> (Pid, usize) {
    let work = || {
        assert!(netns.is_own().unwrap());
        (gettid(), fs::read_dir("/proc/self/task").unwrap().count())
    };
    let at_work = netns.enter(|_| work()).unwrap();
    assert!(!netns.is_own().unwrap());
    at_work
}

fn the_only_thread_enters_itself_and_returns() {
    assert_eq!(at_work(&make::anonymous().unwrap()), (gettid(), 1));
}

fn with_several_threads_a_new_one_enters() {
    let netns = make::anonymous().unwrap();
    let own = gettid();
    thread::scope(|scope| {
        let (done, wait) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || wait.recv());
        let (thread, count) = at_work(&netns);
        assert!(thread != own && count == 3);
        drop(done);
    });
}

fn a_nested_enter_returns_to_the_outer_namespace() {
    let outer = make::anonymous().unwrap();
    let inner = make::anonymous().unwrap();
    let work = || {
        assert_eq!(inner.enter(|_| (inner.is_own().unwrap(), gettid())).unwrap(), (true, gettid()));
        outer.is_own().unwrap()
    };
    assert!(outer.enter(|_| work()).unwrap());
    assert!(!outer.is_own().unwrap());
}

fn a_panic_inside_continues_outside() {
    let netns = make::anonymous().unwrap();
    let quiet = panic::take_hook();
    panic::set_hook(Box::new(|_| ()));
    let caught = panic::catch_unwind(AssertUnwindSafe(|| netns.enter(|_| panic!("the work fell over"))));
    panic::set_hook(quiet);
    assert_eq!(*caught.unwrap_err().downcast::<&str>().unwrap(), "the work fell over");
    assert!(!netns.is_own().unwrap());
}

fn a_failed_enter_leaves_the_thread_in_its_namespace() {
    let own = Netns::own().unwrap();
    assert!(Netns::unopened("/gone").unwrap().enter(|_| ()).is_err());
    assert!(own.is_own().unwrap());
}

/// The last test, as the thread stays.
fn a_thread_that_is_disregarded_changes_nothing() {
    let netns = make::anonymous().unwrap();
    let (running, runs) = std::sync::mpsc::channel();
    thread::spawn(move || {
        running.send(()).unwrap();
        loop {
            thread::park();
        }
    });
    runs.recv().unwrap();
    disregard_thread();
    assert_eq!(at_work(&netns), (gettid(), 2));
}

fn main() {
    let tests: [(&str, fn()); 6] = [
        ("the_only_thread_enters_itself_and_returns", the_only_thread_enters_itself_and_returns),
        ("with_several_threads_a_new_one_enters", with_several_threads_a_new_one_enters),
        ("a_nested_enter_returns_to_the_outer_namespace", a_nested_enter_returns_to_the_outer_namespace),
        ("a_panic_inside_continues_outside", a_panic_inside_continues_outside),
        ("a_failed_enter_leaves_the_thread_in_its_namespace", a_failed_enter_leaves_the_thread_in_its_namespace),
        ("a_thread_that_is_disregarded_changes_nothing", a_thread_that_is_disregarded_changes_nothing),
    ];
    // A failure is a panic, which ends the process with its own status.
    for (name, test) in tests {
        test();
        println!("test {name} ... ok");
    }
}

//! Enter a namespace in a process with a single thread. The test harness is off, because it starts threads.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test, and what it ran")]

use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::thread;

use cnikit_netns::{Netns, make};
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

fn the_only_thread_goes_itself_and_comes_back() {
    assert_eq!(at_work(&make::anonymous().unwrap()), (gettid(), 1));
}

fn beside_another_thread_a_third_one_goes() {
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

fn one_within_another_comes_back_to_where_it_came_from() {
    let outer = make::anonymous().unwrap();
    let inner = make::anonymous().unwrap();
    let work = || {
        assert_eq!(inner.enter(|_| (inner.is_own().unwrap(), gettid())).unwrap(), (true, gettid()));
        outer.is_own().unwrap()
    };
    assert!(outer.enter(|_| work()).unwrap());
    assert!(!outer.is_own().unwrap());
}

fn a_panic_inside_goes_on_outside() {
    let netns = make::anonymous().unwrap();
    let quiet = panic::take_hook();
    panic::set_hook(Box::new(|_| ()));
    let caught = panic::catch_unwind(AssertUnwindSafe(|| netns.enter(|_| panic!("the work fell over"))));
    panic::set_hook(quiet);
    assert_eq!(*caught.unwrap_err().downcast::<&str>().unwrap(), "the work fell over");
    assert!(!netns.is_own().unwrap());
}

fn a_way_in_that_is_none_leaves_the_thread_where_it_was() {
    let own = Netns::own().unwrap();
    assert!(Netns::unopened("/gone").unwrap().enter(|_| ()).is_err());
    assert!(own.is_own().unwrap());
}

fn main() {
    let tests: [(&str, fn()); 5] = [
        ("the_only_thread_goes_itself_and_comes_back", the_only_thread_goes_itself_and_comes_back),
        ("beside_another_thread_a_third_one_goes", beside_another_thread_a_third_one_goes),
        ("one_within_another_comes_back_to_where_it_came_from", one_within_another_comes_back_to_where_it_came_from),
        ("a_panic_inside_goes_on_outside", a_panic_inside_goes_on_outside),
        ("a_way_in_that_is_none_leaves_the_thread_where_it_was", a_way_in_that_is_none_leaves_the_thread_where_it_was),
    ];
    // A failure is a panic, which ends the process with its own status.
    for (name, test) in tests {
        test();
        println!("test {name} ... ok");
    }
}

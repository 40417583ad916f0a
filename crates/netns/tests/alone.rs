//! Enter a namespace in a process with a single thread. The test harness is off, because it starts threads.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test, and what it ran")]

use std::cell::Cell;
use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::sync::mpsc;
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

/// A new namespace, while this is the only thread. The kernel lists one that was joined until it has ended it.
fn netns() -> Netns {
    let netns = make::anonymous().unwrap();
    while fs::read_dir("/proc/self/task").unwrap().count() > 1 {
        thread::yield_now();
    }
    netns
}

fn the_only_thread_enters_itself_and_returns() {
    assert_eq!(at_work(&netns()), (gettid(), 1));
}

fn with_several_threads_a_new_one_enters() {
    let netns = netns();
    let own = gettid();
    thread::scope(|scope| {
        let (done, wait) = mpsc::channel::<()>();
        scope.spawn(move || wait.recv());
        let (thread, count) = at_work(&netns);
        assert!(thread != own && count == 3);
        drop(done);
    });
}

/// It would hold the namespace else, as the kernel ends a thread after it was joined.
fn a_thread_that_was_inside_has_returned_when_it_ends() {
    struct AtEnd(mpsc::Sender<Netns>);
    impl Drop for AtEnd {
        fn drop(&mut self) {
            self.0.send(Netns::own().unwrap()).unwrap();
        }
    }
    thread_local! { static AT_END: Cell<Option<AtEnd>> = const { Cell::new(None) } }
    let netns = netns();
    thread::scope(|scope| {
        let (done, wait) = mpsc::channel::<()>();
        scope.spawn(move || wait.recv());
        let (sender, at_end) = mpsc::channel();
        assert!(netns.enter(|_| AT_END.set(Some(AtEnd(sender)))).is_ok());
        assert!(at_end.recv().unwrap().is_own().unwrap());
        drop(done);
    });
}

fn a_nested_enter_returns_to_the_outer_namespace() {
    let outer = netns();
    let inner = netns();
    let work = || {
        assert_eq!(inner.enter(|_| (inner.is_own().unwrap(), gettid())).unwrap(), (true, gettid()));
        outer.is_own().unwrap()
    };
    assert!(outer.enter(|_| work()).unwrap());
    assert!(!outer.is_own().unwrap());
}

fn a_panic_inside_continues_outside() {
    let netns = netns();
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
    let netns = netns();
    let (running, runs) = mpsc::channel();
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
    let tests: [(&str, fn()); 7] = [
        ("the_only_thread_enters_itself_and_returns", the_only_thread_enters_itself_and_returns),
        ("with_several_threads_a_new_one_enters", with_several_threads_a_new_one_enters),
        ("a_thread_that_was_inside_has_returned_when_it_ends", a_thread_that_was_inside_has_returned_when_it_ends),
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

//! Run code on a thread inside a namespace that is not its own.
//!
//! If the process has other threads, a new thread enters, works and ends: no other thread is ever in the wrong namespace. It
//! returns before it ends, only so that it does not hold the namespace: a thread is joined while the kernel is still ending it,
//! before it takes the namespaces from it.
//!
//! If the calling thread is the only one of its process, as in a plugin, it enters itself, because a new thread costs as much as
//! all the work inside. This is sound. Without other threads, only `work` itself can start one meanwhile, and such a thread would
//! stay inside in either case. No other thread can observe where this one is. No other code of this process runs in the wrong
//! namespace meanwhile. The return is tried before the thread leaves: if the kernel would not allow it (its own namespace may
//! belong to another user namespace), a new thread is used instead. If the return nevertheless fails, the process aborts:
//! everything that it did next, it would do to the container.
//!
//! A thread that is disregarded ([`disregard_thread`]) does nothing that depends on a namespace, so all this is true beside it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::panic::{self, AssertUnwindSafe};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use nix::sched::CloneFlags;

use crate::Inside;

/// The link to the namespace of the calling thread.
pub(crate) const HERE: &str = "/proc/thread-self/ns/net";
/// A directory with one subdirectory for each thread of this process. Each counts as a hard link, in addition to the usual two.
const THREADS: &str = "/proc/self/task";
const LINKS_OF_ONE: u64 = 3;
/// The threads that are disregarded.
static DISREGARDED: AtomicU64 = AtomicU64::new(0);
/// How often the return is tried: the kernel may be out of memory for a moment.
const TRIES: usize = 5;

/// Runs `work` inside the namespace of `file`. An error means that it could not be entered: `work` has not run then.
pub(crate) fn visit<T: Send>(file: impl AsFd + Sync, work: impl FnOnce(&Inside) -> T + Send) -> io::Result<T> {
    match way_back() {
        Some(home) => {
            move_to(&file)?;
            let worked = panic::catch_unwind(AssertUnwindSafe(|| work(&Inside::here())));
            go_back(&home);
            Ok(worked.unwrap_or_else(|panic| panic::resume_unwind(panic)))
        }
        None => on_a_thread(|| move_to(&file).map(|()| work(&Inside::here()))),
    }
}

/// Runs `work` on a new thread. When this returns, the thread does not hold a namespace that it entered or made; if the kernel does
/// not allow it to return from there, or if `work` panics, it holds it a moment longer.
pub(crate) fn on_a_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let work = || {
        let home = File::open(HERE);
        let result = work();
        let _ = home.and_then(move_to); // see above
        result
    };
    let joined = thread::scope(|scope| {
        let worker = thread::Builder::new().name("netns".to_owned()).spawn_scoped(scope, work)?;
        Ok::<_, io::Error>(worker.join())
    })?;
    joined.unwrap_or_else(|panic| panic::resume_unwind(panic))
}

/// Whether this process has one thread, beside those that are disregarded. Otherwise a namespace is entered on a new one.
///
/// # Errors
/// There is no `/proc`.
pub fn is_only_thread() -> io::Result<bool> {
    Ok(fs::metadata(THREADS)?.nlink() == LINKS_OF_ONE + DISREGARDED.load(Ordering::Relaxed))
}

/// Says that a thread, which has just been started, does nothing that depends on a namespace (it opens no socket and no file), and
/// lives as long as the process. So the only other thread still enters a namespace itself.
pub fn disregard_thread() {
    DISREGARDED.fetch_add(1, Ordering::Relaxed);
}

/// The namespace of this thread, if it is the only thread and can return to it.
fn way_back() -> Option<File> {
    let is_only = is_only_thread().ok()?;
    let home = File::open(HERE).ok().filter(|_| is_only)?;
    move_to(&home).is_ok().then_some(home)
}

fn go_back(home: &File) {
    if !(0..TRIES).any(|_| move_to(home).is_ok()) {
        // A message on stderr is all that is possible here; that it cannot be written changes nothing.
        let _ = writeln!(io::stderr(), "the kernel does not allow this process to return to its own network namespace");
        process::abort();
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the room")]
fn move_to(file: impl AsFd) -> io::Result<()> {
    Ok(nix::sched::setns(file, CloneFlags::CLONE_NEWNET)?)
}

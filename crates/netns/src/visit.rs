//! A thread inside a namespace that is not its own, for a while.
//!
//! Where other threads run, a thread that enters is never led back out: a new one enters, works and dies there. So there
//! is nothing to restore, and no thread is ever found in the wrong namespace.
//!
//! Where the calling thread is the only one of its process, as in a plugin, it goes itself, for a thread costs as much as
//! all that is done inside. What makes that sound: with no other thread, nobody can start one meanwhile but the work, whose
//! threads would stay inside in either case; no other thread can see where this one is; and no program of this process goes
//! on in the wrong place. The way back is tried before the thread leaves: a kernel that would not let it back (home may
//! belong to another user namespace) sends a thread of its own instead. Should it fail all the same, the process ends at
//! once: whatever it did next, it would do to the container.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::panic::{self, AssertUnwindSafe};
use std::process;
use std::thread;

use nix::sched::CloneFlags;

use crate::Inside;

/// The file behind which the calling thread's namespace stands.
pub(crate) const HERE: &str = "/proc/thread-self/ns/net";
/// Has a directory for each thread of this process, each of which counts as a link to it, as two more do.
const THREADS: &str = "/proc/self/task";
const LINKS_OF_ONE: u64 = 3;
/// How often the way back is tried: the kernel may have no memory for a moment.
const TRIES: usize = 5;

/// Runs `work` inside the namespace behind `file`. An error is about the way in: `work` has not run then.
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

/// Runs `work` on a thread of its own, which is gone, with whatever it did to itself, when this returns.
pub(crate) fn on_a_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let joined = thread::scope(|scope| {
        let worker = thread::Builder::new().name("netns".to_owned()).spawn_scoped(scope, work)?;
        Ok::<_, io::Error>(worker.join())
    })?;
    joined.unwrap_or_else(|panic| panic::resume_unwind(panic))
}

/// The namespace of this thread, if it is the only one and can go back there.
fn way_back() -> Option<File> {
    let links = fs::metadata(THREADS).ok()?.nlink();
    let home = File::open(HERE).ok().filter(|_| links == LINKS_OF_ONE)?;
    move_to(&home).is_ok().then_some(home)
}

fn go_back(home: &File) {
    if !(0..TRIES).any(|_| move_to(home).is_ok()) {
        // What stderr says is all that is left to say.
        let _ = writeln!(io::stderr(), "the kernel does not let this process back into its own network namespace");
        process::abort();
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the room")]
fn move_to(file: impl AsFd) -> io::Result<()> {
    Ok(nix::sched::setns(file, CloneFlags::CLONE_NEWNET)?)
}

//! Killed half-way: at every system call, at any moment, or for want of what every program needs.
//!
//! After each death comes what a runtime does: DEL, with no prevResult, the namespace still there or gone. Nothing of the
//! attachment may be left then, another attachment runs on, and the same container can be added again.

use std::time::Duration;

use nix::sys::resource::Resource;
use nix::sys::signal::Signal;

use crate::campaign::{Harm, Report, Scene, Verb, choose, is_whole, play, usual};
use crate::subject::Subject;
use crate::watch::Trace;

/// `SIGKILL` before every system call of an ADD, of the first ADD on a host, of a DEL and of a GC: of the plugin and of
/// every program that it starts.
///
/// Every other call is followed by a namespace that is gone; with `CNIKIT_CAMPAIGNS=whole` each call both ways. Without it
/// at most so many calls of a verb are tried, evenly spread.
pub fn at_every_call(subject: &Subject, most: usize) -> Report {
    let mut report = Report::new(format!("{}: killed before every system call", subject.plugin));
    for verb in Verb::ALL {
        let trace = usual(subject, verb);
        let all = calls(verb, &trace);
        assert!(trace.len() > 20 && all.len() >= trace.len(), "{verb} made only {} system calls", trace.len());
        let what = format!("{} {verb}, {trace} system calls, killed before each", subject.plugin);
        let scenes = choose(&what, all, most);
        let one = play(what, subject, &scenes, &trace).say();
        assert!(one.tried + one.findings.len() >= scenes.len(), "not every system call was reached");
        report.add(one);
    }
    report.conclude()
}

/// A scene a call; in the whole form two. Whom GC removes, his namespace is gone.
fn calls(verb: Verb, trace: &Trace) -> Vec<Scene> {
    let harm = Harm::Signal(Signal::SIGKILL, Duration::ZERO);
    let scene = |at: (usize, usize, i32)| {
        let odd = at.1 % 2 == 1;
        let ways = match verb {
            Verb::Gc => vec![true],
            _ if is_whole() => vec![odd, !odd],
            _ => vec![odd],
        };
        ways.into_iter().map(move |gone| Scene { verb, at, harm, gone })
    };
    trace.calls().flat_map(scene).collect()
}

/// `SIGTERM` at so many moments of ADD, DEL and GC: some time after a system call was asked for, anywhere.
pub fn at_moments(subject: &Subject, moments: usize) -> Report {
    let mut report = Report::new(format!("{}: SIGTERM at {moments} moments", subject.plugin));
    for verb in Verb::ALL {
        let trace = usual(subject, verb);
        let scene = |at: (usize, usize, i32)| {
            let harm = Harm::Signal(Signal::SIGTERM, Duration::from_micros(at.1 as u64 * 37 % 300));
            Scene { verb, at, harm, gone: verb == Verb::Gc || at.1 % 2 == 1 }
        };
        let what = format!("{} {verb}: SIGTERM", subject.plugin);
        let scenes = choose(&what, trace.calls().map(scene).collect(), moments.div_ceil(3));
        report.add(play(what, subject, &scenes, &trace));
    }
    report.conclude()
}

/// Sizes of a file, in bytes, that do not suffice for a reservation, or for an index, or for anything.
const SIZES: [u64; 7] = [0, 1, 16, 64, 100, 512, 4096];

/// Memory, in steps of half a megabyte, that does not suffice to start, or to go on, or does suffice.
const MEMORY_STEPS: u64 = 48;

/// ADD, DEL and GC with too small a file size and with any memory from nothing up to enough; at most so many limits a verb.
#[doc(alias = "prlimit")]
pub fn for_want(subject: &Subject, most: usize) -> Report {
    let mut report = Report::new(format!("{}: file size and memory limited", subject.plugin));
    let sizes = SIZES.map(|bytes| (Resource::RLIMIT_FSIZE, bytes));
    let memory = (1..=MEMORY_STEPS).map(|step| (Resource::RLIMIT_AS, step << 19));
    let limits: Vec<_> = sizes.into_iter().chain(memory).collect();
    for verb in Verb::ALL {
        let trace = usual(subject, verb);
        let scene = |(n, limit): (usize, &_)| Scene {
            verb,
            at: (0, n, 0),
            harm: Harm::Limit(*limit),
            gone: verb == Verb::Gc || n % 2 == 1,
        };
        let what = format!("{} {verb}: limited", subject.plugin);
        let scenes = choose(&what, limits.iter().enumerate().map(scene).collect(), most);
        report.add(play(what, subject, &scenes, &trace));
    }
    assert!(report.failed > 0 && report.failed < report.tried, "the limits limit nothing, or leave nothing: {report}");
    report.conclude()
}

//! Killed half-way: at every system call, at any moment, or for want of what every program needs.
//!
//! After each death comes what a runtime does: DEL, with no prevResult, the namespace still there or gone. Nothing of the
//! attachment may be left then, another attachment runs on, and the same container can be added again.

use std::time::Duration;

use nix::sys::resource::Resource;
use nix::sys::signal::Signal;

use crate::campaign::{CampaignReport, Harm, Scene, Verb, chance, conclude, play, usual};
use crate::env::subject::Subject;
use crate::syscall_trace::SyscallTrace;

/// `SIGKILL` before every system call of an ADD, of the first ADD on a host, of a DEL and of a GC: of the plugin and of
/// every program that it starts; once with the namespace there afterwards, and once with it gone.
///
/// With `CNIKIT_CAMPAIGNS=whole` it is an error if any system call of an undisturbed run is not reached. Without it at most
/// so many of a verb are tried, by chance.
pub fn at_every_call(subject: &Subject, most: usize) -> Vec<CampaignReport> {
    conclude(tried_at_every_call(subject, most, CampaignReport::say))
}

/// As [`at_every_call`], but returns the reports; each is passed to `say` when it is complete.
pub fn tried_at_every_call(
    subject: &Subject,
    most: usize,
    say: impl Fn(CampaignReport) -> CampaignReport,
) -> Vec<CampaignReport> {
    let mut reports = Vec::new();
    for verb in Verb::ALL {
        let (trace, _) = usual(subject, verb);
        assert!(trace.len() > 20, "{verb} made only {} system calls", trace.len());
        for gone in ways(verb) {
            let scene = |at| Scene { verb, at, harm: Harm::Signal(Signal::SIGKILL, Duration::ZERO), gone: *gone };
            let what = format!("kill {} {verb}{}", subject.title, if *gone { ", namespace gone" } else { "" });
            let report = CampaignReport::new(what, "calls", trace.len());
            reports.push(say(play(report, subject, trace.calls().map(scene).collect(), most.div_ceil(2), &trace)));
        }
    }
    reports
}

/// Whether the namespace is gone by the time of what follows.
fn ways(verb: Verb) -> &'static [bool] {
    if verb.is_of_the_lost() { &[true] } else { &[false, true] }
}

/// Sends `SIGTERM` at this many random moments of ADD, DEL and GC.
pub fn at_moments(subject: &Subject, moments: usize) -> Vec<CampaignReport> {
    let mut chance = chance(&format!("SIGTERM {}", subject.title));
    let one = |(n, verb): (usize, Verb)| {
        let (trace, _) = usual(subject, verb);
        let calls: Vec<_> = trace.calls().collect();
        let count = (moments + n) / Verb::ALL.len();
        let scene = |_| {
            let at @ (process, place, _) = calls[chance.usize(..calls.len())];
            let goes_on = trace.at(process, place + Scene::LAST).is_some();
            let after = if goes_on { Duration::from_micros(chance.u64(1..LONGEST_AFTER)) } else { Duration::ZERO };
            let gone = verb.is_of_the_lost() || chance.bool();
            Scene { verb, at, harm: Harm::Signal(Signal::SIGTERM, after), gone }
        };
        let what = format!("SIGTERM {} {verb}", subject.title);
        let report = CampaignReport { drawn: true, ..CampaignReport::new(what, "moments", count) };
        play(report, subject, (0..count).map(scene).collect(), count, &trace).say()
    };
    conclude(Verb::ALL.into_iter().enumerate().map(one).collect())
}

/// Microseconds after a system call was asked for: most take less.
const LONGEST_AFTER: u64 = 300;

/// Sizes of a file, in bytes, that do not suffice for a reservation, or for an index, or for anything.
const SIZES: [u64; 7] = [0, 1, 16, 64, 100, 512, 4096];

/// Memory up to two megabytes, in steps of an eighth, that does not suffice to start.
const LITTLE_STEPS: u64 = 16;

/// Memory above that, in steps of half a megabyte, that does not suffice to go on, or does suffice.
const MEMORY_STEPS: u64 = 24;

/// Runs ADD, DEL and GC with a limit on the file size and with every amount of memory from none to enough; at most this many
/// limits per verb.
#[doc(alias = "prlimit")]
pub fn for_want(subject: &Subject, most: usize) -> Vec<CampaignReport> {
    let sizes = SIZES.map(|bytes| (Resource::RLIMIT_FSIZE, bytes));
    let little = (1..=LITTLE_STEPS).map(|step| step << 17);
    let memory = little.chain((5..=MEMORY_STEPS).map(|step| step << 19));
    let limits: Vec<_> = memory.map(|bytes| (Resource::RLIMIT_AS, bytes)).chain(sizes).collect();
    let one = |verb: Verb, what: &str, limits: &[_], most: usize| {
        let scene = |(n, limit): (usize, &_)| Scene {
            verb,
            at: (0, n, 0),
            harm: Harm::Limit(*limit),
            gone: verb.is_of_the_lost() || n % 2 == 1,
        };
        let report = CampaignReport::new(format!("{what} {} {verb}", subject.title), "limits", limits.len());
        play(report, subject, limits.iter().enumerate().map(scene).collect(), most, &SyscallTrace::default()).say()
    };
    // Whichever are tried of the others: the first is too small for anything, the last for nothing.
    let ends = [limits[0], limits[limits.len() - 1]];
    let ends = one(Verb::Add, "first and last limit", &ends, ends.len());
    let reports = Verb::ALL.into_iter().map(|verb| one(verb, "limits", &limits, most));
    let reports: Vec<CampaignReport> = reports.chain([ends]).collect();
    let sum = |count: fn(&CampaignReport) -> usize| reports.iter().map(count).sum::<usize>();
    let tried = sum(|report| report.tried);
    let failed = sum(|report| report.failed);
    assert!(
        failed > 0 && failed < tried,
        "of {tried} limits {failed} were too small: they limit nothing, or leave nothing"
    );
    conclude(reports)
}

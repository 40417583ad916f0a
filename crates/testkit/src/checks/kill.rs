//! Killed half-way: at every system call, at any moment, or for want of what every program needs.
//!
//! After each death comes what a runtime does: DEL, with no prevResult, the namespace still there or gone. Nothing of the
//! attachment may be left then, another attachment runs on, and the same container can be added again.

use std::time::Duration;

use nix::sys::resource::Resource;
use nix::sys::signal::Signal;

use crate::campaign::{
    CampaignReport, Disturbance, DisturbedCall, Verb, conclude, run_sample, seeded_rng, usual_trace,
};
use crate::env::subject::Subject;
use crate::syscall_trace::{Limit, SyscallTrace};

/// `SIGKILL` before every system call of an ADD, of the first ADD on a host, of a DEL and of a GC: of the plugin and of
/// every program that it starts; once with the namespace there afterwards, and once with it gone.
///
/// With `CNIKIT_CAMPAIGNS=whole` it is an error if any system call of an undisturbed run is not reached. Without it at most
/// so many of a verb are tried, by chance.
pub fn at_every_call(subject: &Subject, most: usize) -> Vec<CampaignReport> {
    conclude(reports_at_every_call(subject, most, CampaignReport::print))
}

/// As [`at_every_call`], but returns the reports; each is passed to `say` when it is complete.
pub fn reports_at_every_call(
    subject: &Subject,
    most: usize,
    say: impl Fn(CampaignReport) -> CampaignReport,
) -> Vec<CampaignReport> {
    let mut reports = Vec::new();
    for verb in Verb::ALL {
        let (trace, _) = usual_trace(subject, verb);
        assert!(trace.len() > 20, "{verb} made only {} system calls", trace.len());
        for gone in ways(verb) {
            let disturbed = |at| DisturbedCall {
                verb,
                at,
                disturbance: Disturbance::Signal(Signal::SIGKILL, Duration::ZERO),
                gone: *gone,
            };
            let what = format!("kill {} {verb}{}", subject.title, if *gone { ", namespace gone" } else { "" });
            let report = CampaignReport::new(what, "calls", trace.len());
            let calls_to_disturb: Vec<DisturbedCall> = trace.calls().map(disturbed).collect();
            reports.push(say(run_sample(report, subject, &calls_to_disturb, most.div_ceil(2), &trace)));
        }
    }
    reports
}

/// Whether the namespace is gone by the time of what follows.
fn ways(verb: Verb) -> &'static [bool] {
    if verb.without_netns() { &[true] } else { &[false, true] }
}

/// Sends `SIGTERM` at this many random moments of ADD, DEL and GC.
pub fn at_moments(subject: &Subject, moments: usize) -> Vec<CampaignReport> {
    let mut chance = seeded_rng(&format!("SIGTERM {}", subject.title));
    let mut reports = Vec::new();
    for (n, verb) in Verb::ALL.into_iter().enumerate() {
        let (trace, _) = usual_trace(subject, verb);
        let count = (moments + n) / Verb::ALL.len();
        let mut calls_to_disturb = Vec::with_capacity(count);
        for _ in 0..count {
            calls_to_disturb.push(moment_by_chance(verb, &trace, &mut chance));
        }
        let what = format!("SIGTERM {} {verb}", subject.title);
        let report = CampaignReport { drawn: true, ..CampaignReport::new(what, "moments", count) };
        reports.push(run_sample(report, subject, &calls_to_disturb, count, &trace).print());
    }
    conclude(reports)
}

/// A random moment of a call.
fn moment_by_chance(verb: Verb, trace: &SyscallTrace, chance: &mut fastrand::Rng) -> DisturbedCall {
    let calls: Vec<_> = trace.calls().collect();
    let at @ (process, place, _) = calls[chance.usize(..calls.len())];
    let mut after = Duration::ZERO;
    if trace.at(process, place + DisturbedCall::LAST).is_some() {
        after = Duration::from_micros(chance.u64(1..LONGEST_AFTER));
    }
    let gone = verb.without_netns() || chance.bool();
    DisturbedCall { verb, at, disturbance: Disturbance::Signal(Signal::SIGTERM, after), gone }
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
pub fn with_resource_limits(subject: &Subject, most: usize) -> Vec<CampaignReport> {
    let sizes = SIZES.map(|bytes| (Resource::RLIMIT_FSIZE, bytes));
    let little = (1..=LITTLE_STEPS).map(|step| step << 17);
    let memory = little.chain((5..=MEMORY_STEPS).map(|step| step << 19));
    let limits: Vec<_> = memory.map(|bytes| (Resource::RLIMIT_AS, bytes)).chain(sizes).collect();
    let mut reports = Vec::new();
    // The first limit is too small for anything, and the last one large enough. Both are tried, whichever of the others are.
    let ends = [limits[0], limits[limits.len() - 1]];
    let of_ends = under_limits(subject, Verb::Add, "first and last limit", &ends, ends.len());
    for verb in Verb::ALL {
        reports.push(under_limits(subject, verb, "limits", &limits, most));
    }
    reports.push(of_ends);
    let sum = |count: fn(&CampaignReport) -> usize| reports.iter().map(count).sum::<usize>();
    let tried = sum(|report| report.tried);
    let failed = sum(|report| report.failed);
    assert!(
        failed > 0 && failed < tried,
        "of {tried} limits {failed} were too small: they limit nothing, or leave nothing"
    );
    conclude(reports)
}

/// Runs a verb with each of these limits; at most this many of them.
fn under_limits(subject: &Subject, verb: Verb, what: &str, limits: &[Limit], most: usize) -> CampaignReport {
    let mut calls_to_disturb = Vec::with_capacity(limits.len());
    for (n, limit) in limits.iter().enumerate() {
        let gone = verb.without_netns() || n % 2 == 1;
        calls_to_disturb.push(DisturbedCall { verb, at: (0, n, 0), disturbance: Disturbance::Limit(*limit), gone });
    }
    let report = CampaignReport::new(format!("{what} {} {verb}", subject.title), "limits", limits.len());
    run_sample(report, subject, &calls_to_disturb, most, &SyscallTrace::default()).print()
}

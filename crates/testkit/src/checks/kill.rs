//! Plugins that are killed: before every system call, at random moments, or because of a resource limit.
//!
//! After each death a runtime calls DEL without prevResult, with the namespace still there or gone. Then nothing of the attachment
//! may be left, another attachment still works, and the same container can be added again.

use std::time::Duration;

use nix::sys::resource::Resource;
use nix::sys::signal::Signal;

use crate::campaign::{
    CampaignReport, Disturbance, DisturbedCall, Verb, conclude, run_sample, seeded_rng, usual_trace,
};
use crate::env::subject::Subject;
use crate::syscall_trace::{Limit, SyscallTrace};

/// Sends `SIGKILL` before every system call of an ADD, of the first ADD on a host, of a DEL and of a GC: to the plugin and to every
/// program that it starts; once with the namespace there afterwards, and once with it gone.
///
/// With `CNIKIT_CAMPAIGNS=whole` it is an error if any system call of an undisturbed run is not reached. Otherwise a random choice
/// of at most `most` calls per verb is tried.
pub fn at_every_call(subject: &Subject, most: usize) -> Vec<CampaignReport> {
    conclude(reports_at_every_call(subject, most, CampaignReport::print))
}

/// As [`at_every_call`], but returns the reports. Each is passed to `say` when it is complete.
pub fn reports_at_every_call(
    subject: &Subject,
    most: usize,
    say: impl Fn(CampaignReport) -> CampaignReport,
) -> Vec<CampaignReport> {
    let mut reports = Vec::new();
    for verb in Verb::of(subject) {
        for gone in ways(verb) {
            let (trace, _) = usual_trace(subject, verb, *gone);
            assert!(!trace.is_empty(), "{verb} made no system call");
            let report = CampaignReport::new(title("kill", subject, verb, *gone), "calls", trace.len());
            let disturbance = Disturbance::Signal(Signal::SIGKILL, Duration::ZERO);
            let mut calls_to_disturb = Vec::new();
            for at in trace.calls() {
                calls_to_disturb.push(DisturbedCall { verb, at, disturbance, gone: *gone });
            }
            reports.push(say(run_sample(report, subject, &calls_to_disturb, most.div_ceil(2), &trace)));
        }
    }
    reports
}

/// What a report is about.
fn title(disturbance: &str, subject: &Subject, verb: Verb, gone: bool) -> String {
    format!("{disturbance} {} {verb}{}", subject.title, if gone { ", namespace gone" } else { "" })
}

/// Whether the namespace is gone when the next call is made; each value is tried.
fn ways(verb: Verb) -> &'static [bool] {
    if verb.without_netns() { &[true] } else { &[false, true] }
}

/// Sends `SIGTERM` at this many random moments of ADD, DEL and GC, with the namespace there afterwards or gone.
pub fn at_moments(subject: &Subject, moments: usize) -> Vec<CampaignReport> {
    let mut chance = seeded_rng(&format!("SIGTERM {}", subject.title));
    let mut kinds = Vec::new();
    for verb in Verb::of(subject) {
        kinds.extend(ways(verb).iter().map(|gone| (verb, *gone)));
    }
    // Fewer moments than kinds of calls are those of random kinds.
    chance.shuffle(&mut kinds);
    let mut reports = Vec::new();
    for (n, (verb, gone)) in kinds.iter().copied().enumerate() {
        let count = (moments + n) / kinds.len();
        if count == 0 {
            continue;
        }
        let (trace, _) = usual_trace(subject, verb, gone);
        let mut calls_to_disturb = Vec::with_capacity(count);
        for _ in 0..count {
            calls_to_disturb.push(moment_by_chance(verb, gone, &trace, &mut chance));
        }
        let report = CampaignReport::new(title("SIGTERM", subject, verb, gone), "moments", count);
        let report = CampaignReport { drawn: true, ..report };
        reports.push(run_sample(report, subject, &calls_to_disturb, count, &trace).print());
    }
    conclude(reports)
}

/// A random moment of a call.
fn moment_by_chance(verb: Verb, gone: bool, trace: &SyscallTrace, chance: &mut fastrand::Rng) -> DisturbedCall {
    let calls: Vec<_> = trace.calls().collect();
    let at @ (process, place, _) = calls[chance.usize(..calls.len())];
    let mut after = Duration::ZERO;
    if trace.at(process, place + DisturbedCall::LAST).is_some() {
        after = Duration::from_micros(chance.u64(1..LONGEST_AFTER));
    }
    DisturbedCall { verb, at, disturbance: Disturbance::Signal(Signal::SIGTERM, after), gone }
}

/// The longest delay after the start of a system call, in microseconds: most calls take less.
const LONGEST_AFTER: u64 = 300;

/// Limits of the file size, in bytes: too small for a reservation, for an index, or for any file.
const SIZES: [u64; 7] = [0, 1, 16, 64, 100, 512, 4096];

/// Limits of the memory up to 2 MiB, in steps of 1/8 MiB: too small to start.
const LITTLE_STEPS: u64 = 16;

/// Limits of the memory above that, in steps of 1/2 MiB: from too small to run to large enough.
const MEMORY_STEPS: u64 = 24;

/// Runs ADD, DEL and GC with a limit on the file size and with every amount of memory from none to enough; at most this many
/// limits per verb.
#[doc(alias = "prlimit")]
pub fn with_resource_limits(subject: &Subject, most: usize) -> Vec<CampaignReport> {
    let mut limits: Vec<Limit> = Vec::new();
    limits.extend((1..=LITTLE_STEPS).map(|step| (Resource::RLIMIT_AS, step << 17)));
    limits.extend((5..=MEMORY_STEPS).map(|step| (Resource::RLIMIT_AS, step << 19)));
    limits.extend(SIZES.map(|bytes| (Resource::RLIMIT_FSIZE, bytes)));
    let mut reports = Vec::new();
    // The first limit is always too small, and the last one always large enough. Both are tried in every run.
    let ends = [limits[0], limits[limits.len() - 1]];
    let of_ends = under_limits(subject, Verb::Add, "first and last limit", &ends, ends.len());
    for verb in Verb::of(subject) {
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

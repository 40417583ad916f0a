//! Many disturbed calls, each followed by what a runtime does then, and a look at everything that may be left.

mod campaign_host;
mod disturbed_call;
mod error_text;
pub(crate) mod summary_line;

use std::fmt;
use std::sync::Mutex;

use campaign_host::{Attempt, CampaignHost, Outcome};
pub(crate) use disturbed_call::{CallPosition, Disturbance, DisturbedCall, Verb};
pub use summary_line::{SummaryLine, case_limit, runs_all_cases, seed, seeded_rng};

use crate::env::subject::Subject;
use crate::parallel::{catch_panic, for_each};
use crate::syscall_trace::SyscallTrace;

/// What a campaign tried, and what it found.
#[derive(Clone, Debug, Default)]
pub struct CampaignReport {
    /// What was done to whom: `kill bridge ADD`.
    pub what: String,
    /// What was disturbed: `calls`.
    pub unit: &'static str,
    /// How many there are to disturb.
    pub of: usize,
    /// How many were disturbed.
    pub tried: usize,
    /// How often the plugin failed then, or died.
    pub failed: usize,
    /// How many of them died because the first memory that they need was refused, or some bytes of it.
    pub starved: usize,
    /// How many had to be repeated, because chance led them another way than the undisturbed call.
    pub repeated: usize,
    /// What was disturbed was drawn and not counted out, so that only the seed says which it was.
    pub drawn: bool,
    /// Everything that must not be.
    pub findings: Vec<String>,
}

/// So many hosts at once: most of a DEL is waiting for the kernel.
const WORKERS: usize = 12;
/// So many are looked at together: what is left, stays; and who left it is found by playing each again, alone.
const BATCH: usize = 16;
/// So many times fewer are the first ADDs in the short form, for each has a host of its own.
const FEWER: usize = 4;
/// How often a scene is tried that is not reached, because a call goes another way than the undisturbed one.
pub(crate) const TRIES: usize = 10;
/// How often scenes are drawn by chance until half of them are reached. The undisturbed call that they are drawn from may have
/// taken a rare course, and no try reaches a call behind that point. Seen on a busy machine: an index of reservations is written
/// as a whole, since its directory changed within one tick of the clock (37 calls more), and the kernel's answer comes in two
/// parts (one call more).
const DRAWS: usize = 4;
/// How many findings a failure shows.
const SHOWN: usize = 40;
/// How many undisturbed calls are compared at most to find the usual one.
const UNDISTURBED: usize = 7;

impl fmt::Display for CampaignReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.line().fmt(f)
    }
}

impl CampaignReport {
    pub(crate) fn new(what: String, unit: &'static str, of: usize) -> CampaignReport {
        CampaignReport { what, unit, of, ..CampaignReport::default() }
    }

    /// The result as one line; with the seed if there was a random choice.
    pub fn line(&self) -> SummaryLine {
        let CampaignReport { tried, of, .. } = *self;
        let mut line = SummaryLine { tried, of, found: self.findings.len(), ..SummaryLine::new(&self.what, self.unit) };
        line.notes.push(format!("{} failed or died", self.failed));
        if self.starved > 0 {
            line.notes.push(format!("{} died for want of memory", self.starved));
        }
        if self.repeated > 0 {
            line.notes.push(format!("{} repeated", self.repeated));
        }
        if self.drawn || tried < of { line.with_seed() } else { line }
    }

    /// Says it, and at once what was found: a campaign may go on for hours.
    pub(crate) fn print(self) -> CampaignReport {
        self.line().print();
        self.findings.iter().take(SHOWN).for_each(|found| summary_line::print_line(&format!("  found: {found}")));
        self
    }

    /// Adds what another disturbed of the same.
    pub(crate) fn add(&mut self, other: CampaignReport) {
        self.tried += other.tried;
        self.failed += other.failed;
        self.starved += other.starved;
        self.repeated += other.repeated;
        self.findings.extend(other.findings);
    }
}

/// Panics with what was found, if anything was.
pub(crate) fn conclude(reports: Vec<CampaignReport>) -> Vec<CampaignReport> {
    assert_no_findings(reports.iter().flat_map(|report| &report.findings));
    reports
}

/// Panics with findings, if there are any: how many, and the first of them.
pub(crate) fn assert_no_findings<'a>(found: impl IntoIterator<Item = &'a String>) {
    let found: Vec<&str> = found.into_iter().map(String::as_str).collect();
    let some = &found[..SHOWN.min(found.len())];
    assert!(found.is_empty(), "{} found, {} shown:\n{}", found.len(), some.len(), some.join("\n"));
}

/// So many of all, by chance, one of each of so many equal stretches; or as many as `CNIKIT_CAMPAIGNS` says, see [`case_limit`].
pub fn sample<T: Clone>(what: &str, all: Vec<T>, short: usize) -> Vec<T> {
    let most = case_limit(short);
    if all.len() <= most {
        return all;
    }
    let mut chance = seeded_rng(what);
    let edge = |n: usize| n * all.len() / most;
    (0..most).map(|n| all[chance.usize(edge(n)..edge(n + 1))].clone()).collect()
}

/// The calls of an undisturbed verb: those that two of some runs make, or else the last ones'. And which cannot fail.
pub(crate) fn usual_trace(subject: &Subject, verb: Verb) -> (SyscallTrace, Vec<CallPosition>) {
    let mut campaign_host = CampaignHost::new(subject, verb);
    let mut traces = Vec::new();
    loop {
        let (trace, infallible) = campaign_host.undisturbed(verb, &id(traces.len()));
        if traces.contains(&trace) || traces.len() == UNDISTURBED {
            return (trace, infallible);
        }
        traces.push(trace);
        if verb == Verb::First {
            campaign_host = CampaignHost::new(subject, verb);
        }
    }
}

/// All of one length, so that no allocation differs.
fn id(n: usize) -> String {
    format!("c-{n:05}")
}

/// Plays a choice of all scenes, which are of one verb, at most so many.
pub(crate) fn run_sample(
    mut report: CampaignReport,
    subject: &Subject,
    all: &[DisturbedCall],
    most: usize,
    trace: &SyscallTrace,
) -> CampaignReport {
    let first = all.first().is_some_and(|disturbed| disturbed.verb == Verb::First);
    let most = if first { most.div_ceil(FEWER) } else { most };
    let calls_to_disturb = sample(&report.what, all.to_vec(), most);
    let is_whole = calls_to_disturb.len() == report.of;
    let enough = if is_whole { calls_to_disturb.len() } else { calls_to_disturb.len().div_ceil(2) };
    play_batches(&mut report, subject, &calls_to_disturb, trace);
    for round in 1..DRAWS {
        if is_whole || report.tried >= enough || !report.findings.is_empty() {
            break;
        }
        let others = sample(&format!("{}, draw {round}", report.what), all.to_vec(), most);
        play_batches(&mut report, subject, &others, trace);
    }
    if report.findings.is_empty() && report.tried < enough {
        report.findings.push(format!("{}: {} of {} were reached", report.what, report.tried, calls_to_disturb.len()));
    }
    report
}

/// Plays scenes on many hosts at once.
fn play_batches(
    report: &mut CampaignReport,
    subject: &Subject,
    calls_to_disturb: &[DisturbedCall],
    trace: &SyscallTrace,
) {
    let first = calls_to_disturb.first().is_some_and(|disturbed| disturbed.verb == Verb::First);
    let together = Mutex::new(CampaignReport::default());
    let batches: Vec<&[DisturbedCall]> = calls_to_disturb.chunks(if first { 1 } else { BATCH }).collect();
    let worker = || Worker { subject, trace, campaign_host: None, ids: 0 };
    for_each(WORKERS, &batches, worker, |worker, batch| {
        let one = worker.batch(batch);
        together.lock().unwrap().add(one);
    });
    report.add(together.into_inner().unwrap());
}

/// Plays one batch after the other, on a host that is kept while nothing is found on it.
struct Worker<'a> {
    subject: &'a Subject,
    trace: &'a SyscallTrace,
    campaign_host: Option<CampaignHost>,
    ids: usize,
}

impl Worker<'_> {
    /// All together; each alone where something was found, and where what came before on the same host led a call elsewhere.
    fn batch(&mut self, calls_to_disturb: &[DisturbedCall]) -> CampaignReport {
        let mut report = CampaignReport::default();
        let mut missed = Vec::new();
        let Err(found) = catch_panic(|| missed = self.together(calls_to_disturb, &mut report)) else {
            missed.iter().for_each(|disturbed| self.alone(disturbed, &mut report));
            return report;
        };
        report = CampaignReport::default();
        calls_to_disturb.iter().for_each(|disturbed| self.alone(disturbed, &mut report));
        // What does not happen again, happened.
        if let ([], [first, ..], [.., last]) = (report.findings.as_slice(), calls_to_disturb, calls_to_disturb) {
            report.findings.push(format!("{}: somewhere from {first} to {last}: {found}", self.subject.title));
        }
        report
    }

    fn alone(&mut self, disturbed: &DisturbedCall, report: &mut CampaignReport) {
        let before = report.tried;
        self.campaign_host = None;
        if let Err(found) = catch_panic(|| drop(self.together(&[*disturbed], report))) {
            report.tried = before + 1;
            report.findings.push(format!("{}: {disturbed}: {found}", self.subject.title));
        }
    }

    /// All of them, then one look, then each container once more. A first ADD has a host of its own, and each try of it.
    /// Those that chance did not lead there.
    fn together(&mut self, calls_to_disturb: &[DisturbedCall], report: &mut CampaignReport) -> Vec<DisturbedCall> {
        if let [disturbed @ DisturbedCall { verb: Verb::First, .. }] = calls_to_disturb {
            self.is_reached(report, |worker| {
                let campaign_host = CampaignHost::new(worker.subject, disturbed.verb);
                let (attempt, played) = worker.attempt(&campaign_host, disturbed, &[]);
                campaign_host.audit();
                attempt.again();
                played
            });
            return Vec::new();
        }
        let campaign_host =
            self.campaign_host.take().unwrap_or_else(|| CampaignHost::new(self.subject, calls_to_disturb[0].verb));
        let mut turns = Vec::new();
        let mut missed = Vec::new();
        campaign_host.while_other_pings(|| {
            for disturbed in calls_to_disturb {
                let reached = self.is_reached(report, |worker| {
                    let (attempt, played) = worker.attempt(&campaign_host, disturbed, &turns);
                    turns.push(attempt);
                    played
                });
                missed.extend((!reached).then_some(*disturbed));
            }
        });
        campaign_host.audit();
        turns.iter().for_each(Attempt::again);
        drop(turns);
        self.campaign_host = Some(campaign_host);
        missed
    }

    /// Whether the harm was done where it should be, at last.
    fn is_reached(&mut self, report: &mut CampaignReport, mut play: impl FnMut(&mut Self) -> Outcome) -> bool {
        for _ in 0..TRIES {
            let played = play(self);
            if played.hit {
                report.tried += 1;
                report.failed += usize::from(played.failed);
                report.starved += usize::from(played.starved);
                return true;
            }
            report.repeated += 1;
        }
        false
    }

    fn attempt<'a>(
        &mut self,
        campaign_host: &'a CampaignHost,
        disturbed: &'a DisturbedCall,
        before: &[Attempt<'_>],
    ) -> (Attempt<'a>, Outcome) {
        self.ids += 1;
        let mut attempt = Attempt::new(campaign_host, disturbed, id(self.ids), before);
        let played = attempt.run(self.trace);
        (attempt, played)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_the_seed_wherever_chance_had_a_part() {
        let line = |tried: usize, drawn: bool| {
            let report =
                CampaignReport { tried, drawn, ..CampaignReport::new("SIGTERM somebody ADD".into(), "moments", 8) };
            report.to_string()
        };
        let seed = format!("CNIKIT_SEED={}", seed());
        assert!(line(7, false).contains(&seed) && line(8, true).contains(&seed), "{}", line(8, true));
        assert!(!line(8, false).contains("CNIKIT_SEED"), "all of what can be counted out");
    }

    #[test]
    fn findings_are_counted_and_some_of_them_shown() {
        let said = catch_panic(|| assert_no_findings(&vec!["a thing".to_owned(); SHOWN + 1])).unwrap_err();
        assert!(said.starts_with("41 found, 40 shown:\na thing\n"), "{said}");
        assert_no_findings(&[]);
    }
}

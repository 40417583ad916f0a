//! Campaigns: many disturbed calls, each followed by the calls that a runtime makes then, and by an audit of the host.

mod campaign_host;
mod disturbed_call;
mod error_text;
pub(crate) mod summary_line;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;

use campaign_host::{Attempt, CampaignHost, Outcome};
pub(crate) use disturbed_call::{CallPosition, Disturbance, DisturbedCall, Verb};
pub use summary_line::{SummaryLine, case_limit, runs_all_cases, seed, seeded_rng};

use crate::env::subject::Subject;
use crate::parallel::{catch_panic, for_each};
use crate::syscall_trace::{self, SyscallTrace};

/// The result of a campaign.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CampaignReport {
    /// The name of the campaign: `kill bridge ADD`.
    pub what: String,
    /// The unit of the cases: `calls`.
    pub unit: &'static str,
    /// The number of cases.
    pub of: usize,
    /// The number of cases that were tried.
    pub tried: usize,
    /// How often the plugin failed or died.
    pub failed: usize,
    /// How many of these deaths were caused by refused memory: the first allocation of the process, or one of a few bytes.
    pub starved: usize,
    /// How many tries were repeated, because the call made other system calls than the undisturbed call.
    pub repeated: usize,
    /// Whether the cases were random rather than chosen from a list, so that only the seed repeats them.
    pub drawn: bool,
    /// Violations of a property.
    pub findings: Vec<String>,
}

/// The number of hosts at the same time: a DEL waits for the kernel most of the time.
const WORKERS: usize = 12;
/// The number of cases that are audited together. Leftovers persist; to find the cause, each case is then repeated on a host of its
/// own.
const BATCH: usize = 16;
/// By this factor fewer first ADDs are tried in a random choice, because each needs a host of its own.
const FEWER: usize = 4;
/// How often a case is tried that is not reached, because the call makes other system calls than the undisturbed one.
pub(crate) const TRIES: usize = 10;
/// How often cases are chosen until half of them are reached. The undisturbed call may have taken a rare course, so that no try
/// reaches a later system call of it. Seen on a busy machine: an index of reservations is written as a whole, because its directory
/// changed within one tick of the clock (37 calls more), and the kernel's reply comes in two parts (one call more).
const DRAWS: usize = 4;
/// The most findings that a failure shows.
const SHOWN: usize = 40;
/// The most undisturbed calls that are compared to find the usual one.
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

    /// The result as one line, with the seed if there was a random choice.
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

    /// Prints the line and the findings at once, because a campaign may take hours.
    pub(crate) fn print(self) -> CampaignReport {
        self.line().print();
        self.findings.iter().take(SHOWN).for_each(|found| summary_line::print_line(&format!("  found: {found}")));
        self
    }

    /// Adds the result of other cases of the same campaign.
    pub(crate) fn add(&mut self, other: CampaignReport) {
        self.tried += other.tried;
        self.failed += other.failed;
        self.starved += other.starved;
        self.repeated += other.repeated;
        self.findings.extend(other.findings);
    }
}

/// Panics with the findings, if there are any.
pub(crate) fn conclude(reports: Vec<CampaignReport>) -> Vec<CampaignReport> {
    assert_no_findings(reports.iter().flat_map(|report| &report.findings));
    reports
}

/// Panics with the number of findings and the first of them, if there are any.
pub(crate) fn assert_no_findings<'a>(found: impl IntoIterator<Item = &'a String>) {
    let found: Vec<&str> = found.into_iter().map(String::as_str).collect();
    let some = &found[..SHOWN.min(found.len())];
    assert!(found.is_empty(), "{} found, {} shown:\n{}", found.len(), some.len(), some.join("\n"));
}

/// Chooses a random sample: one of each of `short` equal stretches, or as many as `CNIKIT_CAMPAIGNS` sets; see [`case_limit`].
pub fn sample<T: Clone>(what: &str, all: Vec<T>, short: usize) -> Vec<T> {
    let most = case_limit(short);
    if all.len() <= most {
        return all;
    }
    let mut chance = seeded_rng(what);
    let edge = |n: usize| n * all.len() / most;
    let mut chosen = Vec::with_capacity(most);
    for n in 0..most {
        chosen.push(all[chance.usize(edge(n)..edge(n + 1))].clone());
    }
    chosen
}

/// The system calls of an undisturbed verb: of two runs that make the same calls, or else of the last run; of one run if its calls
/// have no order. And the calls that must
/// not be made to fail. `gone` is that of the calls to be disturbed, see [`DisturbedCall::gone`].
pub(crate) fn usual_trace(subject: &Subject, verb: Verb, gone: bool) -> (SyscallTrace, Vec<CallPosition>) {
    let mut campaign_host = CampaignHost::new(subject, verb);
    let mut traces = Vec::new();
    loop {
        let (trace, infallible) = campaign_host.undisturbed(verb, gone, &id(traces.len()));
        if traces.contains(&trace) || traces.len() == UNDISTURBED || !trace.is_ordered() {
            return (trace, infallible);
        }
        traces.push(trace);
        if verb == Verb::First {
            campaign_host = CampaignHost::new(subject, verb);
        }
    }
}

/// Container IDs of one length, so that allocations do not differ.
fn id(n: usize) -> String {
    format!("c-{n:05}")
}

/// The five system calls that a trace has most often: if it took a rare course, they tell which.
fn most_frequent(trace: &SyscallTrace) -> String {
    let mut times: BTreeMap<i32, usize> = BTreeMap::new();
    for (_, _, number) in trace.calls() {
        *times.entry(number).or_default() += 1;
    }
    let mut times: Vec<_> = times.into_iter().collect();
    times.sort_by_key(|(_, times)| Reverse(*times));
    let texts = times.iter().take(5).map(|(number, times)| format!("{} {times} times", syscall_trace::name(*number)));
    texts.collect::<Vec<_>>().join(", ")
}

/// Tries a random sample of the cases, which are of one verb.
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
        let chosen: Vec<String> = calls_to_disturb.iter().map(ToString::to_string).collect();
        report.findings.push(format!(
            "{}: {} of {} were reached, of these: {}; the undisturbed call made most often {}",
            report.what,
            report.tried,
            chosen.len(),
            chosen.join("; "),
            most_frequent(trace)
        ));
    }
    report
}

/// Tries cases on many hosts at once.
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
    for_each(WORKERS, &batches, worker, |worker, batch| add_report(&together, worker.batch(batch)));
    report.add(together.into_inner().unwrap());
}

/// Adds a result to those of all workers. The lock is held only here, so that the workers run at the same time.
pub(crate) fn add_report(together: &Mutex<CampaignReport>, one: CampaignReport) {
    together.lock().unwrap().add(one);
}

/// Tries batches of cases, one after the other, on a host that is reused while there are no findings.
struct Worker<'a> {
    subject: &'a Subject,
    trace: &'a SyscallTrace,
    campaign_host: Option<CampaignHost>,
    ids: usize,
}

impl Worker<'_> {
    /// Tries the cases together. After a finding each of them is repeated on a host of its own; so is a case that was not reached,
    /// which earlier cases on the same host may have caused.
    fn batch(&mut self, calls_to_disturb: &[DisturbedCall]) -> CampaignReport {
        let mut report = CampaignReport::default();
        let mut missed = Vec::new();
        let Err(found) = catch_panic(|| missed = self.try_together(calls_to_disturb, &mut report)) else {
            missed.iter().for_each(|disturbed| self.try_alone(disturbed, &mut report));
            return report;
        };
        report = CampaignReport::default();
        calls_to_disturb.iter().for_each(|disturbed| self.try_alone(disturbed, &mut report));
        // A finding that is not reproduced is still a finding.
        if report.findings.is_empty()
            && let Some(first) = calls_to_disturb.first()
            && let Some(last) = calls_to_disturb.last()
        {
            report.findings.push(format!("{}: somewhere from {first} to {last}: {found}", self.subject.title));
        }
        report
    }

    /// Tries a case on a host of its own.
    fn try_alone(&mut self, disturbed: &DisturbedCall, report: &mut CampaignReport) {
        let before = report.tried;
        self.campaign_host = None;
        if let Err(found) = catch_panic(|| drop(self.try_together(&[*disturbed], report))) {
            report.tried = before + 1;
            report.findings.push(format!("{}: {disturbed}: {found}", self.subject.title));
        }
    }

    /// Tries the cases, audits the host, then adds each container again. A first ADD has a host of its own for each try. Returns
    /// the cases that were not reached.
    fn try_together(&mut self, calls_to_disturb: &[DisturbedCall], report: &mut CampaignReport) -> Vec<DisturbedCall> {
        if let [disturbed @ DisturbedCall { verb: Verb::First, .. }] = calls_to_disturb {
            self.is_reached(report, |worker| worker.try_first_add(disturbed));
            return Vec::new();
        }
        let campaign_host =
            self.campaign_host.take().unwrap_or_else(|| CampaignHost::new(self.subject, calls_to_disturb[0].verb));
        let mut attempts = Vec::new();
        let missed = campaign_host
            .while_other_pings(|| self.try_in_order(&campaign_host, calls_to_disturb, &mut attempts, report));
        campaign_host.audit();
        attempts.iter().for_each(Attempt::again);
        drop(attempts);
        self.campaign_host = Some(campaign_host);
        missed
    }

    /// Tries the cases one after the other, and adds each try to `attempts`. Returns the cases that were not reached.
    fn try_in_order<'a>(
        &mut self,
        campaign_host: &'a CampaignHost,
        calls_to_disturb: &'a [DisturbedCall],
        attempts: &mut Vec<Attempt<'a>>,
        report: &mut CampaignReport,
    ) -> Vec<DisturbedCall> {
        let mut missed = Vec::new();
        for disturbed in calls_to_disturb {
            if !self.is_reached(report, |worker| worker.attempt(campaign_host, disturbed, attempts)) {
                missed.push(*disturbed);
            }
        }
        missed
    }

    /// Tries a first ADD on a new host.
    fn try_first_add(&mut self, disturbed: &DisturbedCall) -> Outcome {
        let campaign_host = CampaignHost::new(self.subject, disturbed.verb);
        let mut attempts = Vec::new();
        let outcome = self.attempt(&campaign_host, disturbed, &mut attempts);
        campaign_host.audit();
        attempts.iter().for_each(Attempt::again);
        outcome
    }

    /// Tries a case until it is reached. Returns false if it is not reached in [`TRIES`] tries.
    fn is_reached(&mut self, report: &mut CampaignReport, mut try_once: impl FnMut(&mut Self) -> Outcome) -> bool {
        for _ in 0..TRIES {
            let outcome = try_once(self);
            if outcome.hit {
                report.tried += 1;
                report.failed += usize::from(outcome.failed);
                report.starved += usize::from(outcome.starved);
                return true;
            }
            report.repeated += 1;
        }
        false
    }

    /// Tries a case once, and adds the try to `attempts`.
    fn attempt<'a>(
        &mut self,
        campaign_host: &'a CampaignHost,
        disturbed: &'a DisturbedCall,
        attempts: &mut Vec<Attempt<'a>>,
    ) -> Outcome {
        self.ids += 1;
        let mut attempt = Attempt::new(campaign_host, disturbed, id(self.ids), attempts);
        let outcome = attempt.run(self.trace);
        attempts.push(attempt);
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The line of a campaign with eight cases.
    fn line(tried: usize, drawn: bool) -> String {
        let report = CampaignReport::new("SIGTERM ptp ADD".into(), "moments", 8);
        CampaignReport { tried, drawn, ..report }.to_string()
    }

    #[test]
    fn a_summary_line_names_the_seed_if_choices_were_random() {
        let seed = format!("CNIKIT_SEED={}", seed());
        assert!(line(7, false).contains(&seed) && line(8, true).contains(&seed), "{}", line(8, true));
        assert!(!line(8, false).contains("CNIKIT_SEED"), "all of what can be counted out");
    }

    #[test]
    fn findings_are_counted_and_some_of_them_shown() {
        let message = catch_panic(|| assert_no_findings(&vec!["a thing".to_owned(); SHOWN + 1])).unwrap_err();
        assert!(message.starts_with("41 found, 40 shown:\na thing\n"), "{message}");
        assert_no_findings(&[]);
    }
}

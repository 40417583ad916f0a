//! Many disturbed calls, each followed by what a runtime does then, and a look at everything that may be left.

pub(crate) mod line;
mod scene;
mod stage;
mod why;

use std::fmt;
use std::sync::Mutex;

pub use line::{Line, at_most, chance, is_whole, seed};
pub(crate) use scene::{At, Harm, Scene, Verb};
use stage::{Played, Stage, Turn};

use crate::crowd::{caught, each};
use crate::env::subject::Subject;
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
    pub fn line(&self) -> Line {
        let CampaignReport { tried, of, .. } = *self;
        let mut line = Line { tried, of, found: self.findings.len(), ..Line::new(&self.what, self.unit) };
        line.notes.push(format!("{} failed or died", self.failed));
        if self.starved > 0 {
            line.notes.push(format!("{} died for want of memory", self.starved));
        }
        if self.repeated > 0 {
            line.notes.push(format!("{} repeated", self.repeated));
        }
        if self.drawn || tried < of { line.by_chance() } else { line }
    }

    /// Says it, and at once what was found: a campaign may go on for hours.
    pub(crate) fn say(self) -> CampaignReport {
        self.line().say();
        self.findings.iter().take(SHOWN).for_each(|found| line::tell(&format!("  found: {found}")));
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
    nothing_of(reports.iter().flat_map(|report| &report.findings));
    reports
}

/// Panics with findings, if there are any: how many, and the first of them.
pub(crate) fn nothing_of<'a>(found: impl IntoIterator<Item = &'a String>) {
    let found: Vec<&str> = found.into_iter().map(String::as_str).collect();
    let some = &found[..SHOWN.min(found.len())];
    assert!(found.is_empty(), "{} found, {} shown:\n{}", found.len(), some.len(), some.join("\n"));
}

/// So many of all, by chance, one of each of so many equal stretches; or as many as `CNIKIT_CAMPAIGNS` says, see [`at_most`].
pub fn sample<T: Clone>(what: &str, all: Vec<T>, short: usize) -> Vec<T> {
    let most = at_most(short);
    if all.len() <= most {
        return all;
    }
    let mut chance = chance(what);
    let edge = |n: usize| n * all.len() / most;
    (0..most).map(|n| all[chance.usize(edge(n)..edge(n + 1))].clone()).collect()
}

/// The calls of an undisturbed verb: those that two of some runs make, or else the last ones'. And which cannot fail.
pub(crate) fn usual(subject: &Subject, verb: Verb) -> (SyscallTrace, Vec<At>) {
    let mut stage = Stage::new(subject, verb);
    let mut traces = Vec::new();
    loop {
        let (trace, sure) = stage.undisturbed(verb, &id(traces.len()));
        if traces.contains(&trace) || traces.len() == UNDISTURBED {
            return (trace, sure);
        }
        traces.push(trace);
        if verb == Verb::First {
            stage = Stage::new(subject, verb);
        }
    }
}

/// All of one length, so that no allocation differs.
fn id(n: usize) -> String {
    format!("c-{n:05}")
}

/// Plays a choice of all scenes, which are of one verb, at most so many.
pub(crate) fn play(
    mut report: CampaignReport,
    subject: &Subject,
    all: &[Scene],
    most: usize,
    trace: &SyscallTrace,
) -> CampaignReport {
    let first = all.first().is_some_and(|scene| scene.verb == Verb::First);
    let most = if first { most.div_ceil(FEWER) } else { most };
    let scenes = sample(&report.what, all.to_vec(), most);
    let is_whole = scenes.len() == report.of;
    let enough = if is_whole { scenes.len() } else { scenes.len().div_ceil(2) };
    play_batches(&mut report, subject, &scenes, trace);
    for round in 1..DRAWS {
        if is_whole || report.tried >= enough || !report.findings.is_empty() {
            break;
        }
        let others = sample(&format!("{}, draw {round}", report.what), all.to_vec(), most);
        play_batches(&mut report, subject, &others, trace);
    }
    if report.findings.is_empty() && report.tried < enough {
        report.findings.push(format!("{}: {} of {} were reached", report.what, report.tried, scenes.len()));
    }
    report
}

/// Plays scenes on many hosts at once.
fn play_batches(report: &mut CampaignReport, subject: &Subject, scenes: &[Scene], trace: &SyscallTrace) {
    let first = scenes.first().is_some_and(|scene| scene.verb == Verb::First);
    let together = Mutex::new(CampaignReport::default());
    let batches: Vec<&[Scene]> = scenes.chunks(if first { 1 } else { BATCH }).collect();
    let worker = || Worker { subject, trace, stage: None, ids: 0 };
    each(WORKERS, &batches, worker, |worker, batch| {
        let one = worker.batch(batch);
        together.lock().unwrap().add(one);
    });
    report.add(together.into_inner().unwrap());
}

/// Plays one batch after the other, on a host that is kept while nothing is found on it.
struct Worker<'a> {
    subject: &'a Subject,
    trace: &'a SyscallTrace,
    stage: Option<Stage>,
    ids: usize,
}

impl Worker<'_> {
    /// All together; each alone where something was found, and where what came before on the same host led a call elsewhere.
    fn batch(&mut self, scenes: &[Scene]) -> CampaignReport {
        let mut report = CampaignReport::default();
        let mut missed = Vec::new();
        let Err(found) = caught(|| missed = self.together(scenes, &mut report)) else {
            missed.iter().for_each(|scene| self.alone(scene, &mut report));
            return report;
        };
        report = CampaignReport::default();
        scenes.iter().for_each(|scene| self.alone(scene, &mut report));
        // What does not happen again, happened.
        if let ([], [first, ..], [.., last]) = (report.findings.as_slice(), scenes, scenes) {
            report.findings.push(format!("{}: somewhere from {first} to {last}: {found}", self.subject.title));
        }
        report
    }

    fn alone(&mut self, scene: &Scene, report: &mut CampaignReport) {
        let before = report.tried;
        self.stage = None;
        if let Err(found) = caught(|| drop(self.together(&[*scene], report))) {
            report.tried = before + 1;
            report.findings.push(format!("{}: {scene}: {found}", self.subject.title));
        }
    }

    /// All of them, then one look, then each container once more. A first ADD has a host of its own, and each try of it.
    /// Those that chance did not lead there.
    fn together(&mut self, scenes: &[Scene], report: &mut CampaignReport) -> Vec<Scene> {
        if let [scene @ Scene { verb: Verb::First, .. }] = scenes {
            self.is_reached(report, |worker| {
                let stage = Stage::new(worker.subject, scene.verb);
                let (turn, played) = worker.turn(&stage, scene, &[]);
                stage.audit();
                turn.again();
                played
            });
            return Vec::new();
        }
        let stage = self.stage.take().unwrap_or_else(|| Stage::new(self.subject, scenes[0].verb));
        let mut turns = Vec::new();
        let mut missed = Vec::new();
        stage.while_another_talks(|| {
            for scene in scenes {
                let reached = self.is_reached(report, |worker| {
                    let (turn, played) = worker.turn(&stage, scene, &turns);
                    turns.push(turn);
                    played
                });
                missed.extend((!reached).then_some(*scene));
            }
        });
        stage.audit();
        turns.iter().for_each(Turn::again);
        drop(turns);
        self.stage = Some(stage);
        missed
    }

    /// Whether the harm was done where it should be, at last.
    fn is_reached(&mut self, report: &mut CampaignReport, mut play: impl FnMut(&mut Self) -> Played) -> bool {
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

    fn turn<'a>(&mut self, stage: &'a Stage, scene: &'a Scene, before: &[Turn<'_>]) -> (Turn<'a>, Played) {
        self.ids += 1;
        let mut turn = Turn::new(stage, scene, id(self.ids), before);
        let played = turn.play(self.trace);
        (turn, played)
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
        let said = caught(|| nothing_of(&vec!["a thing".to_owned(); SHOWN + 1])).unwrap_err();
        assert!(said.starts_with("41 found, 40 shown:\na thing\n"), "{said}");
        nothing_of(&[]);
    }
}

//! Many disturbed calls, each followed by what a runtime does then, and a look at everything that may be left.

mod scene;
mod stage;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) use scene::{Harm, Scene, Verb};
use stage::{Played, Stage, Turn};

use crate::subject::Subject;
use crate::watch::Trace;

/// What a campaign tried, and what it found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What was done to which plugin.
    pub what: String,
    /// How many calls were disturbed.
    pub tried: usize,
    /// How many of them failed, or were killed.
    pub failed: usize,
    /// How many had to be repeated, because chance led them another way than the undisturbed call.
    pub repeated: usize,
    /// Everything that must not be.
    pub findings: Vec<String>,
}

/// So many hosts at once: most of a DEL is waiting for the kernel.
const WORKERS: usize = 12;
/// So many are looked at together: what is left, stays; and who left it is found by playing each again, alone.
const BATCH: usize = 16;
/// So many times fewer are the first ADDs.
const FEWER: usize = 4;
/// How often a scene is tried whose system calls are others than those of the undisturbed call.
const TRIES: usize = 25;
/// No finding if it is not so alone: what GC is told of grows with the batch, and so may its calls.
const ELSEWHERE: &str = "the calls before it never were those of the undisturbed call";
/// How many undisturbed calls are compared to find the usual one.
const UNDISTURBED: usize = 7;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { what, tried, failed, repeated, findings } = self;
        write!(f, "{what}: {tried} tried, {failed} failed or died, {repeated} repeated, {} found", findings.len())
    }
}

impl Report {
    pub(crate) fn new(what: String) -> Report {
        Report { what, ..Report::default() }
    }

    /// Adds another's numbers and findings.
    pub(crate) fn add(&mut self, other: Report) {
        self.tried += other.tried;
        self.failed += other.failed;
        self.repeated += other.repeated;
        self.findings.extend(other.findings);
    }

    /// Says it.
    #[expect(clippy::print_stdout, reason = "a campaign says how much it tried")]
    pub(crate) fn say(self) -> Report {
        println!("{self}");
        self
    }

    /// Says it, and panics if anything was found.
    pub(crate) fn conclude(self) -> Report {
        let report = self.say();
        let some: Vec<&str> = report.findings.iter().take(40).map(String::as_str).collect();
        assert!(some.is_empty(), "{report}:\n{}", some.join("\n"));
        report
    }
}

/// Is every scene asked for? So it is where `CNIKIT_CAMPAIGNS` is `whole`.
#[expect(clippy::disallowed_methods, reason = "the one variable of the campaigns")]
pub(crate) fn is_whole() -> bool {
    std::env::var_os("CNIKIT_CAMPAIGNS").is_some_and(|form| form == "whole")
}

/// At most so many scenes, evenly spread from a first one that changes from run to run; all where they are asked for. A first
/// ADD needs a host of its own, so there are fewer of them.
#[expect(clippy::print_stdout, reason = "a campaign says what it leaves out")]
pub(crate) fn choose(what: &str, all: Vec<Scene>, most: usize) -> Vec<Scene> {
    let first = all.first().is_some_and(|scene| scene.verb == Verb::First);
    let most = if first { most / FEWER } else { most };
    let step = all.len().div_ceil(most.max(1)).max(1);
    if is_whole() || step == 1 {
        return all;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let first = now.subsec_micros() as usize % step;
    println!("{what}: of {} one in {step}, from {first} on; CNIKIT_CAMPAIGNS=whole tries all", all.len());
    all.into_iter().skip(first).step_by(step).collect()
}

/// The calls of an undisturbed verb: those of most of some runs.
pub(crate) fn usual(subject: &Subject, verb: Verb) -> Trace {
    let mut stage = Stage::new(subject, verb);
    let traces: Vec<Trace> = (0..UNDISTURBED)
        .map(|n| {
            if verb == Verb::First {
                stage = Stage::new(subject, verb);
            }
            stage.undisturbed(verb, &id(n))
        })
        .collect();
    let agreeing = |one: &&Trace| traces.iter().filter(|other| other == one).count();
    traces.iter().max_by_key(agreeing).unwrap().clone()
}

/// All of one length, so that no allocation differs.
fn id(n: usize) -> String {
    format!("c-{n:05}")
}

/// Plays all scenes, which are of one verb.
pub(crate) fn play(what: String, subject: &Subject, scenes: &[Scene], trace: &Trace) -> Report {
    let (next, report) = (AtomicUsize::new(0), Mutex::new(Report::new(what)));
    let first = scenes.first().is_some_and(|scene| scene.verb == Verb::First);
    let batches: Vec<&[Scene]> = scenes.chunks(if first { 1 } else { BATCH }).collect();
    let work = || {
        let mut worker = Worker { subject, trace, stage: None, ids: 0 };
        while let Some(batch) = batches.get(next.fetch_add(1, Ordering::Relaxed)) {
            let one = worker.batch(batch);
            report.lock().unwrap().add(one);
        }
    };
    thread::scope(|scope| (0..WORKERS.min(batches.len())).for_each(|_| drop(scope.spawn(work))));
    report.into_inner().unwrap()
}

/// Plays one batch after the other, on a host that is kept while nothing is found on it.
struct Worker<'a> {
    subject: &'a Subject,
    trace: &'a Trace,
    stage: Option<Stage>,
    ids: usize,
}

impl Worker<'_> {
    fn batch(&mut self, scenes: &[Scene]) -> Report {
        let mut report = Report::default();
        let Err(together) = caught(|| self.together(scenes, &mut report)) else { return report };
        report = Report::default();
        for scene in scenes {
            if let Err(found) = caught(|| self.together(&[*scene], &mut report)) {
                report.findings.push(format!("{}: {scene}: {found}", self.subject.plugin));
            }
        }
        if let ([], [first, .., last], true) = (report.findings.as_slice(), scenes, together != ELSEWHERE) {
            let found = format!("{}: somewhere from {first} to {last}: {together}", self.subject.plugin);
            report.findings.push(found);
        }
        report
    }

    /// All of them, then one look, then each container once more. A first ADD has a host of its own, and each try of it.
    fn together(&mut self, scenes: &[Scene], report: &mut Report) {
        if let [scene @ Scene { verb: Verb::First, .. }] = scenes {
            return self.tried(report, |worker| {
                let stage = Stage::new(worker.subject, scene.verb);
                let (turn, played) = worker.turn(&stage, scene, &[]);
                stage.audit();
                turn.again();
                played
            });
        }
        let stage = self.stage.take().unwrap_or_else(|| Stage::new(self.subject, scenes[0].verb));
        let mut turns = Vec::new();
        for scene in scenes {
            self.tried(report, |worker| {
                let (turn, played) = worker.turn(&stage, scene, &turns);
                turns.push(turn);
                played
            });
        }
        stage.audit();
        turns.iter().for_each(Turn::again);
        drop(turns);
        self.stage = Some(stage);
    }

    /// Until the harm was done where it should be.
    fn tried(&mut self, report: &mut Report, mut play: impl FnMut(&mut Self) -> Played) {
        for _ in 0..TRIES {
            let played = play(self);
            if played.hit {
                report.tried += 1;
                report.failed += usize::from(played.failed);
                return;
            }
            report.repeated += 1;
        }
        panic!("{ELSEWHERE}");
    }

    fn turn<'a>(&mut self, stage: &'a Stage, scene: &'a Scene, before: &[Turn<'_>]) -> (Turn<'a>, Played) {
        self.ids += 1;
        let mut turn = Turn::new(stage, scene, id(self.ids), before);
        let played = turn.play(self.trace);
        (turn, played)
    }
}

/// What a panic said.
fn caught(work: impl FnOnce()) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
    })
}

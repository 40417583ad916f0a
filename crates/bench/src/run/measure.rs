//! Runs scenarios: in every round each side has its turn, so that other load of the machine affects all sides.

use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use crate::figures::{Ratio, median, quantile};
use crate::scenarios::stage::{Side, Stage, Step};
use crate::scenarios::{Scenario, Verb, over_floor, row, row_together};
use crate::spawn;

/// A line of the table.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    /// Ours first, then the peers, in the order of the command line.
    pub(crate) sides: Vec<Outcome>,
    /// The floor, if it plays the scenario.
    pub(crate) floor: Option<Floor>,
    pub(crate) noise: Noise,
}

/// The measurements of the floor in a row.
#[derive(Debug)]
pub(crate) struct Floor {
    pub(crate) outcome: Outcome,
    /// How many times as long ours may take, if that is limited.
    pub(crate) most: Option<f64>,
}

/// The load of the machine while a row was measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Noise {
    /// The spread of the times of a fixed piece of work: third quartile divided by first.
    pub(crate) unrest: f64,
    /// The share of all processor time that other programs took, including the host of a virtual machine.
    pub(crate) others: f64,
}

/// The measurements of one side.
#[derive(Debug)]
pub(crate) enum Outcome {
    Measured(Samples),
    /// The side does not support the verb; its error message.
    Absent(String),
}

/// The cost of one verb of one side, one value per round.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    /// Milliseconds.
    pub(crate) took: Vec<f64>,
    /// Milliseconds of processor time.
    pub(crate) processor: Vec<f64>,
    /// Page faults that needed no disk.
    pub(crate) faults: Vec<f64>,
    /// The largest resident set of a call or of anything that it waited for, in KiB.
    pub(crate) memory: Option<i64>,
    /// System calls of one call and of all that it started; of several at once, their mean.
    pub(crate) calls: Option<u64>,
    /// Milliseconds of one call that the kernel took for what was sent and received through sockets, mostly of netlink, in each
    /// traced call.
    pub(crate) kernel: Vec<f64>,
    /// The first failure of a DEL.
    pub(crate) complaint: Option<String>,
}

/// With more noise than this there is no verdict.
pub(crate) const NOISY: Noise = Noise { unrest: 1.15, others: 0.15 };

/// How many rounds are traced for the kernel's share.
const TRACED: usize = 3;

/// Where the tracer is, if it is installed.
pub(crate) const STRACE: &str = "/usr/bin/strace";

impl Row {
    pub(crate) fn samples(&self, side: usize) -> Option<&Samples> {
        match self.sides.get(side) {
            Some(Outcome::Measured(samples)) => Some(samples),
            _ => None,
        }
    }

    /// The ratio of the time of the fastest peer that supports the verb to ours.
    pub(crate) fn ratio(&self) -> Option<Ratio> {
        let ours = &self.samples(0)?.took;
        let peers = (1..self.sides.len()).filter_map(|side| self.samples(side)).map(|peer| &peer.took);
        let fastest = peers.min_by(|one, other| median(one).total_cmp(&median(other)))?;
        Some(Ratio::of(fastest, ours))
    }

    /// The ratio of our time to the floor's.
    pub(crate) fn over_floor(&self) -> Option<Ratio> {
        match &self.floor.as_ref()?.outcome {
            Outcome::Measured(samples) => Some(Ratio::of(&self.samples(0)?.took, &samples.took)),
            Outcome::Absent(_) => None,
        }
    }

    pub(crate) fn is_noisy(&self) -> bool {
        self.noise.unrest > NOISY.unrest || self.noise.others > NOISY.others
    }
}

impl Samples {
    /// The sums of several verbs in each round; of the memory, the largest.
    fn together(all: &[&Samples]) -> Samples {
        let sum = |of: fn(&Samples) -> &Vec<f64>| {
            let rounds = all.iter().map(|one| of(one).len()).min().unwrap_or_default();
            (0..rounds).map(|n| all.iter().map(|one| of(one)[n]).sum()).collect()
        };
        Samples {
            took: sum(|one| &one.took),
            processor: sum(|one| &one.processor),
            faults: sum(|one| &one.faults),
            memory: all.iter().filter_map(|one| one.memory).max(),
            calls: all.iter().map(|one| one.calls).sum(),
            kernel: sum(|one| &one.kernel),
            complaint: all.iter().find_map(|one| one.complaint.clone()),
        }
    }

    pub(crate) fn note(&mut self, step: &Step) {
        self.took.push(step.took.as_secs_f64() * 1e3);
        self.processor.push(step.runs.iter().map(|run| run.processor.as_secs_f64() * 1e3).sum());
        self.faults.push(step.runs.iter().map(|run| f64::from(i32::try_from(run.faults.0).unwrap_or(i32::MAX))).sum());
        self.complaint = self.complaint.take().or_else(|| step.complaint.clone());
    }
}

/// One side in a scenario: its stage until it fails, and the measurements so far.
struct Player<'a> {
    stage: Result<Stage<'a>, String>,
    samples: Vec<(Verb, Samples)>,
}

impl<'a> Player<'a> {
    fn new(side: &'a Side, scenario: &'a Scenario) -> Player<'a> {
        let stage = Stage::new(side, scenario).and_then(|mut stage| stage.first_round().map(|()| stage));
        Player { stage, samples: scenario.rows.iter().map(|verb| (*verb, Samples::default())).collect() }
    }

    fn round(&mut self) {
        let Ok(stage) = &mut self.stage else { return };
        match stage.round() {
            Ok(steps) => steps.iter().for_each(|step| self.note(step)),
            Err(error) => self.stage = Err(error),
        }
    }

    fn note(&mut self, step: &Step) {
        self.samples.iter_mut().filter(|(verb, _)| *verb == step.verb).for_each(|(_, samples)| samples.note(step));
    }

    /// A round through strace(1), where it is installed.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the calls of a process")]
    fn count(&mut self) {
        if Path::new(STRACE).exists() {
            self.through(&[STRACE, "-f", "-c", "-o"], |samples, texts| {
                samples.calls = mean(texts, total).map(|calls| calls.round() as u64);
            });
        }
    }

    /// Rounds through strace(1) that tell how long the kernel took for calls on sockets. It stops a process at these alone: a
    /// hundred containers make fifty thousand calls.
    fn trace(&mut self) {
        if Path::new(STRACE).exists() {
            for _ in 0..TRACED {
                self.through(&[STRACE, "-f", "--seccomp-bpf", "-T", "-e", "trace=%network", "-o"], |samples, texts| {
                    samples.kernel.extend(mean(texts, |text| Some(kernel(text))));
                });
            }
        }
    }

    /// A round through `cnikit-weigh`, which is beside this program.
    fn weigh(&mut self) {
        let weigh = std::env::current_exe().unwrap_or_default().with_file_name("cnikit-weigh");
        let largest = |texts: &[String]| texts.iter().filter_map(|text| text.trim().parse().ok()).max();
        self.through(&[&weigh.to_string_lossy()], |samples, texts| samples.memory = largest(texts));
    }

    /// Plays a round in which each measured verb is started by a program, such as strace(1). `heed` gets what that program printed
    /// about each call.
    fn through(&mut self, program: &[&str], heed: impl Fn(&mut Samples, &[String])) {
        let Ok(stage) = &mut self.stage else { return };
        for verb in stage.verbs() {
            match self.samples.iter_mut().find(|(known, _)| known == verb) {
                Some((_, samples)) => heed(samples, &stage.step_through(program, *verb).unwrap_or_default()),
                None => drop(stage.step(*verb)), // the next step needs its effect
            }
        }
    }

    /// The sums over all its verbs.
    fn together(&self) -> Outcome {
        match &self.stage {
            Err(error) => Outcome::Absent(error.clone()),
            Ok(_) => Outcome::Measured(Samples::together(
                &self.samples.iter().map(|(_, samples)| samples).collect::<Vec<_>>(),
            )),
        }
    }

    fn outcome(&mut self, verb: Verb) -> Outcome {
        if let Err(error) = &self.stage {
            return Outcome::Absent(error.clone());
        }
        let samples = self.samples.iter_mut().find(|(known, _)| *known == verb);
        Outcome::Measured(samples.map(|(_, samples)| std::mem::take(samples)).unwrap_or_default())
    }
}

/// Plays a scenario for that many rounds, and returns its rows.
pub(crate) fn play(scenario: &Scenario, sides: &[Side], floor: Option<&Side>, rounds: usize) -> Vec<Row> {
    let floor = floor.filter(|_| scenario.has_floor);
    let mut players: Vec<_> = sides.iter().chain(floor).map(|side| Player::new(side, scenario)).collect();
    let mut works = Vec::new();
    let before = Ticks::now();
    for round in 0..rounds {
        for turn in 0..players.len() {
            works.push(fixed_work());
            let next = nth(round, turn, players.len());
            players[next].round();
        }
    }
    let unrest = quantile(&works, 0.75) / quantile(&works, 0.25);
    let noise = Noise { unrest, others: Ticks::now().others_since(&before) };
    players.iter_mut().for_each(Player::weigh);
    // Of the calls, the table has ours alone.
    players[0].count();
    players[0].trace();
    let mut floor = floor.and_then(|_| players.pop());
    let together = row_together(scenario).map(|name| {
        let sides = players.iter().map(Player::together).collect();
        Row { name, sides, floor: None, noise }
    });
    let rows = scenario.rows.iter().map(|verb| Row {
        name: row(scenario, *verb),
        sides: players.iter_mut().map(|player| player.outcome(*verb)).collect(),
        floor: floor.as_mut().map(|player| Floor { outcome: player.outcome(*verb), most: over_floor(scenario, *verb) }),
        noise,
    });
    rows.chain(together).collect()
}

/// The side that is played in a turn of a round. Each side begins equally often. Every second round goes backwards, so that each
/// side follows both its neighbours equally often: a large program leaves cold caches to the next one.
const fn nth(round: usize, turn: usize, sides: usize) -> usize {
    let turn = if round.is_multiple_of(2) { turn } else { sides - turn };
    (round / 2 + turn) % sides
}

/// Processor time since the machine started, in ticks; see proc(5), `/proc/stat`, and getrusage(2).
struct Ticks {
    all: f64,
    idle: f64,
    ours: f64,
}

impl Ticks {
    fn now() -> Ticks {
        let text = fs::read_to_string("/proc/stat").unwrap_or_default();
        let line = text.lines().next().unwrap_or_default();
        let fields: Vec<f64> = line.split_whitespace().skip(1).take(8).filter_map(|field| field.parse().ok()).collect();
        let idle = fields.get(3).copied().unwrap_or_default() + fields.get(4).copied().unwrap_or_default();
        // The file has hundredths of a second, whatever the kernel's tick is.
        Ticks { all: fields.iter().sum(), idle, ours: spawn::processor_time().as_secs_f64() * 100.0 }
    }

    /// The share of all processors that other processes used.
    fn others_since(&self, before: &Ticks) -> f64 {
        let busy = (self.all - self.idle) - (before.all - before.idle);
        ((busy - (self.ours - before.ours)) / (self.all - before.all).max(1.0)).max(0.0)
    }
}

/// The time of a fixed computation in milliseconds, which only the load of the machine changes.
fn fixed_work() -> f64 {
    let began = Instant::now();
    let sum = (0..1_000_000_u64).fold(0, |sum: u64, n| black_box(sum.wrapping_mul(31).wrapping_add(n)));
    black_box(sum);
    began.elapsed().as_secs_f64() * 1e3
}

/// The average of what `read` finds in these texts, if it is in all of them.
#[expect(clippy::cast_precision_loss, reason = "as many as containers")]
fn mean(texts: &[String], read: fn(&str) -> Option<f64>) -> Option<f64> {
    let found: Vec<f64> = texts.iter().map(|text| read(text)).collect::<Option<_>>()?;
    (!found.is_empty()).then(|| found.iter().sum::<f64>() / found.len() as f64)
}

/// The number of calls in the last line of `strace -c`.
fn total(text: &str) -> Option<f64> {
    let line = text.lines().rfind(|line| line.ends_with(" total"))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

/// The milliseconds of all calls that `strace -T` lists. The shortest one is what tracing adds to each: it is subtracted.
fn kernel(text: &str) -> f64 {
    let seconds = |line: &str| line.strip_suffix('>')?.rsplit_once('<')?.1.parse().ok();
    let took: Vec<f64> = text.lines().filter_map(seconds).collect();
    let least = took.iter().copied().fold(f64::INFINITY, f64::min);
    took.iter().map(|took| (took - least) * 1e3).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_side_begins_and_follows_both_its_neighbours() {
        let orders: Vec<Vec<usize>> = (0..4).map(|round| (0..3).map(|turn| nth(round, turn, 3)).collect()).collect();
        assert_eq!(orders, [[0, 1, 2], [0, 2, 1], [1, 2, 0], [1, 0, 2]]);
    }

    #[test]
    fn a_summary_of_strace_is_read_with_and_without_errors() {
        let head = "% time     seconds  usecs/call     calls    errors syscall\n";
        assert_eq!(total(&format!("{head}100.00    0.002         19       107         3 total\n")), Some(107.0));
        assert_eq!(total(&format!("{head}100.00    0.002         19       107           total\n")), Some(107.0));
        assert_eq!(total(head), None);
        let of = |calls: u32| format!("{head}100.00    0.002         19       {calls}           total\n");
        let means = [vec![of(100), of(104)], vec![of(100), head.to_owned()], vec![]].map(|texts| mean(&texts, total));
        assert_eq!(means, [Some(102.0), None, None]);
    }

    #[test]
    fn the_kernels_part_is_what_the_calls_took_longer_than_the_shortest() {
        let text = "7 socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE) = 3 <0.000010>\n\
                    7 sendmsg(3, {msg_name=NULL, ...}, 0 <unfinished ...>\n\
                    7 <... sendmsg resumed>) = 36 <0.000510>\n\
                    7 +++ exited with 0 +++\n";
        assert!((kernel(text) - 0.5).abs() < 1e-9);
        assert!(kernel("7 +++ exited with 0 +++\n").abs() < 1e-9, "a call that sends nothing");
    }

    #[test]
    fn together_is_the_sum_of_each_round_and_the_largest_memory() {
        let samples = |took: [f64; 2], memory, calls| Samples {
            took: took.to_vec(),
            processor: vec![1.0; 2],
            faults: vec![2.0; 2],
            memory,
            calls,
            kernel: vec![0.5],
            complaint: calls.map(|_| "it is still there".to_owned()),
        };
        let both = [samples([1.0, 2.0], Some(7), Some(100)), samples([10.0, 30.0], Some(9), None)];
        let sum = Samples::together(&both.each_ref());
        assert_eq!((sum.took, sum.processor, sum.faults), (vec![11.0, 32.0], vec![2.0; 2], vec![4.0; 2]));
        assert_eq!(sum.kernel, [1.0]);
        assert_eq!((sum.memory, sum.calls), (Some(9), None), "a call that was not counted is not none");
        assert_eq!(sum.complaint.as_deref(), Some("it is still there"));
    }

    #[test]
    fn others_processor_time_is_neither_idle_nor_ours() {
        let before = Ticks { all: 1000.0, idle: 500.0, ours: 100.0 };
        let after = Ticks { all: 1200.0, idle: 600.0, ours: 150.0 };
        assert!((after.others_since(&before) - 0.25).abs() < 1e-9);
        let now = Ticks::now();
        assert!(now.all > now.idle && now.idle > 0.0, "/proc/stat is read");
    }

    #[test]
    fn the_faster_peer_is_the_one_to_beat() {
        let samples = |ms: f64| Outcome::Measured(Samples { took: vec![ms; 3], ..Samples::default() });
        let noise = Noise { unrest: 1.0, others: 0.0 };
        let row = |sides| Row { name: String::new(), sides, floor: None, noise };
        let mut three = row(vec![samples(2.0), samples(30.0), samples(10.0)]);
        assert!((three.ratio().unwrap().is - 5.0).abs() < 1e-9);
        assert_eq!(three.over_floor(), None);
        three.floor = Some(Floor { outcome: samples(1.0), most: None });
        assert!((three.ratio().unwrap().is - 5.0).abs() < 1e-9, "the floor is no peer");
        assert!((three.over_floor().unwrap().is - 2.0).abs() < 1e-9);
        assert_eq!(row(vec![samples(2.0), Outcome::Absent("no such verb".into())]).ratio(), None);
        assert_eq!(row(vec![Outcome::Absent("not yet".into()), samples(2.0)]).ratio(), None);
    }
}

//! The targets, and the verdict of the measurements on each.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::figures::{Ratio, Verdict, median, short};
use crate::report::table::sentence;
use crate::run::idle;
use crate::run::measure::{Outcome, Row};
use crate::scenarios::stage::{OURS, Side, WARM};
use crate::scenarios::{
    COMPARED, LACKING, LAUNCHED, LAUNCHER, LAUNCHER_USUAL, LOG, LOG_OFF, MEMORY, SHARE, SIZE, TARGETS, THROUGH, Target,
};

/// One target.
#[derive(Debug)]
pub(crate) struct TargetResult {
    pub(crate) what: String,
    pub(crate) wanted: String,
    pub(crate) is: String,
    /// The measured ratio divided by the target: the target is missed if this is less than 1.
    pub(crate) reached: f64,
    pub(crate) verdict: Verdict,
    /// Whether the ratio is certainly below half of its usual value, so that something is broken.
    pub(crate) broken: bool,
}

/// The share of the usual ratio below which something is broken.
const HALF: f64 = 0.5;

/// The target of a row for its ratio.
pub(crate) fn target(row: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.row == row)
}

/// The verdict on a ratio, with the noise of its row taken into account.
pub(crate) fn verdict(row: &Row, ratio: Ratio, target: f64) -> Verdict {
    if row.is_noisy() { Verdict::Unknown } else { ratio.at_least(target) }
}

/// The verdict on a ratio that may be no greater.
pub(crate) fn at_most(row: &Row, ratio: Ratio, most: f64) -> Verdict {
    if row.is_noisy() { Verdict::Unknown } else { ratio.at_most(most) }
}

impl TargetResult {
    /// The result for a target that should have been measured and was not.
    fn unmeasured(what: impl Into<String>, wanted: impl Into<String>, why: &str) -> TargetResult {
        let is = why.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
        let what = what.into();
        let wanted = wanted.into();
        TargetResult { what, wanted, is, reached: 0.0, verdict: Verdict::Unmeasured, broken: true }
    }

    /// Whether it fails a run that asserts the targets.
    pub(crate) fn is_missed(&self) -> bool {
        matches!(self.verdict, Verdict::Missed | Verdict::Unmeasured)
    }
}

/// The result for every target of these rows. A target that was not measured, for whatever reason, is not met; neither is one for
/// which a call of ours failed.
pub(crate) fn evaluate(rows: &[Row], sides: &[Side]) -> Vec<TargetResult> {
    let speeds = rows.iter().filter_map(speed);
    rows.iter()
        .filter_map(failed)
        .chain(speeds)
        .chain(rows.iter().filter_map(over_floor))
        .chain(compared(rows))
        .chain(THROUGH.iter().filter_map(|(without, through)| through_the_tool(rows, without, through)))
        .chain(launcher(rows))
        .chain(log_off(rows, idle::log_step()))
        .chain(memory(rows))
        .chain(sides.first().map(size))
        .collect()
}

/// The error message of our plugin, if a call failed.
fn failed(row: &Row) -> Option<TargetResult> {
    let why = match row.sides.first()? {
        Outcome::Absent(why) => Some(why).filter(|why| *why != WARM && !why.contains(LACKING)),
        Outcome::Measured(samples) => samples.complaint.as_ref(),
    };
    Some(TargetResult::unmeasured(format!("{} of ours", row.name), "success", &sentence(why?, OURS)))
}

fn speed(row: &Row) -> Option<TargetResult> {
    let target = target(&row.name)?;
    row.samples(0)?;
    let wanted = format!("at least {} times faster", target.times);
    let Some(ratio) = row.ratio() else {
        return Some(TargetResult::unmeasured(&row.name, wanted, "no peer does it"));
    };
    Some(TargetResult {
        what: row.name.clone(),
        wanted,
        is: format!("{} times ({} to {})", short(ratio.is), short(ratio.low), short(ratio.high)),
        reached: ratio.is / target.times,
        verdict: verdict(row, ratio, target.times),
        broken: verdict(row, ratio, target.usual * HALF) == Verdict::Missed,
    })
}

/// How long ours takes beside the floor.
fn over_floor(row: &Row) -> Option<TargetResult> {
    let floor = row.floor.as_ref()?;
    let most = floor.most?;
    let what = format!("{} beside the floor", row.name);
    let wanted = format!("at most {most} times as long");
    if let Outcome::Absent(why) = &floor.outcome {
        return Some(TargetResult::unmeasured(what, wanted, &sentence(why, "the floor")));
    }
    let ratio = row.over_floor()?;
    Some(TargetResult {
        what,
        wanted,
        is: format!("{} times ({} to {})", short(ratio.is), short(ratio.low), short(ratio.high)),
        reached: most / ratio.is,
        verdict: at_most(row, ratio, most),
        broken: at_most(row, ratio, most / HALF) == Verdict::Missed,
    })
}

fn compared(rows: &[Row]) -> impl Iterator<Item = TargetResult> {
    let find = |name| rows.iter().find(|row| row.name == name);
    COMPARED.iter().filter_map(move |(first, second, most)| compare(find(*first)?, find(*second)?, *most))
}

fn compare(first: &Row, second: &Row, most: f64) -> Option<TargetResult> {
    let ratio = Ratio::of(&second.samples(0)?.took, &first.samples(0)?.took);
    let noisy = first.is_noisy() || second.is_noisy();
    let at_most = |most| if noisy { Verdict::Unknown } else { ratio.at_most(most) };
    Some(TargetResult {
        what: format!("{} against {}", second.name, first.name),
        wanted: format!("at most {most} times ours"),
        is: format!("{} times ({} to {})", short(ratio.is), short(ratio.low), short(ratio.high)),
        reached: most / ratio.is,
        verdict: at_most(most),
        broken: at_most(most / HALF) == Verdict::Missed,
    })
}

/// The share of a cnitool command that is not the plugin's: the start of the tool, and libcni. The plugin alone was called in turn
/// with the command.
fn through_the_tool(rows: &[Row], without: &str, through: &str) -> Option<TargetResult> {
    let find = |name| rows.iter().find(|row| row.name == name);
    let without = find(without)?;
    let through = find(through)?;
    let ratio = Ratio::of(&without.samples(0)?.took, &through.samples(0)?.took);
    let at_least = |least| verdict(through, ratio, least);
    let share = 1.0 - ratio.is;
    Some(TargetResult {
        what: format!("the share of tool and libcni in {}", through.name),
        wanted: format!("at most {SHARE}"),
        is: format!("{share:.2} ({:.2} to {:.2})", 1.0 - ratio.high, 1.0 - ratio.low),
        reached: SHARE / share.max(0.01),
        verdict: at_least(1.0 - SHARE),
        broken: false, // how long a disk takes is its own affair
    })
}

/// What the launcher adds to a call, in milliseconds. Both were called in turn, so that each round has differences of its own. A
/// slow machine takes longer for both, so the share of the call tells whether something is broken.
fn launcher(rows: &[Row]) -> Option<TargetResult> {
    let find = |name| rows.iter().find(|row| row.name == name);
    let (launched, linked) = (find(LAUNCHED.0)?, find(LAUNCHED.1)?);
    let without = &linked.samples(0)?.took;
    let pairs = launched.samples(0)?.took.iter().zip(without);
    let added = median(&pairs.map(|(launched, linked)| launched - linked).collect::<Vec<_>>());
    let is_noisy = launched.is_noisy() || linked.is_noisy();
    Some(TargetResult {
        what: "what the launcher adds to a call".to_owned(),
        wanted: format!("at most {LAUNCHER} ms"),
        is: format!("{added:.3} ms"),
        reached: LAUNCHER / added.max(0.001),
        broken: !is_noisy && added / median(without) > LAUNCHER_USUAL / HALF,
        verdict: match added <= LAUNCHER {
            true => Verdict::Met,
            false if is_noisy => Verdict::Unknown,
            false => Verdict::Missed,
        },
    })
}

/// The time that the log steps of a call take while the log is off, at this many nanoseconds each. A log at debug writes one line
/// per step, and a line is at least one system call.
#[expect(clippy::cast_precision_loss, reason = "the calls of a process")]
fn log_off(rows: &[Row], step: f64) -> Option<TargetResult> {
    let ours = |name| rows.iter().find(|row| row.name == name)?.samples(0);
    let off = ours(LOG.0)?;
    let debug = ours(LOG.1)?;
    let what = format!("a log that is off, in {}", LOG.0);
    let wanted = format!("at most {LOG_OFF} of it");
    let counted = debug.calls.zip(off.calls).and_then(|(debug, off)| debug.checked_sub(off));
    let Some(steps) = counted.filter(|steps| *steps > 0 && step > 0.0) else {
        let why = format!("{:?} calls with the log, {:?} without, {} ns a step", debug.calls, off.calls, short(step));
        return Some(TargetResult::unmeasured(what, wanted, &why));
    };
    let share = steps as f64 * step / (median(&off.took) * 1e6);
    Some(TargetResult {
        what,
        wanted,
        is: format!("at most {steps} steps of {} ns, {share:.6} of it", short(step)),
        reached: LOG_OFF / share,
        broken: share > LOG_OFF / HALF,
        verdict: if share <= LOG_OFF { Verdict::Met } else { Verdict::Missed },
    })
}

/// The row in which our share of the least memory of a peer is the largest.
fn memory(rows: &[Row]) -> Option<TargetResult> {
    let wanted = format!("at most {MEMORY} of a peer's");
    if let Some(row) = rows.iter().find(|row| row.ratio().is_some() && share(row).is_none()) {
        return Some(TargetResult::unmeasured(
            format!("largest memory in {}", row.name),
            wanted,
            "nothing was weighed",
        ));
    }
    let shares = rows.iter().filter_map(|row| Some((row, share(row)?)));
    let (row, share) = shares.max_by(|(_, one), (_, other)| one.total_cmp(other))?;
    Some(TargetResult {
        what: format!("largest memory, at worst in {}", row.name),
        wanted,
        is: format!("{share:.2}"),
        reached: MEMORY / share,
        broken: share > MEMORY / HALF,
        verdict: if share <= MEMORY { Verdict::Met } else { Verdict::Missed },
    })
}

#[expect(clippy::cast_precision_loss, reason = "kibibytes of a process")]
fn share(row: &Row) -> Option<f64> {
    let peers = (1..row.sides.len()).filter_map(|side| row.samples(side)?.memory);
    Some(row.samples(0)?.memory? as f64 / peers.min()? as f64)
}

#[expect(clippy::cast_precision_loss, reason = "the sizes of programs")]
fn size(ours: &Side) -> TargetResult {
    let bytes = disk(&ours.bin, |_| true);
    TargetResult {
        what: "all plugins on disk".to_owned(),
        wanted: format!("at most {}", megabytes(SIZE)),
        is: megabytes(bytes),
        reached: SIZE as f64 / bytes.max(1) as f64,
        broken: bytes as f64 > SIZE as f64 / HALF,
        verdict: if bytes <= SIZE { Verdict::Met } else { Verdict::Missed },
    }
}

/// The total size in bytes of the files with these names. A file with several names is counted once.
pub(crate) fn disk(dir: &Path, wanted: impl Fn(&str) -> bool) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let named = entries.filter(|entry| wanted(&entry.file_name().to_string_lossy()));
    let files = named.filter_map(|entry| fs::metadata(entry.path()).ok()).filter(fs::Metadata::is_file);
    files.map(|file| (file.ino(), file.len())).collect::<BTreeMap<_, _>>().values().sum()
}

#[expect(clippy::cast_precision_loss, reason = "the sizes of programs")]
pub(crate) fn megabytes(bytes: u64) -> String {
    format!("{:.2} MB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::measure::{Floor, Noise, Outcome, Samples};
    use crate::scenarios::SCENARIOS;

    fn row(name: &str, unrest: f64, times: &[f64]) -> Row {
        let one =
            |ms: &f64| Outcome::Measured(Samples { took: vec![*ms; 5], memory: Some(1000), ..Samples::default() });
        let noise = Noise { unrest, others: 0.0 };
        Row { name: name.to_owned(), sides: times.iter().map(one).collect(), floor: None, noise }
    }

    fn verdicts(rows: &[Row]) -> Vec<Verdict> {
        evaluate(rows, &[]).into_iter().map(|result| result.verdict).collect()
    }

    #[test]
    fn a_target_is_met_missed_or_lost_in_noise() {
        let speed = |noise, ms| verdicts(&[row("bridge ADD", noise, &[ms, 12.0, 15.0])])[0];
        assert_eq!(speed(1.0, 2.0), Verdict::Met);
        assert_eq!(speed(1.0, 3.0), Verdict::Missed);
        assert_eq!(speed(9.0, 2.0), Verdict::Unknown);
    }

    #[test]
    fn half_of_what_is_usual_is_broken_unless_the_machine_was_noisy() {
        let bridge = TARGETS.iter().find(|target| target.row == "bridge ADD").unwrap();
        let broken = |noise, times: f64| evaluate(&[row("bridge ADD", noise, &[2.0, 2.0 * times])], &[])[0].broken;
        assert!(broken(1.0, 0.4 * bridge.usual) && !broken(1.0, 0.6 * bridge.usual));
        assert!(!broken(9.0, 0.4 * bridge.usual));
    }

    #[test]
    fn more_than_allowed_over_the_floor_is_missed_and_twice_that_is_broken() {
        let of = |ours: f64| {
            let mut one = row("bridge DEL", 1.0, &[ours]);
            let floor = Samples { took: vec![2.0; 5], ..Samples::default() };
            one.floor = Some(Floor { outcome: Outcome::Measured(floor), most: Some(1.1) });
            let result = over_floor(&one).unwrap();
            (result.verdict, result.broken)
        };
        assert_eq!(of(2.1), (Verdict::Met, false));
        assert_eq!(of(3.0), (Verdict::Missed, false));
        assert_eq!(of(4.5), (Verdict::Missed, true));
        let mut absent = row("bridge DEL", 1.0, &[2.0]);
        absent.floor = Some(Floor { outcome: Outcome::Absent("it fails".to_owned()), most: Some(1.1) });
        assert!(over_floor(&absent).unwrap().broken);
    }

    #[test]
    fn every_target_is_a_row() {
        let rows: Vec<String> = SCENARIOS
            .iter()
            .flat_map(|scenario| scenario.rows.iter().map(|verb| crate::scenarios::row(scenario, *verb)))
            .collect();
        let together = SCENARIOS.iter().filter_map(crate::scenarios::row_together);
        let rows: Vec<String> = rows.into_iter().chain(together).collect();
        let wanted = TARGETS.iter().map(|target| target.row);
        let compared = COMPARED.iter().flat_map(|(first, second, _)| [*first, *second]);
        let through = THROUGH.iter().flat_map(|(without, through)| [*without, *through]);
        for name in wanted.chain(compared).chain(through).chain([LOG.0, LOG.1, LAUNCHED.0, LAUNCHED.1]) {
            assert!(rows.iter().any(|row| row == name), "{name} is no row");
        }
    }

    #[test]
    fn flatness_is_ours_alone() {
        let flat = |full| {
            let rows = [row(COMPARED[0].0, 1.0, &[1.0]), row(COMPARED[0].1, 1.0, &[full])];
            compared(&rows).map(|result| result.verdict).collect::<Vec<_>>()
        };
        assert_eq!(flat(1.2), [Verdict::Met]);
        assert_eq!(flat(1.8), [Verdict::Missed]);
    }

    #[test]
    fn a_target_is_missed_if_cnikit_fails_or_no_peer_succeeds() {
        let absent = || Outcome::Absent("no such | verb".to_owned());
        let of = |row: Row| -> Vec<TargetResult> {
            evaluate(&[row], &[]).into_iter().filter(TargetResult::is_missed).collect()
        };
        for name in ["bridge GC", "bridge ADD"] {
            let mut one = row(name, 1.0, &[2.0, 40.0]);
            one.sides[0] = absent();
            let missed = of(one);
            assert!(missed.len() == 1 && missed[0].broken && missed[0].is == "No such \\| verb.", "{missed:?}");
        }
        let mut one = row("cold bridge VERSION", 1.0, &[2.0, 40.0]);
        one.sides[0] = Outcome::Absent(WARM.to_owned());
        assert!(of(one).is_empty(), "that is the machine's");
        let mut one = row("bridge ADD", 1.0, &[2.0, 40.0]);
        one.sides[1] = absent();
        assert_eq!(of(one)[0].is, "no peer does it");
        let mut one = row("ptp DEL", 1.0, &[2.0, 4.0]);
        let Outcome::Measured(samples) = &mut one.sides[0] else { panic!("it is measured") };
        (samples.complaint, samples.memory) = (Some("it is still there".to_owned()), None);
        let missed = of(one);
        assert_eq!([&missed[0].is, &missed[1].is], ["It is still there.", "nothing was weighed"]);
    }

    #[test]
    fn a_log_that_is_off_is_to_be_a_thousandth_at_most() {
        let mut rows = [row(LOG.0, 1.0, &[1.0]), row(LOG.1, 1.0, &[1.5])];
        for (row, made) in rows.iter_mut().zip([200, 300]) {
            let Outcome::Measured(samples) = &mut row.sides[0] else { panic!("it is measured") };
            samples.calls = Some(made);
        }
        let verdict = |step| log_off(&rows, step).unwrap().verdict;
        assert_eq!([9.0, 11.0, 0.0].map(verdict), [Verdict::Met, Verdict::Missed, Verdict::Unmeasured]);
        assert!(log_off(&rows[..1], 1.0).is_none());
        for calls in [None, Some(200)] {
            let Outcome::Measured(samples) = &mut rows[1].sides[0] else { panic!("it is measured") };
            samples.calls = calls;
            assert_eq!(log_off(&rows, 9.0).unwrap().verdict, Verdict::Unmeasured);
        }
    }

    #[test]
    fn a_launcher_may_add_a_tenth_of_a_millisecond_and_half_of_the_call_is_broken() {
        let of = |unrest, added| {
            let rows = [row(LAUNCHED.0, unrest, &[0.4 + added]), row(LAUNCHED.1, unrest, &[0.4])];
            let result = launcher(&rows).unwrap();
            (result.verdict, result.broken)
        };
        assert_eq!(of(1.0, 0.05), (Verdict::Met, false));
        assert_eq!(of(1.0, 0.15), (Verdict::Missed, false));
        assert_eq!(of(1.0, 0.25), (Verdict::Missed, true));
        assert_eq!(of(9.0, 0.25), (Verdict::Unknown, false));
    }

    #[test]
    fn as_much_memory_as_a_peer_is_too_much() {
        assert_eq!(verdicts(&[row("loopback ADD", 1.0, &[1.0, 1.0])]), [Verdict::Missed]);
    }

    #[test]
    fn a_file_with_two_names_is_counted_once() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), "12345").unwrap();
        fs::hard_link(dir.path().join("a"), dir.path().join("b")).unwrap();
        fs::write(dir.path().join("c"), "123").unwrap();
        assert_eq!(disk(dir.path(), |_| true), 8);
        assert_eq!(disk(dir.path(), |name| name == "c"), 3);
    }
}

//! The measurements as Markdown.

use std::fmt::{self, Write};

use crate::figures::{Ratio, Verdict, median, quantile, short};
use crate::report::verdict::{TargetResult, at_most, disk, megabytes, target, verdict};
use crate::run::measure::{Outcome, Row, Samples};
use crate::scenarios::stage::{BINARY, SIDE, Side};

/// The whole document. `machine` is a paragraph. Without results it is for readers, whom no target concerns.
pub(crate) fn document(rows: &[Row], sides: &[Side], results: Option<&[TargetResult]>, machine: &str) -> String {
    let repeated = if results.is_none() { REPEATED } else { "" };
    let mut text =
        format!("# Side by side\n\n{machine}{repeated}\n\n{LEGEND}\n\n{}", heading(sides, results.is_some()));
    let mut notes = Notes::default();
    for row in rows {
        let _ = writeln!(text, "{}", line(row, sides, &mut notes, results.is_some()));
    }
    let _ = write!(text, "\n{notes}\n## Sizes\n\n{}", sizes(sides));
    match results {
        Some(results) => format!("{text}\n## Targets\n\n{}", targets(results)),
        None => text,
    }
}

/// The footnotes: each reason once, with the sides that it is true of.
#[derive(Default)]
struct Notes(Vec<(String, Vec<String>)>);

impl Notes {
    /// The number of the note with this reason.
    fn number(&mut self, side: &str, why: &str) -> usize {
        let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
        let at = self.0.iter().position(|(known, _)| *known == why).unwrap_or_else(|| {
            self.0.push((why, Vec::new()));
            self.0.len() - 1
        });
        let sides = &mut self.0[at].1;
        if !sides.iter().any(|known| known == side) {
            sides.push(side.to_owned());
        }
        at + 1
    }
}

impl fmt::Display for Notes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .zip(1..)
            .try_for_each(|((why, sides), n)| writeln!(f, "{n}. {}", sentence(why, &sides.join(" and "))))
    }
}

/// A reason as a sentence about these sides.
pub(crate) fn sentence(why: &str, sides: &str) -> String {
    let text = why.replace(SIDE, sides);
    let mut letters = text.trim_end_matches('.').chars();
    let first = letters.next().map(|letter| letter.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", letters.as_str())
}

/// A row as it is printed while the run continues.
pub(crate) fn plain(row: &Row, sides: &[Side]) -> String {
    let mut text = format!("{:44}", row.name);
    for (outcome, side) in row.sides.iter().zip(sides) {
        let cell = match outcome {
            Outcome::Measured(samples) => times(samples),
            Outcome::Absent(_) => "—".to_owned(),
        };
        let _ = write!(text, "  {} {cell:16}", side.name);
    }
    let faster = row.ratio().map(|ratio| compared(row, ratio).0.replace('*', "")).unwrap_or_default();
    if let Some(ratio) = row.over_floor() {
        let _ = write!(text, "  of the floor {:24}", spanned(row, ratio).replace('*', ""));
    }
    format!("{text}  {faster:24}  {} calls  {} MB\n", or_dash(calls(row)), memory(row))
}

/// Every single measurement, for other evaluations.
pub(crate) fn samples(rows: &[Row], sides: &[Side]) -> String {
    let mut text = "row,side,round,milliseconds,processor milliseconds,page faults\n".to_owned();
    for row in rows {
        let names = sides.iter().map(|side| side.name.as_str());
        let floor = row.floor.iter().map(|floor| ("floor", &floor.outcome));
        for (side, outcome) in names.zip(&row.sides).chain(floor) {
            let Outcome::Measured(samples) = outcome else { continue };
            for (round, took) in samples.took.iter().enumerate() {
                let processor = samples.processor[round];
                let faults = samples.faults[round];
                let _ = writeln!(text, "\"{}\",{side},{round},{took:.3},{processor:.3},{faults}", row.name);
            }
        }
    }
    text
}

/// How a run that is published treats noise.
const REPEATED: &str = " Rows that were too noisy were measured again, at most twice.";

const LEGEND: &str = "Times are from the start of the process to its end, in milliseconds: median (95th percentile). \
    *Faster by* is against the faster of the other sides, with the span in which 95 of 100 such measurements would lie; `~` where \
    the machine was too noisy to judge, or the span is too wide. *Floor* is a program that does only what the kernel and the files \
    of host-local need, without checks, undoing or a search, and *of the floor* is our time divided by its time. Memory is the \
    largest resident set of a call, or of anything that it started, in MB: ours, and the least of the other sides. System calls are those of one call of \
    ours, with all that it starts; of several at once, their mean. *Kernel* is an estimate: the time of our calls on \
    sockets, mostly of netlink, in three further rounds under strace(1), without what strace adds to each call, as a share of the \
    whole call. In rows of cnitool each side's tool calls the plugins of that \
    side; upstream's tool is that of its newest release, whatever its plugins are. *Setup* is a program built on libcni that sets \
    all containers up at once.";

fn heading(sides: &[Side], judged: bool) -> String {
    let names: Vec<_> = sides.iter().map(|side| side.name.as_str()).collect();
    let names = names.join(" | ");
    let lines = " ---: |".repeat(sides.len());
    let (target, line) = if judged { (" target |", " --- |") } else { ("", "") };
    format!(
        "| row | {names} | faster by |{target} floor | of the floor | calls | memory | kernel |\n\
         | --- |{lines} ---: |{line} ---: | --- | ---: | ---: | ---: |\n"
    )
}

fn line(row: &Row, sides: &[Side], notes: &mut Notes, judged: bool) -> String {
    let mut line = format!("| {} |", row.name);
    for (outcome, side) in row.sides.iter().zip(sides) {
        let cell = match outcome {
            Outcome::Measured(samples) => match &samples.complaint {
                None => times(samples),
                Some(why) => format!("{} [{}]", times(samples), notes.number(&side.name, why)),
            },
            Outcome::Absent(why) => format!("— [{}]", notes.number(&side.name, why)),
        };
        let _ = write!(line, " {cell} |");
    }
    let (faster, wanted) = row.ratio().map(|ratio| compared(row, ratio)).unwrap_or_default();
    let wanted = if judged { format!(" {wanted} |") } else { String::new() };
    let (floor, over) = floor(row, notes, judged);
    let _ = write!(line, " {faster} |{wanted} {floor} | {over} |");
    let _ = write!(line, " {} | {} | {} |", or_dash(calls(row)), memory(row), or_dash(kernel(row)));
    line
}

/// The time of the floor, and ours as a multiple of it; with the verdict if it is judged.
fn floor(row: &Row, notes: &mut Notes, judged: bool) -> (String, String) {
    let Some(floor) = &row.floor else { return (String::new(), String::new()) };
    let samples = match &floor.outcome {
        Outcome::Absent(why) => return (format!("— [{}]", notes.number("floor", why)), String::new()),
        Outcome::Measured(samples) => samples,
    };
    let Some(ratio) = row.over_floor() else { return (times(samples), String::new()) };
    let wanted = floor
        .most
        .filter(|_| judged)
        .map(|most| format!("; {most}: {}", word(at_most(row, ratio, most))))
        .unwrap_or_default();
    (times(samples), format!("{}{wanted}", spanned(row, ratio)))
}

fn times(samples: &Samples) -> String {
    format!("{} ({})", short(median(&samples.took)), short(quantile(&samples.took, 0.95)))
}

/// A ratio with its span.
fn spanned(row: &Row, ratio: Ratio) -> String {
    let doubt = if row.is_noisy() || ratio.is_vague() { "~ " } else { "" };
    format!("{doubt}**{}** ({} – {})", short(ratio.is), short(ratio.low), short(ratio.high))
}

fn compared(row: &Row, ratio: Ratio) -> (String, String) {
    let faster = spanned(row, ratio);
    let wanted =
        target(&row.name).map(|target| format!("{}: {}", target.times, word(verdict(row, ratio, target.times))));
    (faster, wanted.unwrap_or_default())
}

/// The word for a verdict.
pub(crate) fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Met => "met",
        Verdict::Missed => "**missed**",
        Verdict::Unknown => "too noisy to judge",
        Verdict::Unmeasured => "**not measured**",
    }
}

/// The system calls of one of ours.
fn calls(row: &Row) -> Option<String> {
    row.samples(0)?.calls.map(|calls| calls.to_string())
}

/// The kernel's share of our time: at most all of it, because a traced call can take longer than the others.
fn kernel(row: &Row) -> Option<String> {
    let samples = row.samples(0).filter(|samples| !samples.kernel.is_empty())?;
    let share = median(&samples.kernel) / median(&samples.took);
    Some(format!("{:.0} %", share.min(1.0) * 100.0))
}

/// The largest resident sets: ours, and the smallest one of the peers.
fn memory(row: &Row) -> String {
    let peers = (1..row.sides.len()).filter_map(|side| row.samples(side)?.memory);
    let words = [row.samples(0).and_then(|samples| samples.memory), peers.min()];
    words.map(|kib| or_dash(kib.map(|kib| format!("{}.{}", kib / 1024, kib % 1024 * 10 / 1024)))).join(" / ")
}

fn or_dash(cell: Option<String>) -> String {
    cell.unwrap_or_else(|| "—".to_owned())
}

fn sizes(sides: &[Side]) -> String {
    let has = |side: &Side, name: &str| side.bin.join(name).exists();
    let shared = |name: &str| sides.iter().all(|side| has(side, name));
    let mut text = "| | plugins that all have | all plugins |\n| --- | ---: | ---: |\n".to_owned();
    for side in sides {
        let common = disk(&side.bin, |name| shared(name) || name == BINARY);
        let all = disk(&side.bin, |_| true);
        let _ = writeln!(text, "| {} | {} | {} |", side.name, megabytes(common), megabytes(all));
    }
    text
}

/// The text for a target: met or missed, and whether the ratio is only half of its usual value.
fn told(result: &TargetResult) -> String {
    format!("{}{}", word(result.verdict), if result.broken { ", **broken**" } else { "" })
}

/// The results as a table.
pub(crate) fn targets(results: &[TargetResult]) -> String {
    let lines = results.iter().map(|one| {
        format!("| {} | {} | {} | {} | {} |\n", one.what, one.wanted, one.is, short(one.reached), told(one))
    });
    format!("| | wanted | measured | of it | |\n| --- | --- | --- | ---: | --- |\n{}", lines.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::measure::Noise;

    #[test]
    fn an_absent_outcome_gets_one_footnote_with_the_reason() {
        let side = |name: &str| Side { name: name.to_owned(), bin: "/nowhere".into(), tool: None, only: None };
        let sides = ["ours", "theirs"].map(side);
        let processor = vec![0.5; 3];
        let faults = vec![7.0; 3];
        let samples = Samples {
            took: vec![1.0, 2.0, 3.0],
            processor,
            faults,
            memory: Some(2560),
            calls: Some(107),
            kernel: vec![0.5, 0.7, 0.4],
            ..Samples::default()
        };
        let noise = Noise { unrest: 1.0, others: 0.0 };
        let absent = || Outcome::Absent(format!("plugins of {SIDE} have no such verb."));
        let row =
            Row { name: "bridge GC".to_owned(), sides: vec![Outcome::Measured(samples), absent()], floor: None, noise };
        let other = Row { name: "bridge STATUS".to_owned(), sides: vec![absent(), absent()], floor: None, noise };
        assert!(plain(&row, &sides).ends_with("  107 calls  2.5 / — MB\n"), "{}", plain(&row, &sides));
        let rows = [row, other];
        assert!(super::samples(&rows, &sides).ends_with("\n\"bridge GC\",ours,2,3.000,0.500,7\n"));
        let text = document(&rows, &sides, Some(&[]), "A machine.");
        assert!(text.contains("| bridge GC | 2.00 (2.90) | — [1] |  |  |  |  | 107 | 2.5 / — | 25 % |\n"), "{text}");
        assert!(text.contains("| bridge STATUS | — [1] | — [1] |"), "{text}");
        assert!(text.contains("\n1. Plugins of theirs and ours have no such verb.\n"), "{text}");
        assert!(text.contains("## Targets"), "{text}");
        let text = document(&rows, &sides, None, "A machine.");
        assert!(text.contains("| bridge GC | 2.00 (2.90) | — [1] |  |  |  | 107 | 2.5 / — | 25 % |\n"), "{text}");
        assert!(!text.to_lowercase().contains("target"), "{text}");
    }
}

//! Measures CNI plugins side by side: the same calls, in namespaces of their own, every side in turn in every round.
//!
//! `scripts/bench` and `scripts/profile` start it. The table of what is measured is in `scenarios/mod.rs`, followed by the targets.
//! A ratio is valid within one run only, and only together with its spread, so each row has both.

mod command_line;
mod figures;
mod report;
mod run;
mod scenarios;
mod spawn;

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use command_line::{Asked, What};
use report::table;
use report::verdict::{self, TargetResult};
use run::measure::{self, Row};
use run::{idle, paths, profile};
use scenarios::{SCENARIOS, Scenario, runtime};

/// A failure is for a person to read.
pub(crate) type Result<T> = std::result::Result<T, String>;

fn main() -> ExitCode {
    match command_line::read(std::env::args().skip(1)).and_then(|asked| answer(&asked)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(text) => {
            let _ = writeln!(io::stderr(), "cnikit-bench: {text}");
            ExitCode::from(2)
        }
    }
}

/// Runs the command. Returns whether every assertion holds.
fn answer(asked: &Asked) -> Result<bool> {
    match asked.what {
        What::Help => say(command_line::HELP).map(|()| true),
        What::Scenarios => {
            SCENARIOS.iter().try_for_each(|scenario| say(&format!("{}\n", scenario.name))).map(|()| true)
        }
        What::Measure => measure(asked),
        What::Read(ref dirs) => runtime::read(dirs).map(|()| true),
        What::Pods(setup, ref words) => runtime::pods(setup, words).map(|()| true),
        What::Paths => asked.sides.iter().take(1).try_for_each(|side| say(&paths::paths(&side.bin)?)).map(|()| true),
        What::Profile => wanted(asked).try_for_each(|scenario| profile(asked, scenario)).map(|()| true),
    }
}

/// The scenarios that the command line selects.
fn wanted(asked: &Asked) -> impl Iterator<Item = &'static Scenario> {
    let among =
        |scenario: &&Scenario| asked.rows.is_empty() || asked.rows.iter().any(|word| scenario.name.contains(word));
    let exact = |scenario: &&Scenario| asked.exact.is_empty() || asked.exact.iter().any(|name| name == scenario.name);
    SCENARIOS.iter().filter(move |scenario| among(scenario) && exact(scenario) && rounds(asked, scenario) > 0)
}

fn rounds(asked: &Asked, scenario: &Scenario) -> usize {
    let usual = if asked.short { scenario.short } else { scenario.rounds };
    asked.rounds.map_or(usual, |rounds| rounds.min(usual))
}

fn profile(asked: &Asked, scenario: &Scenario) -> Result<()> {
    let Some(side) = asked.sides.first() else { return Ok(()) };
    let profiled = profile::profile(scenario, side, rounds(asked, scenario));
    say(&profiled.map_err(|why| table::sentence(&why, &side.name))?)
}

fn measure(asked: &Asked) -> Result<bool> {
    let sides = &asked.sides;
    has_plugins(asked)?;
    let mut played = Vec::new();
    for scenario in wanted(asked) {
        played.push((scenario, play(asked, scenario)?));
    }
    if asked.publish {
        repeat_noisy(asked, &mut played)?;
    }
    let rows: Vec<Row> = played.into_iter().flat_map(|(_, rows)| rows).collect();
    if rows.is_empty() {
        return Err("no scenario has that name; cnikit-bench scenarios lists them".to_owned());
    }
    let noisy = count_noisy(&rows);
    if asked.publish && noisy * 10 > rows.len() {
        return Err(format!("the machine was too noisy to judge {noisy} of {} rows: nothing is written", rows.len()));
    }
    let results = verdict::evaluate(&rows, sides);
    let machine = machine(&rows);
    if let Some(out) = &asked.out {
        let write = |name: &str, text: String| {
            let file = out.join(name);
            fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))
        };
        write("bench.md", table::document(&rows, sides, (!asked.publish).then_some(&*results), &machine))?;
        write("bench.csv", table::samples(&rows, sides))?;
    }
    say(&format!("\n{}\n", table::targets(&results)))?;
    say(&format!("{machine}\n"))?;
    let missed = asked.assert && results.iter().any(TargetResult::is_missed);
    let broken = asked.guard && results.iter().any(|one| one.broken);
    Ok(!missed && !broken)
}

fn play(asked: &Asked, scenario: &Scenario) -> Result<Vec<Row>> {
    if asked.publish {
        idle::wait_for_quiet()?;
    }
    let rows = measure::play(scenario, &asked.sides, asked.floor.as_ref(), rounds(asked, scenario));
    rows.iter().try_for_each(|row| say(&table::plain(row, &asked.sides)))?;
    Ok(rows)
}

/// Measures again where the machine was too noisy, at most twice; what was less noisy counts, whatever its times are.
fn repeat_noisy(asked: &Asked, played: &mut [(&Scenario, Vec<Row>)]) -> Result<()> {
    for _ in 0..2 {
        for (scenario, rows) in played.iter_mut().filter(|(_, rows)| count_noisy(rows) > 0) {
            let again = play(asked, scenario)?;
            if count_noisy(&again) < count_noisy(rows) {
                *rows = again;
            }
        }
    }
    Ok(())
}

fn count_noisy(rows: &[Row]) -> usize {
    rows.iter().filter(|row| row.is_noisy()).count()
}

/// Each side is to have something that some scenario calls: a directory without was misspelt.
fn has_plugins(asked: &Asked) -> Result<()> {
    let has = |bin: &Path| SCENARIOS.iter().any(|scenario| bin.join(scenario.plugin).exists());
    match asked.sides.iter().chain(&asked.floor).find(|side| !has(&side.bin)) {
        Some(side) => Err(format!(
            "{}: {} has none of the plugins that are measured; a peer is a directory of plugins",
            side.name,
            side.bin.display()
        )),
        None => Ok(()),
    }
}

/// The machine that was measured on, and how much processor time other programs took.
fn machine(rows: &[Row]) -> String {
    let first = |file: &str| fs::read_to_string(file).unwrap_or_default().trim().to_owned();
    let model = first("/proc/cpuinfo");
    let model = model.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("of an unknown model");
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    let noisy = count_noisy(rows);
    format!(
        "Linux {}, {processors} processors ({}), load {}. A sleeping process runs {} µs \
         after it is woken. A fixed piece of work took the same time, within {:.0} %, and \
         others had less than {:.0} % of the processors, in {} of {} rows{}.",
        first("/proc/sys/kernel/osrelease"),
        model.trim_start_matches(|letter: char| letter.is_whitespace() || letter == ':'),
        first("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" "),
        figures::short(idle::waking()),
        (measure::NOISY.unrest - 1.0) * 100.0,
        measure::NOISY.others * 100.0,
        rows.len() - noisy,
        rows.len(),
        if noisy > 0 { "; in the others the machine was too noisy to judge" } else { "" },
    )
}

#[expect(clippy::print_stdout, reason = "rows are told as they are measured")]
fn say(text: &str) -> Result<()> {
    print!("{text}");
    io::stdout().flush().map_err(|error| format!("stdout: {error}"))
}

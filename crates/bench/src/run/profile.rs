//! How one call of ours spends its time: the process, the steps of its log, the system calls.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::Result;
use crate::figures::median;
use crate::run::measure::{STRACE, Samples};
use crate::scenarios::stage::{Side, Stage};
use crate::scenarios::{Scenario, Verb};

/// How many lines of `strace -c` are worth a look.
const LINES: usize = 16;

/// Every verb of a scenario, as text.
pub(crate) fn profile(scenario: &Scenario, side: &Side, rounds: usize) -> Result<String> {
    let mut stage = Stage::new(side, scenario)?;
    stage.first_round()?;
    let log = stage.dir().join("log");
    let levels = [None, Some("info"), Some("debug")];
    let mut heard = [(); 3].map(|()| Heard::default());
    for _ in 0..rounds {
        for (level, heard) in levels.iter().zip(&mut heard) {
            stage.env = level.map(|level| variables(level, &log)).unwrap_or_default();
            heard.round(&mut stage, &log)?;
        }
    }
    stage.env.clear();
    let mut text = format!("{}: {}, {rounds} rounds, median milliseconds\n", scenario.name, side.name);
    for verb in scenario.steps {
        text += &said(&heard, *verb);
        text += &system_calls(&mut stage, *verb)?;
    }
    Ok(text)
}

fn variables(level: &str, log: &std::path::Path) -> Vec<(String, String)> {
    let pairs = [("CNI_LOG", level.to_owned()), ("CNI_LOG_FILE", log.display().to_string())];
    pairs.map(|(key, value)| (key.to_owned(), value)).to_vec()
}

/// The measurements at one level of the log, by verb.
#[derive(Default)]
struct Heard(Vec<(Verb, Samples, Vec<Line>)>);

/// A line of the log, once for each occurrence: lines at the same place in a call are the same step.
#[derive(Debug, Default)]
struct Line {
    plugin: String,
    step: String,
    ms: Vec<f64>,
}

impl Heard {
    fn round(&mut self, stage: &mut Stage<'_>, log: &PathBuf) -> Result<()> {
        for verb in stage.verbs() {
            let _ = fs::remove_file(log); // there is none while the log is off
            let step = stage.step(*verb)?;
            let known = self.0.iter().position(|(known, ..)| known == verb).unwrap_or_else(|| {
                self.0.push((*verb, Samples::default(), Vec::new()));
                self.0.len() - 1
            });
            let (_, samples, lines) = &mut self.0[known];
            samples.note(&step);
            note(lines, &fs::read_to_string(log).unwrap_or_default());
        }
        Ok(())
    }

    fn of(&self, verb: Verb) -> Option<(&Samples, &[Line])> {
        self.0.iter().find(|(known, ..)| *known == verb).map(|(_, samples, lines)| (samples, lines.as_slice()))
    }
}

/// Adds one call's durations to those of the calls before it.
fn note(lines: &mut Vec<Line>, log: &str) {
    let objects = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    for (index, object) in objects.filter(|object| object["ms"].is_number()).enumerate() {
        if lines.len() == index {
            lines.push(Line::default());
        }
        let text = |key: &str| object[key].as_str().unwrap_or_default().to_owned();
        let line = &mut lines[index];
        (line.plugin, line.step) = (text("plugin"), text("step"));
        line.ms.extend(object["ms"].as_f64());
    }
}

fn said(heard: &[Heard; 3], verb: Verb) -> String {
    let [Some((off, _)), Some((info, _)), Some((debug, lines))] = heard.each_ref().map(|heard| heard.of(verb)) else {
        return String::new();
    };
    let line = |ms: f64, what: &str| format!("{ms:10.3}  {what}\n");
    let mut text = format!("\n{}\n", verb.name());
    text += &line(median(&off.took), "from start to end, the log off");
    text += &line(median(&off.processor), "of that on a processor");
    text += &line(median(&info.took), "from start to end, CNI_LOG=info");
    text += &line(median(&debug.took), "from start to end, CNI_LOG=debug; of which");
    let Some((call, steps)) = lines.split_last() else { return text };
    let own = call.plugin.as_str();
    let whole = median(&call.ms);
    for step in steps {
        let within = if step.plugin == own { "" } else { "within the next: " };
        text += &line(median(&step.ms), &format!("  {within}{} ({})", step.step, step.plugin));
    }
    let named: f64 = steps.iter().filter(|step| step.plugin == own).map(|step| median(&step.ms)).sum();
    text += &line(whole - named, "  between the steps: reading, judging, answering, the log itself");
    text += &line(median(&debug.took) - whole, "  before and after the call: start and end of the process");
    text + &format!("{:10.0}  page faults\n", median(&off.faults))
}

/// The first lines of the output of `strace -c` for one call.
fn system_calls(stage: &mut Stage<'_>, verb: Verb) -> Result<String> {
    let words = [STRACE, "-f", "-c", "-S", "calls", "-U", "calls,errors,name", "-o"];
    let text = stage.step_through(&words, verb)?.swap_remove(0);
    let (shown, rest): (Vec<_>, Vec<_>) = text.lines().enumerate().partition(|(line, _)| *line < LINES);
    let total = rest.last().map(|(_, line)| *line);
    Ok(shown.into_iter().map(|(_, line)| line).chain(total).fold("\n".to_owned(), |text, line| text + line + "\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_place_in_two_calls_is_one_step() {
        let log = |address: &str, ms: f64| {
            format!(
                "{{\"plugin\":\"host-local\",\"step\":\"call\",\"ms\":{ms}}}\n{{\"msg\":\"no step\"}}\n\
                 {{\"plugin\":\"bridge\",\"step\":\"masquerade {address}\",\"ms\":2}}\n"
            )
        };
        let mut lines = Vec::new();
        note(&mut lines, &log("10.0.0.2", 1.0));
        note(&mut lines, &log("10.0.0.3", 3.0));
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0].ms, [1.0, 3.0]);
        assert_eq!(lines[1].step, "masquerade 10.0.0.3");
    }
}

//! The report: text for people, TAP, `JUnit`, JSON.

mod forms;

use std::io::Write;

use cnikit_testkit::campaign;

use crate::case::Case;
use crate::checks::{CHECKS, Check, Level, UNKNOWN};
use crate::cli::{CommandLine, Format};

/// What a test found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    /// What it found.
    Failed(String),
    /// Why it does not apply.
    Skipped(&'static str),
}

/// The result of a test.
pub(crate) struct CheckResult {
    pub check: &'static Check,
    pub outcome: Outcome,
    pub seconds: f64,
}

/// The results of a run.
#[derive(Default)]
pub(crate) struct Report {
    /// What was tested: the plugins.
    subject: String,
    /// The version of the configuration.
    version: String,
    results: Vec<CheckResult>,
    /// The command line that repeats each test, in the order of the results.
    again: Vec<String>,
    line: Option<CommandLine>,
}

impl Report {
    /// A report without results.
    pub(crate) fn new(line: &CommandLine, case: &Case) -> Report {
        let version = case.subject.conf["cniVersion"].as_str().unwrap_or_default().to_owned();
        Report { subject: case.subject.title.clone(), version, line: Some(line.clone()), ..Report::default() }
    }

    fn is_text(&self) -> bool {
        self.line.as_ref().is_some_and(|line| line.format == Format::Text)
    }

    /// Prints the heading, if the report is for a person who waits for it.
    pub(crate) fn begin(&self) {
        if self.is_text() {
            print(&self.heading());
        }
    }

    /// Adds a result, and prints it if the report is for a person.
    pub(crate) fn add(&mut self, result: CheckResult) {
        let again = self.line.as_ref().map(|line| line.again(result.check.id, campaign::seed()));
        self.again.push(again.unwrap_or_default());
        self.results.push(result);
        if self.is_text() {
            print(&self.text_of(self.results.len() - 1));
        }
    }

    /// Prints what was not printed yet.
    pub(crate) fn finish(&self) {
        let Some(line) = &self.line else { return };
        print(&match line.format {
            Format::Text => self.summary(),
            Format::Tap => self.tap(),
            Format::Junit => self.junit(),
            Format::Json => self.json(),
        });
    }

    /// Whether no test up to this level failed.
    pub(crate) fn is_met(&self, level: Level) -> bool {
        let failed = |result: &CheckResult| matches!(result.outcome, Outcome::Failed(_));
        !self.results.iter().any(|result| result.check.level <= level && failed(result))
    }

    /// The highest level of which all tests ran or do not apply, and none failed.
    fn level(&self) -> Option<Level> {
        let is_known = |check: &Check| {
            let result = self.results.iter().find(|result| result.check.id == check.id);
            result.is_some_and(|result| !UNKNOWN.iter().any(|reason| result.outcome == Outcome::Skipped(reason)))
        };
        let is_complete = |level: Level| CHECKS.iter().filter(|check| check.level == level).all(is_known);
        let levels = [Level::Specification, Level::Robust, Level::Excellent];
        levels.into_iter().take_while(|level| is_complete(*level) && self.is_met(*level)).last()
    }
}

fn print(text: &str) {
    // A reader that closed the pipe has read enough.
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// Prints a line to standard error.
pub(crate) fn print_to_stderr(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Prints the names, levels and titles of all tests.
pub(crate) fn list_checks() {
    for check in CHECKS {
        print(&format!("{:<14}{:<11}{}\n", check.level, check.id, check.title));
    }
}

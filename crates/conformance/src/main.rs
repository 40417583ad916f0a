//! `cni-conformance`: tests a CNI plugin of any language, or a chain of plugins, with calls as runtimes make them.
//!
//! It creates network namespaces of its own and calls the plugin in them: as the specification says, with incomplete input, 64 at
//! once, killed, with failing system calls. After each call it compares what is left. Every test is a function of
//! [`cnikit_testkit`]; this program chooses those that apply to the plugin, gives each a level and the sentence of the
//! specification, and reports. Parts, in reading order:
//!
//! - `cli`: the command line.
//! - `isolation`: runs the program in namespaces of its own, and ends what plugins leave there.
//! - `case`: from the command line to what is tested.
//! - `checks`: the table of tests.
//! - `chain`: a plugin that calls the plugins of a list, so that a chain is tested as one plugin.
//! - `report`: text, TAP, `JUnit` and JSON.

mod case;
mod chain;
mod checks;
mod cli;
mod isolation;
mod report;

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use cnikit_testkit::{can_be_private, settle_in};

use crate::case::Case;
use crate::cli::{Campaigns, CommandLine};
use crate::report::Report;

/// The exit status if a test of a required level failed.
const NOT_CONFORMING: u8 = 1;
/// The exit status if nothing could be tested.
const UNUSABLE: u8 = 2;

fn main() -> ExitCode {
    let mut args = std::env::args_os();
    let name = args.next().map(PathBuf::from).unwrap_or_default();
    match name.file_name().and_then(OsStr::to_str) {
        Some(chain::NAME) => return chain::main(),
        Some(isolation::WORKER) => return work(),
        _ => {}
    }
    if args.next().is_some_and(|argument| argument == isolation::INIT) {
        return isolation::init();
    }
    let line = CommandLine::parse();
    if line.list {
        report::list_checks();
        return ExitCode::SUCCESS;
    }
    isolation::run_again(line.output.as_deref()).unwrap_or_else(|error| unusable(&error))
}

/// Runs the tests, in the namespaces.
fn work() -> ExitCode {
    isolation::end_with_init();
    let line = CommandLine::parse();
    match run(&line) {
        Ok(report) if report.is_met(line.level) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(NOT_CONFORMING),
        Err(error) => unusable(&error),
    }
}

/// Reports why nothing could be tested.
fn unusable(error: &str) -> ExitCode {
    report::print_to_stderr(&format!("cni-conformance: {error}"));
    ExitCode::from(UNUSABLE)
}

/// Runs the tests of the command line, and writes the report to stdout.
///
/// # Errors
/// Why there is nothing to test: a file that cannot be read, a missing program, a directory of state that cannot be private.
fn run(line: &CommandLine) -> Result<Report, String> {
    let chosen = line.chosen_checks()?;
    let inputs = case::Inputs::read(line)?;
    if let Some(one) = line.state.iter().find(|one| !can_be_private(one)) {
        let why = "it does not exist, and neither does any directory above it";
        return Err(format!("--state {}: {why}; hint: create it, or name one below /run or /var", one.display()));
    }
    settle_in(&line.state);
    // A test fails by a panic, whose text is the finding.
    std::panic::set_hook(Box::new(|_| {}));
    let case = Case::of(line, inputs)?;
    let mut report = Report::new(line, &case);
    report.begin();
    for check in chosen {
        let runs_campaigns = match line.campaigns {
            Campaigns::Always => true,
            Campaigns::IfPassed => report.is_met(check.level),
            Campaigns::Never => false,
        };
        report.add(check.run(&case, runs_campaigns));
    }
    report.finish();
    Ok(report)
}

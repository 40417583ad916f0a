//! `cni-conformance`: tests a CNI plugin of any language, or a chain of plugins, with calls as runtimes make them.
//!
//! It creates network namespaces of its own and calls the plugin in them: as the specification says, with incomplete input, 64 at
//! once, killed, with failing system calls. After each call it compares what is left. Every test is a function of
//! [`cnikit_testkit`]; this program chooses those that apply to the plugin, gives each a level and the sentence of the
//! specification, and reports. Parts, in reading order:
//!
//! - `cli`: the command line.
//! - `isolation`: moves the process into namespaces of its own.
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

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

use crate::case::Case;
use crate::cli::{Campaigns, CommandLine};
use crate::report::Report;

/// The exit status if a test of a required level failed.
const NOT_CONFORMING: u8 = 1;
/// The exit status if nothing could be tested.
const UNUSABLE: u8 = 2;

fn main() -> ExitCode {
    let name = std::env::args_os().next();
    if name.as_deref().and_then(|name| Path::new(name).file_name()).is_some_and(|name| name == chain::NAME) {
        return chain::main();
    }
    let line = CommandLine::parse();
    match run(&line) {
        Ok(report) if report.is_met(line.level) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(NOT_CONFORMING),
        Err(error) => {
            report::print_to_stderr(&format!("cni-conformance: {error}"));
            ExitCode::from(UNUSABLE)
        }
    }
}

/// Runs the tests of the command line, and writes the report.
///
/// # Errors
/// Why there is nothing to test: a file that cannot be read, a missing program, no namespaces.
fn run(line: &CommandLine) -> Result<Report, String> {
    if line.list {
        report::list_checks();
        return Ok(Report::default());
    }
    let chosen = line.chosen_checks()?;
    let inputs = case::Inputs::read(line)?;
    isolation::enter(&line.state)?;
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
    report.finish()?;
    Ok(report)
}

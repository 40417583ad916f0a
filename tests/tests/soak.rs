//! A flood that lasts for hours. `scripts/soak` starts it with the right settings.
#![expect(clippy::print_stderr, reason = "it is a program, and this is its report")]

use std::process::ExitCode;
use std::time::Duration;

use cnikit_testkit::soak::Soak;
use cnikit_tests::flooded;

const USAGE: &str = "soak [--operations NUMBER] [--for MINUTES] [--label TEXT] --state FILE";

fn main() -> ExitCode {
    let mut soak = Soak {
        subjects: Vec::new(),
        operations: 1_000_000,
        time_limit: Duration::MAX,
        state: std::path::PathBuf::new(),
        label: String::new(),
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().unwrap_or_else(|| panic!("{word} wants a value: {USAGE}"));
        let number = || value.parse::<u32>().unwrap_or_else(|error| panic!("{word} {value}: {error}: {USAGE}"));
        match word.as_str() {
            "--operations" => soak.operations = number() as usize,
            "--for" => soak.time_limit = Duration::from_mins(number().into()),
            "--state" => soak.state = value.into(),
            "--label" => soak.label = value,
            _ => panic!("{word}: {USAGE}"),
        }
    }
    soak.subjects = flooded();
    match soak.run() {
        Ok(tally) if tally.found.is_empty() => return ExitCode::SUCCESS,
        Ok(tally) => eprintln!("{}", tally.found.join("\n")),
        Err(error) => eprintln!("soak: {}: {error}", soak.state.display()),
    }
    ExitCode::FAILURE
}

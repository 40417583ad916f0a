//! Runs every target with the stored corpus, with mutations of it, and with huge inputs.
//!
//! `CNIKIT_FUZZ_SECONDS` is the time for mutations of each target, and `CNIKIT_SEED` selects the mutations. A failure prints the
//! input.

mod huge;

use std::panic::catch_unwind;
use std::time::{Duration, Instant};

use cnikit_fuzz::{TARGETS, Target, mutate::mutate};
use cnikit_testkit::campaign::{SummaryLine, seeded_rng};
use cnikit_testkit::own_process::processor_time;
use libtest_mimic::{Arguments, Failed, Trial};

/// The processor time that any input may take, in a debug build.
const TIMEOUT: Duration = Duration::from_millis(500);
/// An input that takes longer is compared with an input of a quarter of its length: it may not take this many times as long.
/// Quadratic time would take 16 times as long.
const DISPROPORTION: u32 = 8;

fn main() {
    let mut tests = Vec::new();
    for target in TARGETS {
        tests.push(Trial::test(format!("{}::corpus", target.name), || corpus(target)));
        tests.push(Trial::test(format!("{}::mutations", target.name), || mutations(target)));
        tests.push(Trial::test(format!("{}::huge", target.name), || huge(target)));
    }
    libtest_mimic::run(&Arguments::from_args(), tests).exit();
}

fn corpus(target: &Target) -> Result<(), Failed> {
    let seeds = target.seeds();
    if seeds.is_empty() {
        return Err(format!("{} has nothing to start from", target.corpus().display()).into());
    }
    seeds.iter().try_for_each(|seed| attempt(target, seed).map(drop))
}

fn mutations(target: &Target) -> Result<(), Failed> {
    let what = format!("fuzz {}", target.name);
    let seeds = target.seeds();
    let mut rng = seeded_rng(&what);
    let until = Instant::now() + Duration::from_secs(seconds());
    let mut line = SummaryLine::new(what, "mutations").with_seed();
    let mut survived = Ok(Duration::ZERO);
    while survived.is_ok() && Instant::now() < until {
        survived = attempt(target, &mutate(&seeds, target.words, &mut rng));
        line.tried += 1;
    }
    line.of = line.tried;
    line.found = usize::from(survived.is_err());
    line.print();
    survived.map(drop)
}

fn huge(target: &Target) -> Result<(), Failed> {
    let long = huge::longest(target) / 4;
    let longer = huge::longest(target);
    for (small, large) in huge::inputs(target, long).iter().zip(huge::inputs(target, longer)) {
        let before = attempt(target, small)?;
        let after = attempt(target, &large)?;
        if after > TIMEOUT && after > before * DISPROPORTION {
            return Err(format!("{before:?}, and four times as much took {after:?}: {}", shown(target, &large)).into());
        }
    }
    Ok(())
}

/// Time for the mutations of each target, in seconds; the default is one second.
#[expect(clippy::disallowed_methods, reason = "the environment sets the time of a long run")]
fn seconds() -> u64 {
    let Ok(text) = std::env::var("CNIKIT_FUZZ_SECONDS") else { return 1 };
    text.parse().unwrap_or_else(|error| panic!("CNIKIT_FUZZ_SECONDS={text}: {error}"))
}

/// Runs a target with one input and returns the processor time. A property that does not hold is an error that shows the input.
fn attempt(target: &Target, input: &[u8]) -> Result<Duration, Failed> {
    let run = target.run;
    let began = processor_time();
    catch_unwind(|| run(input)).map_err(|_| shown(target, input))?;
    Ok(processor_time().saturating_sub(began))
}

/// Prints the input as a Rust byte string, or its first 4 KiB.
fn shown(target: &Target, input: &[u8]) -> String {
    let start = &input[..input.len().min(4 << 10)];
    format!("{} of {} bytes: b\"{}\"", target.name, input.len(), start.escape_ascii())
}

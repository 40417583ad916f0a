//! Every target with what was kept of earlier runs, with mutations of it, and with inputs that are huge.
//!
//! `CNIKIT_FUZZ_SECONDS` says how long each target is given mutations, and `CNIKIT_SEED` which ones. A failure shows the
//! input.

mod huge;

use std::panic::catch_unwind;
use std::time::{Duration, Instant};

use cnikit_fuzz::{TARGETS, Target, mutate::mutate};
use cnikit_testkit::campaign::{SummaryLine, seeded_rng};
use cnikit_testkit::own_process::processor_time;
use libtest_mimic::{Arguments, Failed, Trial};

/// What any input may take of a processor, this being no release build.
const TIMEOUT: Duration = Duration::from_millis(500);
/// What takes longer may not take so many times as long for an input four times as long: what is compared each with each
/// takes 16 times as long.
const DISPROPORTION: u32 = 8;

fn main() {
    let tests = TARGETS.iter().flat_map(|target| {
        [
            Trial::test(format!("{}::corpus", target.name), || corpus(target)),
            Trial::test(format!("{}::mutations", target.name), || mutations(target)),
            Trial::test(format!("{}::huge", target.name), || huge(target)),
        ]
    });
    libtest_mimic::run(&Arguments::from_args(), tests.collect()).exit();
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

/// How long each target is given mutations: one second if nobody said otherwise.
#[expect(clippy::disallowed_methods, reason = "whoever starts a long run says so in the environment")]
fn seconds() -> u64 {
    let Ok(text) = std::env::var("CNIKIT_FUZZ_SECONDS") else { return 1 };
    text.parse().unwrap_or_else(|error| panic!("CNIKIT_FUZZ_SECONDS={text}: {error}"))
}

/// One input, and what it took of a processor: a promise that was broken is an error that shows the input.
fn attempt(target: &Target, input: &[u8]) -> Result<Duration, Failed> {
    let run = target.run;
    let began = processor_time();
    catch_unwind(|| run(input)).map_err(|_| shown(target, input))?;
    Ok(processor_time().saturating_sub(began))
}

/// The input in a form that a test can be made of; the beginning of it, if it is long.
fn shown(target: &Target, input: &[u8]) -> String {
    let start = &input[..input.len().min(4 << 10)];
    format!("{} of {} bytes: b\"{}\"", target.name, input.len(), start.escape_ascii())
}

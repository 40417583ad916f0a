//! Scenes as a test harness has them.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

/// Runs scenes by name. Runtimes need the machine's own root: as root of a user namespace none is run, and that is reported with
/// the text that `scripts/test` expects.
pub fn trials<F: Fn() + Send + 'static>(arguments: &Arguments, scenes: Vec<(String, F)>) -> ExitCode {
    trials_unless(|| None, arguments, scenes)
}

/// The same, if root of this machine finds nothing that they lack.
pub fn trials_unless<F: Fn() + Send + 'static>(
    lacking: fn() -> Option<&'static str>,
    arguments: &Arguments,
    scenes: Vec<(String, F)>,
) -> ExitCode {
    let unmet = if is_root() { lacking() } else { Some("the machine's own root") };
    let count = scenes.len();
    let mut trials = Vec::new();
    for (name, play) in scenes {
        let trial = Trial::test(name, move || {
            play();
            Ok(())
        });
        trials.push(trial.with_ignored_flag(unmet.is_some()));
    }
    let conclusion = libtest_mimic::run(arguments, trials);
    if let Some(unmet) = unmet {
        println!("runtimes: {count} not run here for want of: {unmet}\n");
    }
    conclusion.exit_code()
}

/// Whether every user of the machine is mapped to itself; see `user_namespaces(7)`.
fn is_root() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap();
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

//! Scenes as a test harness has them.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

/// Runs scenes by name. Runtimes need the machine's own root: as root of a user namespace none is run, and that is reported with
/// the text that `scripts/test` expects.
pub fn trials<F: Fn() + Send + 'static>(arguments: &Arguments, scenes: Vec<(String, F)>) -> ExitCode {
    let is_root = is_root();
    let count = scenes.len();
    let mut trials = Vec::new();
    for (name, play) in scenes {
        let trial = Trial::test(name, move || {
            play();
            Ok(())
        });
        trials.push(trial.with_ignored_flag(!is_root));
    }
    let conclusion = libtest_mimic::run(arguments, trials);
    if !is_root {
        println!("runtimes: {count} not run here for want of: root\n");
    }
    conclusion.exit_code()
}

/// Whether every user of the machine is mapped to itself; see `user_namespaces(7)`.
fn is_root() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap();
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

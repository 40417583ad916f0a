//! Runs a test in a process of its own, and measures the processor time of a thread.

use std::process::Command;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// The variable that is set in that process: the name of the test.
const ALONE: &str = "CNIKIT_TEST_ALONE";

/// Runs a test in a process of its own: starts the test program again for this test only, and runs `work` there. Use it for tests
/// that other tests of the program disturb, for example by memory of the whole process, or by descriptors that programs inherit.
///
/// `name` is the name of the test with its modules, as the harness prints it. Panics with the output if the test fails there.
#[expect(clippy::disallowed_methods, reason = "a test is started again, with the environment of this process")]
pub fn in_own_process(name: &str, work: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some_and(|alone| alone == name) {
        return work();
    }
    let mut this = Command::new(std::env::current_exe().unwrap());
    let output = this.args(["--exact", name, "--nocapture"]).env(ALONE, name).output().unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success() && text.contains("1 passed"), "{name}: {text}");
}

/// The processor time of the calling thread, user and system. The load of the machine hardly changes it.
pub fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parallel::catch_panic;

    const NAME: &str = "own_process::tests::a_test_runs_in_another_process_and_its_failure_is_reported";

    #[test]
    #[expect(clippy::disallowed_methods, reason = "in the other process its failure must not be caught")]
    fn a_test_runs_in_another_process_and_its_failure_is_reported() {
        let fails = || in_own_process(NAME, || panic!("done in process {}", std::process::id()));
        if std::env::var_os(ALONE).is_some() {
            return fails();
        }
        let message = catch_panic(fails).unwrap_err();
        let here = format!("done in process {}\n", std::process::id());
        assert!(
            message.starts_with(NAME) && message.contains("done in process ") && !message.contains(&here),
            "{message}"
        );
    }

    #[test]
    fn a_name_without_a_test_is_an_error() {
        let message = catch_panic(|| in_own_process("own_process::tests::nowhere", || {})).unwrap_err();
        assert!(message.contains("0 passed"), "{message}");
    }

    #[test]
    fn a_thread_that_waits_does_not_run() {
        let before = processor_time();
        cnikit_process::Deadline::never().pause(Duration::from_millis(200));
        let waited = processor_time().saturating_sub(before);
        assert!(waited < Duration::from_millis(100), "{waited:?}");
    }
}

//! Runs a test in a process of its own, and measures the processor time of a thread.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use cnikit_process::{Deadline, Ended, Env, Program};
use nix::time::{ClockId, clock_gettime};

/// The variable that is set in that process: the name of the test.
const ALONE: &str = "CNIKIT_TEST_ALONE";

/// How much a test may print.
const LIMIT: usize = 256 << 20;

/// The time between `SIGTERM` and `SIGKILL` for a test that prints more.
const GRACE: Duration = Duration::from_secs(1);

/// Runs a test in a process of its own: starts the test program again for this test only, and runs `work` there. Use it for tests
/// that other tests of the program disturb, for example by memory of the whole process, or by descriptors that programs inherit.
///
/// `name` is the name of the test with its modules, as the harness prints it. Panics with the output if the test fails there.
///
/// ```no_run
/// # use cnikit_testing::in_own_process;
/// in_own_process("tests::memory_is_limited", || { /* the test */ });
/// ```
pub fn in_own_process(name: &str, work: impl FnOnce()) {
    if is_set(ALONE, name) {
        return work();
    }
    let (succeeded, text) = run_test_again(name, ALONE, &[]);
    assert!(succeeded, "{name}: {text}");
}

/// Whether this process was started by [`run_test_again`] with this variable and this name.
#[expect(clippy::disallowed_methods, reason = "the variable is how a test program knows that it was started again")]
pub(crate) fn is_set(variable: &str, name: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| value == name)
}

/// Starts this test program again for one test, with a variable that has the test's name, by another program with arguments if
/// `through` has one. Returns whether that test passed, and the output.
pub(crate) fn run_test_again(name: &str, variable: &str, through: &[OsString]) -> (bool, String) {
    let mut words = through.to_vec();
    words.push(std::env::current_exe().unwrap().into());
    words.extend(["--exact", name, "--include-ignored", "--nocapture"].map(OsString::from));
    let ended = run(words, vec![(variable.into(), name.into())]);
    let succeeded = ended.how.is_success();
    let text = [ended.stdout, ended.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (succeeded && text.contains("1 passed"), text)
}

/// Runs a program by its path and arguments, with additional variables, to its end.
pub(crate) fn run(mut words: Vec<OsString>, variables: Vec<(OsString, OsString)>) -> Ended {
    let path = PathBuf::from(words.remove(0));
    let env = Env::inherited(variables);
    let program = Program::new(path, env).args(words).limit(LIMIT).grace(GRACE);
    cnikit_process::run(&program, Deadline::never())
        .unwrap_or_else(|error| panic!("{}: {error}", program.path.display()))
}

/// The processor time of the calling thread, user and system. The load of the machine hardly changes it.
pub fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    const NAME: &str = "own_process::tests::a_test_runs_in_another_process_and_its_failure_is_reported";

    fn message_of(work: impl FnOnce()) -> String {
        let panic = catch_unwind(AssertUnwindSafe(work)).unwrap_err();
        panic.downcast_ref::<String>().unwrap().clone()
    }

    #[test]
    fn a_test_runs_in_another_process_and_its_failure_is_reported() {
        let fails = || in_own_process(NAME, || panic!("done in process {}", std::process::id()));
        if is_set(ALONE, NAME) {
            return fails();
        }
        let message = message_of(fails);
        let here = format!("done in process {}\n", std::process::id());
        assert!(
            message.starts_with(NAME) && message.contains("done in process ") && !message.contains(&here),
            "{message}"
        );
    }

    #[test]
    fn a_name_without_a_test_is_an_error() {
        let message = message_of(|| in_own_process("own_process::tests::nowhere", || {}));
        assert!(message.contains("0 passed"), "{message}");
    }

    #[test]
    fn a_thread_that_waits_does_not_run() {
        let before = processor_time();
        Deadline::never().pause(Duration::from_millis(200));
        let waited = processor_time().saturating_sub(before);
        assert!(waited < Duration::from_millis(100), "{waited:?}");
    }
}

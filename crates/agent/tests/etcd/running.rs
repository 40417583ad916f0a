//! A program that runs on a test's host until the test ends it.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use cnikit_process::{CancellationToken, Deadline, Ended, Env, Error, Program, run_while};
use cnikit_testing::Host;

/// The longest that a program may run.
const LIFE: Duration = Duration::from_hours(6);

/// How much slower a virtual machine is, at least, whose processor is emulated: time limits are so much longer there.
const SLOWNESS: u32 = 10;

/// Whether this is a virtual machine of `scripts/vm`, which has a clock of its own.
pub(crate) fn has_own_clock() -> bool {
    Path::new("/dev/vm-status").exists()
}

/// How much longer everything takes here.
pub(crate) fn slowness() -> u32 {
    if has_own_clock() { SLOWNESS } else { 1 }
}

/// A time as it is on this machine.
pub(crate) fn scaled(time: Duration) -> Duration {
    time * slowness()
}

pub(crate) struct Running {
    cancel: CancellationToken,
    thread: Option<JoinHandle<Result<Ended, Error>>>,
    pid_file: PathBuf,
}

impl Running {
    /// Starts a command, with its output in a file.
    pub(crate) fn start(host: &Host, name: &str, command: &str) -> Running {
        let cancel = CancellationToken::new().unwrap();
        let pid_file = host.dir().join(format!("{name}.pid"));
        let _ = std::fs::remove_file(&pid_file);
        let (pid, log) = (pid_file.display(), host.dir().join(format!("{name}.log")));
        let line = format!("echo $$ >{pid}; exec {command} >>{} 2>&1", log.display());
        let program = Program::new("/bin/sh", Env::Clean(&[]))
            .args(vec!["-c".into(), line.into()])
            .grace(Duration::from_secs(10));
        let token = cancel.clone();
        let netns = host.netns().clone();
        let work = move || netns.enter(|_| run_while(&program, Deadline::after(LIFE), &token)).unwrap();
        Running { cancel, thread: Some(std::thread::spawn(work)), pid_file }
    }

    /// Sends a signal, unless it has ended by itself: `KILL`, `STOP`, `CONT`, `TERM`.
    pub(crate) fn signal(&self, host: &Host, signal: &str) {
        let deadline = Deadline::after(scaled(Duration::from_secs(10)));
        loop {
            let pid = std::fs::read_to_string(&self.pid_file).unwrap_or_default();
            let is_written = pid.ends_with('\n');
            if is_written && (host.try_sh(&format!("kill -{signal} {}", pid.trim())).0 || self.has_ended()) {
                return;
            }
            assert!(deadline.pause(Duration::from_millis(5)), "it has no process");
        }
    }

    fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until it has ended by itself.
    pub(crate) fn finish(mut self) -> Ended {
        self.thread.take().unwrap().join().unwrap().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.cancel.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Waits until something is true.
pub(crate) fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let deadline = Deadline::after(scaled(Duration::from_mins(1)));
    while !is_true() {
        assert!(deadline.pause(Duration::from_millis(20)), "{what}");
    }
}

/// The last lines of a log.
pub(crate) fn log_of(dir: &Path, name: &str) -> String {
    std::fs::read_to_string(dir.join(format!("{name}.log"))).unwrap_or_default()
}

//! A server that runs on a test's host until the test ends it.

use std::thread::JoinHandle;
use std::time::Duration;

use cnikit_process::{CancellationToken, Deadline, Ended, Error, Program, run_while};
use cnikit_testkit::Host;

/// The longest that a server may run.
const LIFE: Duration = Duration::from_hours(3);

/// A running program. It ends with the value, and with the process.
pub struct RunningServer {
    cancel: CancellationToken,
    thread: Option<JoinHandle<Result<Ended, Error>>>,
}

impl RunningServer {
    /// Starts the program on this host.
    pub fn start(host: &Host, program: Program) -> RunningServer {
        let cancel = CancellationToken::new().unwrap();
        let token = cancel.clone();
        let netns = host.netns().clone();
        let work = move || netns.enter(|_| run_while(&program, Deadline::after(LIFE), &token)).unwrap();
        RunningServer { cancel, thread: Some(std::thread::spawn(work)) }
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends it by `SIGTERM`, unless it has ended by itself, and returns how.
    ///
    /// # Errors
    /// [`Error::Cancelled`], with its output on stderr, if it had not ended by itself.
    pub fn stop(mut self) -> Result<Ended, Error> {
        self.cancel.cancel();
        self.join()
    }

    /// Waits until it has ended by itself.
    pub fn finish(mut self) -> Ended {
        self.join().unwrap()
    }

    fn join(&mut self) -> Result<Ended, Error> {
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        self.cancel.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

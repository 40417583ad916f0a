//! Progress of work that takes longer than a second, on a terminal.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use crate::output::print::write_to_stderr_unescaped;
use crate::output::text::escaped;

/// The time before progress is shown.
const SILENCE: Duration = Duration::from_secs(1);
/// The time between two updates.
pub(crate) const INTERVAL: Duration = Duration::from_millis(100);
/// Moves the cursor to the start of the line and erases the line; see `console_codes(4)`.
const ERASE_LINE: &str = "\r\x1b[K";

/// A line on stderr that shows how far the work is. It is shown on a terminal only.
#[derive(Debug)]
pub(crate) struct Progress {
    what: String,
    began: Instant,
    shown: Option<Instant>,
    is_terminal: bool,
}

impl Progress {
    pub(crate) fn of(what: &str) -> Progress {
        Progress::since(Instant::now(), what.to_owned())
    }

    /// The progress of work that began at this time.
    pub(crate) fn since(began: Instant, what: String) -> Progress {
        Progress { what, began, shown: None, is_terminal: io::stderr().is_terminal() }
    }

    /// Whether stderr is a terminal.
    pub(crate) fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Shows a count.
    pub(crate) fn count(&mut self, done: usize, of: usize) {
        if self.is_due() {
            self.show(&format!("{done} of {of}"));
        }
    }

    /// Shows the time since the work began.
    pub(crate) fn elapsed(&mut self) {
        if self.is_due() {
            self.show(&format!("{} s", self.began.elapsed().as_secs()));
        }
    }

    fn is_due(&self) -> bool {
        let is_time = match self.shown {
            Some(shown) => shown.elapsed() > INTERVAL,
            None => self.began.elapsed() > SILENCE,
        };
        self.is_terminal && is_time
    }

    fn show(&mut self, how_far: &str) {
        let _ = write_to_stderr_unescaped(&format!("{ERASE_LINE}{}: {how_far}", escaped(&self.what)));
        self.shown = Some(Instant::now());
    }

    /// Erases the line.
    pub(crate) fn end(self) {
        if self.shown.is_some() {
            let _ = write_to_stderr_unescaped(ERASE_LINE);
        }
    }
}

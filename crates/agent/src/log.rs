//! The agent's log: lines on stderr, which systemd keeps.

use std::fmt::Display;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use cnikit_types::printable;

/// Whether every step is logged.
static VERBOSE: AtomicBool = AtomicBool::new(false);

/// Logs every step too.
pub fn log_steps() {
    VERBOSE.store(true, Ordering::Relaxed);
}

/// Logs an event. Control characters are escaped: the engine's values are other programs' texts.
pub(crate) fn log(about: &str, what: impl Display) {
    let line = format!("cnikit-agent: {about}: {what}\n");
    // If this fails, there is no other place to report it.
    let _ = std::io::stderr().lock().write_all(printable(&line).as_bytes());
}

/// Logs a step, if all are logged.
pub(crate) fn log_step(what: impl Display) {
    if VERBOSE.load(Ordering::Relaxed) {
        log("step", what);
    }
}

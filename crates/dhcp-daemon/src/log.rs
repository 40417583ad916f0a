//! The daemon's log: lines on stderr, which systemd keeps.

use std::fmt::Display;
use std::io::Write;

/// Logs a line about a lease, or about anything else that has a name.
pub(crate) fn log(about: impl Display, what: impl Display) {
    // If this fails, there is no other place to report it.
    let _ = writeln!(std::io::stderr().lock(), "dhcp: {about}: {what}");
}

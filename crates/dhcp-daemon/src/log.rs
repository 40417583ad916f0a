//! The daemon's log: lines on stderr, which systemd keeps.

use std::fmt::Display;
use std::io::Write;

use cnikit_types::printable;

/// Logs a line about a lease, or about anything else that has a name. Control characters are escaped: a container names its
/// interface, a server writes texts.
pub(crate) fn log(about: impl Display, what: impl Display) {
    let line = format!("dhcp: {about}: {what}\n");
    // If this fails, there is no other place to report it.
    let _ = std::io::stderr().lock().write_all(printable(&line).as_bytes());
}

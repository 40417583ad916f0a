//! What the clients of both families have in common: a message that is repeated until it is answered.

use std::fmt;
use std::time::Duration;

/// A message and its repetitions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Exchange {
    /// The number by which an answer is recognised.
    pub(crate) xid: u32,
    /// When the message was sent first.
    pub(crate) began: Duration,
    /// How often it was sent.
    pub(crate) sent: u32,
}

/// What keeps a client from having a lease that was restarted and has not asked about it yet.
pub(crate) const UNCONFIRMED: &str = "the server is not asked yet whether the lease of before the restart is valid";

/// Writes that a message got no answer, how often it was sent, and in which time.
pub(crate) fn write_unanswered(f: &mut fmt::Formatter<'_>, message: &str, sent: u32, waited: Duration) -> fmt::Result {
    let times = if sent == 1 { "once" } else { &format!("{sent} times") };
    write!(f, "{message} got no answer: it was sent {times} in {:.1} s", waited.as_secs_f64())
}

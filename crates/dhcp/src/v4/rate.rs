//! The limit of packets that are handled.

use std::time::Duration;

/// The packets of all kinds that a client handles in a second. An exchange has two; the rest of a flood costs the sender only.
pub const PACKETS_PER_SECOND: u32 = 64;

const SECOND: Duration = Duration::from_secs(1);

/// Counts packets in intervals of a second.
#[derive(Debug, Default)]
pub(crate) struct RateLimit {
    /// When the interval began.
    since: Duration,
    admitted: u32,
}

impl RateLimit {
    /// Whether a packet is handled that arrived now.
    pub(crate) fn admit(&mut self, now: Duration) -> bool {
        if now.saturating_sub(self.since) >= SECOND {
            self.since = now;
            self.admitted = 0;
        }
        self.admitted += 1;
        self.admitted <= PACKETS_PER_SECOND
    }

    /// Until when no packet is handled; `None` if the next one is.
    pub(crate) fn closed_until(&self, now: Duration) -> Option<Duration> {
        let end = self.since.saturating_add(SECOND);
        if self.admitted >= PACKETS_PER_SECOND && now < end { Some(end) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_limit_is_handled_in_a_second() {
        let mut rate = RateLimit::default();
        let start = Duration::from_secs(1_000);
        let handled = |rate: &mut RateLimit, now| (0..1_000).filter(|_| rate.admit(now)).count();
        assert_eq!(rate.closed_until(start), None);
        assert_eq!(handled(&mut rate, start), 64);
        assert_eq!(rate.closed_until(start + SECOND / 2), Some(start + SECOND));
        assert_eq!(handled(&mut rate, start + SECOND / 2), 0);
        assert_eq!(rate.closed_until(start + SECOND), None);
        assert_eq!(handled(&mut rate, start + SECOND), 64);
    }
}

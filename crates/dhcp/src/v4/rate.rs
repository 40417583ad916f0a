//! The limit of packets that are handled.

use std::time::Duration;

/// The packets of all kinds that a client handles in a second. An exchange has two; the rest of a flood costs the sender only.
pub const PACKETS_PER_SECOND: u32 = 64;

/// The packets that are no answers to its request, by what is compared first. The kernel's filter drops nearly all of them.
pub(crate) const FOREIGN_PACKETS_PER_SECOND: u32 = 4_096;

const SECOND: Duration = Duration::from_secs(1);

/// Counts packets in intervals of a second.
#[derive(Debug, Default)]
pub(crate) struct RateLimit {
    /// When the interval began.
    since: Duration,
    admitted: u32,
    foreign: u32,
}

impl RateLimit {
    /// Whether a packet is handled that arrived now.
    pub(crate) fn admit(&mut self, now: Duration) -> bool {
        self.begin(now);
        self.admitted = self.admitted.saturating_add(1);
        self.admitted <= PACKETS_PER_SECOND && self.foreign < FOREIGN_PACKETS_PER_SECOND
    }

    /// Counts a packet that is not an answer to the client's request. It takes nothing from those that are.
    pub(crate) fn note_foreign(&mut self, now: Duration) {
        self.begin(now);
        self.foreign = self.foreign.saturating_add(1);
    }

    fn begin(&mut self, now: Duration) {
        if now.saturating_sub(self.since) >= SECOND {
            *self = RateLimit { since: now, ..RateLimit::default() };
        }
    }

    /// Until when no packet is handled; `None` if the next one is.
    pub(crate) fn closed_until(&self, now: Duration) -> Option<Duration> {
        let end = self.since.saturating_add(SECOND);
        let is_full = self.admitted >= PACKETS_PER_SECOND || self.foreign >= FOREIGN_PACKETS_PER_SECOND;
        if is_full && now < end { Some(end) } else { None }
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

    #[test]
    fn packets_that_are_no_answers_leave_room_for_those_that_are() {
        let mut rate = RateLimit::default();
        let start = Duration::from_secs(1_000);
        for _ in 0..FOREIGN_PACKETS_PER_SECOND - 1 {
            rate.note_foreign(start);
        }
        assert!(rate.admit(start) && rate.closed_until(start).is_none());
        rate.note_foreign(start);
        assert!(!rate.admit(start));
        assert_eq!(rate.closed_until(start), Some(start + SECOND));
        assert!(rate.admit(start + SECOND));
    }
}

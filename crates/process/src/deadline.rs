//! Points in time until which callers wait.

use std::thread;
use std::time::{Duration, Instant};

/// A point in time until which something is waited for, on the clock that cannot be set (`CLOCK_MONOTONIC`).
///
/// It is passed down instead of a duration, so that ten steps of one second each cannot take ten seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// A deadline this long from now; a zero duration has passed at once. One beyond the range of the clock is [`Deadline::never`].
    pub fn after(duration: Duration) -> Self {
        Self(Instant::now().checked_add(duration))
    }

    /// A deadline that never passes.
    pub fn never() -> Self {
        Self(None)
    }

    /// The time that is left: zero when the deadline has passed, `None` if it never will.
    pub fn remaining(&self) -> Option<Duration> {
        self.0.map(|end| end.saturating_duration_since(Instant::now()))
    }

    /// Whether the deadline has passed.
    pub fn passed(&self) -> bool {
        self.remaining().is_some_and(|left| left.is_zero())
    }

    /// Sleeps for `duration`, at most until the deadline; returns whether there is time left for another attempt.
    #[doc(alias = "sleep")]
    #[expect(clippy::disallowed_methods, reason = "this is the room")]
    pub fn pause(&self, duration: Duration) -> bool {
        thread::sleep(self.remaining().map_or(duration, |left| left.min(duration)));
        !self.passed()
    }

    /// The remaining milliseconds as poll(2) takes them: rounded up, so that no loop spins during the last one; -1 for
    /// [`Deadline::never`].
    pub fn poll_timeout_ms(&self) -> i32 {
        let Some(left) = self.remaining() else { return -1 };
        i32::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
    }

    /// This deadline, or one this long from now if that is sooner.
    #[must_use]
    pub fn at_most(&self, duration: Duration) -> Self {
        match self.remaining() {
            Some(left) if left <= duration => *self,
            _ => Self::after(duration),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_hours(1);
    const SHORT: Duration = Duration::from_millis(20);

    #[test]
    fn zero_has_passed_and_never_does_not() {
        assert!(Deadline::after(Duration::ZERO).passed());
        assert!(!Deadline::never().passed());
        assert!(!Deadline::after(LONG).passed());
        assert_eq!(Deadline::never().remaining(), None);
        assert_eq!(Deadline::after(Duration::MAX), Deadline::never());
    }

    #[test]
    fn a_pause_ends_with_the_deadline_and_reports_it() {
        let start = Instant::now();
        assert!(!Deadline::after(SHORT).pause(LONG));
        assert!(Deadline::after(LONG).pause(SHORT));
        assert!(Deadline::never().pause(SHORT));
        assert!(start.elapsed() >= 3 * SHORT && start.elapsed() < LONG);
    }

    #[test]
    fn a_poll_timeout_is_rounded_up_and_fits() {
        assert_eq!(Deadline::never().poll_timeout_ms(), -1);
        assert_eq!(Deadline::after(Duration::ZERO).poll_timeout_ms(), 0);
        assert!((1..=20).contains(&Deadline::after(SHORT).poll_timeout_ms()));
        assert_eq!(Deadline::after(1000 * LONG).poll_timeout_ms(), i32::MAX);
    }

    #[test]
    fn the_sooner_of_two_ends_is_taken() {
        assert!(Deadline::never().at_most(Duration::ZERO).passed());
        assert!(Deadline::after(Duration::ZERO).at_most(LONG).passed());
        assert!(Deadline::after(LONG).at_most(SHORT).remaining() <= Some(SHORT));
    }
}

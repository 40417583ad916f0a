//! The order and the pace in which servers are asked about the leases of before a restart.

use std::time::Duration;

/// The exchanges that run at a time.
const MOST_AT_ONCE: usize = 32;
/// How long one of them counts as running. A server that is down answers none, and the others have their turn.
const LONGEST: Duration = Duration::from_secs(10);
/// The first one begins within this time. Many hosts may have been started at the same time (RFC 2131, section 4.4.1).
const START: Duration = Duration::from_secs(1);
/// The time between two beginnings; half of it more or less is chance.
const GAP: Duration = Duration::from_millis(20);

/// The leases (`K`) about which no server was asked yet.
#[derive(Debug)]
pub(crate) struct Confirmations<K> {
    /// The last one is the next.
    waiting: Vec<K>,
    /// Those that were begun, and until when they count.
    running: Vec<(K, Duration)>,
    /// When the next one may begin.
    due: Duration,
}

impl<K: Clone + PartialEq> Confirmations<K> {
    /// Those of these leases, in this order. `chance`: a number from 0 to 1.
    pub(crate) fn new(now: Duration, mut leases: Vec<K>, chance: f64) -> Confirmations<K> {
        leases.reverse();
        Confirmations { waiting: leases, running: Vec::new(), due: now + START.mul_f64(chance) }
    }

    /// The lease about which a server is asked now, if there is one. `is_unanswered`: whether it still is for a lease. `chance`: as
    /// above.
    pub(crate) fn next(&mut self, now: Duration, is_unanswered: impl Fn(&K) -> bool, chance: f64) -> Option<K> {
        self.running.retain(|(lease, until)| *until > now && is_unanswered(lease));
        if self.due > now || self.running.len() >= MOST_AT_ONCE {
            return None;
        }
        let lease = self.waiting.pop()?;
        self.running.push((lease.clone(), now + LONGEST));
        self.due = now + GAP.mul_f64(0.5 + chance);
        Some(lease)
    }

    /// When the next one may begin, unless an answer comes before.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        if self.waiting.is_empty() {
            return None;
        }
        if self.running.len() < MOST_AT_ONCE {
            return Some(self.due);
        }
        self.running.iter().map(|(_, until)| *until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When each of so many leases has its turn, if a server answers after this time, or never.
    fn turns(leases: usize, answers_after: Option<Duration>) -> Vec<Duration> {
        let mut confirmations = Confirmations::new(Duration::ZERO, (0..leases).collect(), 0.5);
        let mut begun: Vec<Duration> = Vec::new();
        while let Some(now) = confirmations.deadline() {
            let is_unanswered = |lease: &usize| answers_after.is_none_or(|time| begun[*lease] + time > now);
            if let Some(lease) = confirmations.next(now, is_unanswered, 0.5) {
                assert_eq!(lease, begun.len(), "in order");
                begun.push(now);
            }
        }
        begun
    }

    #[test]
    fn a_thousand_leases_are_asked_about_in_twenty_seconds() {
        let turns = turns(1_000, Some(Duration::from_millis(100)));
        assert_eq!((turns.len(), turns[0].as_millis(), turns[999].as_millis()), (1_000, 500, 500 + 999 * 20));
    }

    #[test]
    fn without_an_answer_a_few_are_asked_about_at_a_time_and_the_others_later() {
        let turns = turns(100, None);
        let within = |from: u64, to: u64| turns.iter().filter(|turn| (from..to).contains(&turn.as_secs())).count();
        assert_eq!([within(0, 10), within(10, 20), within(20, 30), within(30, 40)], [32, 32, 32, 4]);
    }
}

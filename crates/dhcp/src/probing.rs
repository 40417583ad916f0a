//! How both clients make sure that no other host uses their addresses: by ARP probes (RFC 5227) and by neighbour solicitations
//! (RFC 4862, section 5.4).
//!
//! Some probes are sent before the lease is reported, because a host that uses the address answers in milliseconds. The others
//! are sent while the address is in use already, for a host that answers late or did not hear the first ones.

use std::time::Duration;

/// The least wait before a probe for an address in use; as much again is chance (`PROBE_MIN` and `PROBE_MAX` of RFC 5227).
const LATER_WAIT: Duration = Duration::from_secs(1);
/// How long an answer to the last probe is waited for (`ANNOUNCE_WAIT`).
const LAST_WAIT: Duration = Duration::from_secs(2);

/// The probes for an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeTiming {
    /// How many are sent before the lease is reported; 0 for none.
    pub awaited: u32,
    /// The wait after each of these; a quarter more or less is chance.
    pub interval: Duration,
    /// How many follow while the address is in use.
    pub later: u32,
}

impl Default for ProbeTiming {
    fn default() -> Self {
        Self { awaited: 2, interval: Duration::from_millis(50), later: 1 }
    }
}

/// The probes for addresses in use, and the other host that was found (`C`).
#[derive(Debug)]
pub(crate) struct Watch<C> {
    sent: u32,
    /// When its next step is due.
    pub(crate) due: Duration,
    conflict: Option<C>,
}

/// What a watch does when it is due.
pub(crate) enum WatchStep<C> {
    /// A probe is sent.
    Probe,
    /// Another host uses the address.
    Conflict(C),
    /// No other host has answered.
    End,
}

impl<C> Watch<C> {
    /// A watch whose first probe is sent after the usual wait.
    pub(crate) fn new(now: Duration, chance: u32) -> Self {
        Watch { sent: 0, due: now + later_wait(chance), conflict: None }
    }

    /// Notes another host. It is acted upon when the caller has had the time to configure the address, so that it is removed.
    pub(crate) fn note(&mut self, now: Duration, conflict: C) {
        self.conflict = Some(conflict);
        if self.sent > 0 {
            self.due = now;
        }
    }

    /// Does what is due.
    pub(crate) fn step(&mut self, now: Duration, timing: ProbeTiming, chance: u32) -> WatchStep<C> {
        if let Some(conflict) = self.conflict.take() {
            return WatchStep::Conflict(conflict);
        }
        if self.sent >= timing.later {
            return WatchStep::End;
        }
        self.sent += 1;
        self.due = now + if self.sent < timing.later { later_wait(chance) } else { LAST_WAIT };
        WatchStep::Probe
    }
}

fn later_wait(chance: u32) -> Duration {
    LATER_WAIT + LATER_WAIT.mul_f64(f64::from(chance) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(number: u64) -> Duration {
        Duration::from_secs(number)
    }

    #[test]
    fn probes_are_a_second_or_two_apart_and_the_last_answer_is_waited_for() {
        let timing = ProbeTiming { later: 2, ..ProbeTiming::default() };
        let mut watch: Watch<()> = Watch::new(seconds(10), u32::MAX);
        assert_eq!(watch.due, seconds(12));
        assert!(matches!(watch.step(seconds(12), timing, 0), WatchStep::Probe) && watch.due == seconds(13));
        assert!(matches!(watch.step(seconds(13), timing, 0), WatchStep::Probe) && watch.due == seconds(15));
        assert!(matches!(watch.step(seconds(15), timing, 0), WatchStep::End));
    }

    #[test]
    fn a_conflict_waits_for_the_first_probe_and_not_for_later_ones() {
        let timing = ProbeTiming::default();
        let mut watch = Watch::new(seconds(10), 0);
        watch.note(seconds(10), "early");
        assert_eq!(watch.due, seconds(11));
        assert!(matches!(watch.step(seconds(11), timing, 0), WatchStep::Conflict("early")));
        let mut watch = Watch::new(seconds(10), 0);
        watch.step(seconds(11), timing, 0);
        watch.note(seconds(12), "late");
        assert_eq!(watch.due, seconds(12));
        assert!(matches!(watch.step(seconds(12), timing, 0), WatchStep::Conflict("late")));
    }
}

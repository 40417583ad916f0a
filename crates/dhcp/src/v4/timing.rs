//! How long a client waits.

use std::time::Duration;

use crate::ProbeTiming;

/// The shortest wait between two requests of a renewal, unless the lease is very short (RFC 2131, section 4.4.5).
const LEAST_RENEWAL_WAIT: Duration = Duration::from_mins(1);
/// With shorter leases it is this part of the lease, but not less than a second.
const PART_OF_LEASE: u32 = 8;

/// The waiting times of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The wait for a reply to the first packet of an exchange. Each further wait is twice as long. A quarter more or less of each
    /// is chance.
    pub first_wait: Duration,
    /// The longest wait.
    pub longest_wait: Duration,
    /// How often a DHCPREQUEST is sent before the client begins again with a DHCPDISCOVER.
    pub requests: u32,
    /// The ARP probes for the address of a new lease.
    pub probing: ProbeTiming,
    /// The wait after a DHCPDECLINE (RFC 2131, section 3.1: ten seconds at least).
    pub decline_wait: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            first_wait: Duration::from_secs(2),
            longest_wait: Duration::from_secs(62),
            requests: 4,
            probing: ProbeTiming::default(),
            decline_wait: Duration::from_secs(10),
        }
    }
}

impl Timing {
    /// The wait after this many packets or failures, at least one.
    pub(crate) fn wait(&self, sent: u32, chance: u32) -> Duration {
        let doublings = sent.saturating_sub(1).min(16);
        jittered(self.first_wait.saturating_mul(1 << doublings).min(self.longest_wait), chance)
    }

    /// The wait after a probe.
    pub(crate) fn probe_wait(&self, chance: u32) -> Duration {
        jittered(self.probing.interval, chance)
    }
}

/// The wait between two requests of a renewal: half of what is left, with a least value, and not longer than what is left.
pub(crate) fn renewal_wait(left: Duration, lease: Duration) -> Duration {
    let least = (lease / PART_OF_LEASE).clamp(Duration::from_secs(1), LEAST_RENEWAL_WAIT);
    (left / 2).max(least).min(left)
}

/// The time, a quarter more or less.
pub(crate) fn jittered(time: Duration, chance: u32) -> Duration {
    time * 3 / 4 + (time / 2).mul_f64(f64::from(chance) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_with_a_quarter_of_chance() {
        let timing = Timing::default();
        let waits = [1, 2, 3, 5, 6, 1000].map(|sent| timing.wait(sent, u32::MAX / 2 + 1).as_secs());
        assert_eq!(waits, [2, 4, 8, 32, 62, 62]);
        assert_eq!((timing.wait(1, 0).as_millis(), timing.wait(1, u32::MAX).as_millis()), (1_500, 2_500));
    }

    #[test]
    fn a_renewal_waits_half_of_what_is_left() {
        let seconds = Duration::from_secs;
        assert_eq!(renewal_wait(seconds(1_000), seconds(3_600)), seconds(500));
        assert_eq!(renewal_wait(seconds(90), seconds(3_600)), seconds(60));
        assert_eq!(renewal_wait(seconds(20), seconds(3_600)), seconds(20), "and the state changes then");
        assert_eq!(renewal_wait(seconds(4), seconds(16)), seconds(2));
        assert_eq!(renewal_wait(seconds(1), seconds(4)), seconds(1));
    }
}

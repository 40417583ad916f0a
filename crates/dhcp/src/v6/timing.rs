//! The waits between the repetitions of a message (RFC 8415, section 15, with the values of section 7.6).

use std::time::Duration;

/// How a message is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Repetition {
    /// The first wait (IRT).
    first: Duration,
    /// The longest wait (MRT).
    longest: Duration,
    /// How often the message is sent (MRC); 0 for ever.
    pub(crate) most: u32,
}

pub(crate) const SOLICIT: Repetition = Repetition { first: seconds(1), longest: seconds(3_600), most: 0 };
pub(crate) const REQUEST: Repetition = Repetition { first: seconds(1), longest: seconds(30), most: 10 };
pub(crate) const RENEW: Repetition = Repetition { first: seconds(10), longest: seconds(600), most: 0 };
pub(crate) const REBIND: Repetition = RENEW;
pub(crate) const RELEASE: Repetition = Repetition { first: seconds(1), longest: seconds(8), most: 4 };
pub(crate) const DECLINE: Repetition = RELEASE;

const fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

impl Repetition {
    /// The wait after the message was sent this often: twice as long each time, a tenth more or less by chance, and not longer than
    /// the longest, a tenth more or less.
    pub(crate) fn wait(self, sent: u32, chance: u32) -> Duration {
        let doublings = sent.saturating_sub(1).min(16);
        let base = self.first.saturating_mul(1 << doublings).min(self.longest);
        base * 9 / 10 + (base / 5).mul_f64(f64::from(chance) / f64::from(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest() {
        let waits = [1, 2, 3, 5, 6, 100].map(|sent| REQUEST.wait(sent, u32::MAX / 2 + 1).as_secs());
        assert_eq!(waits, [1, 2, 4, 16, 30, 30]);
        assert_eq!((SOLICIT.wait(1, 0).as_millis(), SOLICIT.wait(1, u32::MAX).as_millis()), (900, 1_100));
        assert_eq!(SOLICIT.wait(40, u32::MAX / 2 + 1).as_secs(), 3_600);
    }
}

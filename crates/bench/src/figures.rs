//! Medians, and how far a ratio of them can be trusted.

/// The number of resamples for a confidence interval (bootstrap).
const DRAWS: usize = 2_000;

/// A ratio with its 95% confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ratio {
    pub(crate) is: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// The verdict on a ratio that must be at least some value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Met,
    Missed,
    /// The spread reaches over the target: the machine was too noisy, or the rounds too few.
    Unknown,
    /// There is no measurement. If targets are asserted, this fails the run too.
    Unmeasured,
}

impl Ratio {
    /// The ratio of two medians, with its spread by drawing from both samples again and again (bootstrap).
    pub(crate) fn of(above: &[f64], below: &[f64]) -> Ratio {
        let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
        let mut drawn: Vec<f64> = (0..DRAWS).map(|_| median(&dice.draw(above)) / median(&dice.draw(below))).collect();
        drawn.sort_by(f64::total_cmp);
        Ratio { is: median(above) / median(below), low: at(&drawn, 0.025), high: at(&drawn, 0.975) }
    }

    /// Whether it is at least that.
    pub(crate) fn at_least(self, target: f64) -> Verdict {
        match (self.low >= target, self.high < target) {
            (true, _) => Verdict::Met,
            (_, true) => Verdict::Missed,
            _ => Verdict::Unknown,
        }
    }

    /// Whether it is at most that.
    pub(crate) fn at_most(self, target: f64) -> Verdict {
        Ratio { is: 1.0 / self.is, low: 1.0 / self.high, high: 1.0 / self.low }.at_least(1.0 / target)
    }

    /// Whether the interval is so wide that a difference of one half cannot be seen.
    pub(crate) fn is_vague(self) -> bool {
        self.high > 1.5 * self.low
    }
}

/// The median of a sample; NaN if it is empty.
pub(crate) fn median(sample: &[f64]) -> f64 {
    quantile(sample, 0.5)
}

/// The quantile of a sample for this share, interpolated between two values; NaN if the sample is empty.
pub(crate) fn quantile(sample: &[f64], share: f64) -> f64 {
    let mut sorted = sample.to_vec();
    sorted.sort_by(f64::total_cmp);
    at(&sorted, share)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "small counts"
)]
fn at(sorted: &[f64], share: f64) -> f64 {
    let place = share * (sorted.len().saturating_sub(1)) as f64;
    let below = place as usize;
    let part = place.fract();
    match (sorted.get(below), sorted.get(below + 1)) {
        (Some(low), Some(high)) => low + part * (high - low),
        (Some(only), None) => *only,
        _ => f64::NAN,
    }
}

/// A random number generator (xorshift64) with a fixed seed: the same figures give the same interval.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn draw(&mut self, sample: &[f64]) -> Vec<f64> {
        let count = sample.len() as u64;
        let one = |_| usize::try_from(self.next() % count).map_or(f64::NAN, |index| sample[index]);
        sample.iter().map(one).collect()
    }
}

/// A number with three digits.
pub(crate) fn short(number: f64) -> String {
    match number {
        n if n < 10.0 => format!("{n:.2}"),
        n if n < 100.0 => format!("{n:.1}"),
        n => format!("{n:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_their_neighbours() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-9);
        assert!((quantile(&[0.0, 10.0], 0.95) - 9.5).abs() < 1e-9);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn a_steady_sample_has_no_spread_and_a_wild_one_has() {
        let steady = Ratio::of(&[10.0; 9], &[2.0; 9]);
        assert_eq!(steady, Ratio { is: 5.0, low: 5.0, high: 5.0 });
        assert!(!steady.is_vague());
        let wild = Ratio::of(&[10.0, 40.0, 11.0, 90.0, 35.0], &[2.0, 3.0, 2.5, 9.0, 2.2]);
        assert!(wild.low < wild.is && wild.is < wild.high && wild.is_vague(), "{wild:?}");
    }

    #[test]
    fn a_verdict_needs_the_whole_spread_on_one_side() {
        let ratio = Ratio { is: 5.0, low: 4.0, high: 6.0 };
        assert_eq!([3.9, 5.0, 6.1].map(|t| ratio.at_least(t)), [Verdict::Met, Verdict::Unknown, Verdict::Missed]);
        assert_eq!([6.1, 5.0, 3.9].map(|t| ratio.at_most(t)), [Verdict::Met, Verdict::Unknown, Verdict::Missed]);
    }
}

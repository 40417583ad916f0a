//! A rate with its burst, and the token bucket that the kernel is given for them.

use std::fmt;
use std::time::Duration;

use cnikit_netlink::Tbf;

/// How long a packet waits in the queue at most, unless it is configured. It is upstream's constant.
pub const USUAL_LATENCY: Duration = Duration::from_millis(25);
/// The longest time in which the kernel lets a bucket be filled that it is given in ticks: 32 bits of nanoseconds, about 4.29 s.
const LONGEST: u64 = u32::MAX as u64 / Tbf::TICK;
/// The length of the largest packet that is not segmented yet (`GSO_LEGACY_MAX_SIZE`), with a header for each segment.
const LARGEST_UNSEGMENTED: u32 = 70_000;
/// Nanoseconds per second.
const SECOND: u128 = 1_000_000_000;
/// The length of the header that the kernel counts with each frame (`ETH_HLEN`).
const HEADER: u32 = 14;
/// Bits per byte.
const BITS: u64 = 8;

/// A limit of the rate at which a link sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Bytes per second, at least 1.
    rate: u64,
    /// Bytes.
    burst: u32,
    latency: Duration,
    fq_codel: bool,
}

impl RateLimit {
    /// A limit of `rate` bits per second. At once, `burst` bits may be sent. What waits in the queue is at most the burst and what
    /// is sent in `latency`; with `fq_codel`, that discipline decides instead what waits how long.
    ///
    /// # Errors
    /// The rate is less than a byte per second, or the burst is 4 GiB or more. The texts are upstream's, where it has one.
    pub fn checked(rate: u64, burst: u64, latency: Duration, fq_codel: bool) -> Result<RateLimit, String> {
        if rate < BITS {
            return Err(format!("a rate of {rate} bit/s is too low: the lowest is {BITS} bit/s"));
        }
        match u32::try_from(burst / BITS) {
            Ok(bytes) if bytes < u32::MAX => Ok(RateLimit { rate: rate / BITS, burst: bytes, latency, fq_codel }),
            _ => Err("burst cannot be more than 4GB".to_owned()),
        }
    }

    /// Whether `fq_codel` is below the shaper.
    pub(crate) fn has_fq_codel(&self) -> bool {
        self.fq_codel
    }

    /// The token bucket of a link with this MTU. Rate, queue and bucket are those that upstream computes, except where those could
    /// not work:
    ///
    /// - A bucket smaller than a frame would let no full frame pass: it is as large as a frame.
    /// - A bucket that takes longer to fill than the kernel can count is as large as the kernel can count. Upstream's numbers wrap
    ///   around there.
    /// - A queue longer than 4 GiB has that length.
    pub(crate) fn tbf(&self, mtu: u32) -> Tbf {
        let frame = mtu.saturating_add(HEADER);
        let buffer = ticks(self.rate, self.burst);
        let waiting = u128::from(self.rate) * self.latency.as_nanos() / SECOND;
        let limit = |bucket: u128| u32::try_from(waiting + bucket).unwrap_or(u32::MAX);
        if bytes_in(self.rate, buffer.min(LONGEST)) < frame.into() {
            let bytes = self.burst.max(frame);
            let buffer = reported(self.rate, bytes);
            return Tbf { rate: self.rate, limit: limit(bytes.into()), buffer, burst: Some(bytes) };
        }
        let bytes = if buffer > LONGEST { bytes_in(self.rate, LONGEST) } else { self.burst.into() };
        let buffer = u32::try_from(buffer.min(LONGEST)).unwrap_or(u32::MAX);
        Tbf { rate: self.rate, limit: limit(bytes), buffer, burst: None }
    }
}

impl RateLimit {
    /// The same for the class of an `htb` and its queue. The kernel lets that have a debt, so a small bucket lets every frame pass.
    /// It does not split what a socket hands it to be segmented by the link, as a `tbf` does: the queue takes the largest such
    /// packet.
    pub(crate) fn class(&self, mtu: u32) -> Tbf {
        let tbf = self.tbf(mtu);
        let tbf = Tbf { limit: tbf.limit.max(LARGEST_UNSEGMENTED), ..tbf };
        let Some(bytes) = tbf.burst else { return tbf };
        let buffer = u32::try_from(ticks(self.rate, bytes).min(LONGEST)).unwrap_or(u32::MAX);
        Tbf { buffer, burst: None, ..tbf }
    }
}

/// The ticks that the kernel reports where it was given the bucket in bytes: the last 32 bits of them.
fn reported(rate: u64, bytes: u32) -> u32 {
    let ticks = u128::from(bytes) * SECOND / u128::from(rate) / u128::from(Tbf::TICK);
    u32::try_from(ticks % (1 << 32)).unwrap_or(u32::MAX)
}

/// The time in which a bucket of so many bytes is filled, in ticks. It is computed in whole microseconds first, because upstream's
/// CHECK compares what it computes in this way.
fn ticks(rate: u64, bytes: u32) -> u64 {
    let microseconds = u128::from(bytes) * 1_000_000 / u128::from(rate);
    u64::try_from(microseconds * 1_000 / u128::from(Tbf::TICK)).unwrap_or(u64::MAX)
}

/// The bytes that are sent in so many ticks.
fn bytes_in(rate: u64, ticks: u64) -> u128 {
    u128::from(rate) * u128::from(ticks) * u128::from(Tbf::TICK) / SECOND
}

impl fmt::Display for RateLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = u128::from(self.rate) * u128::from(BITS);
        write!(f, "{rate} bit/s, burst {} bytes, ", self.burst)?;
        if self.fq_codel {
            return f.write_str("fq_codel");
        }
        write!(f, "latency {} ms", self.latency.as_millis())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(rate: u64, burst: u64) -> RateLimit {
        RateLimit::checked(rate, burst, USUAL_LATENCY, false).unwrap_or_else(|why| panic!("{why}"))
    }

    #[test]
    fn the_numbers_are_those_of_upstream() {
        for (rate, burst, bytes, queue, buffer) in [
            (8_000_000, 800_000, 1_000_000, 125_000, 1_562_500),
            (16_000_000, 1_600_000, 2_000_000, 250_000, 1_562_500),
            (1_000_000_001, 1_000_000_007, 125_000_000, 128_125_000, 15_625_000),
            (24_000_000, 80_000, 3_000_000, 85_000, 52_078),
        ] {
            let wanted = Tbf { rate: bytes, limit: queue, buffer, burst: None };
            assert_eq!(limit(rate, burst).tbf(1500), wanted, "{rate} {burst}");
        }
    }

    /// The kernel computes the largest frame that passes from `buffer`, unless it is given `burst`.
    fn largest_frame(tbf: &Tbf) -> u128 {
        tbf.burst.map_or_else(|| bytes_in(tbf.rate, tbf.buffer.into()), u128::from)
    }

    #[test]
    fn a_full_frame_passes_whatever_is_configured() {
        let rates = [8, 80, 8_000, 12_345_679, 8_000_000_000, 40_000_000_000, 1_000_000_000_000_000, u64::MAX];
        for (rate, mtu) in rates.into_iter().flat_map(|rate| [(rate, 1500), (rate, 65535)]) {
            for burst in [8, 1514 * 8, 12_345_679, 34_359_738_350] {
                let tbf = limit(rate, burst).tbf(mtu);
                assert!(largest_frame(&tbf) >= u128::from(mtu + HEADER), "{rate} {burst} {mtu}: {tbf:?}");
                assert!(u128::from(tbf.limit) >= u128::from(mtu + HEADER), "{rate} {burst} {mtu}: {tbf:?}");
            }
        }
    }

    #[test]
    fn a_burst_of_hours_is_one_of_seconds() {
        // What containerd asks for with a limit of 10 Mbit/s: a burst of 2^32 - 1 bits.
        let tbf = limit(10_000_000, u32::MAX.into()).tbf(1500);
        assert_eq!((tbf.buffer, tbf.burst), (67_108_863, None));
        assert_eq!(tbf.limit, 31_250 + 5_368_709);
    }

    #[test]
    fn a_queue_is_as_long_as_the_latency_says() {
        let long = RateLimit::checked(8_000_000, 800_000, Duration::from_millis(100), false).unwrap();
        assert_eq!(long.tbf(1500).limit, 200_000);
        let longest = RateLimit::checked(u64::MAX, 800_000, Duration::from_millis(u32::MAX.into()), false).unwrap();
        assert_eq!(longest.tbf(1500).limit, u32::MAX);
    }

    #[test]
    fn the_queue_of_a_class_takes_a_packet_that_is_not_segmented() {
        let class = limit(8_000_000, 800_000).class(1500);
        assert_eq!((class.limit, class.buffer), (125_000, 1_562_500));
        assert_eq!(limit(8_000_000, 80_000).class(1500).limit, LARGEST_UNSEGMENTED);
        let small = limit(8, 8).class(1500);
        assert_eq!((small.burst, small.buffer), (None, 67_108_863));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refusal = |rate, burst| RateLimit::checked(rate, burst, USUAL_LATENCY, false).unwrap_err();
        assert!(refusal(7, 80_000).contains("7 bit/s is too low"));
        assert_eq!(refusal(8, u64::from(u32::MAX) * 8), "burst cannot be more than 4GB");
        assert_eq!(refusal(8, u64::MAX), "burst cannot be more than 4GB");
    }
    #[test]
    fn a_limit_is_printed_with_what_decides_how_long_a_packet_waits() {
        let text = |fq_codel| RateLimit::checked(8_000_000, 80_000, Duration::from_millis(30), fq_codel).unwrap();
        assert_eq!(text(false).to_string(), "8000000 bit/s, burst 10000 bytes, latency 30 ms");
        assert_eq!(text(true).to_string(), "8000000 bit/s, burst 10000 bytes, fq_codel");
        assert!(text(true).has_fq_codel() && !text(false).has_fq_codel());
    }

    #[test]
    fn the_lowest_rate_and_the_highest_burst_are_taken() {
        let lowest = RateLimit::checked(8, u64::from(u32::MAX) * 8 - 1, USUAL_LATENCY, false).unwrap();
        assert_eq!((lowest.rate, lowest.burst), (1, u32::MAX - 1));
    }
}

//! The options of the queueing discipline `tbf`, which netlink-packet-route 0.34 does not have.
//!
//! Written as that crate writes those of `fq_codel`, so that it can take this file as it is.

use netlink_packet_core::{DefaultNla, parse_u32, parse_u64};
use netlink_packet_route::tc::TcOption;

use crate::attribute::{attributes, value};

// The attributes of `linux/pkt_sched.h`.
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_BURST: u16 = 6;
/// Length of a `tc_tbf_qopt`: two `tc_ratespec` and three numbers.
const PARMS: usize = 36;
// The places of the numbers that are used here. The rate is the last member of the first `tc_ratespec`.
const RATE: usize = 8;
const LIMIT: usize = 24;
const BUFFER: usize = 28;

/// The options of a token bucket filter, in the units of the kernel. See tc-tbf(8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tbf {
    /// The rate in bytes per second, counted with the headers of layer 2.
    #[doc(alias = "TCA_TBF_RATE64")]
    pub rate: u64,
    /// The length of the queue, in bytes.
    pub limit: u32,
    /// The size of the bucket: the time in which it is filled, in ticks of [`Tbf::TICK`] ns.
    pub buffer: u32,
    /// The size of the bucket in bytes, where a tick is too coarse. The kernel then computes `buffer` itself, and does not report
    /// this.
    #[doc(alias = "TCA_TBF_BURST")]
    pub burst: Option<u32>,
}

impl Tbf {
    /// What the kernel calls it.
    pub const KIND: &'static str = "tbf";
    /// The length of a tick of packet schedulers, in nanoseconds (`PSCHED_SHIFT`).
    #[doc(alias = "psched")]
    pub const TICK: u64 = 64;

    /// The value of `TCA_OPTIONS`.
    pub(crate) fn options(&self) -> Vec<TcOption> {
        let mut parms = vec![0; PARMS];
        let mut put = |at: usize, number: u32| parms[at..at + 4].copy_from_slice(&number.to_ne_bytes());
        put(RATE, u32::try_from(self.rate).unwrap_or(u32::MAX));
        put(LIMIT, self.limit);
        put(BUFFER, self.buffer);
        let mut options = vec![(TCA_TBF_PARMS, parms)];
        if self.rate > u64::from(u32::MAX) {
            options.push((TCA_TBF_RATE64, self.rate.to_ne_bytes().to_vec()));
        }
        if let Some(burst) = self.burst {
            options.push((TCA_TBF_BURST, burst.to_ne_bytes().to_vec()));
        }
        options.into_iter().map(|(kind, value)| TcOption::Other(DefaultNla::new(kind, value))).collect()
    }

    /// Reads the value of `TCA_OPTIONS`; `None` if it is something else.
    pub(crate) fn parse(options: &[u8]) -> Option<Tbf> {
        let parms = value(options, TCA_TBF_PARMS)?;
        let number = |at: usize| parse_u32(parms.get(at..at + 4)?).ok();
        let rate64 = attributes(options).find(|(kind, _)| *kind == TCA_TBF_RATE64);
        let rate = match rate64 {
            Some((_, value)) => parse_u64(value).ok()?,
            None => number(RATE)?.into(),
        };
        Some(Tbf { rate, limit: number(LIMIT)?, buffer: number(BUFFER)?, burst: None })
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::Emitable;

    use super::*;

    fn bytes(tbf: &Tbf) -> Vec<u8> {
        let options = tbf.options();
        let mut bytes = vec![0; options.as_slice().buffer_len()];
        options.as_slice().emit(&mut bytes);
        bytes
    }

    #[test]
    fn what_is_written_is_read_again() {
        for rate in [1, 1_000_000, u64::from(u32::MAX), 1 << 32, u64::MAX / 8] {
            let tbf = Tbf { rate, limit: 125_000, buffer: 1_562_500, burst: None };
            assert_eq!(Tbf::parse(&bytes(&tbf)), Some(tbf));
            let fine = Tbf { burst: Some(1514), ..tbf };
            assert_eq!(Tbf::parse(&bytes(&fine)), Some(tbf), "the kernel does not report the burst");
        }
    }

    #[test]
    fn a_rate_of_64_bits_is_written_only_where_32_are_too_few() {
        let tbf = |rate| Tbf { rate, ..Tbf::default() };
        assert_eq!(bytes(&tbf(u32::MAX.into())).len(), 4 + PARMS);
        assert_eq!(bytes(&tbf(1 << 32)).len(), 4 + PARMS + 12);
    }

    #[test]
    fn half_a_message_is_nothing() {
        let whole = bytes(&Tbf { rate: 1 << 33, ..Tbf::default() });
        for end in 0..4 + PARMS {
            assert_eq!(Tbf::parse(&whole[..end]), None, "{end}");
        }
    }
}

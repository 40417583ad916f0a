//! The options of the queueing discipline `htb` and of its classes, which netlink-packet-route 0.34 does not have.
//!
//! A `tbf` limits all that a link sends. Where only a part of that counts, the root is an `htb` whose only class has the limit:
//! filters assign packets to that class, and all other packets are sent at once.

use netlink_packet_core::{DefaultNla, NLM_F_CREATE, NLM_F_ECHO, NLM_F_REPLACE, parse_u32, parse_u64};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcOption};

use crate::attribute::{attributes, value};
use crate::frame::{HEADER, words};
use crate::netlink::{Forgives, Request};
use crate::qdisc::{CLASS, KIND, OPTIONS, ROOT_HANDLE, TC_HEADER, message};
use crate::{Netlink, Result};

// The attributes of `linux/pkt_sched.h`.
const TCA_HTB_PARMS: u16 = 1;
const TCA_HTB_INIT: u16 = 2;
const TCA_HTB_RATE64: u16 = 6;
const TCA_HTB_CEIL64: u16 = 7;
/// A `tc_htb_glob`: version, quantum per rate, default class, debug, direct packets.
const GLOBAL: usize = 20;
const VERSION: u32 = 3;
const RATE_TO_QUANTUM: u32 = 10;
const DEFAULT_CLASS: usize = 8;
/// A `tc_htb_opt`: two `tc_ratespec`, whose last member is the rate, and five numbers.
const PARMS: usize = 44;
const RATE: usize = 8;
const CEIL: usize = 20;
const BUFFER: usize = 24;
const CEIL_BUFFER: usize = 28;
const QUANTUM: usize = 32;
/// How much the only class may send in its turn, in bytes. There is no other one to wait for.
const ALL_TURNS: u32 = 100_000;

/// The only class `1:1` of an `htb`, in the units of the kernel. See tc-htb(8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HtbClass {
    /// The rate in bytes per second, counted with the headers of layer 2.
    #[doc(alias = "TCA_HTB_RATE64")]
    pub rate: u64,
    /// The size of the bucket: the time in which it is filled, in ticks of [`Tbf::TICK`](crate::Tbf::TICK) ns.
    pub buffer: u32,
}

/// What the kernel calls it.
pub(crate) const HTB: &str = "htb";

/// The options of the discipline itself. Packets that no filter assigns belong to the class `default`; if that does not exist, they
/// are sent at once.
pub(crate) fn options(default: u16) -> Vec<TcOption> {
    let mut global = vec![0; GLOBAL];
    put(&mut global, 0, VERSION);
    put(&mut global, 4, RATE_TO_QUANTUM);
    put(&mut global, DEFAULT_CLASS, default.into());
    vec![TcOption::Other(DefaultNla::new(TCA_HTB_INIT, global))]
}

/// Reads the default class from the value of `TCA_OPTIONS`.
pub(crate) fn default_class(options: &[u8]) -> Option<u16> {
    let global = value(options, TCA_HTB_INIT)?;
    let class = parse_u32(global.get(DEFAULT_CLASS..DEFAULT_CLASS + 4)?).ok()?;
    u16::try_from(class).ok()
}

fn put(bytes: &mut [u8], at: usize, number: u32) {
    bytes[at..at + 4].copy_from_slice(&number.to_ne_bytes());
}

impl HtbClass {
    /// The value of `TCA_OPTIONS`.
    pub(crate) fn options(&self) -> Vec<TcOption> {
        let mut parms = vec![0; PARMS];
        for at in [RATE, CEIL] {
            put(&mut parms, at, u32::try_from(self.rate).unwrap_or(u32::MAX));
        }
        for at in [BUFFER, CEIL_BUFFER] {
            put(&mut parms, at, self.buffer);
        }
        put(&mut parms, QUANTUM, ALL_TURNS);
        let mut options = vec![(TCA_HTB_PARMS, parms)];
        if self.rate > u64::from(u32::MAX) {
            for kind in [TCA_HTB_RATE64, TCA_HTB_CEIL64] {
                options.push((kind, self.rate.to_ne_bytes().to_vec()));
            }
        }
        options.into_iter().map(|(kind, value)| TcOption::Other(DefaultNla::new(kind, value))).collect()
    }

    /// Reads an `RTM_NEWTCLASS` message; `None` if it is something else.
    pub(crate) fn parse(message: &[u8]) -> Option<Self> {
        let list = message.get(HEADER..)?.get(TC_HEADER..)?;
        if words(value(list, KIND)?) != HTB {
            return None;
        }
        let options = value(list, OPTIONS)?;
        let parms = value(options, TCA_HTB_PARMS)?;
        let number = |at: usize| parse_u32(parms.get(at..at + 4)?).ok();
        let rate64 = attributes(options).find(|(kind, _)| *kind == TCA_HTB_RATE64);
        let rate = match rate64 {
            Some((_, value)) => parse_u64(value).ok()?,
            None => number(RATE)?.into(),
        };
        Some(Self { rate, buffer: number(BUFFER)? })
    }
}

impl Netlink {
    /// The class `1:1` of the [`htb`](HtbClass) at the root of a link; `None` if there is none.
    ///
    /// # Errors
    /// The kernel refuses the request otherwise.
    #[doc(alias = "RTM_GETTCLASS")]
    pub fn find_htb_class(&self, link: u32) -> Result<Option<HtbClass>> {
        let request = Request {
            message: RouteNetlinkMessage::GetTrafficClass(message(link, TcHandle::UNSPEC, CLASS)).into(),
            // As with disciplines: older kernels answer only the listeners of a group without it.
            flags: NLM_F_ECHO,
            operation: "find class",
            object: "1:1".into(),
            link: Some(link),
            forgives: Forgives::Nothing,
        };
        match self.ask(request) {
            Ok(answers) => Ok(answers.iter().find_map(|message| HtbClass::parse(message))),
            Err(error) if error.is_absent() || error.is_at_odds() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Sets the class `1:1` of an htb.
pub(crate) fn class(link: u32, class: &HtbClass) -> Request {
    let mut message = message(link, TcHandle::from(ROOT_HANDLE), CLASS);
    message.attributes.push(TcAttribute::Kind(HTB.to_owned()));
    message.attributes.push(TcAttribute::Options(class.options()));
    Request {
        message: RouteNetlinkMessage::NewTrafficClass(message).into(),
        flags: NLM_F_CREATE | NLM_F_REPLACE,
        operation: "set class of",
        object: "".into(),
        link: Some(link),
        forgives: Forgives::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        for rate in [1, 1_000_000, u64::from(u32::MAX), 1 << 32, u64::MAX / 8] {
            let wanted = HtbClass { rate, buffer: 1_562_500 };
            let bytes = class(7, &wanted).pack(1);
            assert_eq!(HtbClass::parse(&bytes), Some(wanted));
            for end in 0..bytes.len() {
                let half = HtbClass::parse(&bytes[..end]);
                assert!(half.is_none_or(|half| half.buffer == wanted.buffer), "{end}: {half:?}");
            }
        }
    }
}

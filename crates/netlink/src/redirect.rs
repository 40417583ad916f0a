//! Filters of a link's ingress, and the one that redirects all that the link receives to another link.

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, parse_u32};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{
    TcAction, TcActionAttribute, TcActionMirror, TcActionMirrorOption, TcActionOption, TcActionType, TcAttribute,
    TcFilterU32, TcFilterU32Option, TcHandle, TcMirror, TcMirrorActionType, TcOption, TcU32Key, TcU32Selector,
    TcU32SelectorFlags,
};

use crate::attribute::{attributes, value};
use crate::frame::{HEADER, words};
use crate::netlink::{Forgives, Request};
use crate::qdisc::{INGRESS_HANDLE, KIND, OPTIONS, TC_HEADER, message};
use crate::{Netlink, Result};

/// The preference of the filter; filters with a smaller one are tried before it.
const PREFERENCE: u16 = 1;
/// `ETH_P_ALL` of `linux/if_ether.h`.
const ALL_PROTOCOLS: u16 = 3;
/// The place of `tcm_info` in a `tcmsg`: preference and protocol.
const INFO: std::ops::Range<usize> = 16..20;

// Attributes of `linux/pkt_cls.h` and `linux/tc_act/tc_mirred.h`.
const U32_SELECTOR: u16 = 5;
const U32_ACTIONS: u16 = 7;
const ACTION_KIND: u16 = 1;
const ACTION_OPTIONS: u16 = 2;
const MIRRED_PARMS: u16 = 2;
/// The members of a `tc_mirred` behind the `tc_gen` of five numbers.
const MIRRED_EACTION: std::ops::Range<usize> = 20..24;
const MIRRED_IFINDEX: std::ops::Range<usize> = 24..28;
const EGRESS_REDIRECT: u32 = 1;
/// A `tc_u32_sel`: its number of keys, its length, and the length of a key, which begins with a mask.
const SELECTOR_KEYS: usize = 2;
const SELECTOR: usize = 16;
const SELECTOR_KEY: usize = 16;

/// A filter of a link's ingress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IngressFilter {
    /// What the kernel calls it: `u32`, `bpf`.
    pub kind: String,
    /// Whether it is a `u32` that takes every packet.
    pub takes_all: bool,
    /// The number of the link that it redirects packets to, to be sent by that; 0 if that link is gone.
    #[doc(alias = "mirred")]
    pub redirects_to: Option<u32>,
}

impl IngressFilter {
    /// Whether it redirects every packet to this link.
    pub fn redirects_all_to(&self, link: u32) -> bool {
        self.takes_all && self.redirects_to == Some(link)
    }
}

impl Netlink {
    /// The filters of a link's ingress, in their order; none if the link has no ingress or does not exist.
    ///
    /// # Errors
    /// The dump fails, see [`Socket::dump`](crate::Socket::dump).
    #[doc(alias = "RTM_GETTFILTER")]
    pub fn ingress_filters(&self, link: u32) -> Result<Vec<IngressFilter>> {
        let question = RouteNetlinkMessage::GetTrafficFilter(message(link, INGRESS_HANDLE, TcHandle::UNSPEC));
        match self.dump(&question, "list filters", &format!("of link {link}")) {
            Ok(messages) => Ok(messages.iter().filter_map(|message| IngressFilter::parse(message)).collect()),
            Err(error) if error.is_absent() => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

/// Adds the filter that redirects all that a link receives to another link, to be sent by that.
pub(crate) fn addition(link: u32, to: u32) -> Request {
    let mut message = message(link, INGRESS_HANDLE, TcHandle::UNSPEC);
    message.header.info = u32::from(PREFERENCE) << 16 | u32::from(ALL_PROTOCOLS.to_be());
    let mut selector = TcU32Selector::default();
    selector.flags = TcU32SelectorFlags::Terminal;
    selector.nkeys = 1;
    selector.keys = vec![TcU32Key::default()];
    let mut mirror = TcMirror::default();
    mirror.generic.action = TcActionType::Stolen;
    mirror.eaction = TcMirrorActionType::EgressRedir;
    mirror.ifindex = to;
    let parms = TcActionOption::Mirror(TcActionMirrorOption::Parms(mirror));
    let mut action = TcAction::default();
    action.attributes.push(TcActionAttribute::Kind(TcActionMirror::KIND.to_owned()));
    action.attributes.push(TcActionAttribute::Options(vec![parms]));
    let options = [
        TcFilterU32Option::ClassId(TcHandle { major: 1, minor: 1 }),
        TcFilterU32Option::Selector(selector),
        TcFilterU32Option::Action(vec![action]),
    ];
    message.attributes.push(TcAttribute::Kind(TcFilterU32::KIND.to_owned()));
    message.attributes.push(TcAttribute::Options(options.into_iter().map(TcOption::U32).collect()));
    Request {
        message: RouteNetlinkMessage::NewTrafficFilter(message),
        flags: NLM_F_CREATE | NLM_F_EXCL,
        operation: "redirect what is received by",
        object: String::new(),
        link: Some(link),
        forgives: Forgives::Nothing,
    }
}

impl IngressFilter {
    /// Reads an `RTM_NEWTFILTER` message; `None` if it is no filter, as the tables of a `u32` that are reported among them.
    pub(crate) fn parse(message: &[u8]) -> Option<Self> {
        let body = message.get(HEADER..)?;
        let list = body.get(TC_HEADER..)?;
        let kind = words(value(list, KIND)?);
        let options = value(list, OPTIONS)?;
        if kind != TcFilterU32::KIND {
            return Some(Self { kind, takes_all: false, redirects_to: None });
        }
        let selector = value(options, U32_SELECTOR)?;
        let protocol = parse_u32(body.get(INFO)?).ok()? & 0xffff;
        let takes_all = protocol == u32::from(ALL_PROTOCOLS.to_be()) && has_only_empty_masks(selector);
        let actions = value(options, U32_ACTIONS).unwrap_or_default();
        let redirects_to = attributes(actions).find_map(|(_, action)| redirected_to(action));
        Some(Self { kind, takes_all, redirects_to })
    }
}

fn has_only_empty_masks(selector: &[u8]) -> bool {
    let Some(count) = selector.get(SELECTOR_KEYS) else { return false };
    let keys = selector.get(SELECTOR..).unwrap_or_default().chunks_exact(SELECTOR_KEY);
    keys.len() == usize::from(*count) && keys.into_iter().all(|key| key[..4] == [0; 4])
}

fn redirected_to(action: &[u8]) -> Option<u32> {
    if words(value(action, ACTION_KIND)?) != TcActionMirror::KIND {
        return None;
    }
    let parms = value(value(action, ACTION_OPTIONS)?, MIRRED_PARMS)?;
    let is_redirect = parse_u32(parms.get(MIRRED_EACTION)?).ok()? == EGRESS_REDIRECT;
    if is_redirect { parse_u32(parms.get(MIRRED_IFINDEX)?).ok() } else { None }
}

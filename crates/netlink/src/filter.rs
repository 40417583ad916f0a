//! Filters of what a link receives, or of its root: which packets are redirected to another link, or limited by a class.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;
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
use crate::qdisc::{INGRESS_HANDLE, KIND, OPTIONS, QdiscPlace, ROOT_HANDLE, TC_HEADER, message};
use crate::{Netlink, Result};

// `linux/if_ether.h`.
const ALL_PROTOCOLS: u16 = 3;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
/// The place of `tcm_info` in a `tcmsg`: preference and protocol.
const INFO: std::ops::Range<usize> = 16..20;

// Attributes of `linux/pkt_cls.h` and `linux/tc_act/tc_mirred.h`.
const U32_CLASS: u16 = 1;
const U32_SELECTOR: u16 = 5;
const U32_ACTIONS: u16 = 7;
const ACTION_KIND: u16 = 1;
const ACTION_OPTIONS: u16 = 2;
const MIRRED_PARMS: u16 = 2;
/// The members of a `tc_mirred` behind the `tc_gen` of five numbers.
const MIRRED_EACTION: std::ops::Range<usize> = 20..24;
const MIRRED_IFINDEX: std::ops::Range<usize> = 24..28;
const EGRESS_REDIRECT: u32 = 1;
/// A `tc_u32_sel`: its number of keys, its length, and the length of a key.
const SELECTOR_KEYS: usize = 2;
const SELECTOR: usize = 16;
const SELECTOR_KEY: usize = 16;
/// The bytes of an address that one key compares.
const WORD: usize = 4;

/// The packets that a filter takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "tc_u32_sel")]
pub enum PacketMatch {
    /// Every packet of every protocol.
    All,
    /// IP packets whose source is in this network.
    From(IpNetwork),
    /// IP packets whose destination is in this network.
    To(IpNetwork),
}

/// A `u32` filter: the packets, and what is done with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterRule {
    /// Filters with a smaller preference are tried before it. All filters of a preference have one protocol.
    pub preference: u16,
    /// The packets that it takes.
    pub packets: PacketMatch,
    /// The class that they belong to, below the handle `1:`.
    pub class: u16,
    /// The number of the link that they are redirected to, to be sent by that; 0 if that link is gone. `None`: they are not
    /// redirected.
    #[doc(alias = "mirred")]
    pub redirects_to: Option<u32>,
}

/// A filter as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// What the kernel calls it: `u32`, `bpf`.
    pub kind: String,
    /// What it does; `None` if that is something that [`FilterRule`] cannot express.
    pub rule: Option<FilterRule>,
}

impl Filter {
    /// The number of the link that packets are redirected to.
    pub fn redirects_to(&self) -> Option<u32> {
        self.rule?.redirects_to
    }

    /// Whether it redirects every packet to this link.
    pub fn redirects_all_to(&self, link: u32) -> bool {
        self.rule.is_some_and(|rule| rule.packets == PacketMatch::All && rule.redirects_to == Some(link))
    }
}

impl fmt::Display for FilterRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.packets {
            PacketMatch::All => f.write_str("all")?,
            PacketMatch::From(net) => write!(f, "from {net}")?,
            PacketMatch::To(net) => write!(f, "to {net}")?,
        }
        match self.redirects_to {
            Some(link) => write!(f, " redirected to link {link}"),
            None => write!(f, " class 1:{:x}", self.class),
        }
    }
}

impl Netlink {
    /// The filters at this place of a link, in their order; none if it has no discipline there, or does not exist.
    ///
    /// # Errors
    /// The dump fails, see [`Socket::dump`](crate::Socket::dump).
    #[doc(alias = "RTM_GETTFILTER")]
    pub fn filters(&self, link: u32, place: QdiscPlace) -> Result<Vec<Filter>> {
        let question = RouteNetlinkMessage::GetTrafficFilter(message(link, parent(place), TcHandle::UNSPEC));
        match self.dump(&question, "list filters", &format!("of link {link}")) {
            Ok(messages) => Ok(messages.iter().filter_map(|message| Filter::parse(message)).collect()),
            Err(error) if error.is_absent() || error.is_at_odds() => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

fn parent(place: QdiscPlace) -> TcHandle {
    match place {
        QdiscPlace::Ingress => INGRESS_HANDLE,
        QdiscPlace::Root | QdiscPlace::BelowRoot => TcHandle::from(ROOT_HANDLE),
    }
}

impl PacketMatch {
    /// The protocol, in host byte order.
    fn protocol(self) -> u16 {
        match self {
            PacketMatch::All => ALL_PROTOCOLS,
            PacketMatch::From(net) | PacketMatch::To(net) => {
                if net.is_ipv4() {
                    IPV4
                } else {
                    IPV6
                }
            }
        }
    }

    /// One key for each word of the prefix, and one that takes everything if the prefix has none.
    fn keys(self) -> Vec<TcU32Key> {
        let (net, is_source) = match self {
            PacketMatch::All => return vec![TcU32Key::default()],
            PacketMatch::From(net) => (net, true),
            PacketMatch::To(net) => (net, false),
        };
        let mask = octets(net.mask());
        let address = octets(net.network());
        let mut keys = Vec::new();
        for (at, mask) in mask.chunks_exact(WORD).enumerate() {
            let is_needed = at == 0 || mask != [0; WORD];
            if is_needed {
                let mut key = TcU32Key::default();
                key.mask = word(mask);
                key.val = word(&address[at * WORD..(at + 1) * WORD]);
                key.off = i32::try_from(offset(net.is_ipv4(), is_source) + at * WORD).unwrap_or(i32::MAX);
                keys.push(key);
            }
        }
        keys
    }

    /// Reads keys that [`keys`](Self::keys) wrote, and any others that say the same.
    fn parse(protocol: u16, keys: &[Key]) -> Option<PacketMatch> {
        if protocol == ALL_PROTOCOLS {
            return keys.iter().all(|key| key.mask == [0; WORD]).then_some(PacketMatch::All);
        }
        let is_ipv4 = match protocol {
            IPV4 => true,
            IPV6 => false,
            _ => return None,
        };
        let first = keys.first()?.offset;
        let is_source = first == offset(is_ipv4, true);
        if !is_source && first != offset(is_ipv4, false) {
            return None;
        }
        let mut mask = [0; 16];
        let mut address = [0; 16];
        let length = if is_ipv4 { 4 } else { 16 };
        for (at, key) in keys.iter().enumerate() {
            let begin = at * WORD;
            if key.offset != first + begin || begin >= length {
                return None;
            }
            mask[begin..begin + WORD].copy_from_slice(&key.mask);
            address[begin..begin + WORD].copy_from_slice(&key.value);
        }
        let net = IpNetwork::with_netmask(ip(is_ipv4, address), ip(is_ipv4, mask)).ok()?;
        Some(if is_source { PacketMatch::From(net) } else { PacketMatch::To(net) })
    }
}

/// The place of an address in the header of IP.
fn offset(is_ipv4: bool, is_source: bool) -> usize {
    match (is_ipv4, is_source) {
        (true, true) => 12,
        (true, false) => 16,
        (false, true) => 8,
        (false, false) => 24,
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn ip(is_ipv4: bool, octets: [u8; 16]) -> IpAddr {
    if is_ipv4 {
        return Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3]).into();
    }
    Ipv6Addr::from(octets).into()
}

fn word(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |word, byte| word << 8 | u32::from(*byte))
}

/// Adds a filter at the end of those of its preference.
pub(crate) fn addition(link: u32, place: QdiscPlace, rule: &FilterRule) -> Request {
    let mut message = message(link, parent(place), TcHandle::UNSPEC);
    message.header.info = u32::from(rule.preference) << 16 | u32::from(rule.packets.protocol().to_be());
    let keys = rule.packets.keys();
    let mut selector = TcU32Selector::default();
    selector.flags = TcU32SelectorFlags::Terminal;
    selector.nkeys = u8::try_from(keys.len()).unwrap_or(u8::MAX);
    selector.keys = keys;
    let mut options = vec![
        TcFilterU32Option::ClassId(TcHandle { major: 1, minor: rule.class }),
        TcFilterU32Option::Selector(selector),
    ];
    if let Some(to) = rule.redirects_to {
        options.push(TcFilterU32Option::Action(vec![redirection(to)]));
    }
    message.attributes.push(TcAttribute::Kind(TcFilterU32::KIND.to_owned()));
    message.attributes.push(TcAttribute::Options(options.into_iter().map(TcOption::U32).collect()));
    Request {
        message: RouteNetlinkMessage::NewTrafficFilter(message).into(),
        flags: NLM_F_CREATE | NLM_F_EXCL,
        operation: "add filter to",
        object: "".into(),
        link: Some(link),
        forgives: Forgives::Nothing,
    }
}

/// The action that redirects packets to a link, to be sent by that.
fn redirection(to: u32) -> TcAction {
    let mut mirror = TcMirror::default();
    mirror.generic.action = TcActionType::Stolen;
    mirror.eaction = TcMirrorActionType::EgressRedir;
    mirror.ifindex = to;
    let parms = TcActionOption::Mirror(TcActionMirrorOption::Parms(mirror));
    let mut action = TcAction::default();
    action.attributes.push(TcActionAttribute::Kind(TcActionMirror::KIND.to_owned()));
    action.attributes.push(TcActionAttribute::Options(vec![parms]));
    action
}

/// A key of a selector, as it is in the message.
struct Key {
    mask: [u8; WORD],
    value: [u8; WORD],
    offset: usize,
}

impl Filter {
    /// Reads an `RTM_NEWTFILTER` message; `None` if it is no filter, as the tables of a `u32` that are reported among them.
    pub(crate) fn parse(message: &[u8]) -> Option<Self> {
        let body = message.get(HEADER..)?;
        let list = body.get(TC_HEADER..)?;
        let kind = words(value(list, KIND)?);
        let options = value(list, OPTIONS)?;
        if kind != TcFilterU32::KIND {
            return Some(Self { kind, rule: None });
        }
        let selector = value(options, U32_SELECTOR)?;
        let info = parse_u32(body.get(INFO)?).ok()?;
        Some(Self { kind, rule: rule(info, options, selector) })
    }
}

fn rule(info: u32, options: &[u8], selector: &[u8]) -> Option<FilterRule> {
    let protocol = u16::from_be(u16::try_from(info & 0xffff).ok()?);
    let preference = u16::try_from(info >> 16).ok()?;
    let packets = PacketMatch::parse(protocol, &keys(selector)?)?;
    let class = parse_u32(value(options, U32_CLASS)?).ok()?;
    let actions = value(options, U32_ACTIONS).unwrap_or_default();
    let redirects_to = attributes(actions).find_map(|(_, action)| redirected_to(action));
    let has_other_action = redirects_to.is_none() && !actions.is_empty();
    if has_other_action || class >> 16 != 1 {
        return None;
    }
    Some(FilterRule { preference, packets, class: u16::try_from(class & 0xffff).ok()?, redirects_to })
}

/// The keys of a selector; `None` if it is too short for its number of keys, or a key depends on the content of the packet.
fn keys(selector: &[u8]) -> Option<Vec<Key>> {
    let count = usize::from(*selector.get(SELECTOR_KEYS)?);
    let mut keys = Vec::with_capacity(count);
    for key in selector.get(SELECTOR..)?.chunks_exact(SELECTOR_KEY).take(count) {
        let number = |at: usize| parse_u32(&key[at..at + WORD]).ok();
        if number(12)? != 0 {
            return None;
        }
        let offset = usize::try_from(number(8)?).ok()?;
        keys.push(Key { mask: key[..4].try_into().ok()?, value: key[4..8].try_into().ok()?, offset });
    }
    (keys.len() == count).then_some(keys)
}

fn redirected_to(action: &[u8]) -> Option<u32> {
    if words(value(action, ACTION_KIND)?) != TcActionMirror::KIND {
        return None;
    }
    let parms = value(value(action, ACTION_OPTIONS)?, MIRRED_PARMS)?;
    let is_redirect = parse_u32(parms.get(MIRRED_EACTION)?).ok()? == EGRESS_REDIRECT;
    if is_redirect { parse_u32(parms.get(MIRRED_IFINDEX)?).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        for net in ["0.0.0.0/0", "10.0.0.0/8", "10.1.2.3/32", "::/0", "fd00::/8", "2001:db8::/33", "fd00:77::2/128"] {
            let net = net.parse().unwrap();
            for packets in [PacketMatch::All, PacketMatch::From(net), PacketMatch::To(net)] {
                for redirects_to in [None, Some(7)] {
                    let rule = FilterRule { preference: 3, packets, class: 0x17, redirects_to };
                    let bytes = addition(9, QdiscPlace::Ingress, &rule).pack(1);
                    let filter = Filter::parse(&bytes).unwrap();
                    assert_eq!((filter.kind.as_str(), filter.rule), ("u32", Some(rule)));
                    assert_eq!(filter.redirects_all_to(7), packets == PacketMatch::All && redirects_to.is_some());
                }
            }
        }
    }

    #[test]
    fn other_keys_are_not_a_network() {
        let key = |mask: [u8; WORD], offset| Key { mask, value: [0; WORD], offset };
        assert_eq!(PacketMatch::parse(IPV4, &[key([255, 0, 255, 0], 12)]), None, "a mask with a hole");
        assert_eq!(PacketMatch::parse(IPV4, &[key([255; 4], 20)]), None, "the ports");
        assert_eq!(PacketMatch::parse(IPV4, &[key([255; 4], 12), key([255; 4], 16)]), None, "both addresses");
        assert_eq!(PacketMatch::parse(IPV6, &[key([255; 4], 8), key([255; 4], 16)]), None, "a word is left out");
        assert_eq!(PacketMatch::parse(ALL_PROTOCOLS, &[key([255; 4], 0)]), None, "the first word");
        assert_eq!(PacketMatch::parse(0x0806, &[key([0; 4], 0)]), None, "ARP");
        assert_eq!(PacketMatch::parse(IPV4, &[]), None);
    }
}

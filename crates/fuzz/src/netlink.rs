//! Fuzz targets: links, addresses, routes, neighbours, VLANs, queueing disciplines and filters over netlink.

use std::net::IpAddr;

use arbitrary::{Result, Unstructured};
use cnikit_netlink::{
    Batch, FilterRule, HtbClass, KernelRoute, LinkChange, Mac, NewAddress, PacketMatch, QdiscPlace, Tbf, VlanRange,
    wire,
};
use ipnetwork::IpNetwork;

use crate::values::{ip, longest, network, repeat};

/// The port ID and the sequence number of the expected replies.
const PORT: u32 = 9;
const SEQUENCE: u32 = 7;
/// The length of the netlink header, in bytes.
const HEADER: usize = 16;

/// Parses a datagram as the kernel might send it.
///
/// It is parsed as the reply to a request, as a dump, and each message of it as every type. The parsed data is never larger than
/// the datagram allows.
pub(crate) fn replies(datagram: &[u8]) {
    let question = header(HEADER, SEQUENCE);
    let (exchanged, complete) = wire::answered(&question, &[SEQUENCE], PORT, datagram);
    assert!(weight(&exchanged.messages) <= datagram.len());
    assert!(exchanged.errors.len() * (HEADER + 4) <= datagram.len());
    assert!(exchanged.errors.iter().all(|(sequence, refusal)| *sequence == SEQUENCE && refusal.errno != 0));
    assert!(complete || exchanged.errors.is_empty(), "what is refused is answered");
    let dumped = wire::dumped(PORT, SEQUENCE, datagram);
    if let Some(Ok(messages)) = &dumped {
        assert!(weight(messages) <= datagram.len());
        messages.iter().for_each(|message| parse_as_every_type(message));
    }
    if let Some(Err(refusal)) = &dumped {
        assert_ne!(refusal.errno, 0);
    }
    exchanged.messages.iter().for_each(|message| parse_as_every_type(message));
    parse_as_every_type(datagram);
}

fn weight(messages: &[Vec<u8>]) -> usize {
    messages.iter().map(Vec::len).sum()
}

/// Makes the header of a message of `length` bytes, including the header.
fn header(length: usize, sequence: u32) -> Vec<u8> {
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    [&length.to_ne_bytes()[..], &[16, 0, 5, 0], &sequence.to_ne_bytes(), &[0; 4]].concat()
}

fn parse_as_every_type(message: &[u8]) {
    if let Some(link) = wire::link(message) {
        let text = link.name.len() + link.alias.map_or(0, |alias| alias.len()) + link.altnames.concat().len();
        // Each byte that is not UTF-8 becomes three bytes (U+FFFD).
        assert!(text <= 3 * message.len());
    }
    if let Some(address) = wire::address(message) {
        assert!(address.address.prefix() <= longest(address.address.ip()));
    }
    let routes = wire::routes(message).unwrap_or_default();
    assert!(routes.len() <= 1 + message.len() / 8, "a route for each next hop at most");
    for route in routes {
        check_sendable(&route);
    }
    wire::neighbour(message);
    wire::qdisc(message);
    wire::htb_class(message);
    if let Some(rule) = wire::filter(message).and_then(|filter| filter.rule) {
        filter(7, &rule);
    }
    let vlans = wire::vlans(message);
    assert!(vlans.len() * 4 <= message.len());
    for range in vlans {
        assert!(range.first <= range.last, "{range:?} is a range");
        assert!(!range.to_string().is_empty());
    }
}

/// Checks that a parsed route is the same after it has been sent and parsed again. A route that mixes address families cannot be
/// sent.
fn check_sendable(route: &KernelRoute) {
    let mut batch = Batch::new();
    batch.replace_route(route);
    let Ok(messages) = wire::messages(batch) else { return };
    let again = wire::routes(&messages[0]).expect("what we send is a route");
    // Only the kernel marks a next hop as dead.
    assert_eq!(again, [KernelRoute { scope: again[0].scope, dead: false, ..route.clone() }]);
}

/// Makes random changes, and checks that each message that we send is parsed as what was meant.
pub(crate) fn sent(data: &[u8]) {
    repeat(data, change);
}

fn change(bytes: &mut Unstructured<'_>) -> Result<()> {
    let index = bytes.arbitrary::<u32>()?;
    match bytes.int_in_range(0..=7)? {
        0 => address(
            index,
            &NewAddress::from(network(bytes)?)
                .no_dad(bytes.arbitrary()?)
                .no_prefix_route(bytes.arbitrary()?)
                .scope(bytes.arbitrary()?),
        ),
        1 => route(&a_route(bytes)?),
        2 => neighbour(index, ip(bytes)?),
        3 => link(index, &a_change(bytes)?),
        4 => filter(index, &a_filter(bytes)?),
        5 => class(index, HtbClass { rate: bytes.arbitrary()?, buffer: bytes.arbitrary()? }),
        6 => shaper(
            index,
            Tbf {
                rate: bytes.arbitrary()?,
                limit: bytes.arbitrary()?,
                buffer: bytes.arbitrary()?,
                burst: bytes.arbitrary()?,
            },
        ),
        _ => vlans(index, a_range(bytes)?),
    }
    Ok(())
}

fn only(batch: Batch) -> Vec<u8> {
    let mut messages = wire::messages(batch).expect("it can be sent");
    assert_eq!(messages.len(), 1);
    let message = messages.remove(0);
    let length = u32::from_ne_bytes(message[..4].try_into().expect("a header has a length"));
    assert_eq!(length as usize, message.len());
    message
}

fn address(index: u32, wanted: &NewAddress) {
    let mut batch = Batch::new();
    batch.add_address(index, wanted);
    let found = wire::address(&only(batch)).expect("it is an address");
    assert_eq!((found.index, found.address, found.scope), (index, wanted.address, wanted.scope));
    assert_eq!((found.no_dad, found.no_prefix_route), (wanted.no_dad, wanted.no_prefix_route));
    if let (Some(broadcast), IpNetwork::V4(v4)) = (found.broadcast, wanted.address) {
        assert_eq!(broadcast, v4.broadcast());
    }
}

fn route(wanted: &KernelRoute) {
    let mut batch = Batch::new();
    batch.add_route(wanted);
    let Ok(messages) = wire::messages(batch) else {
        let families = [wanted.gateway, wanted.source].into_iter().flatten().map(|ip| ip.is_ipv4());
        assert!(families.into_iter().any(|ipv4| ipv4 != wanted.dst.is_ipv4()), "{wanted:?} can be sent");
        return;
    };
    let found = wire::routes(&messages[0]).expect("it is a route");
    let scope = wanted.scope.or(found[0].scope);
    assert_eq!(found, [KernelRoute { scope, ..wanted.clone() }]);
}

fn neighbour(index: u32, address: IpAddr) {
    let mut batch = Batch::new();
    batch.delete_neighbour(index, address);
    let found = wire::neighbour(&only(batch)).expect("it is a neighbour");
    assert_eq!((found.index, found.address, found.mac), (index, address, None));
}

fn link(index: u32, wanted: &LinkChange) {
    let mut batch = Batch::new();
    batch.set_link(index, wanted);
    let found = wire::link(&only(batch)).expect("it is a link");
    assert_eq!(found.index, index);
    assert_eq!((found.mac, found.master), (wanted.mac, wanted.master));
    assert_eq!(found.alias, wanted.alias);
    assert_eq!(found.name, wanted.name.clone().unwrap_or_default());
    assert_eq!(found.mtu, wanted.mtu.unwrap_or_default());
    assert_eq!((found.up, found.promiscuous), (wanted.up == Some(true), wanted.promiscuous == Some(true)));
}

fn filter(index: u32, wanted: &FilterRule) {
    for place in [QdiscPlace::Root, QdiscPlace::Ingress] {
        let mut batch = Batch::new();
        batch.add_filter(index, place, wanted);
        let found = wire::filter(&only(batch)).expect("it is a filter");
        assert_eq!(found.rule, Some(*wanted));
    }
}

fn class(index: u32, wanted: HtbClass) {
    let mut batch = Batch::new();
    batch.set_htb_class(index, &wanted);
    assert_eq!(wire::htb_class(&only(batch)), Some(wanted));
}

fn shaper(index: u32, wanted: Tbf) {
    let mut batch = Batch::new();
    batch.set_tbf(index, &wanted);
    let found = wire::qdisc(&only(batch)).expect("it is a qdisc");
    assert_eq!(found.tbf, Some(Tbf { burst: None, ..wanted }));
}

fn vlans(port: u32, range: VlanRange) {
    let mut added = Batch::new();
    let mut removed = Batch::new();
    added.add_vlans(port, &[range]);
    removed.delete_vlans(port, range);
    for batch in [added, removed] {
        if range.first > range.last {
            assert!(wire::messages(batch).is_err(), "{range:?} is none");
            continue;
        }
        let message = only(batch);
        assert_eq!(message[HEADER + 4..HEADER + 8], port.to_ne_bytes(), "the port's number is at its position");
    }
}

fn a_filter(bytes: &mut Unstructured<'_>) -> Result<FilterRule> {
    let net = network(bytes)?;
    let net = IpNetwork::new(net.network(), net.prefix()).expect("it had this prefix");
    let packets = match bytes.int_in_range(0..=2)? {
        0 => PacketMatch::All,
        1 => PacketMatch::From(net),
        _ => PacketMatch::To(net),
    };
    let redirects_to = bytes.arbitrary()?;
    Ok(FilterRule { preference: bytes.arbitrary()?, packets, class: bytes.arbitrary()?, redirects_to })
}

fn a_route(bytes: &mut Unstructured<'_>) -> Result<KernelRoute> {
    let gateway = bytes.arbitrary()?;
    let source = bytes.arbitrary()?;
    Ok(KernelRoute {
        gateway: if gateway { Some(ip(bytes)?) } else { None },
        source: if source { Some(ip(bytes)?) } else { None },
        index: bytes.arbitrary()?,
        table: bytes.arbitrary()?,
        scope: bytes.arbitrary()?,
        priority: bytes.arbitrary()?,
        mtu: bytes.arbitrary()?,
        advmss: bytes.arbitrary()?,
        protocol: bytes.arbitrary()?,
        onlink: bytes.arbitrary()?,
        kind: bytes.arbitrary()?,
        ..KernelRoute::to(network(bytes)?)
    })
}

fn a_change(bytes: &mut Unstructured<'_>) -> Result<LinkChange> {
    let word = |text: String| text.replace('\0', "");
    let mut change = LinkChange::default();
    change.up = bytes.arbitrary()?;
    change.alias = bytes.arbitrary::<Option<String>>()?.map(word);
    change.mtu = bytes.arbitrary()?;
    change.mac = bytes.arbitrary::<Option<[u8; 6]>>()?.map(Mac);
    change.master = bytes.arbitrary()?;
    change.promiscuous = bytes.arbitrary()?;
    change.hairpin = bytes.arbitrary()?;
    change.isolated = bytes.arbitrary()?;
    change.link_local_learning = bytes.arbitrary()?;
    change.name = bytes.arbitrary::<Option<String>>()?.map(word);
    change.group = bytes.arbitrary()?;
    change.all_multicast = bytes.arbitrary()?;
    change.tx_queue_length = bytes.arbitrary()?;
    Ok(change)
}

fn a_range(bytes: &mut Unstructured<'_>) -> Result<VlanRange> {
    Ok(VlanRange {
        first: bytes.arbitrary()?,
        last: bytes.arbitrary()?,
        pvid: bytes.arbitrary()?,
        untagged: bytes.arbitrary()?,
    })
}

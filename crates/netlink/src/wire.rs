//! Parse and encode messages without a socket, for the fuzzers. Not part of the public API.

use crate::dump::{Dump, keep};
use crate::exchange::Answers;
use crate::{
    Address, Batch, Exchanged, Filter, HtbClass, KernelRoute, Link, Neighbour, NetlinkError, Qdisc, Result, RouteCopy,
    RoutingRule, VlanRange, route,
};

/// Parses an `RTM_NEWLINK` message.
pub fn link(message: &[u8]) -> Option<Link> {
    Link::parse(message)
}

/// Parses an `RTM_NEWADDR` message.
pub fn address(message: &[u8]) -> Option<Address> {
    Address::parse(message)
}

/// Parses an `RTM_NEWROUTE` message into one route per next hop.
pub fn routes(message: &[u8]) -> Option<Vec<KernelRoute>> {
    route::parse(message)
}

/// Parses an `RTM_NEWROUTE` message into route copies.
pub fn route_copies(message: &[u8]) -> Vec<RouteCopy> {
    RouteCopy::read_all(message)
}

/// Parses an `RTM_NEWRULE` message.
pub fn rule(message: &[u8]) -> Option<RoutingRule> {
    RoutingRule::parse(message)
}

/// Parses an `RTM_NEWNEIGH` message.
pub fn neighbour(message: &[u8]) -> Option<Neighbour> {
    Neighbour::parse(message)
}

/// Parses an `RTM_NEWQDISC` message.
pub fn qdisc(message: &[u8]) -> Option<Qdisc> {
    Qdisc::parse(message)
}

/// Parses an `RTM_NEWTFILTER` message.
pub fn filter(message: &[u8]) -> Option<Filter> {
    Filter::parse(message)
}

/// Parses an `RTM_NEWTCLASS` message.
pub fn htb_class(message: &[u8]) -> Option<HtbClass> {
    HtbClass::parse(message)
}

/// Parses an `RTM_NEWVLAN` message.
pub fn vlans(message: &[u8]) -> Vec<VlanRange> {
    VlanRange::parse_all(message)
}

/// The encoded messages of a batch, with sequence numbers from 1.
///
/// # Errors
/// A change cannot be expressed in a message.
pub fn messages(batch: Batch) -> Result<Vec<Vec<u8>>> {
    let requests = batch.into_requests()?;
    Ok(requests.iter().zip(1..).map(|(request, sequence)| request.pack(sequence)).collect())
}

/// The answers to a request in a datagram for this port, and whether they are complete: see
/// [`Socket::exchange`](crate::Socket::exchange).
pub fn answered(question: &[u8], awaited: &[u32], port: u32, datagram: &[u8]) -> (Exchanged, bool) {
    let mut answers = Answers::to(question, awaited);
    answers.take(port, datagram);
    let complete = answers.complete();
    (answers.exchanged, complete)
}

/// The messages of a dump in a datagram for this port and sequence number, or the error for which the dump has to be repeated or
/// fails; `None` if more datagrams follow.
pub fn dumped(port: u32, sequence: u32, datagram: &[u8]) -> Option<std::result::Result<Vec<Vec<u8>>, NetlinkError>> {
    let mut dump = Dump::default();
    dump.take_all((port, sequence), datagram, &mut keep);
    dump.end.is_some().then(|| dump.result().into_taken())
}

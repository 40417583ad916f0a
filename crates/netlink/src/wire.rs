//! Both ways of the wire without a socket: what bytes of the kernel's are read as, and the bytes that it would be sent.
//!
//! For a fuzzer, which has bytes and no kernel; not part of what this crate promises.

use crate::dump::{Dump, keep};
use crate::exchange::Answers;
use crate::{
    Address, Batch, Exchanged, KernelRoute, Link, Neighbour, NetlinkError, Result, RouteCopy, RoutingRule, VlanRange,
    route,
};

/// What an `RTM_NEWLINK` message says.
pub fn link(message: &[u8]) -> Option<Link> {
    Link::parse(message)
}

/// What an `RTM_NEWADDR` message says.
pub fn address(message: &[u8]) -> Option<Address> {
    Address::parse(message)
}

/// What an `RTM_NEWROUTE` message says, a route for each next hop.
pub fn routes(message: &[u8]) -> Option<Vec<KernelRoute>> {
    route::parse(message)
}

/// The copies that an `RTM_NEWROUTE` message is read as.
pub fn route_copies(message: &[u8]) -> Vec<RouteCopy> {
    RouteCopy::read_all(message)
}

/// What an `RTM_NEWRULE` message says.
pub fn rule(message: &[u8]) -> Option<RoutingRule> {
    RoutingRule::parse(message)
}

/// What an `RTM_NEWNEIGH` message says.
pub fn neighbour(message: &[u8]) -> Option<Neighbour> {
    Neighbour::parse(message)
}

/// What an `RTM_NEWVLAN` message says.
pub fn vlans(message: &[u8]) -> Vec<VlanRange> {
    VlanRange::parse_all(message)
}

/// The messages that a batch would be sent as, numbered from 1.
///
/// # Errors
/// A change that no message can say.
pub fn messages(batch: Batch) -> Result<Vec<Vec<u8>>> {
    let requests = batch.into_requests()?;
    Ok(requests.iter().zip(1..).map(|(request, sequence)| request.pack(sequence)).collect())
}

/// What a datagram for this port answers to a question, and whether that is all: see [`Socket::exchange`](crate::Socket::exchange).
pub fn answered(question: &[u8], awaited: &[u32], port: u32, datagram: &[u8]) -> (Exchanged, bool) {
    let mut answers = Answers::to(question, awaited);
    answers.take(port, datagram);
    let complete = answers.complete();
    (answers.exchanged, complete)
}

/// What a datagram for this port and sequence number is of a dump: all its messages, or why it has to be read again or
/// cannot be read; `None` if more is to come.
pub fn dumped(port: u32, sequence: u32, datagram: &[u8]) -> Option<std::result::Result<Vec<Vec<u8>>, NetlinkError>> {
    let mut dump = Dump::default();
    dump.take_all((port, sequence), datagram, &mut keep);
    dump.end.is_some().then(|| dump.result().into_taken())
}

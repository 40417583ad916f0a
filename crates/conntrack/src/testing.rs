//! What a message says of a flow, and the message that deletes it, without a socket.
//!
//! For a fuzzer, which has bytes and no kernel; not part of what this crate promises.

use std::net::SocketAddr;

use crate::flow::Entry;

/// The protocol of a flow that a message of a dump describes, where its first packet was sent to, and who answers.
pub fn flow(message: &[u8]) -> Option<(u8, SocketAddr, SocketAddr)> {
    Entry::read(message).map(|entry| (entry.protocol, entry.to, entry.answers))
}

/// The message that deletes this flow.
pub fn deletion(message: &[u8]) -> Option<Vec<u8>> {
    Entry::read(message).map(|entry| entry.deletion().encode(1))
}

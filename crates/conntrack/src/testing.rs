//! Reads and deletes flows in messages without a socket.
//!
//! For the fuzzers, which have no kernel. Not part of the stable interface of this crate.

use std::net::SocketAddr;

use crate::flow::Entry;

/// The protocol of a flow in a message of a dump, the destination of its first packet, and the source of the replies.
pub fn flow(message: &[u8]) -> Option<(u8, SocketAddr, SocketAddr)> {
    Entry::read(message).map(|entry| (entry.protocol, entry.to, entry.reply_from))
}

/// The message that deletes this flow.
pub fn deletion(message: &[u8]) -> Option<Vec<u8>> {
    Entry::read(message).map(|entry| entry.deletion().encode(1))
}

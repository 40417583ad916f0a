//! What netfilter sends, without a socket: how its bytes are read, and a rule of ours as it would send it back.
//!
//! For whoever has bytes and no kernel, a fuzzer above all; no part of what this crate promises.

use std::net::SocketAddr;

use crate::attribute::Attributes;
use crate::flow::Entry;
use crate::hook::FoundChain;
use crate::message::{HEADERS, Message, rule};
use crate::state::{Standing, body};
use crate::xtables_compat::iptables_rule;
use crate::{InstalledRule, Result, Rule, Set, TableFamily, TableLayout, iptables};

/// What a message of a dump says of a rule, if it stands in this chain.
pub fn rule(message: &[u8], frame: &TableLayout, chain: &str) -> Option<InstalledRule> {
    InstalledRule::read(message, frame, chain, |_| true)
}

/// The rule in words of iptables, as far as it has any: one that its programs wrote.
pub fn of_iptables(found: &InstalledRule, frame: &TableLayout) -> iptables::IptablesRule {
    iptables_rule(found, frame.family)
}

/// A rule as a dump has it, whoever asked: what we would send, and the handle that the kernel adds to it.
///
/// # Errors
/// A rule that cannot be written.
pub fn sent_back(
    written: &Rule,
    frame: &TableLayout,
    chain: &str,
    owner: Option<&str>,
    handle: u64,
) -> Result<Vec<u8>> {
    let message = Message::append_rule(frame, chain, &body(written, frame, owner)?, "");
    let handle = Attributes::new().bytes(rule::HANDLE, &handle.to_be_bytes());
    Ok([message.encode(1).as_slice(), handle.as_bytes()].concat())
}

/// Whether what was found needs no change to be this rule of this owner's.
///
/// # Errors
/// A rule that cannot be written.
pub fn is(found: &InstalledRule, written: &Rule, frame: &TableLayout, owner: Option<&str>) -> Result<bool> {
    Ok(found.is(&body(written, frame, owner)?))
}

/// What the answer to a question for a chain says: its hook in the words of nft(8), and how often it is used.
pub fn chain(message: &[u8]) -> Option<(Option<String>, usize)> {
    let found = FoundChain::read(message.get(HEADERS..)?);
    Some((found.hook.map(|hook| hook.to_string()), found.uses))
}

/// Whether the answer to a question for a table says that its rules do something.
pub fn works(message: &[u8]) -> bool {
    Standing::read(Some(message)) == Standing::Working
}

/// What a message of a dump says of a tracked flow: its protocol, where its first packet was sent to, and who answers.
pub fn flow(message: &[u8]) -> Option<(u8, SocketAddr, SocketAddr)> {
    Entry::read(message).map(|entry| (entry.protocol, entry.to, entry.answers))
}

/// The message that has this flow forgotten.
pub fn forgetting(message: &[u8]) -> Option<Vec<u8>> {
    Entry::read(message).map(|entry| entry.deletion().encode(1))
}

/// Whether the answer to a question for a set says that its keys are of the type that this one has.
pub fn is_set(message: &[u8], set: &Set) -> bool {
    set.refuse_other(&TableLayout::of(TableFamily::Inet, "t"), message).is_ok()
}

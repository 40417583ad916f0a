//! What netfilter sends, without a socket: how its bytes are read, and a rule of ours as it would send it back.
//!
//! For whoever has bytes and no kernel, a fuzzer above all; no part of what this crate promises.

use cnikit_netlink::attribute::Attributes;
use cnikit_netlink::nfnetlink::HEADERS;

use crate::Result;
use crate::rule::set::Set;
use crate::rule::types::{Rule, TableFamily};
use crate::ruleset::hook::InstalledChain;
use crate::ruleset::installed_rule::InstalledRule;
use crate::ruleset::layout::TableLayout;
use crate::ruleset::message::{self, body};
use crate::ruleset::table_state::TableStatus;
use crate::wire::attribute::rule;

/// What a message of a dump says of a rule, if it stands in this chain.
pub fn rule(message: &[u8], layout: &TableLayout, chain: &str) -> Option<InstalledRule> {
    InstalledRule::read(message, layout, chain, |_| true)
}

/// A rule as a dump has it, whoever asked: what we would send, and the handle that the kernel adds to it.
///
/// # Errors
/// A rule that cannot be written.
pub fn sent_back(
    written: &Rule,
    layout: &TableLayout,
    chain: &str,
    owner: Option<&str>,
    handle: u64,
) -> Result<Vec<u8>> {
    let message = message::append_rule(layout, chain, &body(written, layout, owner)?, "");
    let handle = Attributes::new().bytes(rule::HANDLE, &handle.to_be_bytes());
    Ok([message.encode(1).as_slice(), handle.as_bytes()].concat())
}

/// Whether what was found needs no change to be this rule of this owner's.
///
/// # Errors
/// A rule that cannot be written.
pub fn is(found: &InstalledRule, written: &Rule, layout: &TableLayout, owner: Option<&str>) -> Result<bool> {
    Ok(found.is(&body(written, layout, owner)?))
}

/// What the answer to a question for a chain says: its hook in the words of nft(8), and how often it is used.
pub fn chain(message: &[u8]) -> Option<(Option<String>, usize)> {
    let found = InstalledChain::read(message.get(HEADERS..)?);
    Some((found.hook.map(|hook| hook.to_string()), found.uses))
}

/// Whether the answer to a question for a table says that its rules do something.
pub fn works(message: &[u8]) -> bool {
    TableStatus::read(Some(message)) == TableStatus::Working
}

/// Whether the answer to a question for a set says that its keys are of the type that this one has.
pub fn is_set(message: &[u8], set: &Set) -> bool {
    set.refuse_other(&TableLayout::of(TableFamily::Inet, "t"), message).is_ok()
}

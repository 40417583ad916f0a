//! Reads messages of netfilter without a socket, and encodes rules as the kernel sends them.
//!
//! For the fuzzers, which have no kernel. Not part of the stable interface of this crate.

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

/// Reads a rule in a message of a dump; `None` if it is in another chain.
pub fn rule(message: &[u8], layout: &TableLayout, chain: &str) -> Option<InstalledRule> {
    InstalledRule::read(message, layout, chain, |_| true)
}

/// The message of a dump for a rule of ours: the message that adds it, and the handle that the kernel assigns.
///
/// # Errors
/// A rule that cannot be encoded.
pub fn dumped_rule(
    rule: &Rule,
    layout: &TableLayout,
    chain: &str,
    owner: Option<&str>,
    handle: u64,
) -> Result<Vec<u8>> {
    let message = message::append_rule(layout, chain, &body(rule, layout, owner)?, "");
    let handle = Attributes::new().bytes(rule::HANDLE, &handle.to_be_bytes());
    Ok([message.encode(1).as_slice(), handle.as_bytes()].concat())
}

/// Whether an installed rule is the same as this rule of this owner.
///
/// # Errors
/// A rule that cannot be encoded.
pub fn is_same(installed: &InstalledRule, rule: &Rule, layout: &TableLayout, owner: Option<&str>) -> Result<bool> {
    Ok(installed.is_same(&body(rule, layout, owner)?))
}

/// Reads the answer to a question for a chain: its hook as nft(8) shows it, and its use count.
pub fn chain(message: &[u8]) -> Option<(Option<String>, usize)> {
    let chain = InstalledChain::read(message.get(HEADERS..)?);
    Some((chain.hook.map(|hook| hook.to_string()), chain.uses))
}

/// Whether the answer to a question for a table says that it is not dormant.
pub fn is_working(message: &[u8]) -> bool {
    TableStatus::read(Some(message)) == TableStatus::Working
}

/// Whether the answer to a question for a set has the type of this set's keys.
pub fn is_set(message: &[u8], set: &Set) -> bool {
    set.refuse_other(&TableLayout::of(TableFamily::Inet, "t"), message).is_ok()
}

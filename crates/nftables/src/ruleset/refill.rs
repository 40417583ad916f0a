//! Chains that are flushed and filled again, where that costs less than deleting rules one by one.
//!
//! To delete a rule, the kernel walks its chain from the beginning: deleting thousands of rules that follow thousands of others
//! takes hundreds of millions of steps. Flushing a chain is one message. The remaining rules are added again in the same
//! transaction and in their order, so no packet meets the chain without them.

use cnikit_netlink::nfnetlink::NetfilterMessage;

use crate::ruleset::installed_rule::InstalledRule;
use crate::ruleset::layout::TableLayout;
use crate::ruleset::message;
use crate::ruleset::nftables::Nftables;

/// The most steps that the kernel may walk; they take about a fifth of a second.
const MAX_STEPS: usize = 16_000_000;
/// The steps that take about as long as adding one rule.
const STEPS_PER_ADDED_RULE: usize = 2_000;
/// The most bytes of such a transaction, most of which are the remaining rules.
const MAX_BYTES: usize = 32 << 20;

/// A chain that is flushed and filled again.
pub(super) struct Refill {
    pub(super) chain: &'static str,
    /// The messages of one transaction.
    pub(super) messages: Vec<NetfilterMessage>,
}

impl Nftables {
    /// The chains that are better flushed and filled again than shortened rule by rule. `rules_by_chain` is in the order of
    /// [`TableLayout::rule_chains`].
    ///
    /// A chain is included only if each remaining rule names its owner and is one that this crate can read: rules of other
    /// programs keep their handles. The socket must be allowed to send the transaction at once.
    pub(super) fn refills(
        &self,
        layout: &TableLayout,
        rules_by_chain: &[Vec<InstalledRule>],
        is_removed: impl Fn(&InstalledRule) -> bool,
    ) -> Vec<Refill> {
        let mut refills = Vec::new();
        for (chain, rules) in layout.rule_chains.iter().zip(rules_by_chain) {
            let mut steps = 0;
            let mut remaining = Vec::new();
            for (position, rule) in rules.iter().enumerate() {
                if is_removed(rule) {
                    steps += position;
                } else {
                    remaining.push(rule);
                }
            }
            if steps < MAX_STEPS || steps / STEPS_PER_ADDED_RULE < remaining.len() {
                continue;
            }
            if remaining.iter().any(|rule| rule.owner().is_none() || rule.rule().is_none()) {
                continue;
            }
            let mut messages = vec![message::flush_chain(layout, chain)];
            for rule in remaining {
                messages.push(message::append_rule(layout, chain, &rule.body, &rule.to_string()));
            }
            let bytes: usize = messages.iter().map(NetfilterMessage::length).sum();
            if bytes <= MAX_BYTES && self.socket.borrow_mut().allow(bytes) {
                refills.push(Refill { chain, messages });
            }
        }
        refills
    }
}

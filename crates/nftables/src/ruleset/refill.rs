//! Chains that are emptied and filled again because that costs less than to remove rules one by one.
//!
//! The kernel finds a rule that is to go by walking its chain from the beginning: thousands of rules behind thousands of others
//! take hundreds of millions of steps. To empty a chain is one message. Those rules that stay are added again in the same
//! transaction, in their order, so no packet meets the chain without them.

use cnikit_netlink::nfnetlink::NetfilterMessage;

use crate::ruleset::installed_rule::InstalledRule;
use crate::ruleset::layout::TableLayout;
use crate::ruleset::message;
use crate::ruleset::nftables::Nftables;

/// As many steps as the kernel may walk (about a fifth of a second).
const STEPS: usize = 16_000_000;
/// As many steps take about as long as one rule that is added.
const STEPS_OF_A_RULE: usize = 2_000;
/// The most bytes of such a transaction: the rules that stay.
const MOST_BYTES: usize = 32 << 20;

impl Nftables {
    /// Of each chain that is better emptied and filled again: its name, and the messages of the transaction that does it.
    ///
    /// Only where all rules that stay are of attachments and this crate has words for them: what other programs wrote keeps
    /// its handle. The socket must be allowed to send that much at once.
    pub(super) fn refills(
        &self,
        layout: &TableLayout,
        held: &[Vec<InstalledRule>],
        meant: impl Fn(&InstalledRule) -> bool,
    ) -> Vec<(&'static str, Vec<NetfilterMessage>)> {
        let mut refills = Vec::new();
        for (chain, rules) in layout.rule_chains.iter().zip(held) {
            let mut steps = 0;
            let mut staying = Vec::new();
            for (place, found) in rules.iter().enumerate() {
                if meant(found) {
                    steps += place;
                } else {
                    staying.push(found);
                }
            }
            if steps < STEPS || steps / STEPS_OF_A_RULE < staying.len() {
                continue;
            }
            if staying.iter().any(|found| found.owner().is_none() || found.rule().is_none()) {
                continue;
            }
            let mut messages = vec![message::flush_chain(layout, chain)];
            for found in staying {
                messages.push(message::append_rule(layout, chain, &found.body, &found.to_string()));
            }
            let bytes: usize = messages.iter().map(NetfilterMessage::length).sum();
            if bytes <= MOST_BYTES && self.socket.borrow_mut().allow(bytes) {
                refills.push((*chain, messages));
            }
        }
        refills
    }
}

//! Masquerade in nftables, in the table that all masqueraded networks of a host share.

use std::net::{IpAddr, Ipv4Addr};

use cnikit_nftables::{
    Chain, Hook, HookKind, HookPoint, LONGEST_COMMENT, Match, Nftables, OwnerFilter, Rule, TableFamily, TableLayout,
    Verdict,
};
use cnikit_plan::{GcContext, ReleaseContext, RestoreBatch};
use cnikit_resources::alias::{cut, hex};
use cnikit_skel::{AttachmentId, Journal, Result, log};
use ipnetwork::IpNetwork;
use sha2::{Digest, Sha512};

use super::backend::BACKEND;
use crate::addresses::network;
use crate::backend::Comparison;
use crate::batch_restore::add_nftables;
use crate::nftables::{replace, shared_nftables, unnamed};

const CHECKS: &str = "masq_checks";
const POSTROUTING: &str = "postrouting";

pub(super) fn ensure(addresses: &[IpNetwork], tag: &AttachmentId, journal: &mut Journal) -> Result<()> {
    let filter = OwnerFilter::from(&prefix(tag));
    let nftables = Nftables::here()?;
    replace(&nftables, &layout(), filter, &rules(addresses, tag), &BACKEND.undo_name(tag), journal)
        .map_err(|error| BACKEND.explained_nftables(error))
}

pub(super) fn enqueue(addresses: &[IpNetwork], tag: &AttachmentId, batch: &mut RestoreBatch) -> Result<()> {
    add_nftables(batch, layout(), &prefix(tag), &rules(addresses, tag), None)
}

/// Whether there are rules of an attachment.
pub(super) fn has_any(tag: &AttachmentId) -> Result<bool> {
    Ok(!Nftables::here()?.rules(&layout(), &prefix(tag))?.is_empty())
}

pub(super) fn verify(addresses: &[IpNetwork], tag: &AttachmentId) -> Result<Comparison> {
    let nftables = Nftables::here()?;
    let prefix = prefix(tag);
    let any = !nftables.rules(&layout(), &prefix)?.is_empty();
    let drifts = nftables.verify(&layout(), &prefix, &rules(addresses, tag))?;
    Ok(Comparison { any, drifts, ..Comparison::default() })
}

fn rules(addresses: &[IpNetwork], tag: &AttachmentId) -> Vec<Rule> {
    let comment = comment(tag);
    let mut rules = Vec::new();
    for address in addresses {
        let matches = vec![Match::Source(address.ip()), Match::DestinationNotIn(network(*address))];
        rules.push(Rule { matches, verdict: Verdict::Masquerade, comment: Some(comment.clone()) });
    }
    rules
}

/// The table that all masqueraded networks of a host share.
fn layout() -> TableLayout {
    let mut prologue = Vec::new();
    for multicast in ["224.0.0.0/4", "ff00::/8"] {
        if let Ok(network) = multicast.parse() {
            prologue.push(rule(vec![Match::DestinationIn(network)], Verdict::Return));
        }
    }
    prologue.push(rule(Vec::new(), Verdict::Goto(CHECKS.into())));
    TableLayout {
        table_comment: Some("Masquerading for plugins from github.com/containernetworking/plugins"),
        chains: vec![
            Chain {
                name: CHECKS,
                comment: Some("Masquerade traffic from certain IPs to any (non-multicast) IP outside their subnet"),
                hook: None,
            },
            Chain {
                name: POSTROUTING,
                comment: None,
                hook: Some(Hook { kind: HookKind::Nat, hook: HookPoint::Postrouting, priority: 100 }),
            },
        ],
        prologue: vec![(POSTROUTING, prologue)],
        rule_chains: vec![CHECKS],
        ..TableLayout::of(TableFamily::Inet, "cni_plugins_masquerade")
    }
}

fn rule(matches: Vec<Match>, verdict: Verdict) -> Rule {
    Rule { matches, verdict, comment: None }
}

/// The text that the comments of an attachment begin with: a hash of the network, and one of interface and container.
fn prefix(tag: &AttachmentId) -> String {
    format!("{}-{}", hash(&tag.network), hash(&format!("{}:{}", tag.ifname, tag.container)))
}

fn comment(tag: &AttachmentId) -> String {
    let text = format!("{}, net: {}, if: {}, id: {}", prefix(tag), tag.network, tag.ifname, tag.container);
    cut(text.replace('"', ""), LONGEST_COMMENT)
}

fn hash(text: &str) -> String {
    hex(&Sha512::digest(text.as_bytes())[..8])
}

pub(super) fn release(context: &ReleaseContext) -> Result<()> {
    let Some(nftables) = shared_nftables(context.shared())? else { return Ok(()) };
    log_removed(nftables.release(&layout(), &prefix(&context.tag))?);
    Ok(())
}

pub(super) fn sweep(context: &GcContext) -> Result<()> {
    let Some(nftables) = shared_nftables(context.shared())? else { return Ok(()) };
    let valid: Vec<String> = context.tags().map(|tag| prefix(&tag)).collect();
    let keep = |comment: &str| valid.iter().any(|prefix| comment.starts_with(prefix));
    log_removed(nftables.sweep(&layout(), &format!("{}-", hash(&context.network)), keep)?);
    Ok(())
}

fn log_removed(count: usize) {
    if count > 0 {
        log::info(format_args!("removed {count} masquerade rules"));
    }
}

/// Checks for STATUS that the kernel supports these rules, by trying those of an attachment without a name.
pub(super) fn available() -> Result<()> {
    let unnamed = unnamed();
    let rules = rules(&[IpNetwork::from(IpAddr::from(Ipv4Addr::LOCALHOST))], &unnamed);
    Nftables::here()
        .and_then(|here| here.rehearse(&layout(), &prefix(&unnamed), &rules))
        .map_err(|error| BACKEND.explained_nftables(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(network: &str, container: &str, ifname: &str) -> AttachmentId {
        AttachmentId { network: network.into(), container: container.into(), ifname: ifname.into() }
    }

    #[test]
    fn comments_are_equal_to_upstreams() {
        assert_eq!(prefix(&tag("unit-test", "one", "eth0")), "6fd94d501e58f0aa-287fc69eff0574a2");
        let expected = "43d91f8451058a70-f4d01f2ef4b92245, net: n1, if: eth0, id: c1";
        assert_eq!(comment(&tag("n1", "c1", "eth0")), expected);
    }

    #[test]
    fn a_comment_never_outgrows_the_kernel() {
        assert_eq!(comment(&tag(&"n".repeat(200), "c1", "eth0")).len(), LONGEST_COMMENT);
    }

    #[test]
    fn all_that_leaves_the_subnet_of_an_address_is_masqueraded_but_multicast() {
        let tag = tag("net \"1\"", "c1", "eth0");
        let addresses = ["10.1.0.2/24", "fd00::2/64"].map(|text| text.parse().unwrap());
        let shown: Vec<String> = rules(&addresses, &tag).iter().map(Rule::to_string).collect();
        let comment = format!("comment \"{}, net: net 1, if: eth0, id: c1\"", prefix(&tag));
        let wanted = [
            format!("ip saddr 10.1.0.2 ip daddr != 10.1.0.0/24 masquerade {comment}"),
            format!("ip6 saddr fd00::2 ip6 daddr != fd00::/64 masquerade {comment}"),
        ];
        assert_eq!(shown, wanted);
        let TableLayout { prologue, chains, rule_chains, table_comment, .. } = layout();
        let shown: Vec<String> = prologue[0].1.iter().map(Rule::to_string).collect();
        assert_eq!(shown, ["ip daddr 224.0.0.0/4 return", "ip6 daddr ff00::/8 return", "goto masq_checks"]);
        let hooks: Vec<_> =
            chains.iter().map(|chain| (chain.name, chain.hook.as_ref().map(|one| one.priority))).collect();
        assert_eq!((prologue[0].0, hooks), (POSTROUTING, vec![(CHECKS, None), (POSTROUTING, Some(100))]));
        assert!(rule_chains == [CHECKS] && table_comment.is_some());
    }
}

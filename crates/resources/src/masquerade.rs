//! What leaves the network leaves under the host's address.

use std::fmt;

use cnikit_netfilter::{Chain, Family, Frame, Hook, HookKind, HookPoint, Match, Nftables, Rule, Verdict};
use cnikit_plan::{Drifts, Kind, Made, Remains, Resource, Scene, Stale};
use cnikit_skel::{Journal, Result, Tag, log};
use ipnetwork::IpNetwork;
use sha2::{Digest, Sha512};

use crate::alias::hex;

/// Packets of these addresses to anywhere outside their network, multicast apart, are masqueraded.
///
/// Table, chains, rules and comments are the reference's, so that its DEL removes ours and ours removes the reference's.
#[derive(Clone, Debug)]
#[doc(alias = "ipMasq")]
pub struct Masquerade {
    /// The container's addresses, with their prefixes.
    pub addresses: Vec<IpNetwork>,
}

/// Rules are found by the start of their comment.
pub const KIND: Kind = Kind { name: "masquerade", release, sweep, outlives_link: true };

const CHECKS: &str = "masq_checks";
const POSTROUTING: &str = "postrouting";
/// What the kernel keeps of a comment.
const LONGEST_COMMENT: usize = 128;

impl Resource for Masquerade {
    fn kind(&self) -> Kind {
        KIND
    }

    fn ensure(&self, scene: &Scene, journal: &mut Journal) -> Result<Made> {
        let prefix = prefix(&scene.tag);
        let before = Nftables::here()?.replace(&frame(), &prefix, &self.rules(&scene.tag))?;
        // What this tag had may be a running container's: it is put back, not removed.
        let _ =
            journal.undo(&Label(scene.tag.clone()), move |_| Nftables::here()?.put_back(&frame(), &prefix, &before));
        Ok(Made::nothing())
    }

    fn verify(&self, scene: &Scene, drifts: &mut Drifts) -> Result<()> {
        let found = Nftables::here()?.verify(&frame(), &prefix(&scene.tag), &self.rules(&scene.tag))?;
        drifts.extend(found.into_iter().map(|text| format!("masquerade: {text}")));
        Ok(())
    }
}

impl Masquerade {
    fn rules(&self, tag: &Tag) -> Vec<Rule> {
        let rule = |address: &IpNetwork| Rule {
            matches: vec![Match::Source(address.ip()), Match::DestinationNotIn(network(*address))],
            verdict: Verdict::Masquerade,
            comment: Some(comment(tag)),
        };
        self.addresses.iter().map(rule).collect()
    }
}

impl fmt::Display for Masquerade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<String> = self.addresses.iter().map(|one| one.ip().to_string()).collect();
        write!(f, "masquerade {} on the host (nftables)", addresses.join(", "))
    }
}

#[derive(Clone)]
struct Label(Tag);

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "masquerade rules of {}", self.0)
    }
}

/// The address without its host bits.
fn network(address: IpNetwork) -> IpNetwork {
    IpNetwork::new(address.network(), address.prefix()).unwrap_or(address)
}

/// The table that all masqueraded networks of a host share.
fn frame() -> Frame {
    let multicast = |net: &str| net.parse().ok().map(|net| rule(vec![Match::DestinationIn(net)], Verdict::Return));
    let mut fixed: Vec<Rule> = ["224.0.0.0/4", "ff00::/8"].into_iter().filter_map(multicast).collect();
    fixed.push(rule(Vec::new(), Verdict::Goto(CHECKS)));
    Frame {
        family: Family::Inet,
        table: "cni_plugins_masquerade",
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
        fixed: vec![(POSTROUTING, fixed)],
        holds: CHECKS,
    }
}

fn rule(matches: Vec<Match>, verdict: Verdict) -> Rule {
    Rule { matches, verdict, comment: None }
}

/// By which all rules of one attachment begin: hashes of the network, and of interface and container.
fn prefix(tag: &Tag) -> String {
    format!("{}-{}", hash(&tag.network), hash(&format!("{}:{}", tag.ifname, tag.container)))
}

fn comment(tag: &Tag) -> String {
    let text = format!("{}, net: {}, if: {}, id: {}", prefix(tag), tag.network, tag.ifname, tag.container);
    let mut text = text.replace('"', "");
    text.truncate(text.floor_char_boundary(LONGEST_COMMENT));
    text
}

fn hash(text: &str) -> String {
    hex(&Sha512::digest(text.as_bytes())[..8])
}

fn release(remains: &Remains) -> Result<()> {
    let Some(mut nftables) = opened()? else { return Ok(()) };
    removed(nftables.release(&frame(), &prefix(&remains.tag))?);
    Ok(())
}

fn sweep(stale: &Stale) -> Result<()> {
    let Some(mut nftables) = opened()? else { return Ok(()) };
    let valid: Vec<String> = stale.tags().map(|tag| prefix(&tag)).collect();
    let keep = |comment: &str| valid.iter().any(|prefix| comment.starts_with(prefix));
    removed(nftables.sweep(&frame(), &format!("{}-", hash(&stale.network)), keep)?);
    Ok(())
}

/// A kernel without nftables has no rules of ours.
fn opened() -> Result<Option<Nftables>> {
    match Nftables::here() {
        Err(error) if error.unsupported() => Ok(None),
        opened => Ok(Some(opened?)),
    }
}

fn removed(count: usize) {
    if count > 0 {
        log::info(format_args!("removed {count} masquerade rules"));
    }
}

/// Whether the kernel can masquerade, for STATUS.
pub fn available() -> Result<()> {
    Ok(Nftables::here()?.verify(&frame(), "-", &[]).map(drop)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(network: &str, container: &str, ifname: &str) -> Tag {
        Tag { network: network.into(), container: container.into(), ifname: ifname.into() }
    }

    #[test]
    fn comments_are_the_references_to_the_letter() {
        assert_eq!(prefix(&tag("unit-test", "one", "eth0")), "6fd94d501e58f0aa-287fc69eff0574a2");
        let expected = "43d91f8451058a70-f4d01f2ef4b92245, net: n1, if: eth0, id: c1";
        assert_eq!(comment(&tag("n1", "c1", "eth0")), expected);
    }

    #[test]
    fn a_comment_never_outgrows_the_kernel() {
        assert_eq!(comment(&tag(&"n".repeat(200), "c1", "eth0")).len(), LONGEST_COMMENT);
    }
}
